"""Random words, and rounding by them."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import as_bits, as_float, nearest_bfloat16


@loop
def word(key, index):
    """Return 64 random bits for element ``index``: the finalizer of SplitMix64 over key + index."""
    z = key + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@loop
def random_words(key, start, out):
    for i in range(out.shape[0]):
        out[i] = word(key, start + np.uint64(i))


@loop
def draw(keys, cuts, start, survivors):
    for i in range(survivors.shape[0]):
        index = start + np.uint64(i)
        found = np.uint32(0)
        for t in range(len(keys)):
            is_selected = (word(keys[t], index) >> np.uint64(11)) >= cuts[t]
            found |= np.uint32(1 << t) if is_selected else np.uint32(0)
        survivors[i] = found


@loop
def stochastic_bfloat16(values, changed, key, start, out):
    for i in range(values.shape[0]):
        nearest = np.float32(values[i])
        bits = np.uint32(as_bits(nearest))
        up = np.uint32(bits + np.uint32(word(key, start + np.uint64(i)) >> np.uint64(48)))
        # Never across to infinity: what would overflow stays at the largest finite number.
        up = up if (up & np.uint32(0x7F800000)) != np.uint32(0x7F800000) else bits
        drawn = np.uint16(up >> np.uint32(16))
        out[i] = drawn if changed[i] else nearest_bfloat16(nearest)


@loop
def stochastic_float32(values, changed, key, start, out):
    largest = np.float64(3.4028234663852886e38)
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        nearest = np.float32(value)
        bits = np.uint32(as_bits(nearest))
        is_above = abs(np.float64(nearest)) > abs(value)
        below = as_float(np.uint32(bits - np.uint32(1))) if is_above else nearest
        above = as_float(np.uint32(np.uint32(as_bits(below)) + np.uint32(1)))
        step = np.float64(above) - np.float64(below)
        share = (value - np.float64(below)) / step
        chance = np.float64(word(key, start + np.uint64(i)) >> np.uint64(11)) * 2.0**-53
        drawn = above if chance < share else below
        keep = (not changed[i]) or abs(value) >= largest or value == np.float64(nearest)
        out[i] = nearest if keep else drawn


@loop
def stochastic_float16(values, changed, key, start, out):
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        size = abs(value)
        exponent = max(np.int64(np.floor(np.log2(size))) if size > 0.0 else -14, -14)
        step = 2.0 ** np.float64(exponent - 10)
        count = np.floor(size / step)
        chance = np.float64(word(key, start + np.uint64(i)) >> np.uint64(11)) * 2.0**-53
        if chance < size / step - count:
            count += 1.0
        drawn = min(count * step, 65504.0) if size <= 65504.0 else size
        out[i] = np.copysign(drawn, value) if changed[i] else value
