"""The torch backend: the same formulas in torch, on blocks of any device.

It is the GPU path, and on the CPU it computes methods without a fused loop. A block is queued
whole. Counts and flags of counting stay on the device, the flags until many are read together; the
sums of a merged block come back in one copy, and its elements into page-locked memory. While
one thread waits for its device, others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ram_studio.algorithm.epsilon_grid import Thresholds
from ram_studio.algorithm.kernels import torch as kernels
from ram_studio.algorithm.kernels.torch import TORCH_DTYPES
from ram_studio.algorithm.methods import OWN, BlockInput, BlockOutput
from ram_studio.engine.passes.plan import Histogram, MergedBlock, Plan, overflow_error
from ram_studio.engine.reading.blocks import Block
from ram_studio.errors import SettingsError


class TorchBackend:
    """Counts and merges tensors: base (n,) and agents (agents, n) of one dtype and device."""

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
    ) -> torch.Tensor:
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
        return torch.isfinite(y - x).all()

    def read_flags(self, flags: Sequence[torch.Tensor | bool]) -> list[bool]:
        """Return flags of blocks, in order; one copy per device."""
        found = dict(enumerate(flags))
        for device in {flag.device for flag in flags if isinstance(flag, torch.Tensor)}:
            own = {n: f for n, f in found.items() if getattr(f, "device", None) == device}
            found |= zip(own, torch.stack(list(own.values())).tolist(), strict=True)
        return [bool(flag) for flag in found.values()]

    def take(self, histogram: torch.Tensor) -> np.ndarray:
        return histogram.cpu().numpy()

    def as_base(self, block: Block, agents: torch.Tensor) -> torch.Tensor:
        rounded = agents.to(TORCH_DTYPES[block.tensor.base.dtype]).to(agents.dtype)
        return torch.where(torch.isfinite(rounded), rounded, agents)

    def to_tensors(
        self, base: np.ndarray, agents: tuple[np.ndarray, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return arguments of the CPU's loops as tensors on the CPU."""
        return _tensor(base), torch.stack([_tensor(agent) for agent in agents])

    def on_host(
        self, base: torch.Tensor, agents: torch.Tensor
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        rows = [
            self._numpy(row if row.dtype != torch.float16 else row.float())
            for row in (base, *agents)
        ]
        return rows[0], tuple(rows[1:])

    def stored_elements(self, merged: MergedBlock) -> np.ndarray:
        return self._numpy(merged.stored)

    def _numpy(self, row: torch.Tensor) -> np.ndarray:
        if row.dtype == torch.bfloat16:
            return _on_host(row.view(torch.int16)).view(np.uint16)
        return _on_host(row)

    def merge(
        self,
        plan: Plan,
        block: Block,
        base: torch.Tensor,
        agents: torch.Tensor,
        fisher: np.ndarray | None = None,
    ) -> MergedBlock | None:
        tensor = block.tensor
        dtype = plan.dtypes[tensor.name]
        x, y = base.float(), agents.float()
        flags = [torch.isfinite(y - x).all()]
        row, rule = plan.rows[tensor.name], plan.rule(tensor)
        if rule is None and not flags[0]:
            return None  # a formula may solve equations, which needs numbers
        if rule is not None:
            kind = plan.arithmetic_of(block)
            found = kernels.merge(rule, x, y, arithmetic=kind, start=block.start)
        else:
            assert plan.method.merge_block is not None, "a method has a rule or a formula"
            read = None if fisher is None else torch.from_numpy(fisher).to(x.device)
            weights = plan.facts.weights_of(row)
            at = (row, tensor.merged_as, block.start, tensor.shape)
            own = BlockInput(x, y, *at, fisher=read, check=self._check, weights=weights)
            found = plan.method.merge_block(own, plan.prepared_for(row))
            if plan.method.name in OWN:
                _check_output(found, plan.method.name, y)
        key = int(plan.key(tensor)) if plan.rounding == "stochastic" else None
        stored = kernels.store(found.values, dtype, found.active != 0, key, block.start)
        flags.append(torch.isfinite(stored).all())
        own_sums: list[torch.Tensor] = []
        if tensor.is_counted:
            own_sums.append(kernels.count_patterns(found.active, len(y)))
            own_sums.append(kernels.measure(x, y, stored.float(), found, block.groups))
        [is_finite, is_stored], *known = _fetch(torch.stack(flags).long(), *own_sums)
        if not is_finite:
            return None
        if not is_stored:
            raise overflow_error(dtype, block)
        if not known:
            return MergedBlock(stored)
        patterns, sums = known
        return MergedBlock(stored, patterns, sums, found.own is None)


def _check_output(found: object, name: str, agents: torch.Tensor) -> None:
    """Raise SettingsError for a result of a user's formula with the wrong type or shape.

    A shorter one would be broadcast to all elements. agents: (agents, n).
    """
    n = agents[0].shape
    values, active = found[:2] if isinstance(found, BlockOutput) else (None, None)
    if (
        isinstance(values, torch.Tensor)
        and isinstance(active, torch.Tensor)
        and values.shape == active.shape == n
        and values.is_floating_point()
        and active.dtype == torch.int64
        and not (active >> len(agents)).any()
    ):
        return
    raise SettingsError(
        f"The method {name}: merge_block returned {_shown(values)} and {_shown(active)}; expected "
        f"a BlockOutput of floats and of int64 patterns, both {list(n)}, with a bit for each agent."
    )


def _shown(part: object) -> str:
    if isinstance(part, torch.Tensor):
        return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
    return "nothing" if part is None else type(part).__name__


def _fetch(*parts: torch.Tensor) -> list[np.ndarray]:
    """Return tensors of eight-byte elements as arrays, with one copy from their device."""
    together = torch.cat([part.contiguous().view(torch.int64).reshape(-1) for part in parts])
    ends = np.cumsum([part.numel() for part in parts])[:-1]
    chunks = zip(np.split(together.cpu().numpy(), ends), parts, strict=True)
    kinds = {torch.int64: np.int64, torch.float64: np.float64}
    return [chunk.view(kinds[part.dtype]).reshape(part.shape) for chunk, part in chunks]


def _on_host(row: torch.Tensor) -> np.ndarray:
    """Return a tensor's elements; from a GPU through page-locked memory, which torch reuses."""
    if row.device.type == "cpu":
        return row.numpy()
    host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
    host.copy_(row, non_blocking=True)
    torch.cuda.current_stream(row.device).synchronize()
    return host.numpy()


def _tensor(stored: np.ndarray) -> torch.Tensor:
    if stored.dtype == np.uint16:
        return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stored)
