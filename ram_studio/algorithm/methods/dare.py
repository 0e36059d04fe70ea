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
from typing import Annotated

from pydantic import Field

from ram_studio.algorithm.kernels.rules import Drawing, Rule
from ram_studio.algorithm.methods.base import Method, MethodSettings, Need, Prepared
from ram_studio.algorithm.methods.task_arithmetic import Scale, prepare, scale_of, sum_rule
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


class DareTiesSettings(TiesSettings, _Dropping):
    """Settings of DARE followed by TIES."""


def _rule(prepared: Prepared, tensor: int, name: str) -> Rule:
    settings, facts = prepared.settings, prepared.facts
    factor = scale_of(settings, facts) / (1.0 - settings.drop_rate)
    if prepared.thresholds is None:
        rule = sum_rule(len(facts.agents), factor)
    else:
        rule = elected_rule(prepared.thresholds[tensor], factor)
    if not settings.drop_rate:
        return rule
    keys = tuple(stream_key(facts.seed, f"dare:{agent}", name) for agent in facts.agents)
    # Dropped are 53-bit numbers below the rate, rounded up.
    return rule._replace(drawing=Drawing(keys, math.ceil(settings.drop_rate * 2.0**53)))


DARE_TASK_ARITHMETIC = Method(
    name="dare-ta",
    title="DARE + Task Arithmetic",
    formula="scale * sum of all tau, a share drop_rate of each dropped, the rest / (1 - drop_rate)",
    source="arXiv 2311.03099",
    settings=DareTaskArithmeticSettings,
    prepare=prepare,
    rule=_rule,
)
DARE_TIES = Method(
    name="dare-ties",
    title="DARE + TIES",
    formula="TIES of the tau, a share drop_rate of each dropped, the rest / (1 - drop_rate)",
    source="arXiv 2311.03099 with arXiv 2306.01708",
    settings=DareTiesSettings,
    needs=lambda settings: frozenset({Need.MAGNITUDES}),
    prepare=lambda s, facts: prepare_trimmed(s, facts, 1.0 - s.drop_rate),
    rule=_rule,
)
