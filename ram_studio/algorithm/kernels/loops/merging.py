"""Merging: the mean of the changed tau, or of those that agree with the elected sign."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import (
    INFINITE,
    OVERFLOWING,
    cast_like,
    fma,
    is_wide,
    load,
    round_like,
    size_of,
)


def _limit(array):
    """Return the smallest size that an element of an array cannot hold."""


@overload(_limit)
def _limit_of(array):
    limit = OVERFLOWING if array.dtype == types.uint16 else INFINITE
    return lambda array: limit


@loop
def merge_mean(base, agents, merged, pattern, survivors, epsilon, scales, voting):
    """scales: factors and shares; voting: None, or a tuple that begins with agents' weights."""
    factors, shares = scales
    zero, one = cast_like(0, factors[0]), cast_like(1, factors[0])
    largest, limit = np.int32(0), size_of(epsilon)
    for i in range(base.shape[0]):
        near = load(base[i])
        x = cast_like(near, one)
        found = np.uint32(0)
        count, total, weight, own, alone = zero, zero, zero, x, one
        for t in range(len(agents)):
            value = load(agents[t][i])
            size = size_of(value - near)
            is_changed = size > limit
            found |= np.uint32(1 << t) if is_changed else np.uint32(0)
            if is_wide(one) or survivors is not None:  # else an infinite tau shows in the result
                largest = max(largest, size)
            if survivors is not None:
                is_changed &= (np.uint32(survivors[i]) & np.uint32(1 << t)) != 0
            y = cast_like(value, one)
            count += one if is_changed else zero
            if voting is None:
                total += y - x if is_changed else zero
            else:
                total += voting[0][t] * (y - x) if is_changed else zero
                alone = voting[0][t] if is_changed else alone
            weight = factors[t] if is_changed else weight
            own = y if is_changed else own
        # With factor 1 exactly the agent's element: base + tau could round away from it.
        is_own = (count == one) & (weight == one)
        if voting is not None:
            is_own &= alone == one
        for c in range(2, len(agents) + 1):
            weight = shares[c] if count == cast_like(c, one) else weight
        step = weight * total
        result = own if is_own else x + step
        result = result if step != zero else x  # also where it is -0
        largest = max(largest, size_of(result))
        merged[i] = round_like(result, merged)
        pattern[i] = found
    return largest < _limit(merged)


@loop
def merge_elected(base, agents, merged, pattern, survivors, limits, scales, voting):
    """limits: epsilon, then the agents' thresholds; scales: factors and shares.

    voting: None, or the agents' weights, their divisors, and a constant added to the divisors.
    """
    factors, shares = scales
    zero, one = cast_like(0, factors[0]), cast_like(1, factors[0])
    largest, limit = np.int32(0), size_of(limits[0])
    for i in range(base.shape[0]):
        near = load(base[i])
        x = cast_like(near, one)
        found = np.uint32(0)
        count, weight, own = zero, zero, x
        up, down, n_up = zero, zero, zero
        n_down, part_up, part_down, alone = zero, zero, zero, one
        for t in range(len(agents)):
            value = load(agents[t][i])
            size = size_of(value - near)
            largest = max(largest, size)
            found |= np.uint32(1 << t) if size > limit else np.uint32(0)
            is_changed = size > size_of(limits[t + 1])
            if survivors is not None:
                is_changed &= (np.uint32(survivors[i]) & np.uint32(1 << t)) != 0
            y = cast_like(value, one)
            tau = y - x if is_changed else zero
            if voting is not None:
                tau *= voting[0][t]
                n_down += one if tau < zero else zero
                part_up += voting[1][t] if tau > zero else zero
                part_down += voting[1][t] if tau < zero else zero
                alone = voting[0][t] if is_changed else alone
            count += one if is_changed else zero
            up += tau if tau > zero else zero
            down += tau if tau < zero else zero
            n_up += one if tau > zero else zero
            weight = factors[t] if is_changed else weight
            own = y if is_changed else own
        total = up + down
        elected = up if total > zero else (down if total < zero else zero)
        if voting is None:
            n_down = count - n_up
        voters = n_up if total > zero else n_down
        share = zero
        for c in range(1, len(agents) + 1):
            share = shares[c] if voters == cast_like(c, one) else share
        if voting is not None:
            part = voting[2] + (part_up if total > zero else part_down)
            part = part if part != zero else one
            elected /= part
            alone /= part
        is_own = (count == one) & (weight == one) & (alone == one)
        weight = weight if count == one else share
        step = weight * elected
        result = own if is_own else x + step
        result = result if step != zero else x
        largest = max(largest, size_of(result))
        merged[i] = round_like(result, merged)
        pattern[i] = found
    return largest < _limit(merged)


@loop
def merge_as_mergekit(base, agents, merged, pattern, survivors, limits, numbers, parts):
    """Float32 output as mergekit computes it, see ``rules.MergekitSum``.

    limits: epsilon, then the agents' thresholds; numbers: weights, divisor, factor.
    """
    weights, divisor, factor = numbers
    zero, one = np.float32(0), np.float32(1)
    largest, limit = np.int32(0), size_of(limits[0])
    for i in range(base.shape[0]):
        near = load(base[i])
        found = np.uint32(0)
        total, up, down, part_up, part_down = zero, zero, zero, zero, zero
        for t in range(len(agents)):
            tau = load(agents[t][i]) - near
            size = size_of(tau)
            largest = max(largest, size)
            found |= np.uint32(1 << t) if size > limit else np.uint32(0)
            is_included = size > size_of(limits[t + 1])
            if survivors is not None:
                is_included &= (np.uint32(survivors[i]) & np.uint32(1 << t)) != 0
            tau = weights[t] * tau if is_included else zero
            total += tau
            if parts is not None:
                up += tau if tau > zero else zero
                down += tau if tau < zero else zero
                part_up += parts[t] if tau > zero else zero
                part_down += parts[t] if tau < zero else zero
        if parts is None:
            step = total / divisor * factor
        else:
            part = part_up if total > zero else part_down
            elected = up if total > zero else (down if total < zero else zero)
            step = elected / (part if part != zero else one) * factor
        result = near + step
        result = result if step != zero else near  # also where it is -0
        largest = max(largest, size_of(result))
        merged[i] = result
        pattern[i] = found
    return largest < INFINITE


@loop
def average_as_mergekit(base, agents, merged, pattern, epsilon, numbers):
    """numbers: the agents' weights, the base's, and the divisor of the sum."""
    weights, base_weight, divisor = numbers
    largest, limit = np.int32(0), size_of(epsilon)
    for i in range(base.shape[0]):
        near = load(base[i])
        total, found = near * base_weight, np.uint32(0)
        for t in range(len(agents)):
            value = load(agents[t][i])
            size = size_of(value - near)
            largest = max(largest, size)
            found |= np.uint32(1 << t) if size > limit else np.uint32(0)
            total = fma(value, weights[t], total)
        total /= divisor
        largest = max(largest, size_of(total))
        merged[i] = total
        pattern[i] = found
    return largest < INFINITE
