"""Counting as the work of a pass: overlap patterns, magnitudes, and what goes with them.

A thread fills one histogram while it stays in a tensor and folds it into the tensor's table when it
leaves; tables of different threads add up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ram_studio.algorithm import kernels, ladder, overlap
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS, OverlapCounts
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.passes.cpu_backend import Backend
from ram_studio.engine.passes.grid import Grid
from ram_studio.engine.passes.relating import RelationCounter, RelationTally
from ram_studio.engine.reading.blocks import Block, blocks_of

FOLD_ELEMENTS = 1 << 30
"""Fold before a 32-bit counter can overflow, also inside one huge tensor."""


class Tally:
    """The tables of all tensors. Interval 0 lies below the first threshold."""

    def __init__(self, n_tensors: int, n_agents: int, grid: Grid) -> None:
        self.n_agents = n_agents
        self.grid = grid
        self.has_patterns = n_agents <= MAX_PATTERN_AGENTS
        rows = (1 << n_agents, n_agents) if self.has_patterns else (n_agents, n_agents)
        self._tables = np.zeros((n_tensors, *rows, grid.points + 1), dtype=np.int64)
        self.magnitudes = np.zeros((n_agents, ladder.BIN_COUNT), dtype=np.int64)
        self._lock = threading.Lock()

    def add(self, tensor: int, table: np.ndarray, magnitudes: np.ndarray) -> None:
        """Add a folded histogram of one tensor."""
        with self._lock:
            self._tables[tensor] += table
            self.magnitudes += magnitudes

    def counts(self, numel: list[int]) -> OverlapCounts:
        """Return the counts per tensor at each threshold."""
        first = np.arange(1, self.grid.points + 1)
        totals = np.array(numel, dtype=np.int64)
        n = self.n_agents
        if self.has_patterns:
            patterns = [
                overlap.patterns_from_chain(table, first, total)
                for table, total in zip(self._tables, numel, strict=True)
            ]
            shape = (len(numel), self.grid.points, 1 << n)
            return OverlapCounts.from_patterns(totals, np.array(patterns, np.int64).reshape(shape))
        shared = [overlap.shared_from_steps(table, first) for table in self._tables]
        shape = (len(numel), self.grid.points, n, n)
        return OverlapCounts(totals, None, np.array(shared, np.int64).reshape(shape))


class MagnitudeTally(Tally):
    """Keeps the magnitudes of some agents, by group of tensors, and none of their overlaps."""

    def __init__(self, out: np.ndarray, per_tensor: bool) -> None:
        """out: int64 (groups, agents, bins), added to in place."""
        every_bin = np.ones(ladder.BIN_COUNT, dtype=np.int64)
        grid = Grid(ladder.EDGE_BITS, np.zeros(1, dtype=np.int64), every_bin)
        super().__init__(0, out.shape[1], grid)
        self._out = out
        self._per_tensor = per_tensor

    def add(self, tensor: int, table: np.ndarray, magnitudes: np.ndarray) -> None:
        """Add a folded histogram of one tensor."""
        with self._lock:
            self._out[tensor if self._per_tensor else 0] += magnitudes


class Counter:
    """Fills histograms for a tally, one thread's worth."""

    def __init__(self, tally: Tally, backend: Backend) -> None:
        self._tally = tally
        self._backend = backend
        self._held = 0
        self._place: Any = None
        self._histogram: Any = None
        self._magnitudes: Any = None

    def add(self, tensor: int, base: Any, agents: Any) -> bool:
        """Count a block of a tensor; False when some task vector is not finite."""
        place = (tensor, getattr(base, "device", None))
        if place != self._place or self._held + len(base) > FOLD_ELEMENTS:
            self.close()
            self._place = place
        if self._histogram is None:
            n, bins = self._tally.n_agents, ladder.BIN_COUNT
            rows = 1 << n if self._tally.has_patterns else n
            self._histogram = self._backend.new_histogram((rows, n, bins), base)
            if not self._tally.has_patterns:
                self._magnitudes = self._backend.new_histogram((n, bins), base)
        self._held += len(base)
        edge = self._tally.grid.edge_bits
        return self._backend.count(self._histogram, self._magnitudes, edge, base, agents)

    def close(self) -> None:
        """Fold the histogram into its tensor's table and clear it."""
        if self._held == 0:
            return
        n, grid = self._tally.n_agents, self._tally.grid
        magnitudes = np.zeros((n, ladder.BIN_COUNT), dtype=np.int64)
        histogram = self._backend.take(self._histogram)
        if self._tally.has_patterns:
            table = np.zeros((1 << n, n, grid.points + 1), dtype=np.int64)
            flat = histogram.reshape(-1)
            kernels.fold_chain(flat, grid.interval_of_bin, table, magnitudes)
        else:
            table = fold_bins(histogram, grid)
            held = self._backend.take(self._magnitudes)
            magnitudes += held
            histogram[:] = held[:] = 0
        self._tally.add(self._place[0], table, magnitudes)
        self._held = 0


def fold_bins(histogram: np.ndarray, grid: Grid) -> np.ndarray:
    """Return a histogram (..., bins) summed over the intervals between thresholds (int64)."""
    folded = np.zeros((*histogram.shape[:-1], grid.points + 1), dtype=np.int64)
    for interval in np.unique(grid.interval_of_bin):
        where = grid.interval_of_bin == interval
        folded[..., interval] = histogram[..., where].sum(-1, dtype=np.int64)
    return folded


Choose = Callable[[Backend, Block, Any], Any]
"""Which agents to count of a block, and how they are rounded."""


@dataclass
class Counting:
    """The work of a counting pass, see ``driver.Work``.

    tallies: each counts the agents that its Choose gives; related: also collects what needs more
    than counts, on the CPU.
    """

    stage: str
    tensors: Sequence[MergeTensor]
    tallies: Sequence[tuple[Choose, Tally]]
    related: RelationTally | None = None

    def blocks(self, block_elements: int) -> list[Block]:
        """Return all blocks of the counted tensors."""
        return list(blocks_of(self.tensors, block_elements))

    def worker(self, backend: Backend) -> _CountingWorker:
        """Return one thread's share."""
        return _CountingWorker(self, backend)


class _CountingWorker:
    def __init__(self, work: Counting, backend: Backend) -> None:
        self._backend = backend
        self._counters = [(choose, Counter(tally, backend)) for choose, tally in work.tallies]
        self._related = None if work.related is None else RelationCounter(work.related)

    def block(self, block: Block, base: Any, agents: Any) -> bool:
        """Count a block."""
        for choose, counter in self._counters:
            if not counter.add(block.tensor_index, base, choose(self._backend, block, agents)):
                return False
        if self._related is not None:
            self._related.add(block, *self._backend.on_host(base, agents))
        return True

    def close(self) -> None:
        """Hand over what is held."""
        for _, counter in self._counters:
            counter.close()
        if self._related is not None:
            self._related.close()


def every_agent(backend: Backend, block: Block, agents: Any) -> Any:
    """Return the agents as they are stored."""
    return agents


def as_base(backend: Backend, block: Block, agents: Any) -> Any:
    """Return the agents rounded to the base's dtype."""
    return backend.as_base(block, agents)


def some_agents(group: slice) -> Choose:
    """Return what picks some agents."""
    return lambda backend, block, agents: agents[group]
