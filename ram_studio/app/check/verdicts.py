"""Did the skills survive: what the page draws of each verdict, in Tune's language of dumbbells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ram_studio.app.check.work import BASE
from ram_studio.evals.report.breakdown import breakdown
from ram_studio.evals.report.skill_verdict import MARGIN, SkillVerdict, holm_note, skill_verdicts
from ram_studio.evals.report.specialists import Specialists, choose_specialists
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.report.trust import trust


def verdicts(
    report: EvalReport, agents: Sequence[str], margin: float = MARGIN
) -> tuple[SkillVerdict, ...]:
    """Return the verdicts on all merges; empty without any. Specialists: see `specialists`."""
    return _verdicts(report, agents, margin, choose_specialists(report, agents))


def _verdicts(
    report: EvalReport, agents: Sequence[str], margin: float, chosen: Specialists
) -> tuple[SkillVerdict, ...]:
    own = {domain: agent for domain, agent in chosen.agents.items() if domain in report.skills}
    # All agents stand beside the merges, also those that are nobody's specialist.
    base = BASE if BASE in report.models else None
    return skill_verdicts(
        chosen.judged,
        own,
        base,
        merges=[name for name in report.models if name not in {BASE, *agents}],
        margin=margin,
        chosen_on=chosen.chosen_on,
    )


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


def verdicts_drawn(
    report: EvalReport, agents: Sequence[str], margin: float
) -> dict[str, Any] | None:
    """Return the verdicts as the browser draws them, None without any.

    {"note": how they were corrected, "groups": {merge: [card, ...]}}. A card's agent: the
    specialist's index, for its marker. base, specialist, merge: whether each answer is right, a
    character 0 or 1 a question, of the questions that all three answered and that judge.
    """
    chosen = choose_specialists(report, agents)
    found = _verdicts(report, agents, margin, chosen)
    groups: dict[str, list[dict[str, Any]]] = {}
    for verdict in found:
        card = _card(chosen.judged, verdict, list(agents).index(verdict.specialist))
        groups.setdefault(verdict.merge, []).append(card)
    return {"note": holm_note(found), "groups": groups} if found else None


def _card(report: EvalReport, verdict: SkillVerdict, agent: int) -> dict[str, Any]:
    names = {"base": verdict.base, "specialist": verdict.specialist, "merge": verdict.merge}
    answers = (report.models[name].answers[verdict.domain] for name in names.values())
    rows = [row for row in zip(*answers, strict=True) if all(answer.is_scored for answer in row)]
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    marks = ("".join("01"[answer.is_correct] for answer in column) for column in columns)
    said = f"{verdict.gain_text()}; {verdict.why}" if verdict.why else verdict.gain_text()
    return {
        "domain": verdict.domain,
        "verdict": verdict.verdict,
        "tone": {"survived": "better", "damaged": "worse"}.get(verdict.verdict, "same"),
        "said": f"{said}.",
        "name": verdict.specialist,
        "agent": agent,
        "floor": report.floors.get(verdict.domain),
        **dict(zip(names, marks, strict=True)),
    }
