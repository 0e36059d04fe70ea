"""Feeding devices: a lane for every thread and device, with a ring of slots.

A thread reads a block into a slot's host buffer, queues its upload, the kernels and the way back,
and goes on reading the next block into the next slot. When it comes round to a slot again it waits
for what was queued, and hands the results over: the stored elements to the output, say. Each lane
has a stream of its own, so that one's uploads overlap with another's kernels, downloads and file
work. Blocks are dealt to the devices in turn, or to the device where they stay (see ``residence``).

Device memory: for each lane a few blocks of every checkpoint, beside the residence. Host memory,
page-locked: the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ram_studio.algorithm import kernels, rounding
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, Sources
from ram_studio.engine.devices import Mark, Stream, host_buffer
from ram_studio.engine.residence import RING, Residence, StoredRows, empty_rows

DEVICE_BLOCK_ELEMENTS = 1 << 20
"""Two megabytes of bfloat16 from each checkpoint: enough for a copy to run at full speed."""


_DEEP_RING = 16
"""Slots where nothing is read, and so nothing held: launching small kernels keeps ahead."""


def device_block_elements(asked: int) -> int:
    """Return the block size for a device: larger than the CPU's, unless another was asked for."""
    return DEVICE_BLOCK_ELEMENTS if asked == BLOCK_ELEMENTS else asked


class Results(NamedTuple):
    """What a block leaves on its device for the host, on its way back.

    numbers: float64 (k,); merged: stored elements (n,), or None.
    """

    numbers: Any
    merged: Any = None


class Task(Protocol):
    """What one lane does with blocks."""

    def enqueue(self, block: Block, base: Any, agents: Any) -> Results:
        """Queue the work on a block whose base (n,) and agents (agents, n) are on the device."""

    def take(self, block: Block, numbers: np.ndarray, merged: np.ndarray | None) -> None:
        """Take over a block's results on the host; raises what is wrong with them."""

    def close(self) -> None:
        """Hand over what is still held, after the last block."""


@dataclass
class _Slot:
    host: Any = None
    device: Any = None
    numbers: Any = None
    merged: Any = None
    block: Block | None = None
    mark: Mark | None = None
    sizes: tuple[int, int] = (0, 0)


