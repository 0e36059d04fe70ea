"""RAM's rule, or a scaled sum, for bfloat16 in one fast loop: merge a block, and measure it.

Does for whole blocks what ``merge_mean`` (or ``merge_sum``), ``count_active`` and ``stored_change``
do one by one, with the same bits and counts, where the processor and the numbers allow it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ram_studio.algorithm.kernels import INFINITY_BITS
from ram_studio.algorithm.machine_code import Kernel
from ram_studio.algorithm.processor import HAS_FAST_LANES, LANES, STEP
from ram_studio.algorithm.shapes import Float64, Int64, UInt16

_merge_groups = Kernel("measured_loops", "merge_groups")
_merge_plain = Kernel("measured_loops", "merge_plain")
_sum_groups = Kernel("measured_loops", "sum_groups")
_sum_plain = Kernel("measured_loops", "sum_plain")

MARGIN = 2.0**-20
"""How far apart the bounds of a factor lie, relative to it."""

_SHORT = 16.0
"""Up to here a float32 factor times a total, plus the base, is exact in float64."""


@dataclass(frozen=True)
class Measured:
    """What one block's merge counted.

    changed, unique: elements that each agent changed, and changed alone; sums: per group of
    elements (stored - base) * tau and tau**2 over the latter, to about nine digits (products and
    sums of 512 elements are float32); is_finite: all task vectors are;
    is_in_range: and so is every stored element.
    """

    changed: Int64[np.ndarray, " agents"]
    unique: Int64[np.ndarray, " agents"]
    sums: Float64[np.ndarray, "groups 2 agents"]
    is_finite: bool
    is_in_range: bool


def can_measure(
    base: np.ndarray,
    dtype: str,
    epsilon: np.floating | float,
    factors: tuple[float, ...],
    *,
    is_sum: bool = False,
) -> bool:
    """Whether ``merge_measured`` is fast and exact: bfloat16 in and out, numbers not extreme."""
    return (
        HAS_FAST_LANES
        and base.dtype == np.uint16
        and dtype == "BF16"
        and (is_sum or float(epsilon) >= 2.0**-60)
        and all(0.125 <= factor <= 2.0**6 for factor in factors)
    )


def merge_measured(
    base: UInt16[np.ndarray, " n"],
    agents: tuple[UInt16[np.ndarray, " n"], ...],
    merged: UInt16[np.ndarray, " n"],
    epsilon: np.float32,
    factors: tuple[float, ...],
    cuts: list[int],
    *,
    is_measuring: bool = True,
    is_sum: bool = False,
) -> Measured:
    """Merge a block (Eq. 7, see ``kernels.merge_mean``), rounded to nearest, into ``merged``.

    is_sum: merge by base + factor * sum of all tau instead (``sum_kernels.merge_sum``); the factors
    are all the same, epsilon is 0.

    cuts: where groups of elements begin and end in the block, ascending from 0 to its length.
    is_measuring: False leaves counts and sums at 0, in two thirds of the time.
    Requires ``can_measure``.
    """
    by_mean, by_sum = (_merge_groups, _sum_groups) if is_measuring else (_merge_plain, _sum_plain)
    merge = by_sum if is_sum else by_mean
    n_agents = len(agents)
    numbers = (epsilon, factors, _bounds(factors, -1), _bounds(factors, 1))
    counts = np.zeros((2, n_agents), dtype=np.int64)
    sums = np.zeros((len(cuts) - 1, 2, n_agents), dtype=np.float64)
    largest = np.zeros((2, LANES), dtype=np.int32)
    whole = np.array(cuts, dtype=np.int64)
    if any(cut % STEP for cut in cuts):
        for row, (start, stop) in enumerate(itertools.pairwise(cuts)):
            end = stop - (stop - start) % STEP
            parts = tuple(a[start:end] for a in (base, *agents, merged))
            into = (counts, sums[row : row + 1], largest)
            merge(parts[0], parts[1:-1], parts[-1], np.array([0, end - start]), *numbers, *into)
            if end < stop:
                # Filled up with zeros, which nobody changed.
                rest = np.zeros((n_agents + 2, STEP), dtype=np.uint16)
                for lanes, array in zip(rest, (base, *agents), strict=False):
                    lanes[: stop - end] = array[end:stop]
                merge(rest[0], tuple(rest[1:-1]), rest[-1], np.array([0, STEP]), *numbers, *into)
                merged[end:stop] = rest[-1][: stop - end]
    else:
        merge(base, agents, merged, whole, *numbers, counts, sums, largest)
    is_finite, is_in_range = (largest.max(axis=1) < INFINITY_BITS).tolist()
    return Measured(counts[0], counts[1], sums, is_finite, is_in_range)


@lru_cache(maxsize=1024)
def _bounds(factors: tuple[float, ...], side: int) -> tuple[float, ...]:
    """Return a float32 bound of each factor, as ``merge_mean_lanes`` needs them."""
    near = [float(np.float32(factor)) for factor in factors]
    return tuple(
        n if n == factor <= _SHORT else n * (1 + side * MARGIN)
        for n, factor in zip(near, factors, strict=True)
    )
