"""TIES: trim, elect sign and merge (Yadav et al., arXiv 2306.01708).

    trimmed_t = tau_t where |tau_t| is among the largest ``density`` of agent t, else 0
    sign      = sign(sum_t trimmed_t)                       (the sign with more mass)
    merged    = base + scale * mean of the trimmed_t != 0 whose sign is that sign

With weights w_t, as in mergekit, w_t trimmed_t replaces trimmed_t, and

    merged    = base + scale * (sum of those w_t trimmed_t) / (sum of their w_t)

or without the division where ``normalize`` is off.

Where the trimmed task vectors cancel exactly, the base stays. (In bfloat16 checkpoints +1 and -1
unit in the last place often cancel. The authors' code takes the model's most frequent sign there,
mergekit the positive one; neither gives a reason.) ``trimming`` defines "among the largest".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from ram_studio.algorithm.kernels.rules import MergekitSum, Rule, means
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings, Need, PreparedMethod
from ram_studio.algorithm.methods.task_arithmetic import Normalize, Scale, prepare
from ram_studio.algorithm.methods.trimming import Density, ScopeOfTrimming, trim_thresholds


class TiesSettings(MethodSettings):
    """Settings of TIES; the defaults are the paper's."""

    density: Density = 0.2
    scale: Scale = Field(default=1.0, description="Factor on the mean of the agreeing tau.")
    scope: ScopeOfTrimming = "global"
    normalize: Normalize = True


def elected_rule(
    thresholds: np.ndarray,
    factor: float,
    weights: tuple[float, ...] | None = None,
    *,
    normalize: bool = True,
) -> Rule:
    """Return base + factor * mean of the tau above an agent's threshold that agree in sign.

    With weights it is their weighted mean; without ``normalize`` the sum.
    """
    n = len(thresholds)
    is_mean = normalize and weights is None
    own = weights or (1.0,) * n
    in_order = MergekitSum(own, factor, parts=own if normalize else (0.0,) * n)
    return Rule(
        0.0,
        (factor,) * n,
        means(n, factor) if is_mean else (factor,) * (n + 1),
        elect_sign=True,
        thresholds=tuple(thresholds.tolist()),
        weights=weights,
        divisors=weights if normalize else None,
        as_mergekit=in_order,
    )


def prepare_trimmed(settings: Any, facts: Facts, density: Any) -> PreparedMethod:
    """Return the prepared method that trims to a density: one number, or by tensor and agent."""
    assert facts.magnitudes is not None, "its needs name them"
    select = facts.select if settings.scope == "tensor" else None
    thresholds = trim_thresholds(facts.magnitudes, density, select)
    return replace(prepare(settings, facts), thresholds=thresholds)


def _prepare(settings: TiesSettings, facts: Facts) -> PreparedMethod:
    density = settings.density if facts.densities is None else facts.densities
    return prepare_trimmed(settings, facts, density)


def _rule(prepared: PreparedMethod, tensor: int, name: str) -> Rule:
    assert prepared.thresholds is not None, "it was made ready for trimming"
    settings, weights = prepared.settings, prepared.facts.weights_of(tensor)
    return elected_rule(
        prepared.thresholds[tensor], settings.scale, weights, normalize=settings.normalize
    )


TIES = Method(
    name="ties",
    title="TIES",
    formula="scale * mean of the trimmed tau that agree with the sign of their sum",
    source="arXiv 2306.01708",
    settings=TiesSettings,
    needs=lambda settings: frozenset({Need.MAGNITUDES}),
    prepare=_prepare,
    rule=_rule,
)
