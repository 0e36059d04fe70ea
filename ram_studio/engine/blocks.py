"""Blocks: the unit of work of every pass, and reading them in bounded memory.

A block is a run of consecutive elements of one tensor. Threads take blocks in file order and read
them into buffers of their own, so memory is threads x checkpoints x block, whatever the models.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.read.header import TensorInfo
from ram_studio.errors import CheckpointError, SourceChangedError

BLOCK_ELEMENTS = 1 << 18
"""Half a megabyte of bfloat16 from each checkpoint: what four of them read fits a core's cache."""

GROUP_ELEMENTS = 1 << 16
"""Sums over elements are formed in groups of this many, so that they do not depend on the block."""

_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class Block:
    """Elements [start, start + n) of one tensor, and the tensor that each agent reads there."""

    index: int
    tensor_index: int
    tensor: MergeTensor
    start: int
    n: int
    agents: tuple[TensorInfo, ...]

    @property
    def nbytes(self) -> int:
        """Bytes to read for it."""
        return self.n * sum(
            _ITEM_BYTES[source.dtype] for source in (self.tensor.base, *self.agents)
        )


def blocks_of(
    tensors: Sequence[MergeTensor], block_elements: int = BLOCK_ELEMENTS
) -> Iterator[Block]:
    """Yield the blocks of all merged tensors in order.

    Where an agent's rows end (rows "common"), a block ends too, and beyond it the base stands in.

    Args: block_elements: a positive multiple of GROUP_ELEMENTS.
    """
    assert block_elements > 0, "blocks hold elements"
    assert block_elements % GROUP_ELEMENTS == 0, "a block is a number of whole groups"
    index = 0
    for tensor_index, tensor in enumerate(tensors):
        if tensor.kind != "merge":
            continue
        edges = {n for n in tensor.common_numel if 0 < n < tensor.numel}
        edges |= set(range(0, tensor.numel, block_elements)) | {tensor.numel}
        cuts = sorted(edges | {0})
        for start, stop in itertools.pairwise(cuts):
            agents = tuple(
                source if start < common else tensor.base
                for source, common in zip(tensor.agents, tensor.common_numel, strict=True)
            )
            yield Block(index, tensor_index, tensor, start, stop - start, agents)
            index += 1


class Sources:
    """The open shard files of a merge, watched for changes while they are read."""

    def __init__(self, report: CompatibilityReport) -> None:
        self._who: dict[Path, str] = {}
        for checkpoint in (report.base, *report.agents):
            for shard in checkpoint.shards:
                self._who.setdefault(shard, checkpoint.name)
        self._handles: dict[Path, int] = {}
        self._states: dict[Path, tuple[int, int]] = {}

    def __enter__(self) -> Sources:
        try:
            for path in self._who:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._handles[path] = handle
                state = os.fstat(handle)
                self._states[path] = (state.st_size, state.st_mtime_ns)
        except OSError as error:
            self.__exit__()
            raise CheckpointError(
                f"{self._label(path)} cannot be opened: {error.strerror}. Check that the file is "
                "there and readable, and run again."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def _label(self, path: Path) -> str:
        name = self._who[path]
        return f"Base: {path}" if name == "base" else f'Agent "{name}": {path}'

    def read_into(self, source: TensorInfo, byte_start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the tensor's bytes from ``byte_start`` on.

        Raises: SourceChangedError when the file ends before, CheckpointError when reading fails.
        """
        handle = self._handles[source.path]
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(handle, [buffer[done:]], source.offset + byte_start + done)
            except OSError as error:
                raise CheckpointError(
                    f"{self._label(source.path)}: tensor `{source.name}` cannot be read: "
                    f"{error.strerror}. Check the disk, or fetch the file again."
                ) from error
            if got == 0:
                raise SourceChangedError(
                    f"{self._label(source.path)}: ends inside tensor `{source.name}`; it was "
                    "complete when it was opened. Leave the files alone while they are read, "
                    "and run again."
                )
            done += got

    def check_unchanged(self) -> None:
        """Raise SourceChangedError when a file was written to since it was opened."""
        for path, handle in self._handles.items():
            state = os.fstat(handle)
            if (state.st_size, state.st_mtime_ns) != self._states[path]:
                raise SourceChangedError(
                    f"{self._label(path)} changed while it was read. Leave the files alone during "
                    "a run, and run again."
                )


class BlockReader:
    """One thread's buffers: reads a block of every checkpoint and decodes it where needed."""

    def __init__(self, sources: Sources, n_agents: int, block_elements: int) -> None:
        self._sources = sources
        rows = n_agents + 1
        self._raw = [np.empty(block_elements * 4, dtype=np.uint8) for _ in range(rows)]
        self._block_elements = block_elements
        self._decoded: list[np.ndarray] | None = None

    def read(self, block: Block) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return the stored elements of base and agents, as the kernels take them.

        uint16 bit patterns when all of them are bfloat16, else all as float32. The arrays are
        reused by the next read.
        """
        tensors = (block.tensor.base, *block.agents)
        is_bfloat16 = all(t.dtype == "BF16" for t in tensors)
        arrays = []
        for row, source in enumerate(tensors):
            width = _ITEM_BYTES[source.dtype]
            raw = self._raw[row][: block.n * width]
            self._sources.read_into(source, block.start * width, memoryview(raw))
            stored = raw.view(rounding.STORAGE[source.dtype])
            arrays.append(stored if is_bfloat16 else self._decode(row, stored, source.dtype))
        return arrays[0], tuple(arrays[1:])

    def _decode(self, row: int, stored: np.ndarray, dtype: str) -> np.ndarray:
        if dtype == "F32":
            return stored
        if self._decoded is None:
            self._decoded = [
                np.empty(self._block_elements, dtype=np.float32) for _ in range(len(self._raw))
            ]
        out = self._decoded[row][: len(stored)]
        if dtype == "BF16":
            np.left_shift(stored, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
        else:
            out[:] = stored
        return out
