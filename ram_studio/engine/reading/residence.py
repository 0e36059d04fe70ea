"""Stored tensors that stay in a device's memory: one pass reads them, later passes reuse them.

The free memory decides beforehand which tensors fit; the rest is streamed each time. Tensors are
held in their stored dtype, in chunks that end where an agent's rows end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.reading.blocks import Block, blocks_of
from ram_studio.engine.reading.devices import free_bytes, settle
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import SourceChangedError

_WHOLE = 1 << 40

DEVICE_BLOCK_ELEMENTS = 1 << 22
"""Eight megabytes of bfloat16 from each checkpoint; the most that a block has by default."""

WORK_BYTES = 64
"""Device memory of a thread besides the rows themselves, bytes per element of its block."""

HISTOGRAM_BYTES = 64 << 20
"""Memory for one thread's histograms and tables."""

_ALIGNED = 128
"""Rows begin at multiples of this number of elements, for vector loads."""


@dataclass
class _Chunk:
    """Some elements of a tensor in every checkpoint, and their device.

    rows: base and agents, (checkpoints, n) of one dtype, or a list of (n,) of several; None until
    they are read.
    """

    block: Block
    device: int
    rows: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class StoredRows:
    """A block's stored elements in memory: base and agents.

    device: its number; rows: a tensor (checkpoints, n), or a list of (n,) where dtypes differ;
    is_filled: whether they have been read.
    """

    device: int
    rows: Any
    is_filled: bool = False

    def operands(self) -> tuple[Any, Any]:
        """Return the base (n,) and the stacked agents, of one dtype: float32 where they differ."""
        import torch

        if not isinstance(self.rows, list):
            return self.rows[0], self.rows[1:]
        wide = torch.stack([row.float() for row in self.rows])
        return wide[0], wide[1:]

    def arrays(self, dtypes: Sequence[str]) -> list[np.ndarray]:
        """Return rows in RAM as numpy arrays of these dtypes, sharing their memory."""
        import torch

        return [
            row.view(torch.uint8).numpy().view(rounding.STORAGE[dtype])
            for row, dtype in zip(self.rows, dtypes, strict=True)
        ]


class Residence:
    """Which tensors of a merge stay on which device, and their elements once a pass has read them.

    nbytes, left_out: bytes that stay and that do not fit.
    """

    def __init__(
        self, tensors: Sequence[MergeTensor], devices: Sequence[str], budgets: Sequence[int]
    ) -> None:
        """Assign tensors in file order to the device with the most budget (bytes) left."""
        self.devices = tuple(devices)
        self._states: dict[Path, tuple[int, int]] = {}
        self._chunks: dict[str, list[_Chunk]] = {}
        self._filled: set[str] = set()
        self.nbytes = 0
        self.left_out = 0
        left = list(budgets)
        for tensor in tensors:
            chunks = list(blocks_of([tensor], _WHOLE))
            needed = sum(p.nbytes + _ALIGNED * 4 * (len(p.agents) + 1) for p in chunks)
            device = max(range(len(left)), key=left.__getitem__)
            if needed > left[device]:
                self.left_out += needed
                continue
            left[device] -= needed
            self.nbytes += needed
            self._chunks[tensor.name] = [_Chunk(chunk, device) for chunk in chunks]

    def device_of(self, name: str) -> str:
        """Return the device of a tensor; the first where it does not stay."""
        chunks = self._chunks.get(name)
        return self.devices[chunks[0].device if chunks else 0]

    def find(self, block: Block) -> StoredRows | None:
        """Return the views of a block's elements, to be read or filled; None if it does not stay.

        Memory for its chunk is allocated on the first call.
        """
        for chunk in self._chunks.get(block.tensor.name, ()):
            first = block.start - chunk.block.start
            if 0 <= first < chunk.block.n:
                with chunk.lock:
                    if chunk.rows is None:
                        name = self.devices[chunk.device]
                        chunk.rows = empty_rows(block.dtypes, chunk.block.n, name)
                        settle([name])  # other streams will write there
                part = slice(first, first + block.n)
                is_list = isinstance(chunk.rows, list)
                rows = [row[part] for row in chunk.rows] if is_list else chunk.rows[:, part]
                return StoredRows(chunk.device, rows, block.tensor.name in self._filled)
        return None

    def fill(self, blocks: Iterable[Block], sources: Sources) -> int:
        """Mark these blocks as filled by a pass; return the bytes that had already been here.

        Raises: SourceChangedError when a file was written to since the first of them was read.
        """
        self._states = self._states or sources.states
        for path, state in self._states.items():
            if sources.states[path] != state:
                raise SourceChangedError(
                    f"{path} changed after it was loaded onto the device. Do not change the files "
                    "during a run, and run again."
                )
        found, here = 0, set()
        for block in blocks:
            name = block.tensor.name
            found += block.nbytes if name in self._filled else 0
            here.add(name)
        self._filled |= here & self._chunks.keys()
        return found


def plan_residence(
    tensors: Sequence[MergeTensor], devices: Sequence[str], threads: int, block_elements: int
) -> Residence:
    """Return the tensors that can stay on some devices, with memory left for their threads.

    The budget is nine tenths of the free memory of each device, less blocks and histograms; other
    tensors are streamed in every pass.
    """
    checkpoints = max((len(tensor.agents) + 1 for tensor in tensors), default=1)
    work = block_elements * (8 * checkpoints + WORK_BYTES) * 2 + HISTOGRAM_BYTES
    budgets = [int(0.9 * free_bytes(name)) // list(devices).count(name) for name in devices]
    return Residence(tensors, devices, [max(0, b - threads * work) for b in budgets])


def fitting_block(devices: Sequence[str], threads: int) -> int:
    """Return the number of elements of a streamed block: fewer where memory is short.

    A kernel takes microseconds to start, so blocks are large; the blocks of all threads may take a
    quarter of a device's free memory.
    """
    free = min(free_bytes(name) for name in devices)
    sizes = (DEVICE_BLOCK_ELEMENTS >> halved for halved in range(2))
    fits = (size for size in sizes if threads * size * WORK_BYTES * 2 <= free // 4)
    return next(fits, DEVICE_BLOCK_ELEMENTS >> 2)


def empty_rows(dtypes: Sequence[str], n: int, device: str) -> Any:
    """Return uninitialized rows of n elements, see StoredRows."""
    import torch

    from ram_studio.algorithm.kernels.torch import TORCH_DTYPES

    if len(set(dtypes)) > 1:
        return [torch.empty(n, dtype=TORCH_DTYPES[d], device=device) for d in dtypes]
    stride = -(-n // _ALIGNED) * _ALIGNED
    rows = torch.empty((len(dtypes), stride), dtype=TORCH_DTYPES[dtypes[0]], device=device)
    return rows[:, :n]
