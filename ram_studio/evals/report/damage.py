"""Losses of agents outside their own skills, which a merge may inherit.

Training for one skill can damage another, and a merge may inherit the loss: so each agent is
compared with the base in every domain that is not its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pydantic.dataclasses import dataclass

from ram_studio.evals.report.comparison import SIGNIFICANCE, PairedCounts, holm, paired_counts
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.report.skill_verdict import is_named_after


@dataclass(frozen=True)
class Damage:
    """An agent that is significantly worse than the base in a domain.

    counts: the agent against the base on the questions that both answered. lost, low, high: the
    loss in shares of questions, with its 95 % interval. p_adjusted: McNemar's p, corrected by
    Holm's method over all tested agents and domains.
    """

    agent: str
    domain: str
    counts: PairedCounts
    lost: float
    low: float
    high: float
    p_adjusted: float

    def sentence(self) -> str:
        """The loss as a sentence, and its meaning for a merge."""
        low, high = (max(0.0, 100 * end) for end in (self.low, self.high))
        return (
            f"Agent {self.agent} solves {100 * self.lost:.0f} points less of skill {self.domain} "
            f"than the base ({low:.0f} to {high:.0f}, n = {self.counts.n}). A merge may inherit "
            "this."
        )


def damages(
    report: EvalReport,
    base: str | None,
    agents: Sequence[str],
    own: Mapping[str, Collection[str]] | None = None,
) -> tuple[Damage, ...]:
    """Return the losses of agents outside their own skills, the largest first.

    Args:
        base, agents: rows of the report; without the base there are none.
        own: domains by agent that it was trained for, besides those that it is named after.
    """
    present = [agent for agent in agents if agent in report.models]
    if base is None or base not in report.models:
        return ()
    looked_at = [
        (agent, domain)
        for agent in present
        for domain in report.items
        if not is_named_after(agent, domain) and domain not in (own or {}).get(agent, ())
    ]
    found = []
    for agent, domain in looked_at:
        rows = (report.models[name].answers[domain] for name in (agent, base))
        found.append(paired_counts(*rows))
    adjusted = holm([counts.p_value for counts in found])
    made = [
        Damage(agent, domain, counts, -above, -high, -low, p)
        for (agent, domain), counts, p in zip(looked_at, found, adjusted, strict=True)
        if p < SIGNIFICANCE and counts.losses > counts.wins
        if report.common_chance_level(domain, agent, base) is None
        for above, low, high in [counts.difference()]
    ]
    return tuple(sorted(made, key=lambda one: -one.lost))


def find_inherited(
    found: Sequence[Damage],
    base: Mapping[str, DomainScore],
    merges: Sequence[Mapping[str, DomainScore]],
) -> list[Damage]:
    """Return the losses to report: without a merge all of them.

    With merges, those in domains where one of the merges also scores below the base.

    Args: base, merges: scores by domain.
    """
    return [
        one
        for one in found
        if not merges or any(_score(own, one) < _score(base, one) for own in merges)
    ]


def _score(own: Mapping[str, DomainScore], one: Damage) -> float:
    return own[one.domain].score if one.domain in own else math.inf
