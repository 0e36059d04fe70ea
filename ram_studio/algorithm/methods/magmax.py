"""MagMax: every element takes the update of the agent that moved it furthest (arXiv 2407.06322).

    merged = base + scale * w_s tau_s,    s the agent with the largest |w_s tau_s|

Ties go to the first agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Method,
    MethodSettings,
    PreparedMethod,
    add_change,
    changed_by,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale

if TYPE_CHECKING:
    from torch import Tensor


class MagMaxSettings(MethodSettings):
    """Settings of MagMax."""

    scale: Scale = Field(default=1.0, description="Factor on the largest tau.")


def merge_block(block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
    """Merge one block; every element that some agent changed counts as active."""
    import torch

    x, taus = block.task_vectors()
    active, taus = changed_by(taus), block.weighted(taus)
    best, largest = torch.zeros_like(active), taus[0].abs()
    for t, tau in enumerate(taus):
        is_larger = tau.abs() > largest
        best, largest = torch.where(is_larger, t, best), torch.where(is_larger, tau.abs(), largest)
    step = prepared.settings.scale * taus.gather(0, best[None])[0]

    def own(t: int) -> Tensor:
        return torch.where(best == t, step, 0.0)

    return BlockOutput(add_change(x, step), active, own)


MAGMAX = Method(
    name="magmax",
    title="MagMax",
    formula="scale * the tau of the agent that moved the element furthest",
    source="arXiv 2407.06322",
    settings=MagMaxSettings,
    merge_block=merge_block,
)
