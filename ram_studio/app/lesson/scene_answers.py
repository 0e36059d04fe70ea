"""The answers to the lesson's scenes, for a teacher: read from the shipped sets' files.

The lesson in the browser computes the same (assets/lesson/); a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.relation_preview import rounding_preview
from ram_studio.algorithm.scaling import DEFAULT_ALPHA, DEFAULT_RULE
from ram_studio.app.landing.figure import mean_factors
from ram_studio.app.landing.outcomes import Outcomes, Skill, outcomes_of
from ram_studio.app.session.deep_link import AVERAGE, SUM
from ram_studio.app.session.sets import load_set, record_of
from ram_studio.app.session.shared import TuneSettings
from ram_studio.errors import EvaluationError
from ram_studio.evals.report.score import DomainScore

GENTLE = 0.02
"""The r of the scene on rounding."""

CONTROL = "independent"
"""The set of the scene on few weights."""

DENSE = "dense"


class SceneAnswer(NamedTuple):
    """A scene by its number ("+" for the last word): its question and the measured answer."""

    scene: str
    question: str
    answer: str


def share_text(share: float) -> str:
    """Return a share in percent, with one decimal where it is small."""
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def _join_words(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def solved_alone(found: Outcomes) -> list[int]:
    """Return the number that each agent alone solves of its own skill, in the order of skills."""
    skilled = zip(_skill_agents(found), found.skills, strict=True)
    return [found.solved_by(found.source(agent), skill.place) for agent, skill in skilled]


def _skill_agents(found: Outcomes) -> list[str]:
    """Return the agent of each skill, in the order of the skills."""
    return [found.analysis.agents[skill.agent] for skill in found.skills]


def least_alone(found: Outcomes) -> tuple[str, Mapping[str, Any]]:
    """Return the agent with a skill whose changes are shared the most, and its counts."""
    agents = found.analysis.preview()["agents"]
    name = min(
        _skill_agents(found), key=lambda agent: agents[agent]["unique"] / agents[agent]["active"]
    )
    return name, agents[name]


def shared_times(found: Outcomes) -> float:
    """Return the sum's factor on shared changes, as the mean over the agents."""
    return mean_factors(found.factors.sum).shared


class FewWeights(NamedTuple):
    """Numbers of an agent's changes that are enough: in the merge (by epsilon) and in the agent.

    enough, too_few: changes above the last epsilon at which the skill survives, and the next one.
    control: changes that the agent alone needs; largest, random: its scores with the largest ones,
    and with as many random ones.
    """

    agent: str
    skill: str
    changed: int
    enough: int
    too_few: int
    control: int
    largest: float
    random: float


def few_weights() -> FewWeights:
    """Return the figures of the agent that needs the fewest of its changes.

    Raises: EvaluationError where the set's record or table lacks them.
    """
    agent, row, own = _thriftiest()
    found = outcomes_of(CONTROL)
    (skill,) = (s for s in found.skills if s.name == own["domain"])
    last, first = _breaking_point(found, skill)
    counts = found.analysis.model.shared[0][:, skill.agent].sum(-1)
    return FewWeights(
        agent, skill.name, int(counts[DEFAULT_INDEX]), int(counts[last]), int(counts[first]),
        row["k"], row["largest"], fmean(row["random"]),
    )  # fmt: skip


