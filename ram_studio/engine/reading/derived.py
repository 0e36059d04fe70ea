"""Computing tensors that follow from stored ones, some elements at a time, in bounded memory.

What a run of elements is does not depend on where it begins or ends: rows are computed in groups
that are cut at the same rows always.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import numpy as np

from ram_studio.checkpoints.read.derived import LowRank, Sparse
from ram_studio.checkpoints.read.header import TensorInfo
from ram_studio.engine.reading.held import Held

Read = Callable[[TensorInfo, int, int], np.ndarray]
"""(tensor, first element, how many) -> float32."""

ReadInto = Callable[[TensorInfo, int, memoryview], None]
"""(tensor, first byte, buffer to fill)."""

GROUP_ELEMENTS = 1 << 16
"""About so many elements are computed together."""


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
