"""RAM's rule, or a scaled sum, on 32 bfloat16 elements at a time, and measuring what it stored.

Vector code: numba vectorises plain loops well, but it does not keep many running sums in registers,
nor does it know which numbers float32 is enough for. The plain loops in ``loop_kernels`` and
``sum_loops`` compute the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ram_studio.algorithm import lane_parts as v
from ram_studio.algorithm.measured_kernels import MARGIN
from ram_studio.algorithm.processor import HAS_BFLOAT16, LANES, STEP

_LOWEST_BITS = (127 - 60) << 7
_LARGEST_BITS = (127 + 55) << 7

_TILE_STEPS = 16
"""After so many steps the float32 sums are added to those in float64."""


def exponent_spread(agents: int) -> int:
    """Return within how many octaves base and agents must lie for float32 sums to be exact.

    The numbers have 8 significant bits: a task vector has 9 more than octaves, the total of N of
    them log2(N) more again, and float32 holds 24. Beyond 13 octaves a factor of 24 bits times a
    task vector, plus the base, would not be exact in float64.
    """
    return min(13, 15 - math.ceil(math.log2(agents)))


def _shared_bounds(count: int) -> tuple[float, float]:
    """Return the bounds of 1 / count; a power of two is exact."""
    share = 1 / count
    exact = math.frexp(share)[0] == 0.5
    return (share, share) if exact else (share * (1 - MARGIN), share * (1 + MARGIN))


@dataclass
class _Half:
    """16 of 32 elements, every other one, while they are merged."""

    x: ir.Value
    ys: list[ir.Value]
    active: list[ir.Value]
    at_least: list[ir.Value]
    total: ir.Value
    low: ir.Value
    high: ir.Value


def _halves(builder: ir.IRBuilder, words: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return elements 0, 2, 4, ... and 1, 3, 5, ... of pairs held in 32-bit words, as floats."""
    odd = v.splat(v.BITS, 0xFFFF0000)
    return (
        [v.as_floats(builder, word) for word in words],
        [builder.bitcast(builder.and_(word, odd), v.FLOATS) for word in words],
    )


def _merge_half(
    builder: ir.IRBuilder,
    numbers: list[ir.Value],
    threshold: ir.Value,
    bounds: list[list[ir.Value]],
    is_sum: bool,
) -> _Half:
    """Return who changed the elements, the total of tau, and bounds of the result as float32."""
    x, *ys = numbers
    n_agents = len(ys)
    total = v.splat(v.FLOATS, 0.0)
    # An idle element is x + -1 * 0: x itself, also where it is -0.
    factor = [v.splat(v.FLOATS, -1.0)] * 2
    active: list[ir.Value] = []
    at_least = [ir.Constant(v.MASK, [True] * LANES)]  # [c]: changed by c agents or more
    for t, y in enumerate(ys):
        tau = builder.fsub(y, x)
        change = builder.bitcast(v.without_sign(builder, tau), v.FLOATS)
        is_active = builder.fcmp_ordered(">", change, threshold)
        total = builder.select(is_active, builder.fadd(total, tau), total)
        factor = [
            builder.select(is_active, side[t], chosen)
            for side, chosen in zip(bounds, factor, strict=True)
        ]
        at_least.append(ir.Constant(v.MASK, [False] * LANES))
        for c in range(t + 1, 0, -1):
            one_more = builder.and_(at_least[c - 1], is_active)
            at_least[c] = builder.or_(at_least[c], one_more)
        active.append(is_active)
    if is_sum:
        # One factor for all. Where the total is 0 that gives x: a base of 0 goes the float64 way.
        factor = [side[0] for side in bounds]
    for c in () if is_sum else range(2, n_agents + 1):
        factor = [
            builder.select(at_least[c], v.splat(v.FLOATS, share), chosen)
            for share, chosen in zip(_shared_bounds(c), factor, strict=True)
        ]
    low, high = (v.call(builder, "llvm.fma.v16f32", v.FLOATS, f, total, x) for f in factor)
    return _Half(x, ys, active, at_least, total, low, high)


