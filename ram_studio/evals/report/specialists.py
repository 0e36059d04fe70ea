"""Which agent is a skill's specialist, chosen without the answers that judge merges against it.

The best of several agents on the same questions looks better there than it is, and a merge that is
as good looks damaged. So an agent that is named after a domain (`tool`, or `math` for
`math-generated`) is its specialist, whatever it scores. Where no agent or several are, the one that
scores best on one half of the questions is, and merges are judged on the other half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.suites.demo.tasks import AGENT_DOMAINS


@dataclass(frozen=True)
class Specialists:
    """The specialists of a report.

    agents: by domain; domains without an evaluated agent have none. judged: the report without the
    questions by which a specialist was chosen. chosen_on: how many those are, by domain.
    """

    agents: Mapping[str, str]
    judged: EvalReport
    chosen_on: Mapping[str, int]


def choose_specialists(report: EvalReport, agents: Sequence[str]) -> Specialists:
    """Return the specialist of each domain among these agents, see the module."""
    present = [agent for agent in agents if agent in report.models]
    found: dict[str, str] = {}
    chosen_by: dict[str, list[int]] = {}
    for domain in report.items:
        named = [agent for agent in present if is_named_after(agent, domain)]
        candidates = named or present
        if len(candidates) > 1:
            chosen_by[domain] = _half(report, domain)
            found[domain] = _best(report, domain, candidates, chosen_by[domain])
        elif candidates:
            found[domain] = candidates[0]
    sizes = {domain: len(places) for domain, places in chosen_by.items()}
    return Specialists(found, report.without(chosen_by), sizes)


def is_named_after(agent: str, domain: str) -> bool:
    """Return whether an agent's name tells that it was trained for a domain."""
    name = AGENT_DOMAINS.get(agent.lower(), agent.lower())
    return domain == name or domain.startswith(f"{name}-")


def _half(report: EvalReport, domain: str) -> list[int]:
    """Return the places of one half of a domain's questions, the same for the same questions."""
    # By a hash: neighbors are often alike, or of kinds that take turns.
    keys = [hashlib.blake2b(item.id.encode()).digest() for item in report.items[domain]]
    return sorted(range(len(keys)), key=keys.__getitem__)[: len(keys) // 2]


def _best(report: EvalReport, domain: str, candidates: Iterable[str], places: Sequence[int]) -> str:
    def score(agent: str) -> float:
        answers = report.models[agent].answers[domain]
        own = DomainScore.of(answers[place] for place in places)
        return own.score if own.n else -1.0

    return max(candidates, key=score)
