"""Probes of RAM's two regions: one region of one agent, or both regions of all agents, scaled.

`region`, the probe behind Fig. 3 of arXiv 2601.13572:

    merged = base + scale * tau_t     in the chosen region of agent t
             base                     elsewhere

The regions are RAM's at the same epsilon: unique (only agent t changed the element), shared (others
too) and whole (both). The other agents only define the regions. At full strength the unique region
shows the effect of an agent's own elements; at scale 1/N, their effect after plain averaging.

`two-regions`, which shows why one scale for both is not enough:

    merged = base + unique_scale * tau_t                         where only agent t changed it
             base + shared_scale * mean of the active tau        where c >= 2 did

Scales 1 and 1 are RAM. Where all N agents changed an element, the plain sum is shared_scale N and
the average 1; where one did, the sum is unique_scale 1 and the average 1/N. So a high shared_scale
overshoots as the sum does, and a low unique_scale dilutes as the average does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON, float32_threshold
from ram_studio.algorithm.kernels.rules import Rule, means
from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Epsilon,
    Facts,
    Method,
    MethodSettings,
    PreparedMethod,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale
from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor


class RegionSettings(MethodSettings):
    """Settings of the probe."""

    agent: Annotated[
        str | None, Field(description="Agent whose region it is; the first when left out.")
    ] = None
    part: Annotated[
        Literal["unique", "shared", "whole"],
        Field(
            description="Elements that only this agent changed, that others changed too, or all."
        ),
    ] = "unique"
    scale: Scale = Field(default=1.0, description="Factor on tau in the region.")
    epsilon: Epsilon = DEFAULT_EPSILON


def _prepare(settings: RegionSettings, facts: Facts) -> PreparedMethod:
    if settings.agent is not None and settings.agent not in facts.agents:
        raise SettingsError(
            f"The region is of agent {settings.agent!r}; the agents are {', '.join(facts.agents)}."
        )
    factors = facts.uniform_factors(0.0)
    factors[:, place_of(settings, facts.agents)] = settings.scale
    return PreparedMethod(settings, facts, factors)


def place_of(settings: Any, agents: tuple[str, ...]) -> int:
    """Return the index among these agents of the one whose region is requested."""
    return 0 if settings.agent is None else agents.index(settings.agent)


def merge_block(block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
    """Return one block; the region counts as active, in this agent alone."""
    import torch

    settings = prepared.settings
    part, scale = settings.part, settings.scale
    agent = place_of(settings, prepared.facts.agents)
    changed = (block.agents - block.base).abs() > float(float32_threshold(settings.epsilon))
    in_region = changed[agent]
    if part != "whole":
        is_alone = changed.sum(0) == 1
        in_region = in_region & (is_alone if part == "unique" else ~is_alone)
    x, y = block.base.double(), block.agents[agent].double()
    # Exactly the agent's element at full strength: base + tau could round away from it.
    scaled = y if scale == 1.0 else x + scale * (y - x)

    def own(t: int) -> Tensor:
        return torch.where(in_region & (t == agent), scale * (y - x), 0.0)

    return BlockOutput(torch.where(in_region, scaled, x), in_region.long() << agent, own)


REGION = Method(
    name="region",
    title="One agent's region",
    formula="scale * tau_t in agent t's unique, shared or whole region; base elsewhere",
    source="arXiv 2601.13572, Fig. 3",
    settings=RegionSettings,
    prepare=_prepare,
    merge_block=merge_block,
    is_experiment=True,
    takes_weights=False,
)


class TwoRegionsSettings(MethodSettings):
    """Settings of the probe of both regions."""

    unique_scale: Scale = Field(
        default=1.0, description="Factor on tau where one agent alone changed the element."
    )
    shared_scale: Scale = Field(
        default=1.0, description="Factor on the mean of the active tau elsewhere."
    )
    epsilon: Epsilon = DEFAULT_EPSILON


def rule_of(prepared: PreparedMethod, tensor: int, name: str) -> Rule:
    """Return a tensor's rule."""
    settings, n = prepared.settings, len(prepared.facts.agents)
    epsilon = float(float32_threshold(settings.epsilon))
    weights = prepared.facts.weights_of(tensor)
    shares = means(n, settings.shared_scale)
    return Rule(epsilon, (settings.unique_scale,) * n, shares, weights=weights)


TWO_REGIONS = Method(
    name="two-regions",
    title="Both regions, each scaled",
    formula="unique: unique_scale * tau_t; shared: shared_scale * mean of the active tau",
    source="ours",
    settings=TwoRegionsSettings,
    prepare=lambda s, facts: PreparedMethod(s, facts, facts.uniform_factors(s.unique_scale)),
    rule=rule_of,
    is_experiment=True,
)
