"""Storing float64 results in bfloat16, float16 or float32, to nearest or stochastically.

Owns every cast to an output dtype. Stochastic rounding takes its randomness from a counter-based
hash of (seed, tensor name, element index): the result does not depend on blocks, threads or device.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np

from ram_studio.algorithm.machine_code import Kernel
from ram_studio.algorithm.shapes import Bool, Float64, UInt

Rounding = Literal["nearest", "stochastic"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "stochastic")
STORAGE = {
    "BF16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
}
"""numpy dtype that holds each output dtype; bfloat16 as its bit pattern."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

random_words = Kernel("rounding_loops", "random_words")
"""(key, start, out): fill uint64 ``out`` with the words of elements start, start + 1, ..."""

_nearest_bfloat16 = Kernel("rounding_loops", "nearest_bfloat16")
_stochastic_bfloat16 = Kernel("rounding_loops", "stochastic_bfloat16")
_stochastic_float16 = Kernel("rounding_loops", "stochastic_float16")
_stochastic_float32 = Kernel("rounding_loops", "stochastic_float32")


def stream_key(seed: int, purpose: str, tensor: str) -> np.uint64:
    """Return the 64-bit key of one tensor's random numbers for one purpose ("rounding", ...)."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}\0{tensor}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


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


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements (see STORAGE) as float32; bfloat16 and float16 convert exactly."""
    if dtype == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32, copy=False)
