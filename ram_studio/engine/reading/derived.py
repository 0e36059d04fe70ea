"""Computing tensors that follow from stored ones, some elements at a time, in bounded memory.

What a run of elements is does not depend on where it begins or ends: rows are computed in groups
that are cut at the same rows always.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ram_studio.checkpoints.read.derived import LowRank, Sparse, Tile, Tiled
from ram_studio.checkpoints.read.header import DTYPE_BITS, TensorInfo

Read = Callable[[TensorInfo, int, int], np.ndarray]
"""(tensor, first element, how many) -> float32."""

ReadInto = Callable[[TensorInfo, int, memoryview], None]
"""(tensor, first byte, buffer to fill)."""

GROUP_ELEMENTS = 1 << 16
"""About so many elements are computed together."""


HELD_BYTES = 256 << 20
"""Experts of a large model take 33 MB each: one for each of a base and six agents."""

Key = tuple[TensorInfo, int]
"""A stored tensor, and which part of it."""


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    array: np.ndarray | None = None


class Held:
    """What was made of stored tensors, the latest used first; safe to share among threads."""

    def __init__(self, limit: int = HELD_BYTES) -> None:
        """limit: bytes; the one asked for last is held whatever its size."""
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    def get(self, key: Key, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what `make` returns for this key; it is called by one thread only."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.array is None:
                entry.array = make()
                self._let_go(key)
            return entry.array

    def maker(
        self, tensor: TensorInfo, make: Callable[[int], np.ndarray]
    ) -> Callable[[int], np.ndarray]:
        """Return `make`, which makes a tensor's part of some number, made to hold what it did."""
        return lambda number: self.get((tensor, number), lambda: make(number))

    def _let_go(self, newest: Key) -> None:
        with self._lock:
            made = {k: e.array.nbytes for k, e in self._entries.items() if e.array is not None}
            total = sum(made.values())
            for key, nbytes in made.items():
                if total <= self._limit:
                    return
                if key != newest:
                    del self._entries[key]
                    total -= nbytes


def overlay(sparse: Sparse, read_into: ReadInto, byte_start: int, buffer: memoryview) -> None:
    """Fill a buffer with the base's bytes and the changed elements among them.

    The places are found by bisection in the file: no more of it is read than is needed.
    """
    read_into(sparse.base, byte_start, buffer)
    elements = max(1, sparse.base.numel)
    width = sparse.base.nbytes // elements
    index = np.dtype(np.int32 if sparse.indices.dtype == "I32" else np.int64)

    def places(first: int, count: int) -> np.ndarray:
        found = np.empty(count, dtype=index)
        read_into(sparse.indices, first * index.itemsize, found.data.cast("B"))
        return found

    start, stop = byte_start // width, (byte_start + len(buffer)) // width
    keys = range(sparse.indices.numel)
    first, last = (
        bisect.bisect_left(keys, end, key=lambda k: int(places(k, 1)[0])) for end in (start, stop)
    )
    if first >= last:
        return
    changed = np.empty(last - first, dtype=f"u{width}")
    read_into(sparse.values, first * width, changed.data.cast("B"))
    at = places(first, last - first).astype(np.int64) - start
    inside = (at >= 0) & (at < stop - start)  # a damaged file may have its places in any order
    np.frombuffer(buffer, dtype=changed.dtype)[at[inside]] = changed[inside]


