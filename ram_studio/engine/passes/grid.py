"""The thresholds that a pass counts at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ram_studio.algorithm import ladder


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
