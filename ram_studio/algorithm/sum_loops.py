"""The loops of ``sum_kernels``, as numba compiles them.

Storage, arithmetic and arguments are those of ``loop_kernels``: stored elements are read once,
merging is float64 with one rounding at the end, and the torch formulas of the methods are the
oracle.
"""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.loop_kernels import _add_in_any_order, _decode, _encode
from ram_studio.algorithm.numba_kernels import loop_part


@loop_part
def _survives(key, index, cut):
    """Whether an element outlives the dropping: its 53 random bits are not below ``cut``.

    The word is that of ``rounding.random_words``; cut is drop_rate * 2**53, rounded up.
    """
    z = key + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) >= cut


def merge_sum(base, agents, merged, active, factor, keys, cut, start):
    """Merge a block by base + factor * sum of the kept tau; see ``kernels.merge_mean``.

    active: receives who changed the element at all, kept or not.
    factor: float64; keys: tuple of uint64 per agent, or () to drop nothing; cut: uint64, see
    ``_survives``; start: uint64 index of the block's first element in its tensor.
    Returns False when some task vector element is not finite.
    """
    poison = np.float32(0)
    for i in range(base.shape[0]):
        x32 = _decode(base[i])
        x = np.float64(x32)
        pattern = np.int32(0)
        total = 0.0
        for t in range(len(agents)):
            y32 = _decode(agents[t][i])
            poison = _add_in_any_order(poison, (y32 - x32) * np.float32(0))
            changed = y32 != x32
            kept = changed
            if len(keys) > 0:
                kept &= _survives(keys[t], start + np.uint64(i), cut)
            total += np.float64(y32) - x if kept else 0.0
            pattern |= np.int32(np.int32(changed) << np.int32(t))
        merged[i] = _encode(x + factor * total if total != 0.0 else x, merged)
        active[i] = pattern
    return poison == 0


def merge_trimmed(base, agents, merged, active, thresholds, factor, keys, cut, start):
    """Merge a block by base + factor * mean of the kept tau that agree with the sign of their sum.

    Kept are tau above the agent's float32 threshold, strictly. Otherwise as ``merge_sum``.
    """
    poison = np.float32(0)
    for i in range(base.shape[0]):
        x32 = _decode(base[i])
        x = np.float64(x32)
        pattern = np.int32(0)
        positive = 0.0
        negative = 0.0
        n_positive = np.int32(0)
        n_negative = np.int32(0)
        total = 0.0
        for t in range(len(agents)):
            y32 = _decode(agents[t][i])
            tau32 = y32 - x32
            poison = _add_in_any_order(poison, tau32 * np.float32(0))
            kept = abs(tau32) > thresholds[t]
            if len(keys) > 0:
                kept &= _survives(keys[t], start + np.uint64(i), cut)
            tau = np.float64(y32) - x if kept else 0.0
            total += tau
            positive += tau if tau > 0.0 else 0.0
            negative += tau if tau < 0.0 else 0.0
            n_positive += np.int32(tau > 0.0)
            n_negative += np.int32(tau < 0.0)
            pattern |= np.int32(np.int32(tau32 != np.float32(0)) << np.int32(t))
        elected = positive if total > 0.0 else negative
        voters = n_positive if total > 0.0 else n_negative
        mean = elected / np.float64(max(voters, np.int32(1)))
        merged[i] = _encode(x + factor * mean if total != 0.0 else x, merged)
        active[i] = pattern
    return poison == 0
