"""Counting as the work of a pass: overlap patterns, magnitudes and related sums.

A thread fills one histogram while it stays in a tensor and folds it into the tensor's table when it
leaves; tables of different threads add up.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from ram_studio.algorithm import epsilon_grid, overlap
from ram_studio.algorithm.epsilon_grid import Thresholds, all_thresholds, one_threshold
from ram_studio.algorithm.grouping import StackCounts, expert_label, stack_counts
from ram_studio.algorithm.kernels.cpu import TILE
from ram_studio.algorithm.naming import STACK, expert_of, layer_of
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS, OverlapCounts
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.passes.plan import Backend, Histogram
from ram_studio.engine.passes.relating import RelationCounter, RelationTally
from ram_studio.engine.reading.blocks import Block, blocks_of

FOLD_ELEMENTS = 1 << 30
"""Fold before a 32-bit counter can overflow, also inside one huge tensor."""


MOST_BYTES = 400 << 20
"""Limit of tables. A row is 11 kB with 3 agents, 30 with 4: 128 experts in 48 layers fit with 4."""

ROWS: dict[Histogram, Callable[[int], tuple[int, ...]]] = {
    "patterns": lambda n: (1 << n,) if n <= MAX_PATTERN_AGENTS else (n, n),
    "chain": lambda n: (1 << n, n, epsilon_grid.BIN_COUNT),
    "steps": lambda n: (n, n, epsilon_grid.BIN_COUNT),
    "sizes": lambda n: (n, epsilon_grid.BIN_COUNT + TILE),
}
"""Shape of a histogram, by the number of agents."""


class ByTensor:
    """A tally with a row for each tensor."""

    def row(self, block: Block) -> int:
        """Return the row in which a block's elements count."""
        return block.tensor_index

    def every(self, tensor: MergeTensor) -> int:
        """Return the elements of a tensor per row, 0 for a single row."""
        return 0


class Tally(ByTensor):
    """Counts of all tensors at every threshold. Interval 0 is below the first one.

    magnitudes: int64 (agents, bins), the |tau| of each agent by bin of ``epsilon_grid``.
    """

    def __init__(self, rows: int, n_agents: int, grid: Thresholds) -> None:
        self.n_agents = n_agents
        self.grid = grid
        self.has_patterns = n_agents <= MAX_PATTERN_AGENTS
        self.histograms: tuple[Histogram, ...] = (
            ("chain",) if self.has_patterns else ("steps", "sizes")
        )
        self._tables = np.zeros((rows, *row_shape(n_agents, grid)), dtype=np.int64)
        self.magnitudes = np.zeros((n_agents, epsilon_grid.BIN_COUNT), dtype=np.int64)

    def add(self, tensor: int, histogram: np.ndarray, sizes: np.ndarray | None = None) -> None:
        """Add the histograms of a tensor's blocks."""
        rows = histogram.reshape(-1, epsilon_grid.BIN_COUNT)
        used = np.flatnonzero(rows.any(axis=1))
        if sizes is None:
            used = used[used >= self.n_agents]  # the empty set's rows are scratch
            sizes = np.zeros_like(self.magnitudes)
            np.add.at(sizes, used % self.n_agents, rows[used])
        self._tables[tensor].reshape(len(rows), -1)[used] += fold_bins(rows[used], self.grid)
        self.magnitudes += sizes[:, : epsilon_grid.BIN_COUNT]

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
        table = np.array(shared, np.int64).reshape(len(numel), self.grid.points, n, n)
        return OverlapCounts(totals, None, table)


def row_shape(n_agents: int, grid: Thresholds) -> tuple[int, ...]:
    """Return the shape of a row of a ``Tally``."""
    sets = 1 << n_agents if n_agents <= MAX_PATTERN_AGENTS else n_agents
    return sets, n_agents, grid.points + 1