class _Lane:
    def __init__(
        self,
        device: str,
        make_task: Callable[[str], Task],
        sources: Sources | None,
        residence: Residence | None,
        also: HostCounter | None,
    ) -> None:
        self._device = device
        self._sources = sources
        self._residence = residence
        self._also = also
        self._stream = Stream(device)
        with self._stream:  # its memory is filled in the stream that uses it
            self.task = make_task(device)
        reads_nothing = residence is not None and residence.holds_everything
        self._slots = [_Slot() for _ in range(_DEEP_RING if reads_nothing else RING)]
        self._turn = 0

    def run(self, block: Block, stays: StoredRows | None) -> None:
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        self._take(slot)
        is_there = stays is not None and self._residence is not None and self._residence.is_filled
        pieces = [] if is_there else self._read(slot, block)
        with self._stream:
            stored = stays or StoredRows(0, self._room(slot, block))
            for row, piece in zip(stored.rows, pieces, strict=False):
                row.copy_(piece.view(row.dtype), non_blocking=True)
            results = self.task.enqueue(block, *stored.operands())
            self._send_back(slot, results)
            slot.block, slot.mark = block, self._stream.mark()
        if pieces and self._also is not None:
            self._add_on_host(block, pieces)

    def close(self) -> None:
        for _ in self._slots:
            slot = self._slots[self._turn]
            self._turn = (self._turn + 1) % len(self._slots)
            self._take(slot)
        with self._stream:
            self.task.close()

    def _read(self, slot: _Slot, block: Block) -> list[Any]:
        """Return the bytes of each checkpoint in the slot's host buffer."""
        assert self._sources is not None, "blocks that do not stay come from files"
        tensors = (block.tensor.base, *block.agents)
        widths = [rounding.STORAGE[t.dtype].itemsize for t in tensors]
        room = -(-block.n * max(widths) // 256) * 256
        slot.host = self._at_least(slot.host, room * len(tensors))
        pieces = []
        for row, (source, width) in enumerate(zip(tensors, widths, strict=True)):
            piece = slot.host[row * room : row * room + block.n * width]
            self._sources.read_into(source, block.start * width, memoryview(piece.numpy()))
            pieces.append(piece)
        return pieces

    def _add_on_host(self, block: Block, pieces: list[Any]) -> None:
        tensors = (block.tensor.base, *block.agents)
        arrays = [
            piece.numpy().view(rounding.STORAGE[t.dtype])
            for piece, t in zip(pieces, tensors, strict=True)
        ]
        if any(t.dtype != "BF16" for t in tensors):
            arrays = [rounding.decode(a, t.dtype) for a, t in zip(arrays, tensors, strict=True)]
        if all(kernels.is_finite(array) for array in arrays):  # else the device finds it
            self._also.add(block, arrays[0], tuple(arrays[1:]))

    def _room(self, slot: _Slot, block: Block) -> Any:
        """Return rows on the device for a block: those of the slot where they are long enough."""
        dtypes = [t.dtype for t in (block.tensor.base, *block.agents)]
        key = (tuple(dtypes), block.n)
        if slot.device is None or slot.device[0] != key:
            slot.device = (key, empty_rows(dtypes, block.n, self._device))
        return slot.device[1]

    def _at_least(self, buffer: Any, nbytes: int) -> Any:
        if buffer is None or buffer.numel() < nbytes:
            return host_buffer(nbytes, self._device)
        return buffer

    def _send_back(self, slot: _Slot, results: Results) -> None:
        import torch

        arrays = (results.numbers, results.merged)
        slot.sizes = tuple(0 if a is None else a.numel() * a.element_size() for a in arrays)
        slot.numbers = self._at_least(slot.numbers, slot.sizes[0])
        slot.numbers[: slot.sizes[0]].copy_(results.numbers.view(torch.uint8), non_blocking=True)
        if results.merged is not None:
            slot.merged = self._at_least(slot.merged, slot.sizes[1])
            stored = results.merged.view(torch.uint8)
            slot.merged[: slot.sizes[1]].copy_(stored, non_blocking=True)

    def _take(self, slot: _Slot) -> None:
        if slot.block is None or slot.mark is None:
            return
        slot.mark.wait()
        block, slot.block = slot.block, None
        numbers = slot.numbers[: slot.sizes[0]].numpy().view(np.float64)
        merged = slot.merged[: slot.sizes[1]].numpy() if slot.sizes[1] else None
        self.task.take(block, numbers, merged)


class HostCounter(Protocol):
    """What is collected on the host from blocks that are read, while the device works on them."""

    def add(self, block: Block, base: np.ndarray, agents: tuple[np.ndarray, ...]) -> None:
        """Add a block, as BlockReader gives it."""

    def close(self) -> None:
        """Hand over what is held."""


class DeviceWorker:
    """One thread's lanes, as a worker of ``run_blocks``.

    Args:
        make_task: for a device's name, what its lane does; called when its first block comes.
        sources: the files; residence: where blocks stay, or None; keeps: whether blocks that may
            stay are put there (in the first pass); else only found there.
        also: collects on the host from blocks that are read.
    """

    def __init__(
        self,
        devices: tuple[str, ...],
        make_task: Callable[[str], Task],
        sources: Sources | None,
        residence: Residence | None = None,
        *,
        keeps: bool = False,
        also: HostCounter | None = None,
    ) -> None:
        self._devices = devices
        self._make_task = make_task
        self._sources = sources
        self._residence = residence
        self._keeps = keeps
        self._also = also
        self._lanes: dict[int, _Lane] = {}

    def __call__(self, block: Block) -> None:
        """Read a block where needed, and queue its work."""
        stays = None
        if self._residence is not None and (self._keeps or self._residence.is_filled):
            stays = self._residence.find(block)
        number = block.index % len(self._devices) if stays is None else stays.device
        if number not in self._lanes:
            device = self._devices[number]
            self._lanes[number] = _Lane(
                device, self._make_task, self._sources, self._residence, self._also
            )
        self._lanes[number].run(block, stays)

    def close(self) -> None:
        """Wait for all queued work and hand everything over."""
        for lane in self._lanes.values():
            lane.close()
        if self._also is not None:
            self._also.close()
