"""Fused GPU kernels in Triton: one counts a block, two merge and measure it.

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
from ram_studio.algorithm.triton_storing import (
    INFINITY,
    load,
    magnitude_bits,
    random_word,
    store_and_measure,
)

_OUTPUTS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_ONE_AT_A_TIME = threading.Lock()
"""Held while a kernel is launched, which compiles it the first time; threads launch a lot."""

_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}

_BINS = tl.constexpr(BIN_COUNT)
_SHIFT = tl.constexpr(BIN_SHIFT)
_LOWEST = tl.constexpr(LOWEST_BIN)


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
    x = load(base, at, inside)
    worst = tl.zeros([TILE], tl.int32)
    bins = ()
    for t in tl.static_range(AGENTS):
        y = load(agents + t * stride, at, inside)
        bits = magnitude_bits(y - x)
        worst = tl.maximum(worst, bits)
        k = ((bits - edge_bits - 1) >> _SHIFT) - _LOWEST
        k = tl.minimum(tl.maximum(k, 0), _BINS - 1)
        bins = bins + (tl.where(bits == 0, -1, k),)  # noqa: RUF005  triton knows no unpacking
    if tl.max(worst) >= INFINITY:
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
    x32 = load(base, at, inside)
    x = x32.to(tl.float64)
    worst = tl.zeros([TILE], tl.int32)
    pattern = tl.zeros([TILE], tl.int32)
    count = tl.zeros([TILE], tl.int32)
    total = tl.zeros([TILE], tl.float64)
    last32 = x32
    factor = tl.zeros([TILE], tl.float64)
    for t in tl.static_range(AGENTS):
        y32 = load(agents + t * stride, at, inside)
        bits = magnitude_bits(y32 - x32)
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
            change = load(agents + t * stride, at, inside).to(tl.float64) - x
            has_sign = ((change > 0.0) & (total > 0.0)) | ((change < 0.0) & (total < 0.0))
            agrees = (((pattern >> t) & 1) != 0) & has_sign
            elected += tl.where(agrees, change, 0.0)
            voters += agrees.to(tl.int32)
        total = elected
    value = x + total / tl.maximum(voters, 1).to(tl.float64)
    value = tl.where(voters == 0, x, value)
    value = tl.where(count == 1, alone, value)
    value = tl.where(count == 0, x, value)
    if tl.max(worst) >= INFINITY:
        tl.store(flags + 0, 1)
    store_and_measure(
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
        AGENTS,
        OUTPUT,
        IS_STOCHASTIC,
        IS_MEASURED,
    )


@triton.jit
def merge_kept(
    base,
    agents,
    merged,
    thresholds,
    keys,
    factor,
    counts,
    sums,
    flags,
    n,
    stride,
    lead,
    cut: tl.int64,
    key: tl.int64,
    start: tl.int64,
    AGENTS: tl.constexpr,
    IS_TRIMMED: tl.constexpr,
    IS_DROPPED: tl.constexpr,
    OUTPUT: tl.constexpr,
    IS_STOCHASTIC: tl.constexpr,
    IS_MEASURED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Merge a block by the sum or the elected mean of kept task vectors, and measure it.

    Does what ``sum_kernels.merge_trimmed`` (IS_TRIMMED) or ``merge_sum`` do; see ``sum_block``.
    """
    program = tl.program_id(0)
    at = program.to(tl.int64) * TILE + tl.arange(0, TILE) - lead
    inside = (at >= 0) & (at < n)
    x32 = load(base, at, inside)
    x = x32.to(tl.float64)
    worst = tl.zeros([TILE], tl.int32)
    pattern = tl.zeros([TILE], tl.int32)
    total = tl.zeros([TILE], tl.float64)
    positive = tl.zeros([TILE], tl.float64)
    negative = tl.zeros([TILE], tl.float64)
    n_positive = tl.zeros([TILE], tl.int32)
    n_negative = tl.zeros([TILE], tl.int32)
    last32 = x32
    for t in tl.static_range(AGENTS):
        y32 = load(agents + t * stride, at, inside)
        bits = magnitude_bits(y32 - x32)
        worst = tl.maximum(worst, bits)
        is_kept = bits != 0
        pattern |= is_kept.to(tl.int32) << t
        last32 = tl.where(is_kept, y32, last32)
        if IS_TRIMMED:
            is_kept = bits.to(tl.float32, bitcast=True) > tl.load(thresholds + t)
        if IS_DROPPED:
            word = random_word(tl.load(keys + t), (start + at).to(tl.uint64))
            is_kept = is_kept & ((word >> 11).to(tl.int64) >= cut)
        tau = tl.where(is_kept, y32, x32).to(tl.float64) - x
        total += tau
        if IS_TRIMMED:
            positive += tl.where(tau > 0.0, tau, 0.0)
            negative += tl.where(tau < 0.0, tau, 0.0)
            n_positive += (tau > 0.0).to(tl.int32)
            n_negative += (tau < 0.0).to(tl.int32)
    summed = total
    if IS_TRIMMED:
        voters = tl.where(total > 0.0, n_positive, n_negative)
        elected = tl.where(total > 0.0, positive, negative)
        summed = elected / tl.maximum(voters, 1).to(tl.float64)
    value = tl.where(total != 0.0, x + tl.load(factor) * summed, x)
    if tl.max(worst) >= INFINITY:
        tl.store(flags + 0, 1)
    store_and_measure(
        value,
        x,
        last32.to(tl.float64) - x,
        pattern,
        merged,
        counts,
        sums,
        flags,
        at,
        inside,
        key,
        start,
        AGENTS,
        OUTPUT,
        IS_STOCHASTIC,
        IS_MEASURED,
    )


