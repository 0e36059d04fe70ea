"""Merging blocks on a device: fused kernels for methods that have one on the CPU, else formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ram_studio.algorithm import kernels, sum_kernels
from ram_studio.algorithm.methods import BlockInput, KernelInput
from ram_studio.engine.blocks import GROUP_ELEMENTS, Block
from ram_studio.engine.lanes import Results
from ram_studio.engine.merging import MergeTally, Plan, overflow_error

_REGION_RULES = {kernels.merge_mean: False, kernels.merge_elected: True}
"""The CPU kernels that ``device_kernels.merge_block`` stands for: does it elect a sign?"""

_SUMS = (sum_kernels.merge_sum, sum_kernels.merge_trimmed)
"""Those that ``triton_kernels.sum_block`` stands for."""


class MergingTask:
    """Merges blocks on one device, one stream's worth, see lanes.Task.

    Args:
        give: takes a merged block's bytes on the host, with where they begin in the tensor.
        place: returns where on the device a block's stored elements go; then ``give`` is not used.
        error_of: what to raise for a block with a task vector that is not finite.
    """

    def __init__(
        self,
        plan: Plan,
        tally: MergeTally,
        device: str,
        *,
        give: Callable[[str, int, memoryview], None] | None = None,
        place: Callable[[Block], Any] | None = None,
        error_of: Callable[[Block], Exception],
    ) -> None:
        import torch

        from ram_studio.algorithm import device_kernels

        self._plan = plan
        self._tally = tally
        self._device = torch.device(device)
        self._kernels = device_kernels.kernels_for(self._device)
        self._give = give
        self._place = place
        self._error_of = error_of
        self._sent: dict[tuple[tuple, str], Any] = {}

    def enqueue(self, block: Block, base: Any, agents: Any) -> Results:
        """Queue the merging and measuring of a block."""
        import torch

        from ram_studio.algorithm import device_kernels, torch_kernels

        plan, tensor = self._plan, block.tensor
        dtype = torch_kernels.TORCH_DTYPES[plan.dtypes[tensor.name]]
        if self._place is None:
            merged = torch.empty(block.n, dtype=dtype, device=self._device)
        else:
            merged = self._place(block)
        flags = torch.zeros(2, dtype=torch.int32, device=self._device)
        measured = None
        if tensor.is_counted:
            shape = (device_kernels.tiles(block.start, block.n), 2, plan.n_agents)
            measured = tuple(
                torch.empty(shape, dtype=kind, device=self._device)
                for kind in (torch.int32, torch.float64)
            )
        self._merge(block, base, agents, merged, flags, measured)
        numbers = [flags.double()]
        if measured is not None:
            counts, sums = measured
            numbers += [counts.sum(0).double().flatten(), self._by_group(block, sums).flatten()]
        return Results(torch.cat(numbers), merged if self._place is None else None)

    def _merge(
        self, block: Block, base: Any, agents: Any, merged: Any, flags: Any, measured: Any
    ) -> None:
        from ram_studio.algorithm import device_kernels

        plan, tensor = self._plan, block.tensor
        key = int(plan.key(tensor)) if plan.rounding == "stochastic" else None
        row, name = plan.rows[tensor.name], tensor.tied_to or tensor.name
        how = {"key": key, "start": block.start, "measured": measured}
        if hasattr(plan.prepared, "kernel"):
            kernel, arguments = plan.prepared.kernel(KernelInput(row, name, block.start))
            if kernel in _SUMS and hasattr(self._kernels, "sum_block"):
                self._sum_kept(arguments, base, agents, merged, flags, how)
                return
            if kernel in _REGION_RULES:
                epsilon, factors = arguments
                self._kernels.merge_block(
                    base,
                    agents,
                    merged,
                    flags,
                    epsilon=float(epsilon),
                    factors=self._on_device(factors, "float64"),
                    elect_sign=_REGION_RULES[kernel],
                    **how,
                )
                return
        x, y = base.float(), agents.float()
        device_kernels.raise_flag(flags, device_kernels.NOT_FINITE, y - x)
        values, active = plan.method.merge(
            BlockInput(x, y, row, name, block.start, tensor.shape), plan.prepared
        )
        device_kernels.store_block(x, y, values, active, merged, flags, **how)

    def _sum_kept(
        self,
        arguments: tuple,
        base: Any,
        agents: Any,
        merged: Any,
        flags: Any,
        how: dict[str, Any],
    ) -> None:
        *thresholds, factor, keys, cut, _ = arguments
        limits = tuple(float(limit) for limit in thresholds[0]) if thresholds else None
        signed = tuple(np.array(keys, dtype=np.uint64).view(np.int64).tolist())
        self._kernels.sum_block(
            base,
            agents,
            merged,
            flags,
            thresholds=None if limits is None else self._on_device(limits, "float32"),
            factor=self._on_device((float(factor),), "float64"),
            keys=self._on_device(signed, "int64") if signed else None,
            cut=int(cut),
            **how,
        )

    def _on_device(self, numbers: tuple, dtype: str) -> Any:
        """Return numbers as a tensor on the device; the same ones are sent once."""
        if (numbers, dtype) not in self._sent:
            import torch

            self._sent[numbers, dtype] = torch.tensor(
                numbers, dtype=getattr(torch, dtype), device=self._device
            )
        return self._sent[numbers, dtype]

    def _by_group(self, block: Block, sums: Any) -> Any:
        """Return the sums of tiles added up to groups of elements, (groups, 2, agents)."""
        import torch

        from ram_studio.algorithm.device_kernels import TILE

        tiles = GROUP_ELEMENTS // TILE
        lead = block.start % GROUP_ELEMENTS // TILE
        groups = -(-(lead + len(sums)) // tiles)
        padded = torch.zeros(
            (groups * tiles, *sums.shape[1:]), dtype=sums.dtype, device=sums.device
        )
        padded[lead : lead + len(sums)] = sums
        return padded.view(groups, tiles, *sums.shape[1:]).sum(1)

    def take(self, block: Block, numbers: np.ndarray, merged: np.ndarray | None) -> None:
        """Add a block's counts to the tally and hand its bytes on."""
        from ram_studio.algorithm.device_kernels import NOT_FINITE, OUT_OF_RANGE

        if numbers[NOT_FINITE]:
            raise self._error_of(block)
        if numbers[OUT_OF_RANGE]:
            raise overflow_error(self._plan.dtypes[block.tensor.name], block)
        n = self._plan.n_agents
        if block.tensor.is_counted:
            changed, unique = numbers[2 : 2 + 2 * n].astype(np.int64).reshape(2, n)
            sums = numbers[2 + 2 * n :].reshape(-1, 2, n)
            self._tally.add(
                changed,
                unique,
                [
                    (t, *pair)
                    for t in np.flatnonzero(unique).tolist()
                    for pair in sums[:, :, t].tolist()
                ],
            )
        if merged is not None and self._give is not None:
            width = len(merged) // block.n
            self._give(block.tensor.name, block.start * width, memoryview(merged))

    def close(self) -> None:
        """Nothing is held back."""
