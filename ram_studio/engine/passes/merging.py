"""Merging as the work of a pass: every block by the plan into a sink, and what was counted."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.passes.cpu_backend import Backend
from ram_studio.engine.passes.plan import Merged, Plan
from ram_studio.engine.reading.blocks import Block, blocks_of
from ram_studio.engine.reading.fisher_files import FisherFiles


class Sink(Protocol):
    """Where merged bytes go. Called from several threads at once.

    A sink with a method ``put(block, stored)`` takes tensors as they are, where torch computes.
    """

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Take a piece of a tensor's data."""


@dataclass
class MergeTally:
    """What the merge pass counts: per agent changed and unique elements, and what was stored.

    counts: int64 (2, agents), changed and unique. Sums of stored change are kept per group of
    elements and added exactly, so that the result does not depend on threads or blocks.
    """

    n_agents: int
    counts: np.ndarray = field(init=False)
    sums: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = np.zeros((2, self.n_agents), dtype=np.int64)
        self._lock = threading.Lock()

    def add(self, merged: Merged) -> None:
        """Add one block's counts and sums."""
        if merged.counts is None or merged.sums is None:
            return
        with self._lock:
            self.counts += merged.counts
            self.sums.append(merged.sums)

    def effective_factor(self, agent: int) -> float | None:
        """Return sum((stored - base) tau) / sum(tau**2) over the agent's unique region.

        None when it has no unique element.
        """
        top, bottom = (
            math.fsum(float(n) for sums in self.sums for n in sums[:, i, agent]) for i in (0, 1)
        )
        return top / bottom if bottom else None


@dataclass
class Merging:
    """The work of a merge pass, see ``driver.Work``.

    is_whole: which tensors come as one block; fisher: open files, where the method needs them;
    keep: which blocks to merge, by default all.
    """

    plan: Plan
    tensors: Sequence[MergeTensor]
    sink: Sink
    is_whole: Callable[[MergeTensor], bool]
    fisher: FisherFiles | None = None
    keep: Callable[[Block], bool] | None = None
    stage = "merge"

    def __post_init__(self) -> None:
        self.tally = MergeTally(self.plan.n_agents)
        if not self.plan.is_fused:
            import torch  # noqa: F401  (now, so that the driver keeps it to a thread per call)

    def blocks(self, block_elements: int) -> list[Block]:
        """Return the blocks to merge."""
        every = blocks_of(self.tensors, block_elements, self.is_whole)
        return [block for block in every if self.keep is None or self.keep(block)]

    def worker(self, backend: Backend) -> _MergingWorker:
        """Return one thread's share."""
        return _MergingWorker(self, backend)


class _MergingWorker:
    def __init__(self, work: Merging, backend: Backend) -> None:
        self._work = work
        self._backend = backend

    def block(self, block: Block, base: Any, agents: Any) -> bool:
        """Merge a block into the sink."""
        work = self._work
        weights = None if work.fisher is None else work.fisher.read(block)
        merged = self._backend.merge(work.plan, block, base, agents, weights)
        if merged is None:
            return False
        work.tally.add(merged)
        if not isinstance(merged.stored, np.ndarray) and hasattr(work.sink, "put"):
            work.sink.put(block, merged.stored)
            return True
        stored = self._backend.stored(merged)
        work.sink.write(block.tensor.name, block.start * stored.itemsize, memoryview(stored))
        return True

    def close(self) -> None:
        """Nothing is held back."""
