"""DARE: drop task vector elements at random and rescale the rest (Yu et al., arXiv 2311.03099).

    dropped_t = tau_t * m_t / (1 - drop_rate),   m_t = 1 with probability 1 - drop_rate, else 0
    dare-ta:    merged = base + scale * sum_t dropped_t
    dare-ties:  TIES of the dropped_t

m_t of an element is 53 bits of a counter-based hash of (seed, agent's name, tensor, index): it does
not depend on the order of agents, on blocks, threads or the device, and a tied head drops what its
embedding drops. drop_rate 0 is task arithmetic, or TIES.

dare-ties trims to the largest ``density`` of all elements after dropping. Its threshold is taken
before dropping, at the share density / (1 - drop_rate), of which 1 - drop_rate survive on average:
no pass over the files is needed, and over millions of elements the average is accurate.
mergekit's dare_ties does not trim by magnitude; density 1 is that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ram_studio.algorithm.kernels.rules import Drawing, Rule
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings, Need, PreparedMethod
from ram_studio.algorithm.methods.task_arithmetic import (
    Normalize,
    Scale,
    prepare,
    scale_of,
    weighted_sum_rule,
)
from ram_studio.algorithm.methods.ties import TiesSettings, elected_rule, prepare_trimmed
from ram_studio.algorithm.rounding import stream_key


class _Dropping(MethodSettings):
    drop_rate: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            allow_inf_nan=False,
            description="Probability that an element of a task vector is dropped.",
        ),
    ] = 0.5


class DareTaskArithmeticSettings(_Dropping):
    """Settings of DARE followed by task arithmetic."""

    scale: Scale | None = Field(
        default=None, description="Factor on the sum of the rescaled tau; 1/N when left out."
    )
    normalize: Normalize = False


class DareTiesSettings(TiesSettings, _Dropping):
    """Settings of DARE followed by TIES."""


def _rule(prepared: PreparedMethod, tensor: int, name: str) -> Rule:
    settings, facts = prepared.settings, prepared.facts
    n, weights, factor = len(facts.agents), facts.weights_of(tensor), scale_of(settings, facts)
    rates = (settings.drop_rate,) * n
    if facts.densities is not None:
        rates = tuple((1.0 - facts.densities[tensor]).tolist())
    is_even = len(set(rates)) == 1
    if is_even and rates[0] < 1:
        factor /= 1.0 - rates[0]
    if prepared.thresholds is not None:
        limits = prepared.thresholds[tensor]
        rule = elected_rule(limits, factor, weights, normalize=settings.normalize)
    else:
        rule = weighted_sum_rule(n, factor, weights, normalize=settings.normalize)
    if not is_even:
        rule = _rescale_rule(rule, rates)
    if not any(rates):
        return rule
    keys = tuple(stream_key(facts.seed, f"dare:{agent}", name) for agent in facts.agents)
    # 53-bit numbers below the rate, rounded up, are dropped.
    cuts = tuple(math.ceil(rate * 2.0**53) for rate in rates)
    return rule._replace(drawing=Drawing(keys, cuts))


def _rescale_rule(rule: Rule, rates: tuple[float, ...]) -> Rule:
    """Return the rule with each agent's surviving tau divided by its own share of survivors."""
    n = len(rates)
    own = rule.weights or (1.0,) * n
    weights = tuple(w / (1.0 - p) if p < 1 else 0.0 for w, p in zip(own, rates, strict=True))
    assert rule.as_mergekit is not None, "both methods have it"
    rule = rule._replace(as_mergekit=rule.as_mergekit._replace(weights=weights))
    if rule.elect_sign and rule.weights is None and rule.shares[-1] != rule.shares[1]:
        # A mean needs equal weights, and they now differ.
        return rule._replace(shares=(rule.factors[0],) * (n + 1), weights=weights, divisors=own)
    return rule._replace(weights=weights)


def _prepare_ties(settings: DareTiesSettings, facts: Facts) -> PreparedMethod:
    survive: Any = 1.0 - settings.drop_rate
    if facts.densities is not None:
        survive = np.maximum(facts.densities, np.finfo(float).tiny)
    # The threshold before dropping is an estimate, so an exact pass is of no use.
    return prepare_trimmed(settings, replace(facts, select=None), settings.density / survive)


DARE_TASK_ARITHMETIC = Method(
    name="dare-ta",
    title="DARE + Task Arithmetic",
    formula="scale * sum of all tau, a share drop_rate of each dropped, the rest / (1 - drop_rate)",
    source="arXiv 2311.03099",
    settings=DareTaskArithmeticSettings,
    prepare=prepare,
    rule=_rule,
    draws=lambda settings: settings.drop_rate > 0,
)
DARE_TIES = Method(
    name="dare-ties",
    title="DARE + TIES",
    formula="TIES of the tau, a share drop_rate of each dropped, the rest / (1 - drop_rate)",
    source="arXiv 2311.03099 with arXiv 2306.01708",
    settings=DareTiesSettings,
    needs=lambda settings: frozenset({Need.MAGNITUDES}),
    prepare=_prepare_ties,
    rule=_rule,
    draws=lambda settings: settings.drop_rate > 0,
)
