"""Compresses arrays of an analysis: without loss, or for a compact one mostly to 24 bits.

Counts fall slowly along the epsilon grid, so neighbors there are stored as differences; bytes of
the same significance are grouped, as are columns of small tables, which deflate well.

Analyses are untrusted: the limit for inflating one follows from its header and its size.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
from ram_studio.algorithm.grouping import labels_of
from ram_studio.algorithm.meters.relations import members_of, pairs_of, products_of
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS

_MOST_WHOLE, _MOST_COMPACT = 1 << 30, 1 << 26
"""Limit of unpacked bytes. A compact analysis of 80 layers and five agents takes half of it."""

_FREE_BYTES, _MAX_RATIO = 1 << 23, 50
"""A compact one may unpack to this many bytes, or to this multiple of its size: 8 to 9 times are
usual; agents that changed nothing deflate further, to small files."""

_MAX_WORDS = 1 << 16
"""Limit of packed names, sizes and shapes."""

_MAX_AGENTS = 64
"""Twice the largest number ever analyzed: tables of pairs grow with the square."""

_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""

_LEVEL = 6
"""Level of zlib: 9 takes twice as long for 1 % less."""

_SHAPES = "shapes"
_EPSILON_AXIS = 1
"""Names of all arrays of counts, after their groups."""


def pack(arrays: Mapping[str, np.ndarray], *, exact: bool) -> bytes:
    """Return arrays deflated. exact: nothing is rounded."""
    return zlib.compress(save(_small(arrays, exact)), _LEVEL)


def unpack(packed: bytes, header: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the packed arrays, of the shapes in the analysis's header.

    Raises: ValueError for other arrays or too large ones, before more than names and sizes is
    unpacked; KeyError or TypeError for data that is not from `pack`.
    """
    is_compact, shapes = header["kind"] == "compact", _expected_shapes(header)
    most = min(_MOST_COMPACT, max(_FREE_BYTES, _MAX_RATIO * len(packed)))
    most = most if is_compact else _MOST_WHOLE
    inflating = zlib.decompressobj()
    length = inflating.decompress(packed, _LENGTH_BYTES)
    size = int.from_bytes(length, "little")
    require("packed", 0 < size <= _MAX_WORDS)
    head = inflating.decompress(inflating.unconsumed_tail, size)
    ends = {name: array["data_offsets"] for name, array in json.loads(head).items()}
    for name, (start, end) in ends.items():
        if name == _SHAPES:
            require(name, end - start <= _MAX_WORDS)
        elif name.startswith(_FREE):
            require(name, end - start <= (_FREE_BYTES if is_compact else most))
        else:
            elements = math.prod(shapes[name])
            require(name, end - start in (4 * elements, 8 * elements))
    total = max((end for _, end in ends.values()), default=0)
    require("packed", len(head) == size, 0 <= total <= most)
    body = inflating.decompress(inflating.unconsumed_tail, total + 1)
    require("packed", inflating.eof)
    arrays = _restore(load(length + head + body), exact=not is_compact)
    for name, array in arrays.items():
        require(name, array.shape == shapes.get(name, array.shape), np.isfinite(array).all())
    return arrays


def require(name: str, *claims: object) -> None:
    """Raise ValueError with the name of a wrong value unless all claims are true."""
    if not all(claims):
        raise ValueError(name)


def _is_short(name: str, dtype: np.dtype, exact: bool) -> bool:
    # Differences of energies are used, so they need all digits.
    return bool(dtype == np.float64) and not exact and not name.startswith("energies.")


def _is_turned(dtype: np.dtype, exact: bool) -> bool:
    return exact and dtype == np.int16


