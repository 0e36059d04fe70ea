"""Linear: the weighted average of models, the base among them if it has a weight (mergekit's).

    merged = (w_0 base + sum_t w_t theta_t) / W,   W = w_0 + sum_t w_t
           = base + sum_t w_t tau_t / W

w_0 is ``base_weight``. Without ``normalize`` the weights must add up to 1, because anything else
would scale the base itself.

A soup (arXiv 2203.05482) of the checkpoints of one run is this with weights of 1. With ``decay``
below 1 agents are taken as that run's checkpoints in order, and each weighs decay times the next
one, as in an exponential moving average.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from ram_studio.algorithm.kernels.rules import MergekitSum, Rule, float32_total
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings, PreparedMethod
from ram_studio.algorithm.methods.task_arithmetic import sum_rule
from ram_studio.errors import SettingsError

_ONE = 1e-6
_NOTHING = 1e-8


class LinearSettings(MethodSettings):
    """Settings of the weighted average."""

    base_weight: Annotated[
        float, Field(ge=-10, le=10, allow_inf_nan=False, description="Weight of the base itself.")
    ] = 0.0
    normalize: Annotated[
        bool, Field(description="Divide by the sum of the weights; else they must add up to 1.")
    ] = True
    decay: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            allow_inf_nan=False,
            description="Each agent weighs this times the next one (a moving average).",
        ),
    ] = 1.0


def _prepare(settings: LinearSettings, facts: Facts) -> PreparedMethod:
    """Return the factor on each agent's weight, by tensor and agent."""
    fading = _fading(settings, len(facts.agents))
    shape = len(facts.tensors), len(fading)
    weights = np.ones(shape) if facts.weights is None else facts.weights
    total = settings.base_weight + (weights * fading).sum(1)
    bad = np.flatnonzero(np.abs(total - (1 if not settings.normalize else total)) > _ONE)
    bad = np.flatnonzero(np.abs(total) < _NOTHING) if settings.normalize else bad
    if len(bad):
        expected = "anything but 0" if settings.normalize else "1, or set normalize"
        raise SettingsError(
            f"linear: the weights of {facts.tensors[bad[0]]} add up to {total[bad[0]]:g}; they "
            f"must add up to {expected}."
        )
    return PreparedMethod(
        settings, facts, fading / np.where(settings.normalize, total, 1.0)[:, None]
    )


def _rule(prepared: PreparedMethod, tensor: int, name: str) -> Rule:
    facts = prepared.facts
    assert prepared.factors is not None, "made ready with them"
    own = facts.weights_of(tensor) or (1.0,) * len(facts.agents)
    factors, settings = prepared.factors[tensor], prepared.settings
    weights = tuple((_fading(settings, len(own)) * own).tolist())
    total = float32_total((settings.base_weight, *weights)) if settings.normalize else 1.0
    in_order = MergekitSum(weights, divisor=total, base_weight=settings.base_weight)
    if len(set(factors.tolist())) == 1:
        rule = sum_rule(len(own), float(factors[0]), facts.weights_of(tensor))
    else:
        rule = sum_rule(len(own), 1.0, tuple((factors * own).tolist()))
    return rule._replace(as_mergekit=in_order)


def _fading(settings: LinearSettings, n_agents: int) -> np.ndarray:
    """Return the factor of ``decay`` on each agent's weight."""
    return settings.decay ** np.arange(n_agents - 1, -1, -1, dtype=np.float64)


LINEAR = Method(
    name="linear",
    title="Linear (soup)",
    formula="the weighted average of the agents, and of the base with base_weight",
    source="arXiv 2203.05482",
    settings=LinearSettings,
    prepare=_prepare,
    rule=_rule,
)
