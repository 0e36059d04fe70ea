"""The CPU backend: fused loops for the methods that have them, torch formulas for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.epsilon_grid import Thresholds
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels.rules import Rule
from ram_studio.algorithm.rounding import STORAGE
from ram_studio.engine.passes.plan import Histogram, MergedBlock, Plan, overflow_error
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS, Block

Agents = tuple[np.ndarray, ...]


class CpuBackend:
    """One thread's two operations (count, merge), and its buffers.

    Blocks are as ``readers.BlockReader`` gives them: bfloat16 bits, or float32.
    """

    def __init__(
        self, block_elements: int = BLOCK_ELEMENTS, check: Callable[[], None] = lambda: None
    ) -> None:
        """Args: block_elements: of the largest block; check: see ``methods.BlockInput``."""
        self._size = block_elements
        self._check = check
        self._buffers: dict[tuple[str, np.dtype], np.ndarray] = {}
        self._last_rule: tuple[str, Rule | None] | None = None

    def zeros(self, shape: tuple[int, ...], base: np.ndarray) -> np.ndarray:
        return np.zeros(shape, dtype=np.int32)

    def count(
        self,
        kind: Histogram,
        histogram: np.ndarray,
        grid: Thresholds,
        base: np.ndarray,
        agents: Agents,
    ) -> bool:
        if cpu.is_copy(base, agents):
            return bool(cpu.is_finite(base))
        if kind == "patterns":
            pattern = self._pattern(len(agents), len(base))
            is_finite = cpu.find_patterns(base, agents, pattern, grid.epsilon)
            histogram += cpu.count_patterns(pattern, len(agents))
            return bool(is_finite)
        loop = {"chain": cpu.fill_chain, "steps": cpu.fill_steps, "sizes": cpu.count_sizes}[kind]
        table = histogram.reshape(-1) if kind == "chain" else histogram
        return bool(loop(base, agents, table, cpu.Grid.anchored(grid.edge_bits)))

    def read_flags(self, flags: Sequence[bool]) -> list[bool]:
        return list(flags)

    def take(self, histogram: np.ndarray) -> np.ndarray:
        return histogram

    def as_base(self, block: Block, agents: Agents) -> Agents:
        return tuple(
            array if source.dtype == block.tensor.base.dtype else _through(array, block)
            for array, source in zip(agents, block.agents, strict=True)
        )

    def stored_elements(self, merged: MergedBlock) -> np.ndarray:
        return merged.stored

    def on_host(self, base: np.ndarray, agents: Agents) -> tuple[np.ndarray, Agents]:
        return base, agents

    def merge(
        self,
        plan: Plan,
        block: Block,
        base: np.ndarray,
        agents: Agents,
        fisher: np.ndarray | None = None,
    ) -> MergedBlock | None:
        """See Backend; the result is overwritten by the next."""
        rule = self._rule(plan, block)
        if rule is None:
            from ram_studio.engine.passes.torch_backend import TorchBackend

            on_torch = TorchBackend(self._check)
            merged = on_torch.merge(plan, block, *on_torch.to_tensors(base, agents), fisher)
            return merged and replace(merged, stored=on_torch.stored_elements(merged))
        tensor, n = block.tensor, len(agents)
        dtype, kind = plan.dtypes[tensor.name], plan.arithmetic_of(block)
        if kind == "float32" and cpu.is_copy(base, agents):
            return MergedBlock(base) if cpu.is_finite(base) else None
        pattern = self._pattern(n, block.n)
        # bfloat16 and float32 are rounded inside the loop, unless drawn at random.
        is_direct = plan.rounding == "nearest" and dtype != "F16"
        stored = self._buffer("merged", STORAGE[dtype] if is_direct else np.dtype(kind), block.n)
        is_vote = rule.elect_sign or rule.drawing is not None
        voters = self._buffer("voters", pattern.dtype, block.n) if is_vote else pattern
        where: dict[str, Any] = {"arithmetic": kind, "start": block.start}
        if is_vote:
            where["voters"] = voters
        if not cpu.merge(rule, base, agents, stored, pattern, **where):
            if not cpu.is_tau_finite(base, agents):
                return None
            raise overflow_error(dtype, block)
        if not is_direct:
            key = plan.key(tensor)
            stored = rounding.store(stored, dtype, plan.rounding, pattern, key, block.start)
            if not cpu.is_finite(stored):
                raise overflow_error(dtype, block)
        if not tensor.is_counted:
            return MergedBlock(stored)
        cuts = [0, *(part.stop for part in block.groups)]
        sums = cpu.measure(rule, base, agents, stored, (pattern, voters), cuts, arithmetic=kind)
        return MergedBlock(stored, cpu.count_patterns(pattern, n), sums)

    def _pattern(self, n_agents: int, n: int) -> np.ndarray:
        return self._buffer("pattern", cpu.pattern_dtype(n_agents), n)

    def _rule(self, plan: Plan, block: Block) -> Rule | None:
        """Return the tensor's rule; the last one is cached, as its blocks follow each other."""
        if self._last_rule is None or self._last_rule[0] != block.tensor.name:
            self._last_rule = block.tensor.name, plan.rule(block.tensor)
        return self._last_rule[1]

    def _buffer(self, use: str, dtype: np.dtype, n: int) -> np.ndarray:
        if (use, dtype) not in self._buffers or len(self._buffers[use, dtype]) < n:
            self._buffers[use, dtype] = np.empty(max(n, self._size), dtype=dtype)
        return self._buffers[use, dtype][:n]


def _through(values: np.ndarray, block: Block) -> np.ndarray:
    """Return float32 values rounded to the base's dtype and back; overflow stays unrounded."""
    dtype = block.tensor.base.dtype
    stored = rounding.decode(rounding.store(values.astype(np.float64), dtype), dtype)
    return np.where(np.isfinite(stored), stored, values)
