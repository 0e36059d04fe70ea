"""The exact n-th largest |tau| of tensors, by a pass that resolves one bin of the histogram.

A bin of ``epsilon_grid`` has 65,536 float32 numbers. Those of one bin are counted one by one, in
the requested tensors; a tensor's tables are freed when its last element is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np

from ram_studio.algorithm.epsilon_grid import BIN_SHIFT
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.methods.base import RankRequests
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.passes.plan import Backend
from ram_studio.engine.reading.blocks import Block, blocks_of

_Tables = dict[int, np.ndarray]
"""By agent: counts of each number of its bin."""


class Ranking:
    """The work of such a pass, see ``driver.Work``; found: the largest float32 below each |tau|."""

    stage = "count"

    def __init__(self, tensors: Sequence[MergeTensor], wanted: RankRequests) -> None:
        """Args: wanted: by index among the tensors and agent, see ``methods.base``."""
        self.wanted: dict[int, dict[int, tuple[np.float32, int]]] = defaultdict(dict)
        for (tensor, agent), one in wanted.items():
            self.wanted[tensor][agent] = one
        self._of = sorted(self.wanted)
        self.tensors = [tensors[i] for i in self._of]
        self.found: dict[tuple[int, int], np.float32] = {}
        self._tables: dict[int, _Tables] = {}
        self._left = {i: tensors[i].numel for i in self._of}
        self._lock = Lock()

    def blocks(self, block_elements: int) -> Iterator[Block]:
        """Yield all blocks of these tensors."""
        return blocks_of(self.tensors, block_elements)

    def worker(self, backend: Backend) -> _Worker:
        """Return one thread's worker."""
        return _Worker(self, backend)

    def index(self, block: Block) -> int:
        """Return the index of a block's tensor among the given ones."""
        return self._of[block.tensor_index]

    def add(self, tensor: int, elements: int, tables: _Tables) -> None:
        """Add a thread's counts of a tensor, and find the |tau| when all of it is counted."""
        with self._lock:
            total = self._tables.setdefault(tensor, tables)
            for agent, table in tables.items():
                if total is not tables:
                    total[agent] += table
            self._left[tensor] -= elements
            if self._left[tensor]:
                return
            for agent, table in self._tables.pop(tensor).items():
                edge, rank = self.wanted[tensor][agent]
                reaching = np.flatnonzero(np.cumsum(table[::-1], dtype=np.int64) >= rank)
                place = len(table) - 1 - int(reaching[0])
                self.found[tensor, agent] = (edge.view(np.uint32) + np.uint32(place)).view(
                    np.float32
                )


class _Worker:
    def __init__(self, work: Ranking, backend: Backend) -> None:
        self._work = work
        self._backend = backend
        self._tensor = -1
        self._elements = 0
        self._tables: _Tables = {}

    def block(self, block: Block, base: Any, agents: Any) -> bool:
        """Count a block."""
        tensor = self._work.index(block)
        wanted = self._work.wanted[tensor]
        if tensor != self._tensor:
            self.close()
            self._tensor = tensor
            self._tables = {agent: np.zeros(1 << BIN_SHIFT, np.int64) for agent in wanted}
        x, y = self._backend.on_host(base, agents)
        for agent, table in self._tables.items():
            cpu.count_numbers(x, y[agent], wanted[agent][0], table)
        self._elements += block.n
        return True

    def close(self) -> None:
        """Add the counts of the last tensor."""
        if self._elements:
            self._work.add(self._tensor, self._elements, self._tables)
        self._elements = 0
