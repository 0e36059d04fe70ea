"""The loop of ``measured_kernels``, as numba compiles it."""

from __future__ import annotations

from ram_studio.algorithm.lane_kernels import LANES, merge_mean_lanes


def merge_groups(base, agents, merged, cuts, epsilon, factors, low, high, counts, sums, largest):
    for row in range(sums.shape[0]):
        merge_mean_lanes(
            base,
            agents,
            merged,
            cuts[row],
            (cuts[row + 1] - cuts[row]) // LANES,
            epsilon,
            factors,
            low,
            high,
            counts,
            sums[row],
            largest,
        )