def _in_double(builder: ir.IRBuilder, half: _Half, factors: list[ir.Value], is_sum: bool):
    """Return what the plain loop computes, the total of tau, and each tau, as float64.

    The loop is ``loop_kernels.merge_mean``, or ``sum_loops.merge_sum``.
    """
    wide_x = builder.fpext(half.x, v.DOUBLES)
    zero = v.splat(v.DOUBLES, 0.0)
    count = v.splat(v.BITS, 0)
    for mask in half.active:
        count = builder.add(count, builder.zext(mask, v.BITS))
    total, alone = zero, wide_x
    taus = []
    for y, is_active, factor in zip(half.ys, half.active, factors, strict=True):
        wide_y = builder.fpext(y, v.DOUBLES)
        tau = builder.fsub(wide_y, wide_x)
        taus.append(tau)
        total = builder.fadd(total, builder.select(is_active, tau, zero))
        as_is = v.broadcast(builder, builder.fcmp_ordered("==", factor, v.DOUBLE(1.0)))
        scaled = builder.fadd(wide_x, builder.fmul(v.broadcast(builder, factor), tau))
        alone = builder.select(is_active, builder.select(as_is, wide_y, scaled), alone)
    if is_sum:
        moved = builder.fadd(wide_x, builder.fmul(v.broadcast(builder, factors[0]), total))
        is_moved = builder.fcmp_unordered("!=", total, zero)
        return builder.select(is_moved, moved, wide_x), total, taus
    voters = builder.sitofp(v.larger(builder, count, v.splat(v.BITS, 1)), v.DOUBLES)
    value = builder.fadd(wide_x, builder.fdiv(total, voters))
    value = builder.select(builder.icmp_signed("==", count, v.splat(v.BITS, 1)), alone, value)
    is_idle = builder.icmp_signed("==", count, v.splat(v.BITS, 0))
    return builder.select(is_idle, wide_x, value), total, taus


