"""The epsilon grid: the thresholds at which the analysis counts exactly.

Defines the bins of |tau| and the grid points that users choose from, without tensors or files.

A bin is a range of float32 bit patterns, 128 to an octave, shifted so that the paper's 1e-5 is an
edge: ``bin = (bits(|tau|) - bits(1e-5) - 1) >> 16`` (arithmetic shift). Bin k therefore holds
``(edge_k, edge_k+1]``, so "bin >= k" is the paper's strict ``|tau| > edge_k``, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ram_studio.errors import SettingsError

DEFAULT_EPSILON = 1e-5
"""Paper, section 4.1: elements that moved by at most 1e-5 count as unchanged."""

EDGE_BITS = int(np.float32(DEFAULT_EPSILON).view(np.uint32))
"""Bit pattern of float32 1e-5, edge of bin 0 before the offset."""

BIN_SHIFT = 16
LOWEST_BIN = -1536
"""12 octaves below 1e-5 (2.4e-9); smaller changes are counted in this bin, never dropped."""

BIN_COUNT = 4096
"""32 octaves, up to 10.5; larger changes are counted in the last bin."""


def edge_value(index: int) -> float:
    """Return the lower edge of bin ``index`` (0-based from the lowest), a float32 value as float.

    The edge that is float32(1e-5) is given as 1e-5: no float32 is between the two, so
    ``|tau| > 1e-5`` means the same with either.
    """
    bits = EDGE_BITS + ((index + LOWEST_BIN) << BIN_SHIFT)
    if bits == EDGE_BITS:
        return DEFAULT_EPSILON
    return float(np.uint32(bits).view(np.float32))


def _nearest_edge(value: float) -> int:
    bits = int(np.float32(value).view(np.uint32))
    index = ((bits - EDGE_BITS) >> BIN_SHIFT) - LOWEST_BIN
    return min((index, index + 1), key=lambda i: abs(math.log(edge_value(i) / value)))


def _build() -> tuple[tuple[float, ...], np.ndarray]:
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    wanted = [s * 10.0**d for d in range(-8, 0) for s in steps] + [1.0]
    edges = sorted({_nearest_edge(v) for v in wanted})
    values = (0.0, *(edge_value(e) for e in edges))
    # First bin in which an element is active at each point; at epsilon 0 every change is active.
    return values, np.array([0, *edges], dtype=np.int64)


EPSILON_GRID, GRID_BINS = _build()
"""The epsilon grid's epsilons (ascending, EPSILON_GRID[0] = 0.0) and the first active bin of each.
"""

DEFAULT_INDEX = EPSILON_GRID.index(DEFAULT_EPSILON)


def check_epsilon(epsilon: float) -> float:
    """Return ``epsilon`` as a float when it is a usable threshold.

    Raises: SettingsError unless 0 <= epsilon < infinity.
    """
    value = float(epsilon)
    if not (math.isfinite(value) and value >= 0):
        raise SettingsError(
            f"epsilon is {epsilon}; it must be a finite number of at least 0 (the paper uses 1e-5)."
        )
    return value


def float32_threshold(epsilon: float) -> np.float32:
    """Return the largest float32 <= ``epsilon``.

    For float32 tau, ``|tau| > epsilon`` and ``|tau| > float32_threshold(epsilon)`` are equivalent,
    so comparing in float32 is exact.

    Raises: SettingsError for a negative or non-finite epsilon.
    """
    value = check_epsilon(epsilon)
    nearest = np.float32(min(value, float(np.finfo(np.float32).max)))
    return np.nextafter(nearest, np.float32(0)) if float(nearest) > value else nearest


def find_grid_index(epsilon: float) -> int | None:
    """Return the grid index with the same threshold as ``epsilon``, or None."""
    index = snap(epsilon)
    same = float32_threshold(EPSILON_GRID[index]) == float32_threshold(epsilon)
    return index if same else None


def snap(epsilon: float) -> int:
    """Return the index of the grid point nearest to ``epsilon`` on a logarithmic scale.

    An epsilon below half of the lowest point above 0 gives index 0.

    Raises: SettingsError for a negative or non-finite epsilon.
    """
    value = check_epsilon(epsilon)
    if value < EPSILON_GRID[1] / 2:
        return 0
    return min(range(1, len(EPSILON_GRID)), key=lambda i: abs(math.log(EPSILON_GRID[i] / value)))


def key_of(tau: np.ndarray) -> np.ndarray:
    """Return the bin of each |tau| (int64, clamped to the window), -1 where tau is 0.

    tau: float32, any shape, finite.
    """
    bits = np.abs(np.asarray(tau, dtype=np.float32)).view(np.uint32).astype(np.int64)
    bins = ((bits - EDGE_BITS - 1) >> BIN_SHIFT) - LOWEST_BIN
    return np.where(bits == 0, -1, np.clip(bins, 0, BIN_COUNT - 1))


@dataclass(frozen=True)
class Thresholds:
    """The thresholds to count at: bin edges anchored at ``edge_bits``.

    first_bins: first active bin at each point; interval_of_bin: which points a bin is above.
    """

    edge_bits: int
    first_bins: np.ndarray
    interval_of_bin: np.ndarray

    @property
    def epsilon(self) -> np.float32:
        """The threshold at the anchor; the only one of a grid of one epsilon."""
        return np.uint32(self.edge_bits).view(np.float32)

    @property
    def points(self) -> int:
        return len(self.first_bins)


def _grid(edge_bits: int, first_bins: np.ndarray) -> Thresholds:
    bins = np.arange(BIN_COUNT)
    interval = np.searchsorted(first_bins, bins, side="right")
    return Thresholds(edge_bits, first_bins, interval.astype(np.int64))


def all_thresholds() -> Thresholds:
    """Return the thresholds of the whole epsilon grid."""
    return _grid(EDGE_BITS, GRID_BINS)


def one_threshold(epsilon: float) -> Thresholds:
    """Return a threshold off the grid, with bins shifted so that it is an edge."""
    bits = int(float32_threshold(epsilon).view(np.uint32))
    return _grid(bits, np.array([-LOWEST_BIN], dtype=np.int64))
