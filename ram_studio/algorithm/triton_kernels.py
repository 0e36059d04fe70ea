"""Fused GPU kernels in Triton: one reads a block and counts it, one merges and measures it.

Same bits and counts as ``kernels``, ``rounding`` and their torch twins, on contiguous stored
elements: bfloat16, float16 or float32, agents stacked. Imported only where triton is installed and
a CUDA device is used (or Triton's interpreter, which runs the same source on CPU tensors).

Merging is float64 throughout, as on the CPU: the output's is the only rounding, so both sides agree
without a proof that a shorter way rounds alike. H100 and H200 do float64 at half the rate of
float32; cards that do it at a 64th will be slow here. Multiplications and additions are never
contracted to one rounding (``enable_fp_fusion``), because the CPU's are not.
"""

from __future__ import annotations

import threading

import torch
import triton
import triton.language as tl
from torch import Tensor

from ram_studio.algorithm.device_kernels import TILE, tiles
from ram_studio.algorithm.ladder import BIN_COUNT, BIN_SHIFT, LOWEST_BIN

_OUTPUTS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_ONE_AT_A_TIME = threading.Lock()
"""Held while a kernel is launched, which compiles it the first time; threads launch a lot."""

_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}

_BINS = tl.constexpr(BIN_COUNT)
_SHIFT = tl.constexpr(BIN_SHIFT)
_LOWEST = tl.constexpr(LOWEST_BIN)
_INFINITY = tl.constexpr(0x7F800000)


@triton.jit
def _load(pointer, at, inside):
    """Return stored elements as float32; bfloat16 comes as int16 bit patterns."""
    stored = tl.load(pointer + at, mask=inside, other=0)
    if pointer.dtype.element_ty == tl.int16:
        bits = stored.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        return stored.to(tl.float32)


