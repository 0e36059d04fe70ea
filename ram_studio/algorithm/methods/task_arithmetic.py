"""Task arithmetic: the scaled sum of task vectors (Ilharco et al., arXiv 2212.04089).

    merged = base + scale * sum_t tau_t

scale = 1/N is plain averaging, scale = 1 the plain sum.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Facts,
    Method,
    MethodSettings,
)


class TaskArithmeticSettings(MethodSettings):
    """Settings of task arithmetic."""

    scale: (
        Annotated[
            float,
            Field(ge=-10, le=10, allow_inf_nan=False, description="Factor on the sum of tau."),
        ]
        | None
    ) = Field(default=None, description="Factor on the sum of tau; 1/N when left out.")


def _prepare(settings: TaskArithmeticSettings, facts: Facts) -> float:
    return 1.0 / len(facts.agents) if settings.scale is None else settings.scale


def merge_block(block: BlockInput, scale: float) -> BlockOutput:
    """Merge one block; every element that some agent changed counts as active."""
    import torch

    x = block.base.double()
    total = torch.zeros_like(x)
    active = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for t, agent in enumerate(block.agents):
        tau = agent.double() - x
        total += tau
        active |= (tau != 0).long() << t
    return BlockOutput(torch.where(active != 0, x + scale * total, x), active)


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
