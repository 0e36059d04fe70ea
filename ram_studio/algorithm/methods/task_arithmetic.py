"""Task arithmetic: the scaled sum of task vectors (Ilharco et al., arXiv 2212.04089).

    merged = base + scale * sum_t tau_t

scale = 1/N is plain averaging, scale = 1 the plain sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from ram_studio.algorithm.kernels.rules import Rule
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings

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


def default_scale(scale: float | None, facts: Facts) -> float:
    """Return the scale, or 1/N where it was left out."""
    return 1.0 / len(facts.agents) if scale is None else float(scale)


def sum_rule(n_agents: int, factor: float) -> Rule:
    """Return base + factor * sum of all tau."""
    return Rule(0.0, (factor,) * n_agents, (factor,) * (n_agents + 1))


def _prepare(settings: TaskArithmeticSettings, facts: Facts) -> ScaledSum:
    scale = default_scale(settings.scale, facts)
    return ScaledSum(scale, facts.uniform_factors(scale))


def _rule(prepared: ScaledSum, tensor: int, name: str) -> Rule:
    return sum_rule(prepared.factors.shape[1], prepared.scale)


TASK_ARITHMETIC = Method(
    name="task-arithmetic",
    title="Task Arithmetic",
    formula="scale * sum of all tau (scale 1/N is plain averaging)",
    source="arXiv 2212.04089",
    settings=TaskArithmeticSettings,
    prepare=_prepare,
    rule=_rule,
)
