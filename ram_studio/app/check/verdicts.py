"""Did the skills survive: the verdicts as cards, each with a dumbbell and a mosaic of its items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ram_studio.app.check.work import BASE, specialist
from ram_studio.evals import EvalReport
from ram_studio.evals.report.breakdown import breakdown
from ram_studio.evals.report.retention import MARGIN, Retention, verdicts_of
from ram_studio.evals.report.trust import trust

# Width of a dumbbell from 0 to 100 %, and how many squares of a mosaic stand in a row.
_WIDTH = 300
_COLUMNS = 50
_SQUARE = 6
_KINDS = {
    # class: what the specialist and the merge have right, and what that is called
    "kept": ((True, True), "kept"),
    "lost": ((True, False), "lost"),
    "new": ((False, True), "only the merge"),
    "open": ((False, False), "neither"),
}


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
            # As JSON has it, k is a text: Gradio breaks off at numbers as keys.
            numbers["samples"] = json.loads(json.dumps(parts[name]["samples"]))
    judged = [verdict.to_dict() for verdict in verdicts(report, agents, margin)]
    return {**found, "verdicts": judged, "trust": trust(report)}


def verdict_cards(
    report: EvalReport, found: Sequence[Retention]
) -> dict[str, list[dict[str, Any]]]:
    """Return, for each merge, its verdicts as the template takes them."""
    cards: dict[str, list[dict[str, Any]]] = {}
    for verdict in found:
        cards.setdefault(verdict.merge, []).append(_card(report, verdict))
    return cards


def _card(report: EvalReport, verdict: Retention) -> dict[str, Any]:
    floor = report.floors.get(verdict.domain)
    ends = (verdict.base_score, verdict.specialist_score, verdict.merge_score)
    return {
        "verdict": verdict,
        "tone": {"survived": "better", "damaged": "worse"}.get(verdict.outcome, "same"),
        "x": [round(_WIDTH * score, 1) for score in ends],
        "width": _WIDTH,
        "floor": None if floor is None else round(_WIDTH * floor, 1),
        **_mosaic(report, verdict),
    }


def _mosaic(report: EvalReport, verdict: Retention) -> dict[str, Any]:
    """Return one path of squares for each kind of item, in the order of the questions."""
    answers = [
        report.models[name].answers[verdict.domain]
        for name in (verdict.base, verdict.specialist, verdict.merge)
    ]
    rows = [row for row in zip(*answers, strict=True) if all(answer.is_scored for answer in row)]
    squares: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for place, (_, best, merged) in enumerate(rows):
        marks = (best.is_correct, merged.is_correct)
        kind = next(name for name, (pattern, _) in _KINDS.items() if pattern == marks)
        x, y = _SQUARE * (place % _COLUMNS), _SQUARE * (place // _COLUMNS)
        squares[kind].append(f"M{x} {y}h{_SQUARE - 1}v{_SQUARE - 1}h-{_SQUARE - 1}z")
    return {
        "squares": {kind: "".join(parts) for kind, parts in squares.items() if parts},
        "counts": {_KINDS[kind][1]: len(parts) for kind, parts in squares.items() if parts},
        "height": _SQUARE * -(-len(rows) // _COLUMNS),
    }
