"""Reads blocks in bounded memory, as arguments of the CPU's loops.

Every thread reads into its own buffers, so memory is threads x checkpoints x block for any
models; only tensors that a method needs whole are held whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.kernels.cpu import as_float32
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.sources import Sources

if TYPE_CHECKING:
    from ram_studio.engine.reading.residence import Residence

Arrays = tuple[np.ndarray, tuple[np.ndarray, ...]]


class BlockReader:
    """One thread's buffers: reads a block of every checkpoint and decodes it where needed.

    residence: stores blocks that stay in memory, and returns them once filled.
    """

    def __init__(
        self, sources: Sources, block_elements: int, residence: Residence | None = None
    ) -> None:
        self._sources = sources
        self._residence = residence
        self._block_elements = block_elements
        self._raw: list[np.ndarray] = []
        self._decoded: list[np.ndarray] = []

    def read(self, block: Block) -> Arrays:
        """Return the stored elements of base and agents, as arguments of the kernels.

        uint16 bit patterns when all of them are bfloat16, else all as float32. The arrays are
        reused by the next read. A block of more elements than the buffers hold, or of rows that
        only some agents have, is returned as float32 in new arrays.
        """
        chunks = list(block.chunks(self._block_elements))
        if len(chunks) > 1:
            return self._read_whole(block, chunks)
        stored = self._read_stored(block)
        if set(block.dtypes) != {"BF16"}:
            stored = [
                self._decode(row, array, dtype)
                for row, (array, dtype) in enumerate(zip(stored, block.dtypes, strict=True))
            ]
        return stored[0], tuple(stored[1:])

    def _read_whole(self, block: Block, chunks: list[Block]) -> Arrays:
        rows = [np.empty(block.n, dtype=np.float32) for _ in block.sources]
        for chunk in chunks:
            base, agents = self.read(chunk)
            first = chunk.start - block.start
            for row, source in zip(rows, (base, *agents), strict=True):
                row[first : first + chunk.n] = as_float32(source)
        return rows[0], tuple(rows[1:])

    def _read_stored(self, block: Block) -> list[np.ndarray]:
        found = None if self._residence is None else self._residence.find(block)
        if found is not None:
            arrays = found.arrays(block.dtypes)
            if found.is_filled:
                return arrays
        else:
            if not self._raw:
                size = 4 * self._block_elements
                self._raw = [np.empty(size, dtype=np.uint8) for _ in block.sources]
            arrays = []
            for raw, dtype in zip(self._raw, block.dtypes, strict=True):
                storage = rounding.STORAGE[dtype]
                arrays.append(raw[: block.n * storage.itemsize].view(storage))
        for source, array in zip(block.sources, arrays, strict=True):
            self._sources.read_into(source, block.start * array.itemsize, array.data.cast("B"))
        return arrays

    def _decode(self, row: int, stored: np.ndarray, dtype: str) -> np.ndarray:
        if dtype == "F32":
            return stored
        while len(self._decoded) <= row:
            self._decoded.append(np.empty(self._block_elements, dtype=np.float32))
        out = self._decoded[row][: len(stored)]
        if dtype == "BF16":
            np.left_shift(stored, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
        else:
            out[:] = stored
        return out
