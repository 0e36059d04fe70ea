"""Operations on single elements: load, round, take the size, add."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from ram_studio.algorithm.kernels.loops.compiling import loop

TILE = 2048
"""Elements per pass where several loops follow each other, so that they stay in L1."""

INFINITE = np.int32(0x7F800000)
"""Size of infinity."""

OVERFLOWING = np.int32(0x7F7F8000)
"""Size from which on a float32 becomes infinite in bfloat16."""


@intrinsic
def as_bits(typing_context, value):
    """Reinterpret a float32 as int32."""
    return types.int32(types.float32), lambda c, b, s, a: b.bitcast(a[0], ir.IntType(32))


@intrinsic
def as_float(typing_context, bits):
    """Reinterpret a uint32 as float32."""
    return types.float32(types.uint32), lambda c, b, s, a: b.bitcast(a[0], ir.FloatType())


@intrinsic
def fma(typing_context, a, b, c):
    """Return a b + c of float32, rounded once."""
    single = types.float32
    return single(single, single, single), lambda c, builder, s, numbers: builder.fma(*numbers)


def load(stored):
    """Return the float32 that a stored element stands for."""


@overload(load)
def _load(stored):
    if stored == types.uint16:
        return lambda stored: as_float(np.uint32(np.uint32(stored) << np.uint32(16)))
    return lambda stored: np.float32(stored)


def cast_like(value, example):
    """Return a number in the type of another, float32 or float64: the requested arithmetic."""


@overload(cast_like)
def _cast_like(value, example):
    if example == types.float32:
        return lambda value, example: np.float32(value)
    return lambda value, example: np.float64(value)


def is_wide(example):
    """Return whether the requested arithmetic is wider than float32."""


@overload(is_wide)
def _is_wide(example):
    answer = example == types.float64
    return lambda example: answer


@loop
def nearest_bfloat16(value):
    """Round a finite float32 to the nearest bfloat16, ties to even; overflow gives infinity."""
    bits = np.uint32(as_bits(value))
    last_bit = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + last_bit) >> np.uint32(16))


def round_like(value, array):
    """Return a number as an element of an array: bfloat16 bits, float32 or float64."""


@overload(round_like)
def _round_like(value, array):
    if array.dtype == types.uint16:
        return lambda value, array: nearest_bfloat16(np.float32(value))
    return lambda value, array: cast_like(value, array[0])


@loop
def size_of(tau):
    return np.int32(as_bits(np.float32(tau)) & np.int32(0x7FFFFFFF))


@loop(fastmath={"reassoc", "contract"})
def plus_product(total, a, b):
    """Return total + a b, perhaps fused: for measured sums, never for stored values."""
    return total + a * b
