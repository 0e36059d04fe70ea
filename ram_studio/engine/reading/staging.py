"""Uploads blocks to devices: every thread has its own stream and page-locked buffer.

A thread reads a block into its buffer, queues the upload and the work in its stream, and waits for
the results, or, where it needs none yet, for the upload alone; meanwhile the others read, copy and
compute. Device memory is a few blocks per thread besides the residence; page-locked host memory is
one block of every checkpoint per thread.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ram_studio.algorithm import rounding
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.residence import Residence, StoredRows, empty_rows
from ram_studio.engine.reading.sources import Sources


def host_buffer(nbytes: int, device: str) -> torch.Tensor:
    """Return a uint8 tensor to copy to a device: page-locked for CUDA."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device != "cpu")


class DeviceReader:
    """One thread's reader for devices, like ``readers.BlockReader`` for the CPU's loops.

    Blocks that stay go to their own device, all others to this thread's: threads are assigned to
    devices in turn. Torch's work in this thread then goes into the stream of the block's device.
    """

    def __init__(
        self,
        sources: Sources,
        devices: tuple[str, ...],
        block_elements: int,
        residence: Residence | None = None,
        *,
        number: int = 0,
    ) -> None:
        """number: index of the thread in the pass."""
        self._sources = sources
        self._devices = devices
        self._residence = residence
        self._block_elements = block_elements
        self._own = number % len(devices)
        self._streams: dict[str, Any] = {}
        self._host: Any = None
        self._uploaded: Any = None

    def read(self, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Return base (n,) and agents (agents, n) on a device, in their stored dtype.

        float32 where dtypes differ, for a block beyond the block size, and for rows that only
        some agents have.
        """
        chunks = list(block.chunks(self._block_elements))
        if len(chunks) == 1:
            return self._read_chunk(block)
        parts = [tuple(rows.float() for rows in self._read_chunk(chunk)) for chunk in chunks]
        bases, agents = zip(*parts, strict=True)
        return torch.cat(bases), torch.cat(agents, dim=1)

    def _read_chunk(self, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        stored = None if self._residence is None else self._residence.find(block)
        device = self._devices[self._own if stored is None else stored.device]
        self._enter(device)
        if stored is None:
            stored = StoredRows(self._own, empty_rows(block.dtypes, block.n, device))
        if not stored.is_filled:
            self._upload(block, stored.rows, device)
        return stored.operands()

    def _enter(self, device: str) -> None:
        """Switch to this thread's stream on a device."""
        if device == "cpu":
            return
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        torch.cuda.set_stream(self._streams[device])

    def _upload(self, block: Block, rows: Any, device: str) -> None:
        widths = [rounding.STORAGE[dtype].itemsize for dtype in block.dtypes]
        room = -(-block.n * max(widths) // 256) * 256
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the buffer is free again; work may still be queued
        if self._host is None or self._host.numel() < room * len(widths):
            self._host = host_buffer(room * len(widths), device)
        starts = itertools.count(0, room)
        for source, row, width, start in zip(block.sources, rows, widths, starts, strict=False):
            chunk = self._host[start : start + block.n * width]
            self._sources.read_into(source, block.start * width, memoryview(chunk.numpy()))
            row.copy_(chunk.view(row.dtype), non_blocking=True)
        if device in self._streams:
            self._uploaded = torch.cuda.Event()
            self._uploaded.record(self._streams[device])
