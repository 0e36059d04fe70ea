"""Merging as the work of a pass: every block by the plan into a sink, with counts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from ram_studio.algorithm.exact_sums import LANES, ExactTotal, exact_product, rounded
from ram_studio.algorithm.kernels.cpu import SUMS
from ram_studio.algorithm.meters.retained import RetainedShares
from ram_studio.algorithm.overlap import shared_of_patterns
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.passes.plan import Backend, MergedBlock, Plan
from ram_studio.engine.reading.blocks import Block, blocks_of
from ram_studio.engine.reading.fisher_files import FisherFiles

TALLY_SUMS = SUMS + 7
"""Sums of a tally for each agent: those of ``kernels.cpu.measure`` and ``_with_moments``."""


class Sink(Protocol):
    """Receives merged bytes. Called from several threads concurrently.

    A sink with a method ``put(block, stored)`` takes torch tensors directly, where torch computes.
    """

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Take a chunk of a tensor's data."""


class MergeTally:
    """Results of the merge pass: overlap patterns, and sums of the stored change.

    Sums of stored change are formed per group of elements and added exactly, so that the result
    does not depend on threads, blocks or parts. Memory does not grow with the model.
    """

    def __init__(self, n_agents: int) -> None:
        self._n_agents = n_agents
        self._patterns: Any = 0
        self._sums = ExactTotal((n_agents, TALLY_SUMS))
        self._waiting: list[np.ndarray] = []
        self._cached_sums: np.ndarray | None = None
        self._is_along = False
        self._lock = threading.Lock()

    def add(self, merged: MergedBlock) -> None:
        """Add one block's counts and sums."""
        if merged.patterns is None or merged.sums is None:
            return
        with self._lock:
            self._patterns = self._patterns + merged.patterns
            self._waiting.append(merged.sums)
            self._cached_sums = None
            self._is_along |= merged.is_along
            if len(self._waiting) >= LANES:
                self._fold()

    def join(self, total: MergedBlock) -> None:
        """Add the total of another tally."""
        if total.patterns is None or total.sums is None:
            return
        self._patterns = self._patterns + total.patterns
        self._sums.join(total.sums)
        self._cached_sums = None
        self._is_along |= total.is_along

    def _fold(self) -> None:
        if self._waiting:
            self._sums.add(_with_moments(np.concatenate(self._waiting)))
            self._waiting.clear()

    @property
    def total(self) -> MergedBlock:
        """The total of all blocks; its ``sums`` are exact, (terms, agents, TALLY_SUMS)."""
        if isinstance(self._patterns, int):
            return MergedBlock(None)
        return MergedBlock(None, self._patterns, self._packed_sums(), self._is_along)

    @property
    def shared(self) -> np.ndarray:
        """Elements that agent t changed together with exactly j others, int64 (agents, agents)."""
        if isinstance(self._patterns, int):
            return np.zeros((self._n_agents, self._n_agents), dtype=np.int64)
        found = self._patterns
        return shared_of_patterns(found) if found.ndim == 1 else found

    def _packed_sums(self) -> np.ndarray:
        self._fold()
        if self._cached_sums is None:
            self._cached_sums = self._sums.packed()
        return self._cached_sums

    def _of(self, agent: int) -> list[float]:
        """Return an agent's sums, see ``TALLY_SUMS``, each rounded once."""
        return rounded(self._packed_sums()[:, agent]).tolist()

    def effective_factor(self, agent: int) -> float | None:
        """Return sum((stored - base) tau) / sum(tau**2) over the agent's unique region.

        None when it has no unique element.
        """
        top, bottom, *_ = self._of(agent)
        return top / bottom if bottom else None

    def effective_interval(self, agent: int) -> tuple[float, float] | None:
        """Return a 95 % confidence interval of the effective factor; None with under two groups.

        A ratio of sums over groups of elements, with the usual error of a ratio estimator: wide
        where a few groups hold most of sum(tau**2), because a few large weights dominate it.
        """
        factor = self.effective_factor(agent)
        _, bottom, *_, count = self._of(agent)[: SUMS + 1]
        if factor is None or count < 2:
            return None
        # sum((top - factor bottom)**2), multiplied out: exact, for it may be far below its terms.
        terms = self._packed_sums()[:, agent, SUMS + 1 :].reshape(-1, 3).T.tolist()
        squares, mixed, bottoms = (sum(map(Fraction, column)) for column in terms)
        spread = squares - 2 * Fraction(factor) * mixed + Fraction(factor) ** 2 * bottoms
        half = 1.96 * math.sqrt(float(spread) * count / (count - 1)) / bottom
        return factor - half, factor + half

    def retained(self, agent: int) -> RetainedShares | None:
        """Return the stored shares of an agent's update, see ``meters.retained``.

        None when it changed nothing.
        """
        top, unique, missed, along, shared, off, norm2, rest, exact = self._of(agent)[:SUMS]
        if not norm2:
            return None
        if self._is_along:
            rest -= (top + along + off) ** 2 / norm2
            exact -= (top - missed + along) ** 2 / norm2
        return RetainedShares.of(
            norm2,
            exact,
            stored_rest=rest,
            unique=unique / norm2,
            boost=(top - missed - unique) / norm2,
            shared=along / norm2,
            rounding=(missed + off) / norm2,
            lost_to_averaging=(shared - along) / norm2,
            lost_to_epsilon=max(0.0, 1.0 - (unique + shared) / norm2),
        )


def _with_moments(sums: np.ndarray) -> np.ndarray:
    """Return groups' sums (groups, agents, 9) followed by the terms of the ratio estimator.

    Whether the agent has unique elements in the group; with t and b the first two sums there, the
    rounded t**2, t b and b**2; and their rounding errors.
    """
    is_unique = sums[..., 1:2] != 0
    top, bottom = np.where(is_unique, sums[..., :1], 0.0), sums[..., 1:2]
    left, right = np.concatenate([top, top, bottom], -1), np.concatenate([top, bottom, bottom], -1)
    return np.concatenate([sums, is_unique, *exact_product(left, right)], axis=-1)


@dataclass
class Merging:
    """The work of a merge pass, see ``driver.Work``.

    is_whole: which tensors are one block; fisher: open files, where the method needs them;
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
            import torch  # noqa: F401  (now: the driver then limits it to one thread per call)

    def blocks(self, block_elements: int) -> Iterator[Block]:
        """Yield the blocks to merge."""
        every = blocks_of(self.tensors, block_elements, self.is_whole)
        return (block for block in every if self.keep is None or self.keep(block))

    def worker(self, backend: Backend) -> _MergingWorker:
        """Return one thread's worker."""
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
        stored = self._backend.stored_elements(merged)
        work.sink.write(block.tensor.name, block.start * stored.itemsize, stored.data)
        return True

    def close(self) -> None:
        """Do nothing: every block was written."""