def _round_pair(builder: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    """Return floats rounded to bfloat16, to nearest with ties to even, as pairs in 32-bit words."""
    even_bits, odd_bits = (builder.bitcast(half, v.BITS) for half in (even, odd))
    rounded = [
        builder.add(
            bits,
            builder.add(
                builder.and_(v.upper(builder, bits), v.splat(v.BITS, 1)), v.splat(v.BITS, 0x7FFF)
            ),
        )
        for bits in (even_bits, odd_bits)
    ]
    return builder.or_(
        v.upper(builder, rounded[0]), builder.and_(rounded[1], v.splat(v.BITS, 0xFFFF0000))
    )


def _round_in_hardware(builder: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    """Do ``_round_pair`` by an instruction: pairs of (element k, element k + 16), see ``_weave``.

    It takes numbers below float32's normal range for 0, so these must not occur.
    """
    words = v.call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", v.BFLOATS, odd, even)
    return builder.bitcast(words, v.ALL_SHORTS)


def _weave(builder: ir.IRBuilder, shorts: ir.Value) -> ir.Value:
    """Put elements 0, 2, ..., 30, 1, 3, ..., 31 in order, as 32-bit words."""
    order = [k // 2 + (k % 2) * LANES for k in range(STEP)]
    lanes = ir.Constant(ir.VectorType(v.INT32, STEP), order)
    return builder.bitcast(builder.shuffle_vector(shorts, shorts, lanes), v.BITS)


def _any(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    bits = ir.IntType(mask.type.count)
    return builder.icmp_signed("!=", builder.bitcast(mask, bits), bits(0))


def _is_out_of_reach(builder: ir.IRBuilder, words: list[ir.Value]) -> ir.Value:
    """Return the mask of elements where float32 may not be exact: far apart, or extreme."""
    sizes = [
        builder.and_(
            builder.bitcast(word, v.ALL_SHORTS), ir.Constant(v.ALL_SHORTS, [0x7FFF] * STEP)
        )
        for word in words
    ]
    least, most = sizes[0], sizes[0]
    for size in sizes[1:]:
        least, most = v.smaller(builder, least, size), v.larger(builder, most, size)

    def beyond(sign: str, value: ir.Value, bound: int) -> ir.Value:
        return builder.icmp_signed(sign, value, ir.Constant(v.ALL_SHORTS, [bound] * STEP))

    spread = exponent_spread(len(words) - 1) << 7
    return builder.or_(
        beyond(">", builder.sub(most, least), spread),
        builder.or_(beyond("<", least, _LOWEST_BITS), beyond(">", most, _LARGEST_BITS)),
    )


def _lanes_kernel(is_measuring: bool, is_sum: bool = False) -> Any:
    def merge_lanes(
        typing_context,
        base,
        agents,
        merged,
        first,
        groups,
        epsilon,
        factors,
        low,
        high,
        counts,
        sums,
        largest,
    ):
        signature = types.void(
            base,
            agents,
            merged,
            types.intp,
            types.intp,
            types.float32,
            factors,
            low,
            high,
            counts,
            sums,
            largest,
        )

        def generate(context, builder, signature, args):
            _Merging(context, builder, signature, args, is_measuring, is_sum).run()
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(merge_lanes)


class _Merging:
    """The code of one kernel while it is written."""

    def __init__(
        self,
        context: Any,
        builder: ir.IRBuilder,
        signature: Any,
        args: Any,
        is_measuring: bool,
        is_sum: bool,
    ) -> None:
        self._builder = builder
        self._is_measuring = is_measuring
        self._is_sum = is_sum
        kinds = signature.args
        base, agents, merged, self._first, self._groups, epsilon, factors, low, high = args[:9]
        self._n_agents = len(kinds[1])
        self._sources = [v.data(context, builder, kinds[0], base)] + [
            v.data(context, builder, kinds[1].dtype, builder.extract_value(agents, t))
            for t in range(self._n_agents)
        ]
        self._merged, self._counts, self._sums, self._largest = (
            v.data(context, builder, kinds[i], array)
            for i, array in ((2, merged), (9, args[9]), (10, args[10]), (11, args[11]))
        )
        self._factors = [builder.extract_value(factors, t) for t in range(self._n_agents)]
        self._bounds = [
            [
                v.broadcast(builder, builder.fptrunc(builder.extract_value(side, t), v.FLOAT))
                for t in range(self._n_agents)
            ]
            for side in (low, high)
        ]
        self._threshold = v.broadcast(builder, epsilon)
        # LLVM keeps all of these in registers.
        self._changed, self._unique = self._running(v.INT64(0)), self._running(v.INT64(0))
        wide = ir.Constant(v.HALF_DOUBLES, [0.0] * (LANES // 2))
        self._totals = [self._running(wide) for _ in range(2)]
        self._recent = [self._running(v.splat(v.FLOATS, 0.0)) for _ in range(2)]
        self._stored = cgutils.alloca_once(builder, v.BITS)
        self._taus = [cgutils.alloca_once(builder, v.FLOATS) for _ in range(2)]

    def _running(self, zero: ir.Constant) -> list[ir.Value]:
        return [cgutils.alloca_once_value(self._builder, zero) for _ in range(self._n_agents)]

    def run(self) -> None:
        """Write the loops, and the sums at their end."""
        builder = self._builder
        tiles = builder.sdiv(
            builder.add(self._groups, v.INT64(_TILE_STEPS - 1)), v.INT64(_TILE_STEPS)
        )
        with cgutils.for_range(builder, tiles) as tile:
            begin = builder.mul(tile.index, v.INT64(_TILE_STEPS))
            left = builder.sub(self._groups, begin)
            is_last = builder.icmp_signed("<", left, v.INT64(_TILE_STEPS))
            steps = builder.select(is_last, left, v.INT64(_TILE_STEPS))
            with cgutils.for_range(builder, steps) as step:
                number = builder.add(begin, step.index)
                self._merge(builder.add(self._first, builder.mul(number, v.INT64(STEP))))
            if self._is_measuring:
                self._widen()
        if self._is_measuring:
            self._hand_over()

    def _merge(self, start: ir.Value) -> None:
        builder = self._builder
        words = [
            v.load(builder, builder.gep(source, [start]), v.BITS, 2) for source in self._sources
        ]
        halves = [
            _merge_half(builder, numbers, self._threshold, self._bounds, self._is_sum)
            for numbers in _halves(builder, words)
        ]
        sides = [(halves[0].low, halves[1].low), (halves[0].high, halves[1].high)]
        if HAS_BFLOAT16:
            ends = [_round_in_hardware(builder, *side) for side in sides]
            result = _weave(builder, ends[0])
        else:
            ends = [_round_pair(builder, *side) for side in sides]
            result = ends[0]
        builder.store(result, self._stored)
        for half, place in zip(halves, self._taus, strict=True):
            builder.store(half.total, place)
        is_unsure = builder.or_(
            _any(builder, builder.icmp_unsigned("!=", *ends)),
            _any(builder, _is_out_of_reach(builder, words)),
        )
        with builder.if_then(is_unsure, likely=False):
            self._merge_in_double(halves)
        result = builder.load(self._stored)
        v.store(builder, result, builder.gep(self._merged, [start]), 2)
        if self._is_measuring:
            self._measure(halves, result)

    def _alone(self, half: _Half) -> list[ir.Value]:
        """Return, for each agent, the mask of elements that it alone changed."""
        if self._n_agents == 1:
            return half.active
        builder = self._builder
        is_not_shared = builder.not_(half.at_least[2])
        return [builder.and_(mask, is_not_shared) for mask in half.active]

    def _merge_in_double(self, halves: list[_Half]) -> None:
        """Replace what was stored, and measure it; tau is then 0 for the float32 sums."""
        builder = self._builder
        rounded, exact_totals = [], []
        for half in halves:
            value, total, taus = _in_double(builder, half, self._factors, self._is_sum)
            # From float64: nothing of the fast way has to be kept for this rare one.
            self._raise_largest(0, [builder.fptrunc(tau, v.FLOATS) for tau in taus])
            rounded.append(builder.fptrunc(value, v.FLOATS))
            exact_totals.append(total)
        result = _round_pair(builder, *rounded)
        builder.store(result, self._stored)
        for half, kept, total, place in zip(
            halves, _halves(builder, [result]), exact_totals, self._taus, strict=True
        ):
            builder.store(v.splat(v.FLOATS, 0.0), place)
            self._raise_largest(LANES, kept)
            if not self._is_measuring:
                continue
            change = builder.fsub(
                builder.fpext(kept[0], v.DOUBLES), builder.fpext(half.x, v.DOUBLES)
            )
            alone = self._alone(half)
            for places, factor in zip(self._totals, (change, total), strict=True):
                product = builder.fmul(factor, total)
                for t in range(self._n_agents):
                    _add_where(builder, alone[t], places[t], product)

    def _measure(self, halves: list[_Half], result: ir.Value) -> None:
        """Count who changed what, and add up (stored - base) * tau and tau**2."""
        builder = self._builder
        alone = [self._alone(half) for half in halves]
        for t in range(self._n_agents):
            for places, masks in (
                (self._changed, [half.active[t] for half in halves]),
                (self._unique, [masks[t] for masks in alone]),
            ):
                both = [builder.zext(builder.bitcast(m, v.INT16), v.INT32) for m in masks]
                bits = builder.or_(both[0], builder.shl(both[1], v.INT32(LANES)))
                count = v.call(builder, "llvm.ctpop.i32", v.INT32, bits)
                _add(builder, places[t], builder.zext(count, v.INT64))
        for half, masks, (stored,), place in zip(
            halves, alone, _halves(builder, [result]), self._taus, strict=True
        ):
            tau = builder.load(place)
            change = builder.fsub(stored, half.x)
            for places, factor in zip(self._recent, (change, tau), strict=True):
                for t in range(self._n_agents):
                    before = builder.load(places[t])
                    after = v.call(builder, "llvm.fma.v16f32", v.FLOATS, factor, tau, before)
                    builder.store(builder.select(masks[t], after, before), places[t])

    def _widen(self) -> None:
        builder = self._builder
        for recent, totals in zip(self._recent, self._totals, strict=True):
            for short, wide in zip(recent, totals, strict=True):
                lanes = builder.load(short)
                for first in (0, LANES // 2):
                    total = builder.load(wide)
                    part = builder.fpext(_part(builder, lanes, first), v.HALF_DOUBLES)
                    builder.store(builder.fadd(total, part), wide)
                builder.store(v.splat(v.FLOATS, 0.0), short)

    def _hand_over(self) -> None:
        builder = self._builder
        for t in range(self._n_agents):
            for row, places in enumerate((self._changed, self._unique)):
                pointer = builder.gep(self._counts, [v.INT64(row * self._n_agents + t)])
                _add(builder, pointer, builder.load(places[t]))
            for row, places in enumerate(self._totals):
                pointer = builder.gep(self._sums, [v.INT64(row * self._n_agents + t)])
                total = v.call(
                    builder,
                    "llvm.vector.reduce.fadd.v8f64",
                    v.DOUBLE,
                    v.DOUBLE(0.0),
                    builder.load(places[t]),
                )
                builder.store(builder.fadd(builder.load(pointer), total), pointer)

    def _raise_largest(self, offset: int, values: list[ir.Value]) -> None:
        builder = self._builder
        pointer = builder.gep(self._largest, [v.INT64(offset)])
        most = v.load(builder, pointer, v.BITS, 4)
        for value in values:
            most = v.larger(builder, most, v.without_sign(builder, value))
        v.store(builder, most, pointer, 4)


def _add(builder: ir.IRBuilder, pointer: ir.Value, value: ir.Value) -> None:
    builder.store(builder.add(builder.load(pointer), value), pointer)


def _part(builder: ir.IRBuilder, lanes: ir.Value, first: int) -> ir.Value:
    """Return half of the lanes, from ``first`` on."""
    chosen = ir.VectorType(v.INT32, LANES // 2)
    indices = ir.Constant(chosen, list(range(first, first + LANES // 2)))
    return builder.shuffle_vector(lanes, lanes, indices)


def _add_where(builder: ir.IRBuilder, mask: ir.Value, pointer: ir.Value, value: ir.Value) -> None:
    """Add the lanes where the mask is set to half as many running sums."""
    for first in (0, LANES // 2):
        before = builder.load(pointer)
        after = builder.fadd(before, _part(builder, value, first))
        builder.store(builder.select(_part(builder, mask, first), after, before), pointer)


merge_mean_lanes = _lanes_kernel(is_measuring=True)
"""Merge ``groups`` x 32 elements of bfloat16 as ``loop_kernels.merge_mean`` does, and measure them.

first: index of the first of them; merged: uint16, receives the result rounded to nearest;
epsilon: float32; factors: tuple of float64; low, high: bounds of these (see below), as tuples
of float64; counts: int64 (2, agents), raised by the elements that each agent changed and
changed alone; sums: float64 (2, agents), raised by (stored - base) * tau and tau**2 over those
changed alone; largest: int32 (2, 16), raised to the bits of |tau| and of |stored| where these
may not be finite.

Float64 takes three times as long, so elements are first merged in float32, and once more in
float64 unless that is sure to give the same bits. It is sure if all of base and agents lie within
``exponent_spread`` octaves, so that each tau and their total are exact in float32, and if
base + low * total and base + high * total, in one rounding each, are the same bfloat16. low and
high enclose the factor (lambda_t, or 1 / count) by MARGIN, far more than all roundings of the
float64 way, so its value lies between the two, and rounding keeps order. A factor of few bits needs
no enclosing: both ways are exact up to the last rounding then; so ties, which are frequent there,
are decided alike.

The sums are formed in float32 over 512 elements (16 in each lane) and in float64 over those.
"""

merge_plain_lanes = _lanes_kernel(is_measuring=False)
"""Do ``merge_mean_lanes`` without measuring: counts and sums stay as they are."""

merge_sum_lanes = _lanes_kernel(is_measuring=True, is_sum=True)
"""Merge as ``sum_loops.merge_sum`` does, dropping nothing, and measure: all factors are one."""

merge_sum_plain_lanes = _lanes_kernel(is_measuring=False, is_sum=True)
"""Do ``merge_sum_lanes`` without measuring."""