def signed(key: int) -> int:
    """Return 64 bits as the int64 with the same bits."""
    return key - (1 << 64) if key >> 63 else key


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
            signed(key or 0),
            start,
            AGENTS=agents.shape[0],
            ELECT_SIGN=elect_sign,
            OUTPUT=_OUTPUTS[merged.dtype],
            IS_STOCHASTIC=key is not None,
            IS_MEASURED=measured is not None,
            TILE=TILE,
            **_OPTIONS,
        )


def sum_block(
    base: Tensor,
    agents: Tensor,
    merged: Tensor,
    flags: Tensor,
    *,
    thresholds: Tensor | None,
    factor: Tensor,
    keys: Tensor | None,
    cut: int,
    key: int | None,
    start: int,
    measured: tuple[Tensor, Tensor] | None,
) -> None:
    """Merge a block by base + factor * sum of the kept tau, in one kernel; does not wait for it.

    With ``thresholds``, float32 (agents,), kept are the larger |tau|, and the mean of those that
    agree with the sign of their sum takes the sum's place. factor: float64 (1,). keys: int64
    (agents,), of random words (see ``signed``); kept are elements whose word is at least ``cut``.
    Otherwise as ``device_kernels.merge_block``; the plain way is the methods' own formula.
    """
    n = base.shape[0]
    if not n:
        return
    counts, sums = measured or (flags, factor)
    with _ONE_AT_A_TIME:
        merge_kept[(tiles(start, n),)](
            _bits(base),
            _bits(agents),
            _bits(merged),
            flags if thresholds is None else thresholds,
            flags if keys is None else keys,
            factor,
            counts,
            sums,
            flags,
            n,
            agents.stride(0),
            start % TILE,
            cut,
            signed(key or 0),
            start,
            AGENTS=agents.shape[0],
            IS_TRIMMED=thresholds is not None,
            IS_DROPPED=keys is not None,
            OUTPUT=_OUTPUTS[merged.dtype],
            IS_STOCHASTIC=key is not None,
            IS_MEASURED=measured is not None,
            TILE=TILE,
            **_OPTIONS,
        )
