"""Stored tensors that stay in a device's memory: what one pass uploads, later ones find there.

What fits is decided beforehand from the free memory; the rest is streamed each time. Tensors are
held as they are stored, in pieces that end where an agent's rows end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.engine.blocks import Block, BlockReader, Sources, blocks_of
from ram_studio.engine.devices import devices_of, free_bytes, host_buffer, settle
from ram_studio.errors import SourceChangedError

PIECE_ELEMENTS = 1 << 40
RING = 2
"""Slots of a lane that reads blocks, see ``lanes``."""

HISTOGRAM_BYTES = 64 << 20
"""Room for one lane's histograms and tables."""

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
    """A block's stored elements on a device: base and agents.

    rows: a tensor (checkpoints, n), or a list of (n,) where dtypes differ.
    """

    device: int
    rows: Any

    def operands(self) -> tuple[Any, Any]:
        """Return the base (n,) and the stacked agents, of one dtype: float32 where they differ."""
        import torch

        if not isinstance(self.rows, list):
            return self.rows[0], self.rows[1:]
        wide = torch.stack([row.float() for row in self.rows])
        return wide[0], wide[1:]


class Residence:
    """Which pieces of a merge's tensors stay on which device, and their elements.

    is_filled: whether a whole pass has put its blocks here; only then they can be found.
    """

    def __init__(
        self,
        report: CompatibilityReport,
        tensors: Sequence[MergeTensor],
        devices: Sequence[str],
        budgets: Sequence[int],
    ) -> None:
        """Choose what stays: in file order, on the device with most left of its budget (bytes).

        nbytes, left_out: bytes that stay and that do not fit.
        """
        self.devices = tuple(devices)
        self.is_filled = False
        self._report = report
        self._states: dict[Path, tuple[int, int]] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        self.nbytes = 0
        self.left_out = 0
        left = list(budgets)
        for tensor in tensors:
            pieces = list(blocks_of([tensor], PIECE_ELEMENTS))
            needed = sum(p.nbytes + _ALIGNED * 4 * (len(p.agents) + 1) for p in pieces)
            device = max(range(len(left)), key=left.__getitem__)
            if needed > left[device]:
                self.left_out += needed
                continue
            left[device] -= needed
            self.nbytes += needed
            self._pieces[tensor.name] = [_Piece(piece, device) for piece in pieces]

    @property
    def holds_everything(self) -> bool:
        """Whether no block of any merged tensor needs to be read."""
        every = {tensor.name for tensor in self._report.tensors if tensor.kind == "merge"}
        return self.is_filled and self._pieces.keys() == every

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
                        dtypes = [t.dtype for t in (block.tensor.base, *block.agents)]
                        name = self.devices[piece.device]
                        piece.rows = empty_rows(dtypes, piece.block.n, name)
                        settle([name])  # other streams will write there
                part = slice(first, first + block.n)
                if isinstance(piece.rows, list):
                    return StoredRows(piece.device, [row[part] for row in piece.rows])
                return StoredRows(piece.device, piece.rows[:, part])
        return None

    def load(self, tensors: Iterable[MergeTensor], sources: Sources) -> None:
        """Put tensors here that no pass looks at, one block after another."""
        for block in blocks_of(list(tensors)):
            found = self.find(block)
            assert found is not None, "there is room for them"
            for source, row in zip((block.tensor.base, *block.agents), found.rows, strict=True):
                width = rounding.STORAGE[source.dtype].itemsize
                piece = host_buffer(block.n * width, self.devices[found.device])
                sources.read_into(source, block.start * width, memoryview(piece.numpy()))
                row.copy_(piece.view(row.dtype))

    def fill(self) -> None:
        """Take note that every block was put here, from the files as they are now."""
        self._states = self._stat()
        self.is_filled = True

    def check_unchanged(self) -> None:
        """Raise SourceChangedError when a file was written to since it was uploaded."""
        if not self.is_filled:
            return
        for path, state in self._stat().items():
            if state != self._states[path]:
                raise SourceChangedError(
                    f"{path} changed after it was loaded onto the device. Leave the files alone "
                    "during a run, and run again."
                )

    def _stat(self) -> dict[Path, tuple[int, int]]:
        checkpoints = (self._report.base, *self._report.agents)
        states = {}
        for path in (shard for checkpoint in checkpoints for shard in checkpoint.shards):
            try:
                state = path.stat()
            except OSError as error:
                raise SourceChangedError(
                    f"{path} is gone: {error.strerror}. Leave the files alone during a run, and "
                    "run again."
                ) from error
            states[path] = (state.st_size, state.st_mtime_ns)
        return states

    def bytes_found(self, blocks: Iterable[Block]) -> int:
        """Return how many bytes of these blocks need not be read."""
        if not self.is_filled:
            return 0
        return sum(block.nbytes for block in blocks if block.tensor.name in self._pieces)


def lane_bytes(checkpoints: int, block_elements: int) -> int:
    """Return the most device memory that a lane's buffers take: stored, decoded and merged."""
    return RING * block_elements * (8 * checkpoints + 64)


def plan_residence(
    report: CompatibilityReport,
    tensors: Sequence[MergeTensor],
    device: str,
    threads: int,
    block_elements: int,
) -> Residence:
    """Return what can stay on a chosen device beside the buffers of its lanes.

    Its budget is nine tenths of what is free on each device, less those buffers and the histograms;
    blocks beyond it are streamed through the buffers in every pass.
    """
    devices = devices_of(device)
    lane = lane_bytes(len(report.agents) + 1, block_elements) + HISTOGRAM_BYTES
    budgets = [int(0.9 * free_bytes(name)) // devices.count(name) for name in devices]
    return Residence(report, tensors, devices, [max(0, b - threads * lane) for b in budgets])


def empty_rows(dtypes: Sequence[str], n: int, device: str) -> Any:
    """Return uninitialised rows of n elements, see StoredRows."""
    import torch

    from ram_studio.algorithm.torch_kernels import TORCH_DTYPES

    if len(set(dtypes)) > 1:
        return [torch.empty(n, dtype=TORCH_DTYPES[d], device=device) for d in dtypes]
    stride = -(-n // _ALIGNED) * _ALIGNED
    rows = torch.empty((len(dtypes), stride), dtype=TORCH_DTYPES[dtypes[0]], device=device)
    return rows[:, :n]


class ResidentReader(BlockReader):
    """Reads blocks as the CPU's kernels take them, out of a residence or into it."""

    def __init__(self, residence: Residence, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._residence = residence

    def read(self, block: Block) -> tuple[Any, tuple[Any, ...]]:
        """Return the stored elements of base and agents, see BlockReader."""
        import torch

        found = self._residence.find(block)
        if found is None:
            return super().read(block)
        tensors = (block.tensor.base, *block.agents)
        is_bfloat16 = all(t.dtype == "BF16" for t in tensors)
        arrays = []
        for row, (source, stored) in enumerate(zip(tensors, found.rows, strict=True)):
            bits = stored.view(torch.int16) if source.dtype == "BF16" else stored
            array = bits.numpy().view(rounding.STORAGE[source.dtype])
            if not self._residence.is_filled:
                start = block.start * array.itemsize
                self._sources.read_into(source, start, memoryview(array).cast("B"))
            arrays.append(array if is_bfloat16 else self._decode(row, array, source.dtype))
        return arrays[0], tuple(arrays[1:])
