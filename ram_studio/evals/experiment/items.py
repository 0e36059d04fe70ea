"""The questions of an experiment: those that merges are compared on, others that check a choice."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Asked, Question
from ram_studio.evals.suites import ALL_SUITES, Suite, SuiteSettings, apart

# Of a suite whose questions are fixed, at most this share chooses; the rest checks.
SEARCH_SHARE = 2 / 3


@dataclass(frozen=True)
class Items:
    """Questions by suite. chosen_by: what merges are compared on, in the order they are asked;
    held_out: asked at the end only, none of them among the former.
    """

    chosen_by: Asked
    held_out: Asked

    @property
    def count(self) -> int:
        """How many questions merges are compared on."""
        return sum(map(len, self.chosen_by.values()))

    @property
    def held_skills(self) -> int:
        """How many held-out questions make up the score; others (retention) stand beside it."""
        skills = {q.domain for asked in self.chosen_by.values() for q in asked}
        return sum(q.domain in skills for asked in self.held_out.values() for q in asked)


def draw_items(names: Sequence[str], settings: SuiteSettings, held_out: int) -> Items:
    """Return the questions for these suites, the same ones for the same arguments.

    A generated suite (demo, memory) is made twice, with its seed and with the next one, less what
    occurs in both. A fixed one is shuffled by the seed and cut: two thirds at most to choose by.

    Args: settings: its limit is the most questions to choose by, per suite (demo: per domain).
        held_out: most questions to check with, counted likewise.

    Raises: EvaluationError: a suite that is too small to hold any question out.
    """
    first: dict[str, tuple[Question, ...]] = {}
    second: dict[str, tuple[Question, ...]] = {}
    for name in names:
        suite, items = ALL_SUITES[name], settings.limit
        following = replace(settings, seed=settings.seed + 1)
        if _digests(suite, settings) != _digests(suite, following):
            first[name] = suite.questions(settings)
            known = {question.digest for question in first[name]}
            other = suite.questions(replace(following, limit=held_out)) if held_out else ()
            second[name] = tuple(q for q in other if q.digest not in known)
        else:
            every = list(suite.questions(replace(settings, limit=None)))
            random.Random(f"sweep/{name}/{settings.seed}").shuffle(every)
            share = SEARCH_SHARE if held_out else 1.0
            most = max(1, math.floor(share * len(every)))
            cut = most if items is None else min(items, most)
            first[name] = tuple(every[:cut])
            second[name] = tuple(every[cut : cut + held_out])
        if held_out and not second[name]:
            raise EvaluationError(
                f"Suite {name} has no question left to check the winner with; choose by fewer than "
                f"{len(first[name])} items."
            )
    beside = apart(names)
    first = {name: tuple(q for q in own if q.domain not in beside) for name, own in first.items()}
    return Items(first, second)


def _digests(suite: Suite, settings: SuiteSettings) -> set[str]:
    """Return what tells a suite's first questions from those of another seed."""
    return {question.digest for question in suite.questions(replace(settings, limit=1))}


def by_stage(
    questions: Sequence[Question], shares: Sequence[float]
) -> tuple[tuple[Question, ...], ...]:
    """Return what is asked in each stage: the next part of every domain's questions."""
    stages: list[list[Question]] = [[] for _ in shares]
    for domain in dict.fromkeys(q.domain for q in questions):
        own = [q for q in questions if q.domain == domain]
        start = 0
        for stage, share in zip(stages, shares, strict=True):
            end = math.ceil(len(own) * share)
            stage += own[start:end]
            start = end
    return tuple(tuple(stage) for stage in stages)
