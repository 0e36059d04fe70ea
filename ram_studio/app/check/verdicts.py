"""Did the skills survive? The data of each verdict for the page, drawn as dumbbells like Tune's."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from ram_studio.algorithm.analysis import BASE
from ram_studio.evals.report.comparison import SIGNIFICANCE, holm_note
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.eval_result import EvalResult, judge
from ram_studio.evals.report.skill_verdict import (
    MARGIN,
    SkillVerdict,
    choose_specialists,
    p_above,
)

DIFFER = 0.05
"""Share of questions on which a merge and an equally good agent are expected to differ."""
QUESTION_STEP = 50
"""Step of the slider for questions per skill."""
_STEPS = 200  # half points


def judge_merges(report: EvalReport, agents: Sequence[str], margin: float = MARGIN) -> EvalResult:
    """Return a report's result, with the verdicts on all merges.

    All agents are shown beside the merges, also those that are no domain's specialist.
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


def can_decide(questions: int, verdicts: int, margin: float = MARGIN) -> bool:
    """Return whether this many questions per skill can rule out a loss of `margin`, a share.

    Assumes a merge as good as its agent: they differ on `DIFFER` of the questions, half each way,
    tested at the strictest level of Holm's method over a table of `verdicts`.
    """
    each = math.ceil(DIFFER * questions / 2)
    is_asked = questions > 1
    return is_asked and 2 * p_above(each, each, questions, -margin) < SIGNIFICANCE / max(
        1, verdicts
    )


def least_loss(questions: int, verdicts: int) -> float | None:
    """Return the smallest loss that can be ruled out, in points by halves; None for none."""
    losses = [step / _STEPS for step in range(1, _STEPS)]
    # Ruling out a loss rules out every larger one.
    place = bisect_left(losses, True, key=lambda loss: can_decide(questions, verdicts, loss))
    return 100 * losses[place] if place < len(losses) else None


def enough_questions(most: int, verdicts: int, margin: float = MARGIN) -> int | None:
    """Return the questions per skill that decide the margin, in fifties; None if `most` do not."""
    steps = range(QUESTION_STEP, most + 1, QUESTION_STEP)
    return next((n for n in steps if can_decide(n, verdicts, margin)), None)


def power_text(questions: int, most: int, verdicts: int, margin: float = MARGIN) -> str:
    """Return the power of this many questions per skill in words, before they are asked.

    most: questions that can be asked here.
    """
    points, least = f"{100 * margin:g}", least_loss(questions, verdicts)
    text = (
        f"{questions} questions per skill cannot rule out any loss."
        if least is None
        else f"{questions} questions per skill can show that a merge as good as its agent loses "
        f"less than {least:g} points."
    )
    if least is not None and least <= 100 * margin:
        return f"{text} Enough for a margin of {points}."
    if enough := enough_questions(most, verdicts, margin):
        return f"{text} Ask {enough} for a margin of {points}."
    if questions >= most:
        return f"{text} More cannot be asked here."
    reached = least_loss(most, verdicts)
    rest = f"too few for a margin of {points}"
    if reached is not None:
        rest = f"enough for a margin of {reached:g}, not {points}"
    return f"{text} At most {most} can be asked here, {rest}."


def has_verdicts(report: EvalReport, agents: Sequence[str]) -> bool:
    """Return whether there is a base, an agent and a merge."""
    return (
        BASE in report.models
        and bool(report.skills)
        and any(agent in report.models for agent in agents)
        and bool(report.merges(BASE, agents))
    )


def verdict_cards(result: EvalResult, agents: Sequence[str]) -> dict[str, Any] | None:
    """Return the verdicts' data for the browser, None without any.

    {"note": how they were corrected, "groups": {merge: [card, ...]}}. A card's agent: the
    specialist's index, for its marker. base, specialist, merge: whether each answer is right, one
    character 0 or 1 per question, for the judging questions that all three answered.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for verdict in result.verdicts:
        card = _card(result, verdict, list(agents).index(verdict.specialist))
        groups.setdefault(verdict.merge, []).append(card)
    note = holm_note(len(result.verdicts), "verdict")
    return {"note": note, "groups": groups} if groups else None


def _card(result: EvalResult, verdict: SkillVerdict, agent: int) -> dict[str, Any]:
    report = result.judged
    names = {"base": verdict.base, "specialist": verdict.specialist, "merge": verdict.merge}
    columns = zip(*report.shared_answers(names.values(), verdict.domain), strict=True)
    marks = ["".join("01"[answer.is_correct] for answer in column) for column in columns]
    text = f"{verdict.gain_text()}; {verdict.why}" if verdict.why else verdict.gain_text()
    least = least_loss(len(marks[0]) if marks else 0, len(result.verdicts))
    is_short = least is not None and least > 100 * result.margin
    if verdict.reason == "margin_not_shown" and is_short:
        text += f". {len(marks[0])} questions can show a margin of {least:g} points"
    return {
        "domain": verdict.domain,
        "verdict": verdict.verdict,
        "tone": {"survived": "better", "damaged": "worse"}.get(verdict.verdict, "same"),
        "said": f"{text}.",
        "name": verdict.specialist,
        "agent": agent,
        "chance": report.chance_levels.get(verdict.domain),
        **dict(zip(names, marks or [""] * len(names), strict=True)),
    }