class StackTally(Tally):
    """Counts of all tensors, and of each matrix of those that hold a stack of experts.

    Where single experts would take more than MOST_BYTES they are not counted, their tensors are.
    """

    def __init__(self, tensors: Sequence[MergeTensor], n_agents: int, grid: Thresholds) -> None:
        self._tensors = tensors
        self._is_single = any(map(_is_stack, tensors)) and _fits(tensors, n_agents, grid)
        self._first = list(itertools.accumulate(map(self._rows, tensors), initial=0))
        super().__init__(self._first[-1], n_agents, grid)

    def _rows(self, tensor: MergeTensor) -> int:
        return tensor.shape[0] if self._is_single and _is_stack(tensor) else 1

    def row(self, block: Block) -> int:
        """Return the row in which a block's elements count."""
        size = self.every(block.tensor)
        return self._first[block.tensor_index] + (block.start // size if size else 0)

    def every(self, tensor: MergeTensor) -> int:
        """Return the elements of one expert's matrix, 0 for a tensor that is not a stack."""
        rows = self._rows(tensor)
        return tensor.numel // rows if rows > 1 else 0

    def counts(self, numel: list[int]) -> OverlapCounts:
        """Return the counts per tensor at each threshold."""
        if not self._is_single:
            return super().counts(numel)
        spans = itertools.pairwise(self._first)
        return self._by_row.grouped([list(range(*span)) for span in spans])

    def singly(self) -> StackCounts | None:
        """Return the counts of each expert in a stack, summed over its layer's tensors."""
        if not self._is_single:
            return None
        rows: dict[str, list[int]] = {}
        for tensor, first in zip(self._tensors, self._first[:-1], strict=True):
            for expert in range(self._rows(tensor)) if _is_stack(tensor) else ():
                label = expert_label(layer_of(tensor.name), str(expert))
                rows.setdefault(label, []).append(first + expert)
        return stack_counts(rows, self._by_row)

    @cached_property
    def _by_row(self) -> OverlapCounts:
        sizes = [t.numel // self._rows(t) for t in self._tensors for _ in range(self._rows(t))]
        return super().counts(sizes)


def _is_stack(tensor: MergeTensor) -> bool:
    return len(tensor.shape) == 3 and tensor.numel > 0 and expert_of(tensor.name) == STACK


def _fits(tensors: Sequence[MergeTensor], n_agents: int, grid: Thresholds) -> bool:
    rows = sum(t.shape[0] if _is_stack(t) else 1 for t in tensors)
    return rows * math.prod(row_shape(n_agents, grid)) * np.dtype(np.int64).itemsize <= MOST_BYTES


class SizeTally(ByTensor):
    """The |tau| of each agent by bin of ``epsilon_grid``: int64 (groups, agents, bins).

    One group per tensor, or one for the whole model; it takes 32 KiB per group and agent.
    """

    histograms: tuple[Histogram, ...] = ("sizes",)
    grid = all_thresholds()

    def __init__(self, n_tensors: int, n_agents: int, *, per_tensor: bool) -> None:
        self.n_agents = n_agents
        self._per_tensor = per_tensor
        groups = n_tensors if per_tensor else 1
        self.bins = np.zeros((groups, n_agents, epsilon_grid.BIN_COUNT), dtype=np.int64)

    def add(self, tensor: int, sizes: np.ndarray) -> None:
        """Add the histogram of a tensor's blocks."""
        self.bins[tensor if self._per_tensor else 0] += sizes[:, : epsilon_grid.BIN_COUNT]


class EpsilonTally(ByTensor):
    """The overlap patterns of all tensors at one epsilon."""

    histograms: tuple[Histogram, ...] = ("patterns",)

    def __init__(self, n_tensors: int, n_agents: int, epsilon: float) -> None:
        self.n_agents = n_agents
        self.grid = one_threshold(epsilon)
        self._table = np.zeros((n_tensors, *ROWS["patterns"](n_agents)), dtype=np.int64)

    def add(self, tensor: int, counts: np.ndarray) -> None:
        """Add the counts of a tensor's blocks."""
        self._table[tensor] += counts

    def counts(self, numel: list[int]) -> OverlapCounts:
        """Return the counts per tensor."""
        totals = np.array(numel, dtype=np.int64)
        if self._table.ndim == 3:
            return OverlapCounts(totals, None, self._table[:, None])
        # Blocks that no agent changed were not counted.
        self._table[:, 0] += totals - self._table.sum(1)
        return OverlapCounts.from_patterns(totals, self._table[:, None])


class Counter:
    """Fills one thread's histograms, and adds them to a tally tensor by tensor."""

    def __init__(
        self, tally: Tally | SizeTally | EpsilonTally, backend: Backend, lock: Lock | None = None
    ) -> None:
        """Args: lock: of the tally, where threads share it."""
        self._tally = tally
        self._backend = backend
        self._lock = lock or Lock()
        self._pending = 0
        self._place: Any = None
        self._histograms: list[Any] = []

    def add(self, tensor: int, base: Any, agents: Any) -> Any:
        """Count a block of a tensor; return a flag, see ``Backend.count``."""
        tally = self._tally
        place = (tensor, getattr(base, "device", None))
        if place != self._place or self._pending + len(base) > FOLD_ELEMENTS:
            self.close()
            self._place = place
        if not self._histograms:
            shapes = [ROWS[kind](tally.n_agents) for kind in tally.histograms]
            self._histograms = [self._backend.zeros(shape, base) for shape in shapes]
        self._pending += len(base)
        flags = [
            self._backend.count(kind, histogram, tally.grid, base, agents)
            for kind, histogram in zip(tally.histograms, self._histograms, strict=True)
        ]
        return functools.reduce(operator.and_, flags)

    def close(self) -> None:
        """Add the remaining counts to the tallies."""
        if self._pending:
            counted = [self._backend.take(histogram) for histogram in self._histograms]
            with self._lock:
                self._tally.add(self._place[0], *counted)
            for histogram in self._histograms:
                histogram[:] = 0
        self._pending = 0


def fold_bins(histogram: np.ndarray, grid: Thresholds) -> np.ndarray:
    """Return a histogram (..., bins) summed over the intervals between thresholds (int64)."""
    folded = np.zeros((*histogram.shape[:-1], grid.points + 1), dtype=np.int64)
    intervals, first = np.unique(grid.interval_of_bin, return_index=True)
    folded[..., intervals] = np.add.reduceat(histogram, first, axis=-1, dtype=np.int64)
    return folded


Choose = Callable[[Backend, Block, Any], Any]
"""Which agents to count of a block, and how they are rounded."""


@dataclass
class Counting:
    """The work of a counting pass, see ``driver.Work``.

    tallies: each counts the agents that its Choose gives; without any a pass only reads. related:
    also collects statistics beyond counts, on the CPU.
    """

    stage: str
    tensors: Sequence[MergeTensor]
    tallies: Sequence[tuple[Choose, Tally | SizeTally | EpsilonTally]]
    related: RelationTally | None = None
    lock: Lock = field(default_factory=Lock)

    def blocks(self, block_elements: int) -> Iterator[Block]:
        """Yield all blocks of the counted tensors, each in one row of every tally."""

        def every(tensor: MergeTensor) -> int:
            return max((tally.every(tensor) for _, tally in self.tallies), default=0)

        return blocks_of(self.tensors, block_elements, every=every)

    def worker(self, backend: Backend) -> _CountingWorker:
        """Return one thread's worker."""
        return _CountingWorker(self, backend)


class _CountingWorker:
    def __init__(self, work: Counting, backend: Backend) -> None:
        self._backend = backend
        self._counters = [
            (choose, tally.row, Counter(tally, backend, work.lock))
            for choose, tally in work.tallies
        ]
        self._related = None if work.related is None else RelationCounter(work.related)

    def block(self, block: Block, base: Any, agents: Any) -> Any:
        """Count a block."""
        is_finite: Any = True
        for choose, row, counter in self._counters:
            is_finite &= counter.add(row(block), base, choose(self._backend, block, agents))
        if self._related is not None and is_finite:
            self._related.add(block, *self._backend.on_host(base, agents))
        return is_finite

    def close(self) -> None:
        """Add the remaining counts to the tallies."""
        for *_, counter in self._counters:
            counter.close()
        if self._related is not None:
            self._related.close()


def every_agent(backend: Backend, block: Block, agents: Any) -> Any:
    """Return the agents as stored."""
    return agents


def as_base(backend: Backend, block: Block, agents: Any) -> Any:
    """Return the agents rounded to the base's dtype."""
    return backend.as_base(block, agents)
