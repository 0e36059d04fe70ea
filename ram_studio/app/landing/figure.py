"""The landing page: the motivation, and an animated figure: average, add, RAM+.

Scores, questions, answers and the factors of each part of an agent's change are read from the
default set when the page is made; only the square of weights is a drawing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.app import templates
from ram_studio.app.landing.outcomes import Outcome, Outcomes, outcomes_of
from ram_studio.app.session.deep_link import AVERAGE, SUM
from ram_studio.app.session.sets import DEFAULT_SET, record_of
from ram_studio.app.session.shared import TuneSettings
from ram_studio.errors import RamStudioError

_SIDE, _OWN, _SHARED = 12, 27, 44
"""The drawn square: cells per side, cells that one agent changed, cells that several changed."""

_FRACTIONS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
_TUNED = ("average", "sum", "RAM", "RAM+", "DARE + TIES", "DARE + TIES, untrimmed", "MagMax")
"""Rows of the record in the caveats."""


class MeanFactors(NamedTuple):
    """Factors with which a merge applies changes of one agent only, and of several."""

    own: float
    shared: float


class Answer(NamedTuple):
    """A merge's answer to a scene's question."""

    text: str
    is_right: bool


class Scene(NamedTuple):
    """One way to merge. answers: by skill."""

    name: str
    says: str
    applied: MeanFactors
    outcome: Outcome
    answers: tuple[Answer, ...]


class Prompt(NamedTuple):
    """A question that shows the effect on a skill."""

    skill: str
    text: str
    right: str


def mean_factors(factors: np.ndarray) -> MeanFactors:
    """Return the mean over agents of (own, shared) factors, see ``meters.part_factors``."""
    own, shared = factors.mean(0).tolist()
    return MeanFactors(own, shared)


def prompt_text(text: str) -> str:
    """Return a question of the small tasks without its skill's name and the answer mark."""
    _, _, question = text.partition(": ")
    question = question.removesuffix("answer:").strip().removesuffix(".").strip()
    return question.replace(" ,", ",").replace(" . ", ". ")


def answer_text(text: str) -> str:
    """Return an answer without the full stop of the shared style."""
    return text.strip().removesuffix(".").strip()


def example_of(found: Outcomes, skill: int, wrong: Sequence[Outcome], right: Outcome) -> int:
    """Return the index of the shortest question of a skill that shows the effect on it.

    One that the base and these merges get wrong and another gets right, if there is one.
    """
    table = found.table
    n, place = table["n"], found.skills[skill].place
    lost = [found.source("base"), *(table["rows"][outcome.number] for outcome in wrong)]
    keeps = table["rows"][right.number]

    def worth(i: int) -> tuple[int, int, int]:
        is_lost = sum(row["right"][i] == "0" for row in lost)
        has_answer = len(table["answers"][i][lost[1]["answers"][i]].strip()) > 1
        return -int(keeps["right"][i]), -is_lost - has_answer, len(table["prompts"][i])

    return min(range(place * n, (place + 1) * n), key=worth)


def scenes_of(found: Outcomes) -> tuple[tuple[Prompt, ...], tuple[Scene, ...]]:
    """Return the shown questions, and the three scenes."""
    analysis, table = found.analysis, found.table
    n = len(analysis.agents)
    ram = found.nearest(TuneSettings())
    lambdas = [agent["lambda"] for agent in analysis.preview()["agents"].values()]
    factors = found.factors
    parts = (
        mean_factors(factors.sum / n),
        mean_factors(factors.sum),
        mean_factors(factors.of_ram(DEFAULT_INDEX, lambdas)),
    )
    outcomes = (found.find(AVERAGE), found.find(SUM), ram)
    says = (
        f"Averaging shrinks every change to {_FRACTIONS.get(n, f'1/{n}')}. The skills fade.",
        f"Adding applies the shared changes {parts[1].shared:.1f} times. The model breaks.",
        "RAM+ keeps what only one agent changed, and averages the rest.",
    )
    shown = [example_of(found, k, outcomes[:2], ram) for k in range(len(found.skills))]
    prompts = tuple(
        Prompt(skill.name, prompt_text(table["prompts"][i]), answer_text(table["gold"][i]))
        for skill, i in zip(found.skills, shown, strict=True)
    )
    scenes = []
    for name, says_it, part, outcome in zip(
        ("Average", "Add", "RAM+"), says, parts, outcomes, strict=True
    ):
        row = table["rows"][outcome.number]
        answers = tuple(
            Answer(answer_text(table["answers"][i][row["answers"][i]]), row["right"][i] == "1")
            for i in shown
        )
        scenes.append(Scene(name, says_it, part, outcome, answers))
    return prompts, tuple(scenes)


def best_rival(found: Outcomes) -> Outcome:
    """Return the row outside the RAM family that solves the most of these questions."""
    rows = found.table["rows"]
    rivals = (
        found.outcome(number)
        for number, row in enumerate(rows)
        if row["kind"] == "merge" and not row["method"].startswith("ram")
    )
    return max(rivals, key=lambda outcome: outcome.total)


def _cells(n_agents: int) -> dict[str, list[tuple[int, int, int]]]:
    """Return cells of the drawn square as (agent, column, row): "own" and "shared"."""
    places = random.Random(7).sample(range(_SIDE * _SIDE), _OWN + _SHARED)
    cells = [(i % n_agents, at % _SIDE, at // _SIDE) for i, at in enumerate(places)]
    return {"own": cells[:_OWN], "shared": cells[_OWN:]}


@lru_cache(maxsize=1)
def landing_html() -> Markup:
    """Return the landing page; without the figure where the default set's files are missing."""
    figure: dict[str, Any] | None = None
    try:
        found = outcomes_of(DEFAULT_SET)
        prompts, scenes = scenes_of(found)
        record = record_of(DEFAULT_SET)
        rows = record["seeds"][str(record["seed"])]["rows"]
        figure = {
            "agents": found.analysis.agents,
            "skills": found.skills,
            "prompts": prompts,
            "scenes": scenes,
            "sizes": [[math.sqrt(part) for part in scene.applied] for scene in scenes],
            "cells": _cells(len(found.analysis.agents)),
            "side": _SIDE,
            "asked": record["evaluation"]["n"],
            "tuned": [(name, rows[name]["average"]) for name in _TUNED if name in rows],
            "rival": best_rival(found),
        }
    except RamStudioError:
        pass  # reported to users who open the set
    return templates.render("landing/landing.html.j2", figure=figure, example=DEFAULT_SET)