def _small(arrays: Mapping[str, np.ndarray], exact: bool) -> dict[str, np.ndarray]:
    """Return arrays of bytes to deflate, and one with their shapes and dtypes as JSON."""
    small, shapes = {}, {}
    for name, array in arrays.items():
        packed = array
        if _is_short(name, array.dtype, exact):
            packed = array.astype(np.float32)
        elif _is_turned(array.dtype, exact):
            packed = array.T
        elif array.dtype == np.int64 and array.ndim > 1:
            packed = np.diff(array, axis=_EPSILON_AXIS, prepend=0)
            packed = (packed << 1) ^ (packed >> 63)  # small numbers of either sign
        shapes[name] = [list(array.shape), str(array.dtype)]
        raw = np.ascontiguousarray(packed)
        if raw.size:
            planes = raw.reshape(-1).view(np.uint8).reshape(raw.size, raw.itemsize)
            small[name] = np.ascontiguousarray(planes.T).reshape(-1)
        else:
            small[name] = np.empty(0, dtype=np.uint8)
    text = json.dumps(shapes, sort_keys=True).encode()
    return {**small, _SHAPES: np.frombuffer(text, np.uint8)}


def _restore(small: dict[str, np.ndarray], *, exact: bool) -> dict[str, np.ndarray]:
    """Return the original arrays, and remove them from ``small``."""
    arrays = {}
    for name, (shape, wanted) in json.loads(small[_SHAPES].tobytes()).items():
        dtype = np.dtype(wanted)
        if dtype.kind not in "if" or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(name)
        stored = np.dtype(np.float32) if _is_short(name, dtype, exact) else dtype
        planes = small.pop(name).reshape(stored.itemsize, -1)
        flat = np.ascontiguousarray(planes.T).reshape(-1).view(stored)
        is_turned = _is_turned(dtype, exact)
        array = flat.reshape(shape[::-1]).T if is_turned else flat.reshape(shape)
        if dtype == np.int64 and array.ndim > 1:
            signed = (array.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(array & 1)
            array = signed.cumsum(axis=_EPSILON_AXIS)
        arrays[name] = array.astype(dtype)
    return arrays


_FREE = ("steps.", "exact.")
"""Arrays whose number of rows depends on the data."""


def _expected_shapes(header: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the expected shapes of arrays by name, except those that begin with `_FREE`."""
    n_agents, tensors, stacks = (len(header[key]) for key in ("agents", "tensors", "stacks"))
    require("agents", n_agents <= _MAX_AGENTS)
    related = tensors
    if header["kind"] == "compact":
        related = len(labels_of(header["tensors"], "layer"))
    modules = len(labels_of(header["tensors"], "place"))
    points, pairs = len(EPSILON_GRID), len(pairs_of(n_agents))
    has_sets = n_agents <= MAX_PATTERN_AGENTS
    members = len(members_of(n_agents)) if has_sets else 0
    shapes: dict[str, tuple[int, ...]] = {
        "magnitudes": (n_agents, BIN_COUNT),
        "numel": (tensors,),
        "stacks.numel": (stacks,),
        "relations.by_set": (related, points, members),
        "relations.magnitude": (related, points, n_agents, 2),
        "relations.pair_counts": (related, points, pairs, 2),
        "relations.pair_sums": (related, points, pairs, 2),
        "relations.conflicts": (related, points),
        "relations.cancelled": (related, points, n_agents),
        "relations.dots": (related, n_agents, n_agents),
        "energies.products": (points, len(products_of(n_agents)) if has_sets else 0),
        "energies.square": (points, n_agents, n_agents),
        "energies.cross": (points, n_agents, n_agents),
        "energies.meet": (points, n_agents + 1),
        "part_factors.mean": (points, n_agents, 2, n_agents),
        "part_factors.alone": (points, n_agents, 2, n_agents),
        "part_factors.total": (n_agents, 2, n_agents),
        "part_factors.energy": (n_agents, 2),
    }
    for name, groups, at in (("weighing", related, points), ("module_weighing", modules, 2)):
        shapes[f"{name}.square"] = (groups, at, n_agents, 3)
        shapes[f"{name}.gram"] = (groups, at, n_agents, n_agents)
        shapes[f"{name}.factors"] = (groups, at, n_agents, 2, 2, n_agents)
        shapes[f"{name}.total"] = (groups, n_agents, 2, n_agents)
    for part, groups in {"counts": tensors, "rounded": tensors, "stacks": stacks}.items():
        shapes[f"{part}.patterns"] = (groups, points, 1 << n_agents if has_sets else 0)
        shapes[f"{part}.shared"] = (groups, points, n_agents, n_agents)
    return shapes
