"""Stored tensors that stay in a device's memory: what one pass reads, later ones find there.

What fits is decided beforehand from the free memory; the rest is streamed each time. Tensors are
held as they are stored, in pieces that end where an agent's rows end.
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
"""Device memory that a thread takes beside the rows themselves, bytes per element of its block."""

HISTOGRAM_BYTES = 64 << 20
"""Room for one thread's histograms and tables."""

_ALIGNED = 128
"""Rows begin at multiples of so many elements, for loads of several at once."""


@dataclass
class _Piece:
    """Some elements of a tensor in every checkpoint, and the device they belong to.

    rows: base and agents, (checkpoints, n) of one dtype, or a list of (n,) of several; None until
    something is put there.
    """

    block: Block
    device: int
    rows: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class StoredRows:
    """A block's stored elements in memory: base and agents.

    device: its number; rows: a tensor (checkpoints, n), or a list of (n,) where dtypes differ;
    is_filled: whether they are there already.
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
        """Return rows that lie in RAM as numpy holds these dtypes, sharing their memory."""
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
        """Choose what stays: in file order, on the device with most left of its budget (bytes)."""
        self.devices = tuple(devices)
        self._states: dict[Path, tuple[int, int]] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        self._filled: set[str] = set()
        self.nbytes = 0
        self.left_out = 0
        left = list(budgets)
        for tensor in tensors:
            pieces = list(blocks_of([tensor], _WHOLE))
            needed = sum(p.nbytes + _ALIGNED * 4 * (len(p.agents) + 1) for p in pieces)
            device = max(range(len(left)), key=left.__getitem__)
            if needed > left[device]:
                self.left_out += needed
                continue
            left[device] -= needed
            self.nbytes += needed
            self._pieces[tensor.name] = [_Piece(piece, device) for piece in pieces]

    def device_of(self, name: str) -> str:
        """Return the device of a tensor; the first where it does not stay."""
        pieces = self._pieces.get(name)
        return self.devices[pieces[0].device if pieces else 0]

    def find(self, block: Block) -> StoredRows | None:
        """Return the views of a block's elements, to be read or filled; None if it does not stay.

        Memory for its piece is taken on the first call.
        """
        for piece in self._pieces.get(block.tensor.name, ()):
            first = block.start - piece.block.start
            if 0 <= first < piece.block.n:
                with piece.lock:
                    if piece.rows is None:
                        name = self.devices[piece.device]
                        piece.rows = empty_rows(block.dtypes, piece.block.n, name)
                        settle([name])  # other streams will write there
                part = slice(first, first + block.n)
                is_list = isinstance(piece.rows, list)
                rows = [row[part] for row in piece.rows] if is_list else piece.rows[:, part]
                return StoredRows(piece.device, rows, block.tensor.name in self._filled)
        return None

    def fill(self, blocks: Iterable[Block], sources: Sources) -> int:
        """Take note that a pass put these blocks here; return the bytes it found here instead.

        Raises: SourceChangedError when a file was written to since the first of them was read.
        """
        self._states = self._states or sources.states
        for path, state in self._states.items():
            if sources.states[path] != state:
                raise SourceChangedError(
                    f"{path} changed after it was loaded onto the device. Leave the files alone "
                    "during a run, and run again."
                )
        found, here = 0, set()
        for block in blocks:
            name = block.tensor.name
            found += block.nbytes if name in self._filled else 0
            here.add(name)
        self._filled |= here & self._pieces.keys()
        return found


def plan_residence(
    tensors: Sequence[MergeTensor], devices: Sequence[str], threads: int, block_elements: int
) -> Residence:
    """Return what can stay on some devices beside what their threads need to work.

    The budget is nine tenths of what is free on each device, less blocks and histograms; tensors
    beyond it are streamed in every pass.
    """
    checkpoints = max((len(tensor.agents) + 1 for tensor in tensors), default=1)
    work = block_elements * (8 * checkpoints + WORK_BYTES) * 2 + HISTOGRAM_BYTES
    budgets = [int(0.9 * free_bytes(name)) // list(devices).count(name) for name in devices]
    return Residence(tensors, devices, [max(0, b - threads * work) for b in budgets])


def fitting_block(devices: Sequence[str], threads: int) -> int:
    """Return how many elements a streamed block has: fewer where memory is short.

    A kernel takes microseconds to start, so that large blocks start few; the blocks of all threads
    may take a quarter of what is free on a device.
    """
    free = min(free_bytes(name) for name in devices)
    sizes = (DEVICE_BLOCK_ELEMENTS >> halved for halved in range(2))
    fits = (size for size in sizes if threads * size * WORK_BYTES * 2 <= free // 4)
    return next(fits, DEVICE_BLOCK_ELEMENTS >> 2)


def empty_rows(dtypes: Sequence[str], n: int, device: str) -> Any:
    """Return uninitialised rows of n elements, see StoredRows."""
    import torch

    from ram_studio.algorithm.kernels.torch import TORCH_DTYPES

    if len(set(dtypes)) > 1:
        return [torch.empty(n, dtype=TORCH_DTYPES[d], device=device) for d in dtypes]
    stride = -(-n // _ALIGNED) * _ALIGNED
    rows = torch.empty((len(dtypes), stride), dtype=TORCH_DTYPES[dtypes[0]], device=device)
    return rows[:, :n]
