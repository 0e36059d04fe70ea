"""The CPU backend: fused loops for the methods that have them, torch formulas for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ram_studio.algorithm import kernels, rounding
from ram_studio.algorithm.methods import KernelInput
from ram_studio.engine.passes.plan import Merged, Plan, overflow_error, pattern_dtype
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS, Block
from ram_studio.engine.reading.readers import as_float32

Agents = tuple[np.ndarray, ...]


class CpuBackend:
    """One thread's two verbs, and its buffers.

    Blocks are as ``readers.BlockReader`` gives them: bfloat16 bits, or float32.
    """

    def __init__(
        self, block_elements: int = BLOCK_ELEMENTS, check: Callable[[], None] = lambda: None
    ) -> None:
        """Args: block_elements: of the largest block; check: see ``methods.BlockInput``."""
        self._size = block_elements
        self._check = check
        self._buffers: dict[tuple[str, np.dtype], np.ndarray] = {}

    def new_histogram(self, shape: tuple[int, ...], base: np.ndarray) -> np.ndarray:
        """Return zeros to count blocks like this one into."""
        return np.zeros(shape, dtype=np.int32)

    def count(
        self,
        histogram: np.ndarray,
        magnitudes: np.ndarray | None,
        edge_bits: int,
        base: np.ndarray,
        agents: Agents,
    ) -> bool:
        """Add a block to a chain histogram, or without patterns to steps and magnitudes.

        See ``kernels.fill_chain`` and ``kernels.fill_steps``. Returns False when some task vector
        is not finite.
        """
        if kernels.is_copy(base, agents):
            return kernels.is_finite(base)
        if magnitudes is None:
            return kernels.fill_chain(base, agents, histogram.reshape(-1), np.int32(edge_bits))
        return kernels.fill_steps(base, agents, histogram, magnitudes, np.int32(edge_bits))

    def take(self, histogram: np.ndarray) -> np.ndarray:
        """Return what was counted, for the caller to read and clear."""
        return histogram

    def as_base(self, block: Block, agents: Agents) -> Agents:
        """Return agents rounded to the base's dtype; what overflows there stays as it was."""
        return tuple(
            array if source.dtype == block.tensor.base.dtype else _through(array, block)
            for array, source in zip(agents, block.agents, strict=True)
        )

    def stored(self, merged: Merged) -> np.ndarray:
        """Return the stored elements of a merged block as numpy holds them."""
        return merged.stored

    def on_host(self, base: np.ndarray, agents: Agents) -> tuple[np.ndarray, Agents]:
        """Return a block as the CPU's loops take it."""
        return base, agents

    def merge(
        self,
        plan: Plan,
        block: Block,
        base: np.ndarray,
        agents: Agents,
        fisher: np.ndarray | None = None,
    ) -> Merged | None:
        """Merge and measure a block; None when some task vector is not finite.

        fisher: float32 (agents, n) for methods that need it. The result is overwritten by the next.

        Raises: SettingsError for a merged element beyond the output dtype's range.
        """
        if not plan.is_fused:
            from ram_studio.engine.passes.torch_backend import TorchBackend

            on_torch = TorchBackend(self._check)
            merged = on_torch.merge(plan, block, *on_torch.taken_in(base, agents), fisher)
            return merged and Merged(on_torch.stored(merged), merged.counts, merged.sums)
        tensor = block.tensor
        dtype = plan.dtypes[tensor.name]
        active = self._buffer("active", pattern_dtype(plan.n_agents), block.n)
        kernel, arguments = plan.prepared.kernel(
            KernelInput(plan.rows[tensor.name], block.name, block.start)
        )
        # bfloat16 and float32 are rounded inside the kernel, unless drawn at random.
        is_direct = plan.rounding == "nearest" and dtype != "F16"
        target = rounding.STORAGE[dtype] if is_direct else np.dtype(np.float64)
        stored = self._buffer("merged", target, block.n)
        if not kernel(base, agents, stored, active, *arguments):
            return None
        if not is_direct:
            key = plan.key(tensor)
            stored = rounding.store(stored, dtype, plan.rounding, active, key, block.start)
        is_finite = np.isfinite(stored).all() if dtype == "F16" else kernels.is_finite(stored)
        if not is_finite:
            raise overflow_error(dtype, block)
        if not tensor.is_counted:
            return Merged(stored)
        return Merged(stored, *_measure(block, base, agents, stored, active))

    def _buffer(self, use: str, dtype: np.dtype, n: int) -> np.ndarray:
        if (use, dtype) not in self._buffers or len(self._buffers[use, dtype]) < n:
            self._buffers[use, dtype] = np.empty(max(n, self._size), dtype=dtype)
        return self._buffers[use, dtype][:n]


def _measure(
    block: Block, base: np.ndarray, agents: Agents, stored: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and sums of what was stored, see Merged."""
    counts = np.array(
        [kernels.count_active(active, t) for t in range(len(agents))], dtype=np.int64
    ).T
    if base.dtype != stored.dtype:  # loops compare numbers that are stored alike
        base, stored = as_float32(base), _numbers(stored)
        agents = tuple(as_float32(agent) for agent in agents)
    parts = list(block.groups)
    sums = np.zeros((len(parts), 2, len(agents)))
    for t in np.flatnonzero(counts[1]).tolist():
        for row, part in enumerate(parts):
            sums[row, :, t] = kernels.stored_change(
                base[part], agents[t][part], stored[part], active[part], t
            )
    return counts, sums


def _numbers(stored: np.ndarray) -> np.ndarray:
    """Return stored elements of any dtype as float32."""
    return stored.astype(np.float32) if stored.dtype == np.float16 else as_float32(stored)


def _through(values: np.ndarray, block: Block) -> np.ndarray:
    """Return float32 values rounded to the base's dtype and back; overflow stays as it was."""
    dtype = block.tensor.base.dtype
    stored = rounding.decode(rounding.store(values.astype(np.float64), dtype), dtype)
    return np.where(np.isfinite(stored), stored, values)


Backend = Any
"""CpuBackend or ``torch_backend.TorchBackend``: the same methods on other arrays."""
