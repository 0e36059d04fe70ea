"""The loops of ``rounding``, as numba compiles them."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.loop_kernels import bits_float, float_bits, round_to_bfloat16
from ram_studio.algorithm.numba_kernels import loop_part


@loop_part
def _word(key, index):
    """Return 64 random bits for element ``index``: the finaliser of SplitMix64 over key + index."""
    z = key + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_words(key, start, out):
    """Fill ``out`` (uint64) with the words of elements start, start + 1, ... of a tensor."""
    for i in range(out.shape[0]):
        out[i] = _word(key, np.uint64(start) + np.uint64(i))


def stochastic_bfloat16(values, changed, key, start, out):
    for i in range(values.shape[0]):
        nearest = np.float32(values[i])
        bits = float_bits(nearest)
        noise = np.uint32(_word(key, np.uint64(start) + np.uint64(i)) >> np.uint64(48))
        up = np.uint32(bits + noise)
        # Never across to infinity: what would overflow stays at the largest finite number.
        up = up if (up & np.uint32(0x7F800000)) != np.uint32(0x7F800000) else bits
        drawn = np.uint16(up >> np.uint32(16))
        out[i] = drawn if changed[i] else round_to_bfloat16(nearest)


def stochastic_float32(values, changed, key, start, out):
    largest = np.float64(3.4028234663852886e38)
    for i in range(values.shape[0]):
        value = values[i]
        nearest = np.float32(value)
        below = nearest
        bits = float_bits(nearest)
        if abs(np.float64(nearest)) > abs(value):
            below = bits_float(np.uint32(bits - np.uint32(1)))
        above = bits_float(np.uint32(float_bits(below) + np.uint32(1)))
        step = np.float64(above) - np.float64(below)
        share = (value - np.float64(below)) / step
        word = _word(key, np.uint64(start) + np.uint64(i))
        drawn = above if np.float64(word >> np.uint64(11)) * 2.0**-53 < share else below
        keep = (not changed[i]) or abs(value) >= largest or value == np.float64(nearest)
        out[i] = nearest if keep else drawn


def stochastic_float16(values, changed, key, start, out):
    """Write the float16 values as float64; the caller's cast to float16 is then exact."""
    for i in range(values.shape[0]):
        size = abs(values[i])
        exponent = max(np.int64(np.floor(np.log2(size))) if size > 0.0 else -14, -14)
        step = 2.0 ** np.float64(exponent - 10)
        count = np.floor(size / step)
        word = _word(key, np.uint64(start) + np.uint64(i))
        if np.float64(word >> np.uint64(11)) * 2.0**-53 < size / step - count:
            count += 1.0
        drawn = min(count * step, 65504.0) if size <= 65504.0 else size
        out[i] = np.copysign(drawn, values[i]) if changed[i] else values[i]


def nearest_bfloat16(values, out):
    for i in range(values.shape[0]):
        out[i] = round_to_bfloat16(np.float32(values[i]))
