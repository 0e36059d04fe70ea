"""The innermost steps of the CPU kernels on 16 elements at a time, as vector code.

numba vectorises plain loops well, but not these two: picking the changed elements out of a run
(it needs a compress instruction), and keeping many running sums in registers. Both are written
here in LLVM's own vector operations, of 16 lanes; nothing is particular to one processor, but only
with AVX-512 is it fast (``HAS_FAST_LANES``). The plain kernels in ``kernels`` compute the same.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ram_studio.algorithm.ladder import BIN_COUNT, BIN_SHIFT, LOWEST_BIN
from ram_studio.algorithm.measured_kernels import MARGIN
from ram_studio.algorithm.processor import HAS_FAST_LANES, LANES

__all__ = ["HAS_FAST_LANES", "LANES", "leaving_slots", "merge_mean_lanes"]

_INT1, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_BITS = ir.VectorType(_INT32, LANES)
_SHORTS = ir.VectorType(_INT16, LANES)
_FLOATS = ir.VectorType(_FLOAT, LANES)
_DOUBLES = ir.VectorType(_DOUBLE, LANES)
_HALF_DOUBLES = ir.VectorType(_DOUBLE, LANES // 2)
_MASK = ir.VectorType(_INT1, LANES)
_SIGN_OFF = 0x7FFFFFFF


def _splat(vector: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(vector, [value] * LANES)


def _broadcast(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    vector = ir.VectorType(value.type, LANES)
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, value, _INT32(0))
    return builder.shuffle_vector(first, empty, _splat(_BITS, 0))


def _load(builder: ir.IRBuilder, pointer: ir.Value, vector: ir.VectorType, align: int) -> ir.Value:
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    loaded.align = align
    return loaded


def _store(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, align: int) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = align


def _data(context: Any, builder: ir.IRBuilder, kind: types.Array, array: ir.Value) -> ir.Value:
    return context.make_array(kind)(context, builder, array).data


def _elements(builder: ir.IRBuilder, kind: types.Array, data: ir.Value, start: ir.Value):
    """Load 16 stored elements (bfloat16 bits or float32) as float32."""
    pointer = builder.gep(data, [start])
    if kind.dtype != types.uint16:
        return _load(builder, pointer, _FLOATS, 4)
    return _as_floats(builder, builder.zext(_load(builder, pointer, _SHORTS, 2), _BITS))


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _lanes_set(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    count = _call(builder, "llvm.ctpop.i16", _INT16, builder.bitcast(mask, _INT16))
    return builder.zext(count, _INT64)


def _without_sign(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.and_(builder.bitcast(value, _BITS), _splat(_BITS, _SIGN_OFF))


@intrinsic
def leaving_slots(typing_context, base, agents, start, edge_bits, slots, position, largest):
    """Append the chain histogram's indices of elements [start, start + 16); return the new end.

    base, agents: stored elements; edge_bits: as for ``kernels.fill_chain``; slots: uint32 with
    room for 16 more than are kept, one index per changed element and agent from ``position`` on;
    largest: int32[16], raised to the bits of |tau| (at or above those of infinity: not finite).
    """
    n_agents = len(agents)
    signature = types.intp(base, agents, types.intp, types.int32, slots, types.intp, largest)

    def generate(context, builder, signature, args):
        base_kind, agents_kind, _, _, slots_kind, _, largest_kind = signature.args
        base, agents, start, edge_bits, slots, position, largest = args
        x = _elements(builder, base_kind, _data(context, builder, base_kind, base), start)
        above_edge = _broadcast(builder, builder.add(edge_bits, _INT32(1)))
        largest = _data(context, builder, largest_kind, largest)
        most = _load(builder, largest, _BITS, 4)
        bins, active, rows = [], [], []
        for t in range(n_agents):
            agent = _data(context, builder, agents_kind.dtype, builder.extract_value(agents, t))
            y = _elements(builder, agents_kind.dtype, agent, start)
            bits = _without_sign(builder, builder.fsub(y, x))
            most = _larger(builder, most, bits)
            active.append(builder.icmp_signed("!=", bits, _splat(_BITS, 0)))
            k = builder.ashr(builder.sub(bits, above_edge), _splat(_BITS, BIN_SHIFT))
            k = _larger(builder, k, _splat(_BITS, LOWEST_BIN))
            k = _smaller(builder, k, _splat(_BITS, LOWEST_BIN + BIN_COUNT - 1))
            # An unchanged element lies below every bin, so it stays in no set.
            bins.append(builder.select(active[t], k, _splat(_BITS, -(1 << 24))))
            alone = ((1 << t) * n_agents + t) * BIN_COUNT - LOWEST_BIN
            rows.append(builder.add(bins[t], _splat(_BITS, alone)))
        _store(builder, most, largest, 4)
        for a in range(n_agents):
            for b in range(a + 1, n_agents):
                # Either a is still active when b leaves, or b when a leaves; in one bin a goes
                # first.
                a_stays = builder.icmp_signed(">", bins[a], bins[b])
                with_a = builder.add(rows[b], _splat(_BITS, (1 << a) * n_agents * BIN_COUNT))
                with_b = builder.add(rows[a], _splat(_BITS, (1 << b) * n_agents * BIN_COUNT))
                rows[b] = builder.select(a_stays, with_a, rows[b])
                rows[a] = builder.select(a_stays, rows[a], with_b)
        slots = _data(context, builder, slots_kind, slots)
        for t in range(n_agents):
            # A whole vector is stored and the end moved on by what counts: a masked store to
            # memory is many times slower.
            kept = _call(
                builder,
                f"llvm.experimental.vector.compress.v{LANES}i32",
                _BITS,
                rows[t],
                active[t],
                ir.Constant(_BITS, ir.Undefined),
            )
            _store(builder, kept, builder.gep(slots, [position]), 4)
            position = builder.add(position, _lanes_set(builder, active[t]))
        return position

    return signature, generate


EXPONENT_SPREAD = 10
"""Where base and agents lie within so many octaves, float32 sums of task vectors are exact."""

_LARGEST_BITS = (127 + 55) << 7


def _half(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return what to add to float32 bits so that cutting off rounds to bfloat16, ties to even."""
    odd = builder.and_(_upper(builder, bits), _splat(_BITS, 1))
    return builder.add(odd, _splat(_BITS, 0x7FFF))


