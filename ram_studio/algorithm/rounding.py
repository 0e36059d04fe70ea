"""Storing results in bfloat16, float16 or float32, to nearest or stochastically.

Every cast to an output dtype is here. Stochastic rounding takes its randomness from a counter-based
hash of (seed, tensor name, element index): the result does not depend on blocks, threads or device.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np

from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.shapes import Bool, Float, UInt

Rounding = Literal["nearest", "stochastic"]
STORAGE: dict[str, np.dtype[Any]] = {
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


def store(
    values: Float[np.ndarray, " n"],
    dtype: str,
    rounding: Rounding = "nearest",
    changed: Bool[np.ndarray, " n"] | UInt[np.ndarray, " n"] | None = None,
    key: np.uint64 = _GOLDEN,
    start: int = 0,
) -> np.ndarray:
    """Return ``values`` as elements of the output dtype ("BF16", "F16", "F32"), see STORAGE.

    nearest: ties to even; bfloat16 goes through float32, as torch's cast does.
    stochastic: up or down to a neighbor with probability by distance, so that the expected value is
    exact (bfloat16: the value as float32); never to infinity; only where ``changed`` is non-zero
    (all elements by default), so that unchanged elements cannot move.

    Args: key: of the tensor, see ``stream_key``; start: index of values[0] in the tensor.
    Edge cases: a finite value beyond the dtype's range gives infinity (callers refuse it).
    """
    if rounding == "stochastic":
        mask = np.ones(len(values), dtype=np.uint8) if changed is None else changed
        # float16's numbers are drawn as float64; the cast is then exact.
        drawn = np.empty(len(values), dtype=np.float64 if dtype == "F16" else STORAGE[dtype])
        cpu.round_stochastically(values, mask, key, start, drawn)
        with np.errstate(over="ignore"):
            return drawn.astype(STORAGE[dtype], copy=False)
    with np.errstate(over="ignore"):
        if dtype != "BF16":
            return values.astype(STORAGE[dtype])
        bits = values.astype(np.float32).view(np.uint32)
        bits = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        return (bits >> np.uint32(16)).astype(np.uint16)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements (see STORAGE), or their bytes, as float32, which is exact."""
    return cpu.as_float32(stored.view(STORAGE[dtype]))
