"""Counting overlap patterns on a device: what ``tally.CpuCounter`` does, without waiting.

Histograms are folded on the device into tables of all tensors, which come back at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ram_studio.algorithm import ladder
from ram_studio.engine.blocks import Block
from ram_studio.engine.lanes import Results
from ram_studio.engine.tally import FOLD_ELEMENTS, Tally

Choose = Callable[[Block, Any], Any]
"""From a block and its agents (agents, n) to those to count, of the same dtype."""


def every_agent(block: Block, agents: Any) -> Any:
    """Return the agents as they are."""
    return agents


def as_base(block: Block, agents: Any) -> Any:
    """Return the agents rounded to the base's dtype; what overflows there stays as it was."""
    import torch

    from ram_studio.algorithm.torch_kernels import TORCH_DTYPES

    dtype = TORCH_DTYPES[block.tensor.base.dtype]
    rounded = agents.to(dtype).to(agents.dtype)
    return torch.where(torch.isfinite(rounded), rounded, agents)


class DeviceCounter:
    """Counts blocks on one device, one stream's worth."""

    def __init__(self, tally: Tally, device: str) -> None:
        import torch

        from ram_studio.algorithm import device_kernels

        self._tally = tally
        self._kernels = device_kernels.kernels_for(torch.device(device))
        n, bins = tally.n_agents, ladder.BIN_COUNT
        if tally.has_patterns:
            copies = device_kernels.chain_copies(1 << n, n, bins)
            shape, dtype = (copies, 1 << n, n, bins), torch.int32
        else:
            shape, dtype = (1, n, n, bins), torch.int64
        self._histogram = torch.zeros(shape, dtype=dtype, device=device)
        self._magnitudes = torch.zeros((n, bins), dtype=torch.int64, device=device)
        self._interval_of_bin = torch.from_numpy(tally.grid.interval_of_bin).to(device)
        self._tables: dict[int, tuple[Any, Any]] = {}
        self._tensor: int | None = None
        self._held = 0

    def add(self, tensor: int, base: Any, agents: Any, flags: Any) -> None:
        """Count a block of a tensor; ``flags`` as for ``device_kernels.count_block``."""
        from ram_studio.algorithm import device_kernels, torch_kernels

        n = base.shape[0]
        if tensor != self._tensor or self._held + n > FOLD_ELEMENTS:
            self._fold()
            self._tensor = tensor
        self._held += n
        edge_bits = self._tally.grid.edge_bits
        if self._tally.has_patterns:
            self._kernels.count_block(base, agents, self._histogram, flags, edge_bits)
            return
        x, y = base.float(), agents.float()
        device_kernels.raise_flag(flags, device_kernels.NOT_FINITE, y - x)
        steps, magnitudes = torch_kernels.step_histogram(x, y, edge_bits)
        self._histogram[0] += steps
        self._magnitudes += magnitudes

    def _fold(self) -> None:
        if self._tensor is None or self._held == 0:
            return
        import torch

        histogram = self._histogram.sum(0, dtype=torch.int64)
        rows, agents = histogram.shape[:2]
        shape = (rows, agents, self._tally.grid.points + 1)
        table = torch.zeros(shape, dtype=torch.int64, device=histogram.device)
        table.index_add_(2, self._interval_of_bin, histogram)
        magnitudes = histogram.sum(0) if self._tally.has_patterns else self._magnitudes.clone()
        if self._tensor in self._tables:
            before = self._tables[self._tensor]
            table, magnitudes = table + before[0], magnitudes + before[1]
        self._tables[self._tensor] = table, magnitudes
        self._histogram.zero_()
        self._magnitudes.zero_()
        self._held = 0

    def close(self) -> None:
        """Wait for the tables and add them to the tally."""
        self._fold()
        for tensor, (table, magnitudes) in self._tables.items():
            self._tally.add(tensor, table.cpu().numpy(), magnitudes.cpu().numpy())
        self._tables.clear()


class CountingTask:
    """Counts each block in one or more ways, see lanes.Task."""

    def __init__(
        self,
        counters: Sequence[tuple[Choose, DeviceCounter]],
        error_of: Callable[[Block], Exception],
    ) -> None:
        """error_of: what to raise for a block with a task vector that is not finite."""
        self._counters = counters
        self._error_of = error_of

    def enqueue(self, block: Block, base: Any, agents: Any) -> Results:
        """Queue the counting of a block."""
        import torch

        flags = torch.zeros(2, dtype=torch.int32, device=base.device)
        for choose, counter in self._counters:
            counter.add(block.tensor_index, base, choose(block, agents), flags)
        return Results(flags.double())

    def take(self, block: Block, numbers: np.ndarray, merged: np.ndarray | None) -> None:
        """Raise if the block is not finite."""
        if numbers[0]:
            raise self._error_of(block)

    def close(self) -> None:
        """Add everything to the tallies."""
        for _, counter in self._counters:
            counter.close()
