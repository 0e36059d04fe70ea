"""Task arithmetic: the scaled sum of task vectors (Ilharco et al., arXiv 2212.04089).

    merged = base + scale * sum_t tau_t

scale = 1/N is plain averaging, scale = 1 the plain sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Facts,
    Kernel,
    KernelInput,
    Method,
    MethodSettings,
)

if TYPE_CHECKING:
    from torch import Tensor

Scale = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]


class TaskArithmeticSettings(MethodSettings):
    """Settings of task arithmetic."""

    scale: Scale | None = Field(
        default=None, description="Factor on the sum of tau; 1/N when left out."
    )


@dataclass(frozen=True)
class ScaledSum:
    """Task arithmetic made ready for one merge: the factor, and the same per tensor and agent."""

    scale: float
    factors: np.ndarray

    def kernel(self, block: KernelInput) -> Kernel:
        """Return the fused kernel, see base.Fused."""
        from ram_studio.algorithm import sum_kernels

        return sum_kernels.merge_sum, (self.scale, (), np.uint64(0), np.uint64(0))


def default_scale(scale: float | None, facts: Facts) -> float:
    """Return the scale, or 1/N where it was left out."""
    return 1.0 / len(facts.agents) if scale is None else float(scale)


def _prepare(settings: TaskArithmeticSettings, facts: Facts) -> ScaledSum:
    scale = default_scale(settings.scale, facts)
    return ScaledSum(scale, facts.uniform_factors(scale))


def sum_kept(block: BlockInput, kept: Tensor, factor: float) -> BlockOutput:
    """Return base + factor * sum of the tau that are kept.

    kept: bool (agents, n). Where nothing is kept, or it cancels, the base's value stays exactly.
    """
    import torch

    x = block.base.double()
    total = torch.zeros_like(x)
    active = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for t, agent in enumerate(block.agents):
        total += torch.where(kept[t], agent.double() - x, 0.0)
        active |= (agent != block.base).long() << t
    return BlockOutput(torch.where(total != 0, x + factor * total, x), active)


def merge_block(block: BlockInput, rule: ScaledSum) -> BlockOutput:
    """Merge one block."""
    return sum_kept(block, block.agents != block.base, rule.scale)


TASK_ARITHMETIC = Method(
    name="task-arithmetic",
    title="Task Arithmetic",
    formula="scale * sum of all tau (scale 1/N is plain averaging)",
    source="arXiv 2212.04089",
    settings=TaskArithmeticSettings,
    needs=lambda settings: frozenset(),
    prepare=_prepare,
    merge=merge_block,
)
