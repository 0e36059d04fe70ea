"""Did the skills survive: what the page draws of each verdict, in Tune's language of dumbbells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ram_studio.app.check.work import BASE
from ram_studio.evals.report.comparison import SIGNIFICANCE
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.eval_result import EvalResult, judge
from ram_studio.evals.report.skill_verdict import (
    MARGIN,
    SkillVerdict,
    choose_specialists,
    holm_note,
    p_above,
)

DIFFER = 0.05
"""Share of prompts on which a merge and an equally good agent are expected to differ."""
_STEPS = 200  # half points


def judge_merges(report: EvalReport, agents: Sequence[str], margin: float = MARGIN) -> EvalResult:
    """Return what a report shows, with the verdicts on all merges.

    All agents stand beside the merges, also those that are nobody's specialist.
    """
    return judge(
        report,
        BASE if BASE in report.models else None,
        choose_specialists(report, agents),
        merges=report.merges(BASE, agents),
        verdicts_on=report.skills,
        margin=margin,
        everyone=agents,
    )


def least_loss(prompts: int, verdicts: int) -> float | None:
    """Return the smallest loss, in points, that so many prompts can rule out; None for none.

    Of a merge that is as good as its agent: they differ on `DIFFER` of the prompts, half each way.
    As strict as the first verdict of Holm's method over a table of so many.
    """
    each = math.ceil(DIFFER * prompts / 2)
    level = SIGNIFICANCE / max(1, verdicts)

    def is_shown(step: int) -> bool:
        return 2 * p_above(each, each, prompts, -step / _STEPS) < level

    low, high = 0, _STEPS - 1
    if prompts < 2 or not is_shown(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return 100 * high / _STEPS


def power_text(prompts: int, verdicts: int, margin: float = MARGIN) -> str:
    """Return what so many prompts a skill can show, before they are asked."""
    least = least_loss(prompts, verdicts)
    if least is None:
        return f"{prompts} prompts per skill cannot rule out any loss. Ask more."
    text = f"{prompts} prompts per skill can show that a merge as good as its agent loses less than"
    if least <= 100 * margin:
        return f"{text} {least:g} points. That decides the margin of {100 * margin:g}."
    return f"{text} {least:g} points. Ask more to decide the margin of {100 * margin:g}."


def has_verdicts(report: EvalReport, agents: Sequence[str]) -> bool:
    """Return whether there is a base, an agent and a merge to speak of."""
    return (
        BASE in report.models
        and bool(report.skills)
        and any(agent in report.models for agent in agents)
        and bool(report.merges(BASE, agents))
    )


def verdicts_drawn(result: EvalResult, agents: Sequence[str]) -> dict[str, Any] | None:
    """Return the verdicts as the browser draws them, None without any.

    {"note": how they were corrected, "groups": {merge: [card, ...]}}. A card's agent: the
    specialist's index, for its marker. base, specialist, merge: whether each answer is right, a
    character 0 or 1 a question, of the questions that all three answered and that judge.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for verdict in result.verdicts:
        card = _card(result.judged, verdict, list(agents).index(verdict.specialist))
        groups.setdefault(verdict.merge, []).append(card)
    return {"note": holm_note(result.verdicts), "groups": groups} if groups else None


def _card(report: EvalReport, verdict: SkillVerdict, agent: int) -> dict[str, Any]:
    names = {"base": verdict.base, "specialist": verdict.specialist, "merge": verdict.merge}
    columns = zip(*report.answered(names.values(), verdict.domain), strict=True)
    marks = ["".join("01"[answer.is_correct] for answer in column) for column in columns]
    said = f"{verdict.gain_text()}; {verdict.why}" if verdict.why else verdict.gain_text()
    return {
        "domain": verdict.domain,
        "verdict": verdict.verdict,
        "tone": {"survived": "better", "damaged": "worse"}.get(verdict.verdict, "same"),
        "said": f"{said}.",
        "name": verdict.specialist,
        "agent": agent,
        "chance": report.chance_levels.get(verdict.domain),
        **dict(zip(names, marks or [""] * len(names), strict=True)),
    }
