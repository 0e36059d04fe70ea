"""Arrays of an analysis made small: without loss, or for a profile mostly in 24 bits.

Counts fall slowly along the epsilon grid, so neighbors there are stored as differences; bytes of
the same weight then stand together, as do columns of small tables, which deflates to a fraction.

Profiles are untrusted: what one may inflate to follows from its own header and its size.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load

from ram_studio.algorithm.analysis import TensorEntry
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
from ram_studio.algorithm.meters.relations import members_of, pairs_of, products_of
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS

_MAX_UNPACKED, _MAX_PROFILE = 1 << 30, 1 << 26
"""A profile of 80 layers and five agents takes half of this."""

_FREE_BYTES, _MAX_RATIO = 1 << 23, 50
"""What a profile may unpack to whatever its size, and how many times its size beyond: 8 to 9 times
are usual; agents that changed nothing deflate further, to small files."""

_MAX_WORDS = 1 << 16
"""Of the names, sizes and shapes in what is packed."""

MAX_AGENTS = 64
"""Twice as many as are ever analyzed: tables of pairs grow with the square."""

_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""

SHAPES = "shapes"
_EPSILON_AXIS = 1
"""Of all arrays that have one after their groups; energies have it first."""


def _is_short(name: str, dtype: np.dtype, exact: bool) -> bool:
    # Of energies differences are taken.
    return bool(dtype == np.float64) and not exact and not name.startswith("energies.")


def _is_turned(dtype: np.dtype, exact: bool) -> bool:
    return exact and dtype == np.int16


def compacted(arrays: dict[str, np.ndarray], *, exact: bool = False) -> dict[str, np.ndarray]:
    """Return arrays of bytes to deflate, and one with their shapes and dtypes as JSON.

    exact: nothing is rounded, as for a whole analysis.
    """
    small, told = {}, {}
    for name, array in arrays.items():
        kept = array
        if _is_short(name, array.dtype, exact):
            kept = array.astype(np.float32)
        elif _is_turned(array.dtype, exact):
            kept = array.T
        elif array.dtype == np.int64 and array.ndim > 1:
            kept = np.diff(array, axis=_EPSILON_AXIS, prepend=0)
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
    """Return the arrays that were compacted, `exact` as they were, and take them out of ``small``.

    Raises: ValueError, KeyError or TypeError for what `compacted` did not make.
    """
    arrays = {}
    for name, (shape, wanted) in json.loads(small[SHAPES].tobytes()).items():
        dtype = np.dtype(wanted)
        if dtype.kind not in "if" or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(name)
        stored = np.dtype(np.float32) if _is_short(name, dtype, exact) else dtype
        planes = small.pop(name).reshape(stored.itemsize, -1)
        flat = np.ascontiguousarray(planes.T).reshape(-1).view(stored)
        is_turned = _is_turned(dtype, exact)
        kept = flat.reshape(shape[::-1]).T if is_turned else flat.reshape(shape)
        if dtype == np.int64 and kept.ndim > 1:
            signed = (kept.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(kept & 1)
            kept = signed.cumsum(axis=_EPSILON_AXIS)
        arrays[name] = kept.astype(dtype)
    return arrays


def _inflate(inflating: Any, packed: bytes, most: int) -> bytes:
    """Return all of what was deflated.

    Raises: ValueError for more than may be, before it takes the memory.
    """
    data: bytes = inflating.decompress(packed, most)
    _require("packed", inflating.eof)
    return data


def inflated(packed: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a whole analysis that was deflated.

    Raises: ValueError for more than any takes.
    """
    return load(_inflate(zlib.decompressobj(), packed, _MAX_UNPACKED))


def profile_inflated(packed: bytes, header: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return a profile's arrays, made small, if their sizes are those that its header speaks of.

    Raises: ValueError before more than names and sizes was unpacked.
    """
    most = min(_MAX_PROFILE, max(_FREE_BYTES, _MAX_RATIO * len(packed)))
    inflating = zlib.decompressobj()
    length = inflating.decompress(packed, _LENGTH_BYTES)
    size = int.from_bytes(length, "little")
    _require("packed", 0 < size <= _MAX_WORDS)
    head = inflating.decompress(inflating.unconsumed_tail, size)
    ends = {name: array["data_offsets"] for name, array in json.loads(head).items()}
    _check_sizes({name: end - start for name, (start, end) in ends.items()}, header)
    total = max((end for _, end in ends.values()), default=0)
    _require("packed", len(head) == size, 0 <= total <= most)
    return load(length + head + _inflate(inflating, inflating.unconsumed_tail, total + 1))


def _check_sizes(sizes: Mapping[str, int], header: dict[str, Any]) -> None:
    """Raise ValueError where a profile's arrays do not have the sizes that its header speaks of."""
    n_agents, tensors = len(header["agents"]), len(header["tensors"])
    _require("agents", n_agents <= MAX_AGENTS)
    layers = len({TensorEntry(name, 0).layer for name in header["tensors"]})
    shapes: dict[str, tuple[int, ...]] = {"magnitudes": (n_agents, BIN_COUNT), "numel": (tensors,)}
    groups = {"counts": tensors, "rounded": tensors, "relations": layers, "energies": 0}
    groups["part_factors"] = 0
    for part, own in groups.items():
        shapes |= {f"{part}.{n}": s for n, s in array_shapes(part, own, n_agents).items()}
    for name, size in sizes.items():
        if name == SHAPES:
            _require(name, size <= _MAX_WORDS)
        elif name.startswith("steps."):
            # How many rows these have is theirs alone.
            _require(name, size <= _FREE_BYTES)
        else:
            elements = math.prod(shapes[name])
            _require(name, size in (4 * elements, 8 * elements))


def array_shapes(part: str, groups: int, n_agents: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a part, by their names in it.

    groups: of tensors, or of layers; sums of the whole model have none.
    """
    points, pairs = len(EPSILON_GRID), len(pairs_of(n_agents))
    has_sets = n_agents <= MAX_PATTERN_AGENTS
    if part == "relations":
        return {
            "by_set": (groups, points, len(members_of(n_agents)) if has_sets else 0),
            "magnitude": (groups, points, n_agents, 2),
            "pair_counts": (groups, points, pairs, 2),
            "pair_sums": (groups, points, pairs, 2),
            "conflicts": (groups, points),
            "cancelled": (groups, points, n_agents),
            "dots": (groups, n_agents, n_agents),
        }
    if part == "energies":
        return {
            "products": (points, len(products_of(n_agents)) if has_sets else 0),
            "square": (points, n_agents, n_agents),
            "cross": (points, n_agents, n_agents),
            "meet": (points, n_agents + 1),
        }
    if part == "part_factors":
        ram = (points, n_agents, 2, 1 + n_agents)
        return {"ram": ram, "total": (n_agents, 2), "energy": (n_agents, 2)}
    patterns = 1 << n_agents if has_sets else 0
    return {
        "patterns": (groups, points, patterns),
        "shared": (groups, points, n_agents, n_agents),
    }


def _require(name: str, *claims: object) -> None:
    if not all(claims):
        raise ValueError(name)
