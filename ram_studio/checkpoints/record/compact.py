"""Arrays of a sketch made small: without loss, or for a profile most numbers in 24 binary digits.

Counts fall slowly along the epsilon ladder, so neighbours there are stored as differences; bytes of
the same weight then stand together, as do columns of small tables, which deflates to a fraction.
"""

from __future__ import annotations

import json

import numpy as np

SHAPES = "shapes"
_LADDER_AXIS = 1
"""Of all arrays that have one after their groups; energies have it first."""


def _is_short(name: str, dtype: np.dtype, exact: bool) -> bool:
    # Of energies differences are taken.
    return bool(dtype == np.float64) and not exact and not name.startswith("energies.")


def _is_turned(dtype: np.dtype, exact: bool) -> bool:
    return exact and dtype == np.int16


def compacted(arrays: dict[str, np.ndarray], *, exact: bool = False) -> dict[str, np.ndarray]:
    """Return arrays of bytes to deflate, and one with their shapes and dtypes as JSON.

    exact: nothing is rounded, as for a whole sketch.
    """
    small, told = {}, {}
    for name, array in arrays.items():
        kept = array
        if _is_short(name, array.dtype, exact):
            kept = array.astype(np.float32)
        elif _is_turned(array.dtype, exact):
            kept = array.T
        elif array.dtype == np.int64 and array.ndim > 1:
            kept = np.diff(array, axis=_LADDER_AXIS, prepend=0)
            kept = (kept << 1) ^ (kept >> 63)  # small numbers of either sign
        told[name] = [list(array.shape), str(array.dtype)]
        raw = np.ascontiguousarray(kept)
        if raw.size:
            planes = raw.reshape(-1).view(np.uint8).reshape(raw.size, raw.itemsize)
            small[name] = np.ascontiguousarray(planes.T).reshape(-1)
        else:
            small[name] = np.empty(0, dtype=np.uint8)
    text = json.dumps(told, sort_keys=True).encode()
    return {**small, SHAPES: np.frombuffer(text, np.uint8)}


def restored(small: dict[str, np.ndarray], *, exact: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays that were compacted, `exact` as they were.

    Raises: ValueError, KeyError or TypeError for what `compacted` did not make.
    """
    arrays = {}
    for name, (shape, wanted) in json.loads(small[SHAPES].tobytes()).items():
        dtype = np.dtype(wanted)
        if dtype.kind not in "if" or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(name)
        stored = np.dtype(np.float32) if _is_short(name, dtype, exact) else dtype
        planes = small[name].reshape(stored.itemsize, -1)
        flat = np.ascontiguousarray(planes.T).reshape(-1).view(stored)
        is_turned = _is_turned(dtype, exact)
        kept = flat.reshape(shape[::-1]).T if is_turned else flat.reshape(shape)
        if dtype == np.int64 and kept.ndim > 1:
            signed = (kept.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(kept & 1)
            kept = signed.cumsum(axis=_LADDER_AXIS)
        arrays[name] = kept.astype(dtype)
    return arrays
