"""Task arithmetic: the scaled sum of task vectors (Ilharco et al., arXiv 2212.04089).

    merged = base + scale * sum_t tau_t

scale = 1/N is plain averaging, scale = 1 the plain sum. With weights w_t, as in mergekit:

    merged = base + scale * sum_t w_t tau_t                     / sum_t w_t  with ``normalize``
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ram_studio.algorithm.kernels.rules import MergekitSum, Rule, float32_total
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings, PreparedMethod

Scale = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]


Normalize = Annotated[
    bool, Field(description="Divide by the sum of the weights, so that only their ratios count.")
]
_NOTHING = 1e-8
"""A smaller sum of weights is not divided by, as in mergekit."""


class TaskArithmeticSettings(MethodSettings):
    """Settings of task arithmetic."""

    scale: Scale | None = Field(
        default=None, description="Factor on the sum of tau; 1/N when left out."
    )
    normalize: Normalize = False


def scale_of(settings: Any, facts: Facts) -> float:
    """Return the settings' scale; by default 1/N, or 1 when normalized."""
    if settings.scale is not None:
        return float(settings.scale)
    return 1.0 if getattr(settings, "normalize", False) else 1.0 / len(facts.agents)


def sum_rule(n_agents: int, factor: float, weights: tuple[float, ...] | None = None) -> Rule:
    """Return base + factor * sum of all tau, or of all w_t tau_t."""
    shares = (factor,) * (n_agents + 1)
    return Rule(0.0, (factor,) * n_agents, shares, weights=weights)


def weighted_sum_rule(
    n_agents: int, factor: float, weights: tuple[float, ...] | None, *, normalize: bool
) -> Rule:
    """Return base + factor * sum of all w_t tau_t, over the sum of the w_t with ``normalize``."""
    own = weights or (1.0,) * n_agents
    divisor, near = (sum(own), float32_total(own)) if normalize else (1.0, 1.0)
    if abs(near) < _NOTHING:
        divisor, near = 1.0, 1.0
    rule = sum_rule(n_agents, factor / divisor, weights)
    return rule._replace(as_mergekit=MergekitSum(own, factor, near))


def prepare(settings: Any, facts: Facts) -> PreparedMethod:
    """Return the prepared method, with its scale as lambda of every tensor and agent."""
    return PreparedMethod(settings, facts, facts.uniform_factors(scale_of(settings, facts)))


def _rule(prepared: PreparedMethod, tensor: int, name: str) -> Rule:
    facts, settings = prepared.facts, prepared.settings
    n, factor, weights = len(facts.agents), scale_of(settings, facts), facts.weights_of(tensor)
    return weighted_sum_rule(n, factor, weights, normalize=settings.normalize)


TASK_ARITHMETIC = Method(
    name="task-arithmetic",
    title="Task Arithmetic",
    formula="scale * sum of all tau (scale 1/N is plain averaging)",
    source="arXiv 2212.04089",
    settings=TaskArithmeticSettings,
    prepare=prepare,
    rule=_rule,
)