def _upper(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return builder.lshr(bits, _splat(_BITS, 16))


def _as_floats(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return bfloat16 bits, held in 32-bit numbers, as float32 lanes."""
    return builder.bitcast(builder.shl(bits, _splat(_BITS, 16)), _FLOATS)


def _shared_bounds(count: int) -> tuple[float, float]:
    """Return the bounds of 1 / count; a power of two is exact."""
    share = 1 / count
    exact = math.frexp(share)[0] == 0.5
    return (share, share) if exact else (share * (1 - MARGIN), share * (1 + MARGIN))


def _mean_in_double(builder, x, ys, active, count, factors):
    """Return what ``kernels.merge_mean`` computes, and the total of tau, as float64 lanes."""
    wide_x = builder.fpext(x, _DOUBLES)
    zero = _splat(_DOUBLES, 0.0)
    total, alone = zero, wide_x
    for y, is_active, factor in zip(ys, active, factors, strict=True):
        wide_y = builder.fpext(y, _DOUBLES)
        tau = builder.fsub(wide_y, wide_x)
        total = builder.fadd(total, builder.select(is_active, tau, zero))
        as_is = _broadcast(builder, builder.fcmp_ordered("==", factor, _DOUBLE(1.0)))
        scaled = builder.fadd(wide_x, builder.fmul(_broadcast(builder, factor), tau))
        alone = builder.select(is_active, builder.select(as_is, wide_y, scaled), alone)
    voters = builder.sitofp(_larger(builder, count, _splat(_BITS, 1)), _DOUBLES)
    value = builder.fadd(wide_x, builder.fdiv(total, voters))
    value = builder.select(builder.icmp_signed("==", count, _splat(_BITS, 1)), alone, value)
    is_idle = builder.icmp_signed("==", count, _splat(_BITS, 0))
    return builder.select(is_idle, wide_x, value), total


@intrinsic
def merge_mean_lanes(
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
    """Merge ``groups`` x 16 elements of bfloat16 as ``kernels.merge_mean`` does, and measure them.

    first: index of the first of them; merged: uint16, receives the result rounded to nearest;
    epsilon: float32; factors: tuple of float64; low, high: bounds of these (see below), as tuples
    of float64; counts: int64 (2, agents), raised by the elements that each agent changed and
    changed alone; sums: float64 (2, agents), raised by (stored - base) * tau and tau**2 over those
    changed alone; largest: int32 (2, 16), raised to the bits of |tau| and of |stored| where these
    may not be finite.

    Float64 takes three times as long, so each 16 elements are first merged in float32, and once
    more in float64 unless that is sure to give the same bits. It is sure if all of base and agents
    lie within EXPONENT_SPREAD octaves (of 8-bit numbers: so each tau and their total are exact in
    float32 for up to 32 agents), and if base + low * total and base + high * total, in one
    rounding each, are the same bfloat16. low and high enclose the factor (lambda_t, or 1 / count)
    by 2**-20, far more than all roundings of the float64 way, so its value lies between the two,
    and rounding keeps order. A factor of few bits needs no enclosing: both ways are exact up to the
    last rounding then; so ties, which are frequent there, are decided alike.
    """
    n_agents = len(agents)
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
        kinds = signature.args
        base, agents, merged, first, groups, epsilon, factors, low, high = args[:9]
        counts, sums, largest = args[9:]
        base = _data(context, builder, kinds[0], base)
        agents = [
            _data(context, builder, kinds[1].dtype, builder.extract_value(agents, t))
            for t in range(n_agents)
        ]
        merged, counts, sums, largest = (
            _data(context, builder, kinds[i], array)
            for i, array in ((2, merged), (9, counts), (10, sums), (11, largest))
        )
        factors = [builder.extract_value(factors, t) for t in range(n_agents)]
        bounds = [
            [
                _broadcast(builder, builder.fptrunc(builder.extract_value(side, t), _FLOAT))
                for t in range(n_agents)
            ]
            for side in (low, high)
        ]
        threshold = _broadcast(builder, epsilon)

        def running(zero: ir.Constant) -> list[ir.Value]:
            # LLVM keeps these in registers.
            return [cgutils.alloca_once_value(builder, zero) for _ in range(n_agents)]

        changed, unique = running(_INT64(0)), running(_INT64(0))
        totals = [running(ir.Constant(_HALF_DOUBLES, [0.0] * (LANES // 2))) for _ in range(2)]
        stored = cgutils.alloca_once(builder, _BITS)
        measured = [cgutils.alloca_once(builder, _FLOATS) for _ in range(2)]

        def merge_16(start: ir.Value) -> None:
            raw = [_load(builder, builder.gep(a, [start]), _SHORTS, 2) for a in (base, *agents)]
            as_base, *_ = wide = [builder.zext(bits, _BITS) for bits in raw]
            x, *ys = (_as_floats(builder, bits) for bits in wide)
            sizes = [builder.and_(bits, _splat(_SHORTS, 0x7FFF)) for bits in raw]
            least, most = sizes[0], sizes[0]
            for size in sizes[1:]:
                least, most = _smaller(builder, least, size), _larger(builder, most, size)
            total = _splat(_FLOATS, 0.0)
            factor = [_splat(_FLOATS, 0.0)] * 2
            active: list[ir.Value] = []
            at_least = [ir.Constant(_MASK, [True] * LANES)]  # [c]: changed by c agents or more
            for t, y in enumerate(ys):
                tau = builder.fsub(y, x)
                change = builder.bitcast(_without_sign(builder, tau), _FLOATS)
                is_active = builder.fcmp_ordered(">", change, threshold)
                total = builder.select(is_active, builder.fadd(total, tau), total)
                factor = [
                    builder.select(is_active, side[t], chosen)
                    for side, chosen in zip(bounds, factor, strict=True)
                ]
                at_least.append(ir.Constant(_MASK, [False] * LANES))
                for c in range(t + 1, 0, -1):
                    one_more = builder.and_(at_least[c - 1], is_active)
                    at_least[c] = builder.or_(at_least[c], one_more)
                active.append(is_active)
            for c in range(2, n_agents + 1):
                factor = [
                    builder.select(at_least[c], _splat(_FLOATS, share), chosen)
                    for share, chosen in zip(_shared_bounds(c), factor, strict=True)
                ]
            is_idle = builder.not_(at_least[1])
            is_alone = at_least[1]
            if n_agents > 1:
                is_alone = builder.and_(is_alone, builder.not_(at_least[2]))
            mine = [builder.and_(mask, is_alone) for mask in active]
            sides = [
                builder.bitcast(_call(builder, "llvm.fma.v16f32", _FLOATS, f, total, x), _BITS)
                for f in factor
            ]
            rounded = [builder.add(bits, _half(builder, bits)) for bits in sides]
            result = builder.select(is_idle, as_base, _upper(builder, rounded[0]))
            builder.store(result, stored)
            builder.store(builder.fsub(_as_floats(builder, result), x), measured[0])
            builder.store(total, measured[1])
            unsure = builder.or_(
                builder.icmp_unsigned(">", builder.xor(*rounded), _splat(_BITS, 0xFFFF)),
                builder.or_(
                    builder.icmp_signed(
                        ">", builder.sub(most, least), _splat(_SHORTS, EXPONENT_SPREAD << 7)
                    ),
                    builder.icmp_signed(">", most, _splat(_SHORTS, _LARGEST_BITS)),
                ),
            )
            is_unsure = builder.icmp_signed("!=", builder.bitcast(unsure, _INT16), _INT16(0))
            with builder.if_then(is_unsure, likely=False):
                count = _splat(_BITS, 0)
                for mask in active:
                    count = builder.add(count, builder.zext(mask, _BITS))
                value, exact_total = _mean_in_double(builder, x, ys, active, count, factors)
                bits = builder.bitcast(builder.fptrunc(value, _FLOATS), _BITS)
                nearest = _upper(builder, builder.add(bits, _half(builder, bits)))
                exact = builder.select(is_idle, as_base, nearest)
                builder.store(exact, stored)
                as_float = _as_floats(builder, exact)
                kept = builder.fsub(builder.fpext(as_float, _DOUBLES), builder.fpext(x, _DOUBLES))
                for place in measured:
                    builder.store(_splat(_FLOATS, 0.0), place)
                for place, factor in zip(totals, (kept, exact_total), strict=True):
                    product = builder.fmul(factor, exact_total)
                    for t in range(n_agents):
                        _add_where(builder, mine[t], place[t], product)
                _raise_to(builder, largest, 0, [builder.fsub(y, x) for y in ys])
                _raise_to(builder, largest, LANES, [as_float])
            _store(
                builder,
                builder.trunc(builder.load(stored), _SHORTS),
                builder.gep(merged, [start]),
                2,
            )
            kept, tau = (builder.fpext(builder.load(place), _DOUBLES) for place in measured)
            for t in range(n_agents):
                _add(builder, changed[t], _lanes_set(builder, active[t]))
                _add(builder, unique[t], _lanes_set(builder, mine[t]))
            for place, factor in zip(totals, (kept, tau), strict=True):
                product = builder.fmul(factor, tau)
                for t in range(n_agents):
                    _add_where(builder, mine[t], place[t], product)

        with cgutils.for_range(builder, groups) as loop:
            merge_16(builder.add(first, builder.mul(loop.index, _INT64(LANES))))
        for t in range(n_agents):
            for row, place in enumerate((changed, unique)):
                pointer = builder.gep(counts, [_INT64(row * n_agents + t)])
                _add(builder, pointer, builder.load(place[t]))
            for row, place in enumerate(totals):
                pointer = builder.gep(sums, [_INT64(row * n_agents + t)])
                lanes = _call(
                    builder,
                    "llvm.vector.reduce.fadd.v8f64",
                    _DOUBLE,
                    _DOUBLE(0.0),
                    builder.load(place[t]),
                )
                builder.store(builder.fadd(builder.load(pointer), lanes), pointer)
        return context.get_dummy_value()

    return signature, generate


def _add(builder: ir.IRBuilder, pointer: ir.Value, value: ir.Value) -> None:
    builder.store(builder.add(builder.load(pointer), value), pointer)


def _add_where(builder: ir.IRBuilder, mask: ir.Value, pointer: ir.Value, value: ir.Value) -> None:
    """Add the lanes where the mask is set to half as many running sums."""
    for first in (0, LANES // 2):
        lanes = ir.Constant(
            ir.VectorType(_INT32, LANES // 2), list(range(first, first + LANES // 2))
        )
        before = builder.load(pointer)
        here = builder.shuffle_vector(mask, mask, lanes)
        after = builder.fadd(before, builder.shuffle_vector(value, value, lanes))
        builder.store(builder.select(here, after, before), pointer)


def _raise_to(builder: ir.IRBuilder, data: ir.Value, offset: int, values: list[ir.Value]) -> None:
    pointer = builder.gep(data, [_INT64(offset)])
    most = _load(builder, pointer, _BITS, 4)
    for value in values:
        most = _larger(builder, most, _without_sign(builder, value))
    _store(builder, most, pointer, 4)
