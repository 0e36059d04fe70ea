"""What fp8 and mxfp4 codes stand for, as bfloat16, some elements at a time.

Formats: OCP 8-bit floating point (E4M3 without infinities, E5M2) and OCP Microscaling (E2M1 codes,
E8M0 scales). A product is formed in float32 and rounded once to bfloat16, to nearest even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.read.derived import Microscaled, Scaled
from ram_studio.checkpoints.read.header import TensorInfo
from ram_studio.engine.reading.derived import Held

Stored = Callable[[TensorInfo, int, int], np.ndarray]
"""(tensor, first byte, how many) -> uint8."""

_GROUP_ELEMENTS = 1 << 18


def _e4m3() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[code & 127 == 127] = np.nan
    return np.where(code < 128, value, -value).astype(np.float32)


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
_FP4 = np.concatenate([_E2M1, -_E2M1])
_FP8 = {
    "F8_E4M3": _e4m3(),
    # The upper half of a float16.
    "F8_E5M2": (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32),
}


def scaled(derived: Scaled, start: int, count: int, stored: Stored, held: Held) -> np.ndarray:
    """Return elements [start, start + count) as bfloat16 bit patterns (uint16)."""
    if not count:
        return np.empty(0, dtype=np.uint16)
    shape = derived.codes.shape or (1,)
    counts, block = derived.scale_shape or (1,), derived.block or (1,)
    columns = shape[-1]
    first, last = start // columns, -(-(start + count) // columns)
    values = _FP8[derived.codes.dtype][stored(derived.codes, start, count)]
    scale = held.get((derived.scale, 0), partial(_scale, derived.scale, stored)).reshape(counts)
    rows = np.arange(first, last)
    if len(shape) > 1:
        places = np.unravel_index(rows, shape[:-1])
        of_rows = scale[tuple(at // size for at, size in zip(places, block, strict=False))]
    else:
        of_rows = scale[None]
    wide = np.repeat(of_rows, block[-1], axis=1)[:, :columns].reshape(-1)
    offset = start - first * columns
    with np.errstate(over="ignore", invalid="ignore"):  # told as tensors that are not finite
        return rounding.store(values * wide[offset : offset + count], "BF16")


def _scale(tensor: TensorInfo, stored: Stored) -> np.ndarray:
    raw = stored(tensor, 0, tensor.nbytes)
    if tensor.dtype == "F8_E8M0":
        return _power(raw)
    return rounding.decode(raw.view(rounding.STORAGE[tensor.dtype]), tensor.dtype)


def _power(exponents: np.ndarray) -> np.ndarray:
    """Return E8M0 numbers: powers of two, and NaN for 255."""
    powers = np.ldexp(np.float64(1), exponents.astype(np.int32) - 127)
    return np.where(exponents == 255, np.nan, powers).astype(np.float32)


def microscaled(
    derived: Microscaled, start: int, count: int, stored: Stored, held: Held
) -> np.ndarray:
    """Return elements [start, start + count) as bfloat16 bit patterns (uint16).

    A run of elements of the transposed matrix needs all of its rows, so a matrix is decoded once
    and held while it is in use.
    """
    _, columns, groups, _ = derived.blocks.shape
    size = columns * groups * 32

    def matrix(number: int) -> np.ndarray:
        made = np.empty((columns, groups * 32), dtype=np.uint16)
        packed = stored(derived.blocks, number * size // 2, size // 2).reshape(columns, groups, 16)
        exponents = stored(derived.scales, number * columns * groups, columns * groups)
        scale = _power(exponents).reshape(columns, groups, 1)
        step = max(1, _GROUP_ELEMENTS // (groups * 32))
        for row in range(0, columns, step):  # some at a time: float32 takes eight times the room
            part = slice(row, row + step)
            halves = np.stack([packed[part] & 15, packed[part] >> 4], axis=-1)
            values = _FP4[halves.reshape(-1, groups, 32)] * scale[part]
            made[part] = rounding.store(values.reshape(-1), "BF16").reshape(-1, groups * 32)
        return np.ascontiguousarray(made.T).reshape(-1)

    return _of_matrices(start, count, size, np.dtype(np.uint16), held.maker(derived.blocks, matrix))


def transposed(
    of: TensorInfo, dtype: np.dtype, start: int, count: int, stored: Stored, held: Held
) -> np.ndarray:
    """Return elements [start, start + count) of a stack of matrices, each of them turned.

    Like those of ``microscaled``, a matrix is turned once and held while it is in use.
    """
    rows, columns = of.shape[-2:]
    size = rows * columns

    def matrix(number: int) -> np.ndarray:
        raw = stored(of, number * size * dtype.itemsize, size * dtype.itemsize)
        return np.ascontiguousarray(raw.view(dtype).reshape(rows, columns).T).reshape(-1)

    # What it is made of may be long: its name says enough within a pass.
    return _of_matrices(start, count, size, dtype, held.maker(replace(of, derived=None), matrix))


def _of_matrices(
    start: int, count: int, size: int, dtype: np.dtype, matrix: Callable[[int], np.ndarray]
) -> np.ndarray:
    """Return elements [start, start + count) of matrices of `size` elements, one after another."""
    out = np.empty(count, dtype=dtype)
    for number in range(start // size, -(-(start + count) // size)) if count else ():
        begin, end = max(start, number * size), min(start + count, (number + 1) * size)
        made = matrix(number)
        out[begin - start : end - start] = made[begin - number * size : end - number * size]
    return out
