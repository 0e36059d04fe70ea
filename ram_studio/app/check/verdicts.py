"""Did the skills survive: what the page draws of each verdict, in Tune's language of dumbbells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ram_studio.app.check.work import BASE, specialist
from ram_studio.evals import EvalReport
from ram_studio.evals.report.breakdown import breakdown
from ram_studio.evals.report.retention import MARGIN, Retention, verdicts_of
from ram_studio.evals.report.trust import trust


def verdicts(report: EvalReport, agents: Sequence[str], margin: float = MARGIN) -> list[Retention]:
    """Return the verdicts on all merges; empty without any.

    A skill's specialist is the agent that scores best in it.
    """
    experts = {
        domain: expert
        for domain in report.skills
        if (expert := specialist(report, domain, agents)) is not None
    }
    # All agents stand beside the merges, also those that are best at nothing.
    base = BASE if BASE in report.models else None
    found = verdicts_of(report, experts, base, margin=margin)
    return [verdict for verdict in found if verdict.merge not in agents]


def has_verdicts(report: EvalReport, agents: Sequence[str]) -> bool:
    """Return whether there is a base, an agent and a merge to speak of."""
    apart = {BASE, *agents}
    return (
        BASE in report.models
        and bool(report.skills)
        and len(apart & report.models.keys() - {BASE}) > 0
        and bool(report.models.keys() - apart)
    )


def described(report: EvalReport, agents: Sequence[str], margin: float) -> dict[str, Any]:
    """Return a report for JSON, with verdicts, what it rests on, and draws of several samples."""
    found, parts = report.to_dict(), breakdown(report)
    for name, numbers in found["models"].items():
        if "samples" in parts[name]:
            numbers["samples"] = parts[name]["samples"]
    judged = [verdict.to_dict() for verdict in verdicts(report, agents, margin)]
    return {**found, "verdicts": judged, "trust": trust(report)}


def verdict_cards(
    report: EvalReport, found: Sequence[Retention], agents: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return, for each merge, its verdicts as the browser draws them.

    agent: the specialist's index, for its marker. base, specialist, merge: whether each answer is
    right, a character 0 or 1 a question, of the questions that all three answered.
    """
    cards: dict[str, list[dict[str, Any]]] = {}
    for verdict in found:
        card = _card(report, verdict, list(agents).index(verdict.specialist))
        cards.setdefault(verdict.merge, []).append(card)
    return cards


def _card(report: EvalReport, verdict: Retention, agent: int) -> dict[str, Any]:
    names = {"base": verdict.base, "specialist": verdict.specialist, "merge": verdict.merge}
    answers = (report.models[name].answers[verdict.domain] for name in names.values())
    rows = [row for row in zip(*answers, strict=True) if all(answer.is_scored for answer in row)]
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    marks = ("".join("01"[answer.is_correct] for answer in column) for column in columns)
    return {
        "domain": verdict.domain,
        "outcome": verdict.outcome,
        "tone": {"survived": "better", "damaged": "worse"}.get(verdict.outcome, "same"),
        "said": _said(verdict),
        "name": verdict.specialist,
        "agent": agent,
        "floor": report.floors.get(verdict.domain),
        **dict(zip(names, marks, strict=True)),
    }


def _said(verdict: Retention) -> str:
    said = verdict.kept_text()
    if verdict.outcome == "cannot tell":
        said += f"; the questions cannot tell{verdict.because}"
        if verdict.items_needed:
            said += f" (needs about {verdict.items_needed:,} items)"
    return f"{said}."