@triton.jit
def _magnitude_bits(tau):
    return tau.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _word(key, index):
    """Return the 64 random bits of ``rounding.random_words`` for uint64 elements."""
    z = key.to(tl.uint64) + index * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(key, index):
    """Return float64 in [0, 1) with 53 random bits."""
    return (_word(key, index) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def fill_chain(
    base,
    agents,
    chain,
    flags,
    n,
    stride,
    edge_bits,
    AGENTS: tl.constexpr,
    COPIES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Add a block to one of the chain histograms, see ``kernels.fill_chain``."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < n
    x = _load(base, at, inside)
    worst = tl.zeros([TILE], tl.int32)
    bins = ()
    for t in tl.static_range(AGENTS):
        y = _load(agents + t * stride, at, inside)
        bits = _magnitude_bits(y - x)
        worst = tl.maximum(worst, bits)
        k = ((bits - edge_bits - 1) >> _SHIFT) - _LOWEST
        k = tl.minimum(tl.maximum(k, 0), _BINS - 1)
        bins = bins + (tl.where(bits == 0, -1, k),)  # noqa: RUF005  triton knows no unpacking
    if tl.max(worst) >= _INFINITY:
        tl.store(flags + 0, 1)
    chain += (program % COPIES).to(tl.int64) * ((1 << AGENTS) * AGENTS * _BINS)
    for t in tl.static_range(AGENTS):
        own = bins[t]
        still_active = tl.zeros([TILE], tl.int32)
        for other in tl.static_range(AGENTS):
            if other >= t:
                still_active |= (bins[other] >= own).to(tl.int32) << other
            else:
                still_active |= (bins[other] > own).to(tl.int32) << other
        slot = (still_active * AGENTS + t) * _BINS + own
        tl.atomic_add(chain + slot, 1, mask=own >= 0, sem="relaxed")


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
    up = bits + (_word(key, index) >> 48).to(tl.uint32)
    return tl.where((up & _INFINITY) == _INFINITY, bits, up) >> 16


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
def merge_region(
    base,
    agents,
    merged,
    factors,
    counts,
    sums,
    flags,
    n,
    stride,
    lead,
    epsilon,
    key: tl.int64,
    start: tl.int64,
    AGENTS: tl.constexpr,
    ELECT_SIGN: tl.constexpr,
    OUTPUT: tl.constexpr,
    IS_STOCHASTIC: tl.constexpr,
    IS_MEASURED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Merge a block by RAM's region rule and measure what was stored, see ``merge_block``.

    Does what ``kernels.merge_mean`` or ``merge_elected``, ``rounding.store``, ``count_active`` and
    ``stored_change`` do, in the same order of operations.
    """
    program = tl.program_id(0)
    at = program.to(tl.int64) * TILE + tl.arange(0, TILE) - lead
    inside = (at >= 0) & (at < n)
    x32 = _load(base, at, inside)
    x = x32.to(tl.float64)
    worst = tl.zeros([TILE], tl.int32)
    pattern = tl.zeros([TILE], tl.int32)
    count = tl.zeros([TILE], tl.int32)
    total = tl.zeros([TILE], tl.float64)
    last32 = x32
    factor = tl.zeros([TILE], tl.float64)
    for t in tl.static_range(AGENTS):
        y32 = _load(agents + t * stride, at, inside)
        bits = _magnitude_bits(y32 - x32)
        worst = tl.maximum(worst, bits)
        is_active = bits.to(tl.float32, bitcast=True) > epsilon
        pattern |= is_active.to(tl.int32) << t
        count += is_active.to(tl.int32)
        total += tl.where(is_active, y32, x32).to(tl.float64) - x
        last32 = tl.where(is_active, y32, last32)
        factor = tl.where(is_active, tl.load(factors + t), factor)
    # Where one agent alone changed the element, the last that did is that one.
    last = last32.to(tl.float64)
    tau = last - x
    alone = tl.where(factor == 1.0, last, x + factor * tau)
    voters = count
    if ELECT_SIGN:
        elected = tl.zeros([TILE], tl.float64)
        voters = tl.zeros([TILE], tl.int32)
        for t in tl.static_range(AGENTS):
            change = _load(agents + t * stride, at, inside).to(tl.float64) - x
            has_sign = ((change > 0.0) & (total > 0.0)) | ((change < 0.0) & (total < 0.0))
            agrees = (((pattern >> t) & 1) != 0) & has_sign
            elected += tl.where(agrees, change, 0.0)
            voters += agrees.to(tl.int32)
        total = elected
    value = x + total / tl.maximum(voters, 1).to(tl.float64)
    value = tl.where(voters == 0, x, value)
    value = tl.where(count == 1, alone, value)
    value = tl.where(count == 0, x, value)
    if tl.max(worst) >= _INFINITY:
        tl.store(flags + 0, 1)

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
    if tl.max(_magnitude_bits(stored32)) >= _INFINITY:
        tl.store(flags + 1, 1)

    if IS_MEASURED:
        row = program.to(tl.int64) * (2 * AGENTS)
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


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def count_block(base: Tensor, agents: Tensor, chain: Tensor, flags: Tensor, edge_bits: int) -> None:
    """Do ``device_kernels.count_block`` in one kernel; does not wait for it."""
    n = base.shape[0]
    if not n:
        return
    with _ONE_AT_A_TIME:
        fill_chain[(triton.cdiv(n, TILE),)](
            _bits(base),
            _bits(agents),
            chain,
            flags,
            n,
            agents.stride(0),
            edge_bits,
            AGENTS=agents.shape[0],
            COPIES=chain.shape[0],
            TILE=TILE,
            **_OPTIONS,
        )


def merge_block(
    base: Tensor,
    agents: Tensor,
    merged: Tensor,
    flags: Tensor,
    *,
    epsilon: float,
    factors: Tensor,
    elect_sign: bool,
    key: int | None,
    start: int,
    measured: tuple[Tensor, Tensor] | None,
) -> None:
    """Do ``device_kernels.merge_block`` in one kernel; does not wait for it."""
    n = base.shape[0]
    if not n:
        return
    counts, sums = measured or (flags, factors)
    key_bits = key or 0
    with _ONE_AT_A_TIME:
        merge_region[(tiles(start, n),)](
            _bits(base),
            _bits(agents),
            _bits(merged),
            factors,
            counts,
            sums,
            flags,
            n,
            agents.stride(0),
            start % TILE,
            epsilon,
            key_bits - (1 << 64) if key_bits >> 63 else key_bits,
            start,
            AGENTS=agents.shape[0],
            ELECT_SIGN=elect_sign,
            OUTPUT=_OUTPUTS[merged.dtype],
            IS_STOCHASTIC=key is not None,
            IS_MEASURED=measured is not None,
            TILE=TILE,
            **_OPTIONS,
        )
