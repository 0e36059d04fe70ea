"""DARE: drop task vector elements at random and rescale the rest (Yu et al., arXiv 2311.03099).

    dropped_t = tau_t * m_t / (1 - drop_rate),   m_t = 1 with probability 1 - drop_rate, else 0
    dare-ta:    merged = base + scale * sum_t dropped_t
    dare-ties:  TIES of the dropped_t

m_t of an element is 53 bits of a counter-based hash of (seed, agent's name, tensor, index): it does
not depend on the order of agents, on blocks, threads or the device, and a tied head drops what its
embedding drops. drop_rate 0 is task arithmetic, or TIES.

dare-ties trims to the largest ``density`` of all elements after dropping. Its threshold is taken
before dropping, at the share density / (1 - drop_rate), of which 1 - drop_rate survive on average:
no pass over the files is needed, and over millions of elements the average is the number.
mergekit's dare_ties does not trim by magnitude; density 1 is that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from ram_studio.algorithm.kernels.rules import Drawing, Rule
from ram_studio.algorithm.methods.base import Facts, Method, MethodSettings, Need
from ram_studio.algorithm.methods.task_arithmetic import Scale, default_scale, sum_rule
from ram_studio.algorithm.methods.ties import elected_rule
from ram_studio.algorithm.methods.trimming import Density, ScopeOfTrimming, keep_thresholds
from ram_studio.algorithm.rounding import stream_key

DropRate = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Probability that an element of a task vector is dropped.",
    ),
]


class DareTaskArithmeticSettings(MethodSettings):
    """Settings of DARE followed by task arithmetic."""

    drop_rate: DropRate = 0.5
    scale: Scale | None = Field(
        default=None, description="Factor on the sum of the rescaled tau; 1/N when left out."
    )


class DareTiesSettings(MethodSettings):
    """Settings of DARE followed by TIES."""

    drop_rate: DropRate = 0.5
    density: Density = 0.2
    scale: Scale = Field(default=1.0, description="Factor on the mean of the agreeing tau.")
    scope: ScopeOfTrimming = "global"


@dataclass(frozen=True)
class Dropping:
    """DARE made ready for one merge.

    factor: scale / (1 - drop_rate), on the sum or mean of the survivors' tau; factors: the scale
    per tensor and agent, which is what dropping and rescaling leave on average; thresholds: float32
    (tensors, agents) for dare-ties, None for dare-ta; expected_active: see ties.ElectedMean.
    """

    agents: tuple[str, ...]
    seed: int
    drop_rate: float
    factor: float
    factors: np.ndarray
    thresholds: np.ndarray | None = None
    expected_active: np.ndarray | None = None

    def drawing(self, tensor: str) -> Drawing:
        """Return what is dropped of a tensor: 53-bit numbers below the rate, rounded up."""
        keys = (stream_key(self.seed, f"dare:{agent}", tensor) for agent in self.agents)
        return Drawing(tuple(keys), math.ceil(self.drop_rate * 2.0**53))


def _rule(prepared: Dropping, tensor: int, name: str) -> Rule:
    if prepared.thresholds is None:
        rule = sum_rule(len(prepared.agents), prepared.factor)
    else:
        rule = elected_rule(prepared.thresholds[tensor], prepared.factor)
    if not prepared.drop_rate:
        return rule
    return rule._replace(drawing=prepared.drawing(name))


def _prepare(settings: DareTaskArithmeticSettings | DareTiesSettings, facts: Facts) -> Dropping:
    kept = 1.0 - settings.drop_rate
    scale = default_scale(settings.scale, facts)
    thresholds, expected = None, None
    if isinstance(settings, DareTiesSettings):
        assert facts.magnitudes is not None, "its needs name them"
        thresholds = keep_thresholds(facts.magnitudes, settings.density / kept)
        expected = facts.magnitudes.bins.sum((0, 2))
    return Dropping(
        agents=facts.agents,
        seed=facts.seed,
        drop_rate=settings.drop_rate,
        factor=scale / kept,
        factors=facts.uniform_factors(scale),
        thresholds=thresholds,
        expected_active=expected,
    )


DARE_TASK_ARITHMETIC = Method(
    name="dare-ta",
    title="DARE + Task Arithmetic",
    formula="scale * sum of all tau, a share drop_rate of each dropped, the rest / (1 - drop_rate)",
    source="arXiv 2311.03099",
    settings=DareTaskArithmeticSettings,
    prepare=_prepare,
    rule=_rule,
)
DARE_TIES = Method(
    name="dare-ties",
    title="DARE + TIES",
    formula="TIES of the tau, a share drop_rate of each dropped, the rest / (1 - drop_rate)",
    source="arXiv 2311.03099 with arXiv 2306.01708",
    settings=DareTiesSettings,
    needs=lambda settings: frozenset({Need.MAGNITUDES}),
    prepare=_prepare,
    rule=_rule,
)
