"""Task arithmetic: the scaled sum of task vectors (Ilharco et al., arXiv 2212.04089).

    merged = base + scale * sum_t tau_t

scale = 1/N is plain averaging, scale = 1 the plain sum.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ram_studio.algorithm.kernels.rules import Rule
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings, Prepared

Scale = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]


class TaskArithmeticSettings(MethodSettings):
    """Settings of task arithmetic."""

    scale: Scale | None = Field(
        default=None, description="Factor on the sum of tau; 1/N when left out."
    )


def scale_of(settings: Any, facts: Facts) -> float:
    """Return the settings' scale, or 1/N where it was left out."""
    return 1.0 / len(facts.agents) if settings.scale is None else float(settings.scale)


def sum_rule(n_agents: int, factor: float) -> Rule:
    """Return base + factor * sum of all tau."""
    return Rule(0.0, (factor,) * n_agents, (factor,) * (n_agents + 1))


def prepare(settings: Any, facts: Facts) -> Prepared:
    """Return a method made ready whose lambda is its scale, for every tensor and agent."""
    return Prepared(settings, facts, facts.uniform_factors(scale_of(settings, facts)))


def _rule(prepared: Prepared, tensor: int, name: str) -> Rule:
    facts = prepared.facts
    return sum_rule(len(facts.agents), scale_of(prepared.settings, facts))


TASK_ARITHMETIC = Method(
    name="task-arithmetic",
    title="Task Arithmetic",
    formula="scale * sum of all tau (scale 1/N is plain averaging)",
    source="arXiv 2212.04089",
    settings=TaskArithmeticSettings,
    prepare=prepare,
    rule=_rule,
)
