"""A tensor of a checkpoint: its file, place, dtype and shape; or the inputs of a virtual one.

So for readers of blocks an adapter with its base is a checkpoint like any other. The kinds of
virtual tensors are in ``virtual``, one per file.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

import cachetools
import numpy as np

_BY_BITS = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "I16 U16 F16 BF16",
    32: "I32 U32 F32",
    64: "I64 U64 F64 C64",
}
DTYPE_BITS = {name: bits for bits, names in _BY_BITS.items() for name in names.split()}

MERGED_DTYPES = ("BF16", "F16", "F32")
COPIED_DTYPES = ("BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64")

CACHE_BYTES = 256 << 20
"""Limit of the cache. Experts of a large model take 33 MB: one of a base and of six agents each."""


def element_count(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape (1 for the empty shape)."""
    return math.prod(shape)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its place and its type.

    Attributes:
        name: as stored.
        dtype: the safetensors name, a key of `DTYPE_BITS` ("BF16", "F16", "F32", "I64", ...).
        shape: may be empty (one element) or hold a 0 (no element).
        path: the shard file.
        offset: absolute byte offset of the data in that file.
        nbytes: bytes of data, equal to numel times the size of the dtype.
        virtual: how its elements are computed where no file stores them; `path` is then
            the file that changes the tensor, and `offset` means nothing.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int
    virtual: VirtualTensor | None = None

    @property
    def numel(self) -> int:
        """Number of elements; 1 for shape ()."""
        return element_count(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; dtypes of less than a byte are not read."""
        return DTYPE_BITS[self.dtype] // 8

    def renamed(self, name: str) -> TensorInfo:
        """Return it with another name."""
        return replace(self, name=name)

    def replaced_by(
        self, virtual: VirtualTensor, *, name: str, shape: tuple[int, ...], dtype: str | None = None
    ) -> TensorInfo:
        """Return a virtual tensor of this one's file; dtype: by default the same."""
        dtype = dtype or self.dtype
        nbytes = element_count(shape) * DTYPE_BITS[dtype] // 8
        return TensorInfo(name, dtype, shape, self.path, 0, nbytes, virtual)

    def stored_parts(self) -> Iterator[TensorInfo]:
        """Yield the stored tensors that it is computed from: itself, if stored."""
        if self.virtual is None:
            yield self
            return
        for part in self.virtual.parts():
            yield from part.stored_parts()


@dataclass(frozen=True, slots=True)
class VirtualTensor:
    """How a tensor that is not stored is computed from others.

    Fields are tensors, numbers, and tuples. A kind has `elements`, or fills the buffer itself. An
    element does not depend on the bounds of the run that it is read in.
    """

    def read_into(
        self, tensor: TensorInfo, reader: TensorReader, byte_start: int, buffer: memoryview
    ) -> None:
        """Fill a buffer with bytes of the computed tensor."""
        if len(buffer):
            width = tensor.element_bytes
            made = self.elements(tensor, reader, byte_start // width, len(buffer) // width)
            buffer[:] = made.data.cast("B")

    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count), at least one, in the tensor's dtype."""
        raise NotImplementedError

    def parts(self) -> Iterator[TensorInfo]:
        """Yield the tensors that it is computed from."""
        values = (getattr(self, field.name) for field in fields(self))
        return (value for value in values if isinstance(value, TensorInfo))


class TensorCache:
    """An LRU cache of arrays made from stored tensors; safe to share.

    A pass reads a tensor in blocks, and several of its threads need the same matrix concurrently.
    """

    def __init__(self) -> None:
        # An array larger than the cache is held alone.
        arrays: cachetools.LRUCache = cachetools.LRUCache(
            CACHE_BYTES, getsizeof=lambda array: min(array.nbytes, CACHE_BYTES)
        )
        self._made = cachetools.cached(
            arrays, key=lambda key, make: key, condition=threading.Condition()
        )(lambda key, make: make())

    def get(
        self, tensor: TensorInfo, make: Callable[[], np.ndarray], *, part: int = 0
    ) -> np.ndarray:
        """Return the array of `make` for a part of a tensor; one thread calls it, others wait."""
        found: np.ndarray = self._made((tensor, part), make)
        return found


class TensorReader(Protocol):
    """Reads tensors, and caches the inputs of virtual ones."""

    cache: TensorCache

    def read_into(self, tensor: TensorInfo, byte_start: int, buffer: memoryview) -> None:
        """Fill a buffer with a tensor's bytes from `byte_start` on."""

    def stored(self, tensor: TensorInfo, byte_start: int, count: int) -> np.ndarray:
        """Return some of a tensor's bytes (uint8)."""

    def decoded(self, tensor: TensorInfo, start: int, count: int) -> np.ndarray:
        """Return some elements of a tensor as float32."""