def low_rank(derived: LowRank, read: Read, held: Held, start: int, count: int) -> np.ndarray:
    """Return elements of base + scale * left @ right as float32."""
    rows, columns = derived.base.shape
    if not count:
        return np.empty(0, dtype=np.float32)
    group = max(1, GROUP_ELEMENTS // columns)
    first = start // columns // group * group
    last = -(-(start + count) // columns)
    right = _factor(read, derived.right, held)
    right = np.ascontiguousarray(right.T) if derived.is_transposed else right
    left = _factor(read, derived.left, held)
    left = left.T if derived.is_transposed else left
    parts = [
        _low_rank_rows(derived, read, (left, right), row, min(row + group, rows))
        for row in range(first, last, group)
    ]
    return np.concatenate(parts)[start - first * columns :][:count]


def _factor(read: Read, tensor: TensorInfo, held: Held) -> np.ndarray:
    """Return a whole factor as it is stored, in float64."""
    return held.get(
        (tensor, 0),
        lambda: read(tensor, 0, tensor.numel).reshape(tensor.shape).astype(np.float64),
    )


def _low_rank_rows(
    low: LowRank, read: Read, factors: tuple[np.ndarray, np.ndarray], first: int, last: int
) -> np.ndarray:
    """factors: left (rows, rank) and right (rank, columns)."""
    left, right = factors
    columns = low.base.shape[1]
    base = read(low.base, first * columns, (last - first) * columns).reshape(-1, columns)
    update = low.scale * (left[first:last] @ right)
    if low.magnitude is None:
        # An update of exactly nothing leaves the base as it is, also where it is -0.0.
        made = np.where(update != 0, base + update, base)
    else:
        made = base + update
        lengths = np.sqrt((made * made).sum(1))
        wanted = read(low.magnitude, first, last - first).astype(np.float64)
        made *= np.divide(wanted, lengths, out=np.ones_like(lengths), where=lengths > 0)[:, None]
    return made.astype(np.float32).reshape(-1)


def put_together(
    tensor: TensorInfo, tiled: Tiled, read_into: ReadInto, byte_start: int, buffer: memoryview
) -> None:
    """Fill a buffer with bytes of a tensor that lies in tiles.

    Each tile is a run of consecutive rows of its own: of a tile as wide as the tensor the bytes are
    read where they belong; of narrower ones the rows that are needed, whole.
    """
    width = DTYPE_BITS[tensor.dtype] // 8
    start, stop = byte_start // width, (byte_start + len(buffer)) // width
    if start >= stop:
        return
    # A vector is read as a matrix of one column.
    lead, columns = (tensor.shape, 1) if len(tensor.shape) < 2 else (tensor.shape[:-1], 0)
    columns = columns or tensor.shape[-1]
    first, last = start // columns, -(-stop // columns)
    out = np.frombuffer(buffer, dtype=f"u{width}")
    for tile in tiled.tiles:
        rows, begin = _rows_of(tile, lead, first, last)
        if not len(rows):
            continue
        wide = tile.shape[-1] if len(tensor.shape) > 1 else 1
        if wide == columns and rows[-1] - rows[0] + 1 == len(rows):
            low = max(start, int(rows[0]) * columns)
            high = min(stop, (int(rows[-1]) + 1) * columns)
            place = (begin * columns + low - int(rows[0]) * columns) * width
            read_into(tile.part, place, buffer[(low - start) * width : (high - start) * width])
            continue
        found = np.empty((len(rows), wide), dtype=out.dtype)
        read_into(tile.part, begin * wide * width, found.data.cast("B"))
        left = tile.offsets[-1] if len(tensor.shape) > 1 else 0
        places = rows[:, None] * columns + np.arange(left, left + wide) - start
        inside = (places >= 0) & (places < len(out))
        out[places[inside]] = found[inside]


def _rows_of(tile: Tile, lead: tuple[int, ...], first: int, last: int) -> tuple[np.ndarray, int]:
    """Return which of the tensor's rows first ... last - 1 a tile holds, and its own number of the
    first of them; they follow one another in the tile.
    """
    begins, sizes = tile.offsets[: len(lead)], tile.shape[: len(lead)]
    lowest = int(np.ravel_multi_index(begins, lead))
    ends = tuple(begin + size - 1 for begin, size in zip(begins, sizes, strict=True))
    highest = int(np.ravel_multi_index(ends, lead))
    rows = np.arange(max(first, lowest), min(last, highest + 1))
    if not len(rows):
        return rows, 0
    places = np.unravel_index(rows, lead)
    inside = np.ones(len(rows), dtype=bool)
    for place, begin, size in zip(places, begins, sizes, strict=True):
        inside &= (place >= begin) & (place < begin + size)
    rows = rows[inside]
    if not len(rows):
        return rows, 0
    at = [int(place[inside][0]) - begin for place, begin in zip(places, begins, strict=True)]
    return rows, int(np.ravel_multi_index(at, sizes))
