"""Counting overlap patterns block by block, on the CPU's threads; see ``device_counting`` for GPUs.

A counter fills one histogram while it stays in a tensor and folds it into the tensor's table when
it leaves; tables of different threads add up.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ram_studio.algorithm import kernels, ladder, overlap
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS, OverlapCounts

FOLD_ELEMENTS = 1 << 30
"""Fold before a 32-bit counter can overflow, also inside one huge tensor."""


@dataclass(frozen=True)
class Grid:
    """The thresholds to count at: bin edges anchored at ``edge_bits``.

    first_bins: first active bin at each point; interval_of_bin: which points a bin is above.
    """

    edge_bits: int
    first_bins: np.ndarray
    interval_of_bin: np.ndarray

    @property
    def points(self) -> int:
        """Number of thresholds."""
        return len(self.first_bins)


def _grid(edge_bits: int, first_bins: np.ndarray) -> Grid:
    bins = np.arange(ladder.BIN_COUNT)
    interval = np.searchsorted(first_bins, bins, side="right")
    return Grid(edge_bits, first_bins, interval.astype(np.int64))


def ladder_grid() -> Grid:
    """Return the grid of the whole epsilon ladder."""
    return _grid(ladder.EDGE_BITS, ladder.LADDER_BINS)


def single_grid(epsilon: float) -> Grid:
    """Return the grid of one epsilon off the ladder: the bins are shifted to make it an edge."""
    bits = int(ladder.float32_threshold(epsilon).view(np.uint32))
    return _grid(bits, np.array([-ladder.LOWEST_BIN], dtype=np.int64))


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


class Counter(Protocol):
    """Counts blocks, one thread's worth."""

    def add(self, tensor: int, base: np.ndarray, agents: tuple[np.ndarray, ...]) -> bool:
        """Count a block of a tensor; False when some task vector is not finite."""

    def close(self) -> None:
        """Hand over what is still held."""


class CpuCounter:
    """Counts with the fused kernels."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        n, bins = tally.n_agents, ladder.BIN_COUNT
        self._edge = np.int32(tally.grid.edge_bits)
        self._tensor: int | None = None
        self._held = 0
        if tally.has_patterns:
            self._histogram = np.zeros((1 << n) * n * bins, dtype=np.int32)
        else:
            self._histogram = np.zeros((n, n, bins), dtype=np.int32)
        self._magnitudes = np.zeros((n, bins), dtype=np.int32)

    def add(self, tensor: int, base: np.ndarray, agents: tuple[np.ndarray, ...]) -> bool:
        """Count a block, see Counter."""
        if kernels.is_copy(base, agents):
            return kernels.is_finite(base)
        if tensor != self._tensor or self._held + len(base) > FOLD_ELEMENTS:
            self.close()
            self._tensor = tensor
        self._held += len(base)
        if self._tally.has_patterns:
            return kernels.fill_chain(base, agents, self._histogram, self._edge)
        return kernels.fill_steps(base, agents, self._histogram, self._magnitudes, self._edge)

    def close(self) -> None:
        """Fold the histogram into its tensor's table and clear it."""
        if self._tensor is None or self._held == 0:
            return
        n, grid = self._tally.n_agents, self._tally.grid
        magnitudes = np.zeros((n, ladder.BIN_COUNT), dtype=np.int64)
        if self._tally.has_patterns:
            table = np.zeros((1 << n, n, grid.points + 1), dtype=np.int64)
            kernels.fold_chain(self._histogram, grid.interval_of_bin, table, magnitudes)
        else:
            table = fold_bins(self._histogram, grid)
            magnitudes += self._magnitudes
            self._histogram[:] = 0
            self._magnitudes[:] = 0
        self._tally.add(self._tensor, table, magnitudes)
        self._held = 0


def fold_bins(histogram: np.ndarray, grid: Grid) -> np.ndarray:
    """Return a histogram (..., bins) summed over the intervals between thresholds (int64)."""
    folded = np.zeros((*histogram.shape[:-1], grid.points + 1), dtype=np.int64)
    for interval in np.unique(grid.interval_of_bin):
        where = grid.interval_of_bin == interval
        folded[..., interval] = histogram[..., where].sum(-1, dtype=np.int64)
    return folded


def to_device(stored: np.ndarray, device: str):
    """Return stored elements (uint16 bfloat16 bits, or float32) as a float32 torch tensor."""
    import torch

    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).to(device).view(torch.bfloat16).float()
    return torch.from_numpy(stored).to(device)
