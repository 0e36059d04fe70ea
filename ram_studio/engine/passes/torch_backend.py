"""The torch backend: the same formulas in torch, on blocks that lie on any device.

It is the GPU path, and on the CPU what computes methods without a fused loop. Every result is
fetched at once: while one thread waits for its device, others go on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ram_studio.algorithm.epsilon_grid import Thresholds
from ram_studio.algorithm.kernels import torch as kernels
from ram_studio.algorithm.kernels.torch import TORCH_DTYPES
from ram_studio.algorithm.methods import BlockInput, BlockOutput
from ram_studio.engine.passes.plan import Histogram, Merged, Plan, overflow_error
from ram_studio.engine.reading.blocks import Block


class TorchBackend:
    """The two verbs on tensors: base (n,) and agents (agents, n) of one dtype, on one device."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """Args: check: see ``methods.BlockInput``."""
        self._check = check

    def zeros(self, shape: tuple[int, ...], base: torch.Tensor) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=base.device)

    def count(
        self,
        kind: Histogram,
        histogram: torch.Tensor,
        grid: Thresholds,
        base: torch.Tensor,
        agents: torch.Tensor,
    ) -> bool:
        x, y = base.float(), agents.float()
        if kind == "patterns":
            pattern = kernels.find_patterns(x, y, float(grid.epsilon))
            histogram += kernels.count_patterns(pattern, len(y))
        else:
            count = {
                "chain": kernels.chain_histogram,
                "steps": kernels.step_histogram,
                "sizes": kernels.count_sizes,
            }[kind]
            found = count(x, y, grid.edge_bits)
            histogram[..., : found.shape[-1]] += found
        return _is_finite(y - x)

    def take(self, histogram: torch.Tensor) -> np.ndarray:
        return histogram.cpu().numpy()

    def as_base(self, block: Block, agents: torch.Tensor) -> torch.Tensor:
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
        rows = [
            self._numpy(row if row.dtype != torch.float16 else row.float())
            for row in (base, *agents)
        ]
        return rows[0], tuple(rows[1:])

    def stored(self, merged: Merged) -> np.ndarray:
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
        tensor = block.tensor
        dtype = plan.dtypes[tensor.name]
        x, y = base.float(), agents.float()
        if not _is_finite(y - x):
            return None
        row, rule = plan.rows[tensor.name], plan.rule(tensor)
        if rule is not None:
            kind = plan.arithmetic_of(block)
            merged = kernels.merge(rule, x, y, arithmetic=kind, start=block.start)
            found = BlockOutput(*merged)
        else:
            assert plan.method.merge_block is not None, "a method has a rule or a formula"
            read = None if fisher is None else torch.from_numpy(fisher).to(x.device)
            weights = plan.facts.weights_of(row)
            at = (row, tensor.merged_as, block.start, tensor.shape)
            own = BlockInput(x, y, *at, fisher=read, check=self._check, weights=weights)
            found = plan.method.merge_block(own, plan.prepared_for(row))
        key = int(plan.key(tensor)) if plan.rounding == "stochastic" else None
        stored = kernels.store(found.values, dtype, found.active != 0, key, block.start)
        if not _is_finite(stored):
            raise overflow_error(dtype, block)
        if not tensor.is_counted:
            return Merged(stored)
        patterns = kernels.count_patterns(found.active, len(y))
        near = stored.float()
        sums = kernels.measure(x, y, near, kernels.Merged(*found), block.groups)
        is_along = found.own is None
        return Merged(stored, patterns.cpu().numpy(), sums.cpu().numpy(), is_along)


def _is_finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def _tensor(stored: np.ndarray) -> torch.Tensor:
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stored)