def _thriftiest() -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Return the agent that needs the fewest of its largest changes, and their counts.

    Enough changes: its own score is inside the interval, here and with any more of them.
    """
    record = record_of(CONTROL).get("few_weights") or {"n": 0, "agents": {}}
    found = []
    for name, own in record["agents"].items():
        enough: Mapping[str, Any] | None = None
        for row in reversed(own["rows"]):
            high = DomainScore(record["n"], round(row["largest"] * record["n"])).ci95[1]
            if high < own["whole"] - 1e-9:
                break
            enough = row
        if enough is not None:
            found.append((enough["k"] / own["changed"], name, enough, own))
    if not found:
        raise EvaluationError(f"The record of {CONTROL} has no scores with few weights.")
    _, name, enough, own = min(found, key=lambda one: one[0])
    return name, enough, own


def _breaking_point(found: Outcomes, skill: Skill) -> tuple[int, int]:
    """Return the last measured grid point at which a skill survives in RAM+, and the next one.

    At the next one the interval ends below the score at the start.
    """
    place, n = found.skills.index(skill), found.table["n"]
    points = [k for k in range(DEFAULT_INDEX, len(EPSILON_GRID)) if _is_measured(found, k)]
    start = found.nearest(TuneSettings(point=points[0])).solved[place] / n
    for last, first in pairwise(points):
        solved = found.nearest(TuneSettings(point=first)).solved[place]
        if DomainScore(n, solved).ci95[1] < start - 1e-9:
            return last, first
    raise EvaluationError(f"No measured epsilon breaks {skill.name} in {CONTROL}.")


def _is_measured(found: Outcomes, point: int) -> bool:
    return found.nearest(TuneSettings(point=point)).is_exact


def small_push() -> tuple[str, float, float]:
    """Return the dense agent that loses most of a small boost in bfloat16, and two lambdas.

    They are the requested and the effective lambda.
    """
    analysis = load_set(DENSE).analysis
    agents = analysis.preview(DEFAULT_INDEX, DEFAULT_RULE, GENTLE, DEFAULT_ALPHA)["agents"]
    requested = {name: agent["lambda"] for name, agent in agents.items()}
    effective = rounding_preview(analysis, DEFAULT_INDEX, requested)
    if effective is None:
        raise EvaluationError(f"The analysis of {DENSE} has no sizes of changes.")
    name, own = min(effective["bfloat16"].items(), key=lambda item: item[1]["nearest"])
    return name, requested[name], own["nearest"]


@cache
def scene_answers() -> tuple[SceneAnswer, ...]:
    """Return the scenes with their answers.

    Raises: CheckpointError, AnalysisError, EvaluationError where a set's files are incomplete.
    """
    shared, dense = outcomes_of("shared-style"), outcomes_of(DENSE)
    average, total = shared.find(AVERAGE), shared.find(SUM)
    ram, plus = shared.nearest(TuneSettings("ram")), shared.nearest(TuneSettings())
    base = shared.find("base")
    own = solved_alone(shared)
    moved = ", ".join(
        f"{skill.name} {a} to {b}"
        for skill, a, b in zip(shared.skills, own, average.solved, strict=True)
    )
    agents = _join_words(_skill_agents(shared))
    least, counts = least_alone(shared)
    few = few_weights()
    name, requested, stored = small_push()
    answers = (
        (
            f"Of the weights that {least} changed, what share did no other copy change?",
            f"{share_text(counts['unique'] / counts['active'])} "
            f"(it changed {share_text(counts['density'])} of all)",
        ),
        (
            "How many questions does the average solve?",
            f"{average.total} of {average.prompts}; {agents} alone {sum(own)}; {moved}",
        ),
        (
            "How many does the sum solve?",
            f"{total.total} of {total.prompts}; the base before RL {base.total}; "
            f"shared parts are applied {shared_times(shared):.1f} times",
        ),
        ("How many does RAM solve?", f"{ram.total} of {ram.prompts}; RAM+ {plus.total}"),
        (
            "How few weights carry a skill?",
            f"{few.skill} holds in the merge with {few.enough} of {few.agent}'s {few.changed:,} "
            f"changes and breaks with {few.too_few}; {few.agent} alone with its {few.control} "
            f"largest: {share_text(few.largest)}, with {few.control} random ones: "
            f"{share_text(few.random)}",
        ),
        (
            f"If λ {requested:.2f} is requested, what is stored in bfloat16?",
            f"{name}: {stored:.3f} (expected)",
        ),
        (
            "When agents changed nearly every weight, RAM+ or the sum?",
            f"RAM+ {dense.nearest(TuneSettings()).total} of {average.prompts}, "
            f"the sum {dense.find(SUM).total}",
        ),
    )
    marks = (*map(str, range(1, len(answers))), "+")
    return tuple(SceneAnswer(mark, *answer) for mark, answer in zip(marks, answers, strict=True))


def alone_text() -> str:
    """Return sentences on the agents' own scores, and on the base's in skills without an agent."""
    found = outcomes_of("shared-style")
    own, n = [str(solved) for solved in solved_alone(found)], found.table["n"]
    agents = _join_words(_skill_agents(found))
    learned = {skill.name for skill in found.skills}
    untrained = [
        f"The base solves {found.solved_by(found.source('base'), d)} of {n} questions of {name}, "
        "a skill that no agent was trained for."
        for d, name in enumerate(found.table["domains"])
        if name not in learned
    ]
    trained = f"Alone, {agents} solve {_join_words(own)} of {n} questions of their own skill."
    return " ".join([trained, *untrained])
