"""The loops of ``measured_kernels``, as numba compiles them."""

from __future__ import annotations

from ram_studio.algorithm.merge_lanes import (
    merge_mean_lanes,
    merge_plain_lanes,
    merge_sum_lanes,
    merge_sum_plain_lanes,
)
from ram_studio.algorithm.processor import STEP


def merge_groups(base, agents, merged, cuts, epsilon, factors, low, high, counts, sums, largest):
    """Merge the elements between each two cuts, a multiple of STEP, with sums for each part."""
    for row in range(sums.shape[0]):
        first, steps = cuts[row], (cuts[row + 1] - cuts[row]) // STEP
        merge_mean_lanes(
            base,
            agents,
            merged,
            first,
            steps,
            epsilon,
            factors,
            low,
            high,
            counts,
            sums[row],
            largest,
        )


def merge_plain(base, agents, merged, cuts, epsilon, factors, low, high, counts, sums, largest):
    """Do ``merge_groups`` without measuring."""
    for row in range(sums.shape[0]):
        first, steps = cuts[row], (cuts[row + 1] - cuts[row]) // STEP
        merge_plain_lanes(
            base,
            agents,
            merged,
            first,
            steps,
            epsilon,
            factors,
            low,
            high,
            counts,
            sums[row],
            largest,
        )


def sum_groups(base, agents, merged, cuts, epsilon, factors, low, high, counts, sums, largest):
    """Do ``merge_groups`` for base + factor * sum of tau, with the one factor of all agents."""
    for row in range(sums.shape[0]):
        first, steps = cuts[row], (cuts[row + 1] - cuts[row]) // STEP
        merge_sum_lanes(
            base,
            agents,
            merged,
            first,
            steps,
            epsilon,
            factors,
            low,
            high,
            counts,
            sums[row],
            largest,
        )


def sum_plain(base, agents, merged, cuts, epsilon, factors, low, high, counts, sums, largest):
    """Do ``sum_groups`` without measuring."""
    for row in range(sums.shape[0]):
        first, steps = cuts[row], (cuts[row + 1] - cuts[row]) // STEP
        merge_sum_plain_lanes(
            base,
            agents,
            merged,
            first,
            steps,
            epsilon,
            factors,
            low,
            high,
            counts,
            sums[row],
            largest,
        )
