"""What the Triton kernels share: reading stored elements, random words, rounding and storing.

Bit for bit what ``rounding`` does on the CPU. Functions of this module run inside kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)


@triton.jit
def load(pointer, at, inside):
    """Return stored elements as float32; bfloat16 comes as int16 bit patterns."""
    stored = tl.load(pointer + at, mask=inside, other=0)
    if pointer.dtype.element_ty == tl.int16:
        bits = stored.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        return stored.to(tl.float32)


@triton.jit
def magnitude_bits(tau):
    return tau.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def random_word(key, index):
    """Return the 64 random bits of ``rounding.random_words`` for uint64 elements."""
    z = key.to(tl.uint64) + index * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(key, index):
    """Return float64 in [0, 1) with 53 random bits."""
    return (random_word(key, index) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _to_bfloat16_bits(bits):
    """Round the uint32 bits of finite float32 to the nearest bfloat16, ties to even."""
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def _to_float16(value):
    """Round float64 to the nearest float16 once: through a float32 that is rounded to odd."""
    near = value.to(tl.float32)
    bits = near.to(tl.uint32, bitcast=True)
    wide = near.to(tl.float64)
    toward_zero = tl.where(tl.abs(wide) > tl.abs(value), bits - 1, bits)
    odd = tl.where(wide == value, bits, toward_zero | 1)
    return odd.to(tl.float32, bitcast=True).to(tl.float16)


@triton.jit
def _drawn_bfloat16_bits(value, key, index):
    bits = value.to(tl.float32).to(tl.uint32, bitcast=True)
    up = bits + (random_word(key, index) >> 48).to(tl.uint32)
    return tl.where((up & INFINITY) == INFINITY, bits, up) >> 16


@triton.jit
def _drawn_float32(value, key, index):
    near = value.to(tl.float32)
    bits = near.to(tl.uint32, bitcast=True)
    below_bits = tl.where(tl.abs(near.to(tl.float64)) > tl.abs(value), bits - 1, bits)
    below = below_bits.to(tl.float32, bitcast=True)
    above = (below_bits + 1).to(tl.float32, bitcast=True)
    share = (value - below.to(tl.float64)) / (above.to(tl.float64) - below.to(tl.float64))
    drawn = tl.where(_uniform(key, index) < share, above, below)
    is_exact = (tl.abs(value) >= 3.4028234663852886e38) | (value == near.to(tl.float64))
    return tl.where(is_exact, near, drawn)


@triton.jit
def _drawn_float16(value, key, index):
    size = tl.abs(value)
    exponent = ((size.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023
    exponent = tl.maximum(exponent, -14)
    # Powers of two by their bits: 2**(exponent - 10), the spacing of float16 there.
    step = ((exponent + (1023 - 10)) << 52).to(tl.float64, bitcast=True)
    places = size / step
    is_in_range = size <= 65504.0
    count = tl.where(is_in_range, places, 0.0).to(tl.int64).to(tl.float64)
    count += (_uniform(key, index) < places - count).to(tl.float64)
    drawn = tl.where(is_in_range, tl.minimum(count * step, 65504.0), size)
    sign = value.to(tl.int64, bitcast=True) & (-9223372036854775807 - 1)
    return (drawn.to(tl.int64, bitcast=True) | sign).to(tl.float64, bitcast=True)


@triton.jit
def store_and_measure(
    value,
    x,
    tau,
    pattern,
    merged,
    counts,
    sums,
    flags,
    at,
    inside,
    key,
    start,
    AGENTS: tl.constexpr,
    OUTPUT: tl.constexpr,
    IS_STOCHASTIC: tl.constexpr,
    IS_MEASURED: tl.constexpr,
):
    """Round merged float64 elements, store them, and measure the tile.

    x: base in float64; tau: that of the agent in ``pattern`` where it is the only one; OUTPUT: 0
    for bfloat16 (as int16), 1 for float16, 2 for float32. See ``device_kernels.merge_block``.
    """
    index = (start + at).to(tl.uint64)
    changed = pattern != 0
    if OUTPUT == 0:
        bits = _to_bfloat16_bits(value.to(tl.float32).to(tl.uint32, bitcast=True))
        if IS_STOCHASTIC:
            bits = tl.where(changed, _drawn_bfloat16_bits(value, key, index), bits)
        stored32 = (bits << 16).to(tl.float32, bitcast=True)
        stored = bits.to(tl.uint16).to(tl.int16, bitcast=True)
    elif OUTPUT == 1:
        if IS_STOCHASTIC:
            value = tl.where(changed, _drawn_float16(value, key, index), value)
        stored = _to_float16(value)
        stored32 = stored.to(tl.float32)
    else:
        stored32 = value.to(tl.float32)
        if IS_STOCHASTIC:
            stored32 = tl.where(changed, _drawn_float32(value, key, index), stored32)
        stored = stored32
    tl.store(merged + at, stored, mask=inside)
    if tl.max(magnitude_bits(stored32)) >= INFINITY:
        tl.store(flags + 1, 1)

    if IS_MEASURED:
        row = tl.program_id(0).to(tl.int64) * (2 * AGENTS)
        kept = (stored32.to(tl.float64) - x) * tau
        square = tau * tau
        for t in tl.static_range(AGENTS):
            mine = pattern == (1 << t)
            # Both counts in one sum: a tile has fewer than 2**16 elements.
            both = tl.sum(((pattern >> t) & 1) + (mine.to(tl.int32) << 16))
            tl.store(counts + row + t, both & 0xFFFF)
            tl.store(counts + row + AGENTS + t, both >> 16)
            tl.store(sums + row + t, tl.sum(tl.where(mine, kept, 0.0)))
            tl.store(sums + row + AGENTS + t, tl.sum(tl.where(mine, square, 0.0)))
