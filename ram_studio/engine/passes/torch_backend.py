"""The torch backend: the same formulas in torch, on blocks that lie on any device.

It is the GPU path, and on the CPU what computes methods without a fused loop. Every result is
fetched at once: while one thread waits for its device, others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ram_studio.algorithm import torch_kernels
from ram_studio.algorithm.methods import BlockInput
from ram_studio.algorithm.torch_kernels import TORCH_DTYPES
from ram_studio.engine.passes.plan import Merged, Plan, overflow_error
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, Block


class TorchBackend:
    """The two verbs on tensors: base (n,) and agents (agents, n) of one dtype, on one device."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """Args: check: see ``methods.BlockInput``."""
        self._check = check

    def new_histogram(self, shape: tuple[int, ...], base: torch.Tensor) -> torch.Tensor:
        """Return zeros to count blocks like this one into."""
        return torch.zeros(shape, dtype=torch.int64, device=base.device)

    def count(
        self,
        histogram: torch.Tensor,
        magnitudes: torch.Tensor | None,
        edge_bits: int,
        base: torch.Tensor,
        agents: torch.Tensor,
    ) -> bool:
        """Add a block to a histogram, see ``CpuBackend.count``."""
        x, y = base.float(), agents.float()
        if not bool(torch.isfinite(y - x).all()):
            return False
        if magnitudes is None:
            histogram += torch_kernels.chain_histogram(x, y, edge_bits)
        else:
            steps, found = torch_kernels.step_histogram(x, y, edge_bits)
            histogram += steps
            magnitudes += found
        return True

    def take(self, histogram: torch.Tensor) -> np.ndarray:
        """Return what was counted, and clear it."""
        counted = histogram.to("cpu", torch.int32).numpy()
        histogram.zero_()
        return counted

    def as_base(self, block: Block, agents: torch.Tensor) -> torch.Tensor:
        """Return agents rounded to the base's dtype; what overflows there stays as it was."""
        rounded = agents.to(TORCH_DTYPES[block.tensor.base.dtype]).to(agents.dtype)
        return torch.where(torch.isfinite(rounded), rounded, agents)

    def taken_in(
        self, base: np.ndarray, agents: tuple[np.ndarray, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a block as the CPU's loops take it as tensors on the CPU."""
        return _tensor(base), torch.stack([_tensor(agent) for agent in agents])

    def on_host(
        self, base: torch.Tensor, agents: torch.Tensor
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return a block as the CPU's loops take it."""
        rows = [
            self._numpy(row if row.dtype != torch.float16 else row.float())
            for row in (base, *agents)
        ]
        return rows[0], tuple(rows[1:])

    def stored(self, merged: Merged) -> np.ndarray:
        """Return the stored elements of a merged block as numpy holds them."""
        return self._numpy(merged.stored)

    def _numpy(self, row: torch.Tensor) -> np.ndarray:
        if row.dtype == torch.bfloat16:
            return row.view(torch.int16).cpu().numpy().view(np.uint16)
        return row.cpu().numpy()

    def merge(
        self,
        plan: Plan,
        block: Block,
        base: torch.Tensor,
        agents: torch.Tensor,
        fisher: np.ndarray | None = None,
    ) -> Merged | None:
        """Merge and measure a block, see ``CpuBackend.merge``; stored is a tensor there."""
        tensor = block.tensor
        dtype = plan.dtypes[tensor.name]
        x, y = base.float(), agents.float()
        if not bool(torch.isfinite(y - x).all()):
            return None
        weights = None if fisher is None else torch.from_numpy(fisher).to(x.device)
        row = plan.rows[tensor.name]
        values, active = plan.method.merge(
            BlockInput(x, y, row, block.name, block.start, tensor.shape, weights, self._check),
            plan.prepared,
        )
        key = int(plan.key(tensor)) if plan.rounding == "stochastic" else None
        stored = torch_kernels.store(values, dtype, active != 0, key, block.start)
        if not bool(torch.isfinite(stored).all()):
            raise overflow_error(dtype, block)
        if not tensor.is_counted:
            return Merged(stored)
        return Merged(stored, *_measure(block, x, y, stored.float(), active))


def _measure(
    block: Block, x: torch.Tensor, y: torch.Tensor, stored: torch.Tensor, active: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and sums of what was stored, see Merged."""
    lead = block.start % GROUP_ELEMENTS
    groups = -(-(lead + block.n) // GROUP_ELEMENTS)

    def by_group(values: torch.Tensor) -> torch.Tensor:
        room = (lead, groups * GROUP_ELEMENTS - lead - block.n)
        return torch.nn.functional.pad(values, room).view(groups, GROUP_ELEMENTS).sum(1)

    wide = x.double()
    counts: list[Any] = []
    sums: list[Any] = []
    for t, agent in enumerate(y):
        alone = active == 1 << t
        tau = torch.where(alone, agent.double() - wide, 0.0)
        counts.append(torch.stack([(active >> t & 1).sum(), alone.sum()]))
        sums.append(
            torch.stack([by_group((stored.double() - wide) * tau), by_group(tau * tau)], dim=1)
        )
    return (
        torch.stack(counts, dim=1).cpu().numpy(),
        torch.stack(sums, dim=2).cpu().numpy(),
    )


def _tensor(stored: np.ndarray) -> torch.Tensor:
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stored)
