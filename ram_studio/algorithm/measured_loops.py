"""The loops of ``measured_kernels``, as numba compiles them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ram_studio.algorithm.merge_lanes import (
    merge_mean_lanes,
    merge_plain_lanes,
    merge_sum_lanes,
    merge_sum_plain_lanes,
)
from ram_studio.algorithm.processor import STEP


def _between_cuts(merge_lanes: Any) -> Callable[..., None]:
    """Return the loop that merges between each two cuts, a multiple of STEP, and sums each part."""

    def merge(base, agents, merged, cuts, epsilon, factors, low, high, counts, sums, largest):
        for row in range(sums.shape[0]):
            merge_lanes(
                base,
                agents,
                merged,
                cuts[row],
                (cuts[row + 1] - cuts[row]) // STEP,
                epsilon,
                factors,
                low,
                high,
                counts,
                sums[row],
                largest,
            )

    return merge


merge_groups = _between_cuts(merge_mean_lanes)
merge_plain = _between_cuts(merge_plain_lanes)
sum_groups = _between_cuts(merge_sum_lanes)
sum_plain = _between_cuts(merge_sum_plain_lanes)
