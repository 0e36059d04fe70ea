"""What vector code is written in: LLVM's types of 16 lanes, and small steps on them.

Nothing here is particular to one processor, but only with AVX-512 is it fast.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ram_studio.algorithm.processor import LANES, STEP

INT1, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
BITS = ir.VectorType(INT32, LANES)
SHORTS = ir.VectorType(INT16, LANES)
FLOATS = ir.VectorType(FLOAT, LANES)
DOUBLES = ir.VectorType(DOUBLE, LANES)
HALF_DOUBLES = ir.VectorType(DOUBLE, LANES // 2)
ALL_SHORTS = ir.VectorType(INT16, STEP)
MASK = ir.VectorType(INT1, LANES)
SIGN_OFF = 0x7FFFFFFF


class _BFloatType(ir.types.Type):
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloatType)

    def __hash__(self) -> int:
        return hash(_BFloatType)


BFLOATS = ir.VectorType(_BFloatType(), STEP)


def splat(vector: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(vector, [value] * LANES)


def broadcast(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    vector = ir.VectorType(value.type, LANES)
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, value, INT32(0))
    return builder.shuffle_vector(first, empty, splat(BITS, 0))


def load(builder: ir.IRBuilder, pointer: ir.Value, vector: ir.VectorType, align: int) -> ir.Value:
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    loaded.align = align
    return loaded


def store(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, align: int) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = align


def data(context: Any, builder: ir.IRBuilder, kind: types.Array, array: ir.Value) -> ir.Value:
    return context.make_array(kind)(context, builder, array).data


def elements(builder: ir.IRBuilder, kind: types.Array, data: ir.Value, start: ir.Value):
    """Load 16 stored elements (bfloat16 bits or float32) as float32."""
    pointer = builder.gep(data, [start])
    if kind.dtype != types.uint16:
        return load(builder, pointer, FLOATS, 4)
    return as_floats(builder, builder.zext(load(builder, pointer, SHORTS, 2), BITS))


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def lanes_set(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    count = call(builder, "llvm.ctpop.i16", INT16, builder.bitcast(mask, INT16))
    return builder.zext(count, INT64)


def without_sign(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.and_(builder.bitcast(value, BITS), splat(BITS, SIGN_OFF))


def upper(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return builder.lshr(bits, splat(BITS, 16))


def as_floats(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return bfloat16 bits, held in 32-bit numbers, as float32 lanes."""
    return builder.bitcast(builder.shl(bits, splat(BITS, 16)), FLOATS)
