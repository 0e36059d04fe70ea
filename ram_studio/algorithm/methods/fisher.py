"""Fisher merging: average weighted by element importance (Matena and Raffel, 2111.09832).

    merged = base + scale * sum_t F_t tau_t / sum_t F_t          element by element

F_t is the diagonal of agent t's Fisher information at its own weights, the mean over prompts of
the squared gradient of the log-probability of an answer that the agent itself samples. With
scale = 1 this is the published weighted mean of the agents. Where no agent's F is above 0 (an
element without a gradient on any prompt) the plain mean is taken. With weights, w_t F_t replaces
F_t.

An agent that left an element at the base pulls the mean back to it if its F there is large: Fisher
merging weighs importance, not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Method,
    MethodSettings,
    Need,
    PreparedMethod,
    changed_by,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale

if TYPE_CHECKING:
    from torch import Tensor


class FisherSettings(MethodSettings):
    """Settings of Fisher merging."""

    scale: Scale = Field(default=1.0, description="Factor on the weighted mean of tau.")
    files: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=4096,
            description="Folder with one Fisher file per agent, NAME.safetensors.",
        ),
    ] = None
    examples: Annotated[
        int, Field(ge=1, le=100_000, description="Prompts per agent when files are estimated.")
    ] = 64


def merge_block(block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
    """Merge one block; every element that some agent changed counts as active."""
    import torch

    assert block.fisher is not None, "the engine provides what the method declared"
    (x, taus), fisher, scale = block.task_vectors(), block.fisher, prepared.settings.scale
    weights = block.weights or (1.0,) * len(taus)
    total_weight = sum(weights) if sum(weights) > 0 else 1.0
    total, plain, weight = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for t, tau in enumerate(taus):
        importance = fisher[t].double() * weights[t]
        total += importance * tau
        weight += importance
        plain += weights[t] * tau
    mean = torch.where(weight > 0, total / weight, plain / total_weight)
    active = changed_by(taus)

    def own(t: int) -> Tensor:
        share = fisher[t].double() * weights[t] / weight
        return scale * taus[t] * torch.where(weight > 0, share, weights[t] / total_weight)

    return BlockOutput(torch.where(active != 0, x + scale * mean, x), active, own)


FISHER = Method(
    name="fisher",
    title="Fisher",
    formula="scale * mean of all tau, weighted by each agent's Fisher information",
    source="arXiv 2111.09832",
    settings=FisherSettings,
    needs=lambda settings: frozenset({Need.FISHER}),
    merge_block=merge_block,
)
