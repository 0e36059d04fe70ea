"""Storing float64 results in bfloat16, float16 or float32, to nearest or stochastically.

Owns every cast to an output dtype. Stochastic rounding takes its randomness from a counter-based
hash of (seed, tensor name, element index): the result does not depend on blocks, threads or device.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64, UInt

from ram_studio.algorithm.kernels import bits_float, float_bits, round_to_bfloat16
from ram_studio.algorithm.numba_kernels import numba_kernel

Rounding = Literal["nearest", "stochastic"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "stochastic")
STORAGE = {
    "BF16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
}
"""numpy dtype that holds each output dtype; bfloat16 as its bit pattern."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream_key(seed: int, purpose: str, tensor: str) -> np.uint64:
    """Return the 64-bit key of one tensor's random numbers for one purpose ("rounding", ...)."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}\0{tensor}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


@numba_kernel
def _word(key, index):
    """Return 64 random bits for element ``index``: the finaliser of SplitMix64 over key + index."""
    z = key + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@numba_kernel
def random_words(key, start, out):
    """Fill ``out`` (uint64) with the words of elements start, start + 1, ... of a tensor."""
    for i in range(out.shape[0]):
        out[i] = _word(key, np.uint64(start) + np.uint64(i))


@numba_kernel
def _stochastic_bfloat16(values, changed, key, start, out):
    for i in range(values.shape[0]):
        nearest = np.float32(values[i])
        bits = float_bits(nearest)
        noise = np.uint32(_word(key, np.uint64(start) + np.uint64(i)) >> np.uint64(48))
        up = np.uint32(bits + noise)
        # Never across to infinity: what would overflow stays at the largest finite number.
        up = up if (up & np.uint32(0x7F800000)) != np.uint32(0x7F800000) else bits
        drawn = np.uint16(up >> np.uint32(16))
        out[i] = drawn if changed[i] else round_to_bfloat16(nearest)


@numba_kernel
def _stochastic_float32(values, changed, key, start, out):
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


@numba_kernel
def _stochastic_float16(values, changed, key, start, out):
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


def store(
    values: Float64[np.ndarray, " n"],
    dtype: str,
    rounding: Rounding = "nearest",
    changed: Bool[np.ndarray, " n"] | UInt[np.ndarray, " n"] | None = None,
    key: np.uint64 = _GOLDEN,
    start: int = 0,
) -> np.ndarray:
    """Return ``values`` as elements of the output dtype ("BF16", "F16", "F32"), see STORAGE.

    nearest: ties to even; bfloat16 goes through float32, as torch's cast does.
    stochastic: up or down to a neighbour with probability by distance, so that the mean is kept
    (bfloat16: of the value as float32); never to infinity; only where ``changed`` is non-zero
    (all elements by default), so that unchanged elements cannot move.

    Args: key: of the tensor, see ``stream_key``; start: index of values[0] in the tensor.
    Edge cases: a finite value beyond the dtype's range gives infinity (callers refuse it).
    """
    if rounding == "stochastic":
        mask = np.ones(len(values), dtype=np.bool_) if changed is None else changed
        if dtype == "BF16":
            out = np.empty(len(values), dtype=np.uint16)
            _stochastic_bfloat16(values, mask, key, start, out)
            return out
        if dtype == "F32":
            out = np.empty(len(values), dtype=np.float32)
            _stochastic_float32(values, mask, key, start, out)
            return out
        drawn = np.empty_like(values)
        _stochastic_float16(values, mask, key, start, drawn)
        values = drawn
    with np.errstate(over="ignore"):
        if dtype == "BF16":
            out = np.empty(len(values), dtype=np.uint16)
            _nearest_bfloat16(values, out)
            return out
        return values.astype(STORAGE[dtype])


@numba_kernel
def _nearest_bfloat16(values, out):
    for i in range(values.shape[0]):
        out[i] = round_to_bfloat16(np.float32(values[i]))


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements (see STORAGE) as float32; bfloat16 and float16 convert exactly."""
    if dtype == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32, copy=False)
