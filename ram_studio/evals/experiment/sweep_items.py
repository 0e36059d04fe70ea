"""The questions of a sweep: those that settings are chosen by, and others that check the choice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites import ALL_SUITES, DEFAULT_LENGTHS, Suite, SuiteSettings
from ram_studio.evals.suites.demo.tasks import RETENTION_DOMAIN

# Of a suite whose questions are fixed, at most this share chooses; the rest checks.
SEARCH_SHARE = 2 / 3


@dataclass(frozen=True)
class SweepItems:
    """Questions by suite. chosen_by: what settings are compared on, in the order they are asked;
    held_out: asked of the winner only, none of them among the former. skills: domains that make up
    the score; what else is held out (retention) is shown beside it.
    """

    suites: tuple[Suite, ...]
    chosen_by: dict[str, tuple[Question, ...]]
    held_out: dict[str, tuple[Question, ...]]
    skills: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many questions settings are compared on."""
        return sum(len(questions) for questions in self.chosen_by.values())


def draw_items(
    names: Sequence[str],
    *,
    items: int,
    held_out: int,
    seed: int,
    count_tokens: Callable[[str], int],
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    code: CodeSwitch = "auto",
) -> SweepItems:
    """Return the questions for these suites, the same ones for the same arguments.

    A generated suite (demo, memory) is made twice, with `seed` and with the next one, less what
    occurs in both. A fixed one is shuffled by the seed and cut: two thirds at most to choose by.

    Args:
        names: of suites, see `suite_names`.
        items, held_out: most questions per suite (demo: per domain).

    Raises:
        EvaluationError: a suite that is too small to hold any question out.
    """
    suites = tuple(ALL_SUITES[name] for name in names)
    first: dict[str, tuple[Question, ...]] = {}
    second: dict[str, tuple[Question, ...]] = {}
    for suite in suites:

        def make(limit: int | None, seed: int = seed, suite: Suite = suite) -> tuple[Question, ...]:
            settings = SuiteSettings(count_tokens, limit, seed, tuple(lengths), code)
            return tuple(suite.make(settings))

        if _is_generated(make, seed):
            first[suite.name] = make(items)
            known = {question.digest for question in first[suite.name]}
            other = make(held_out, seed + 1) if held_out else ()
            second[suite.name] = tuple(q for q in other if q.digest not in known)
        else:
            every = list(make(None))
            random.Random(f"sweep/{suite.name}/{seed}").shuffle(every)
            share = SEARCH_SHARE if held_out else 1.0
            cut = min(items, max(1, math.floor(share * len(every))))
            first[suite.name] = tuple(every[:cut])
            second[suite.name] = tuple(every[cut : cut + held_out])
        if held_out and not second[suite.name]:
            raise EvaluationError(
                f"Suite {suite.name} has no question left to check the winner with; choose by "
                f"fewer than {len(first[suite.name])} items."
            )
    domains = dict.fromkeys(q.domain for questions in first.values() for q in questions)
    kept = [d for d in domains if d != RETENTION_DOMAIN]
    first = {
        name: tuple(q for q in questions if q.domain in kept) for name, questions in first.items()
    }
    return SweepItems(suites, first, second, tuple(kept))


def _is_generated(make: Callable[..., tuple[Question, ...]], seed: int) -> bool:
    """Return whether another seed gives other questions."""
    return {q.digest for q in make(1)} != {q.digest for q in make(1, seed + 1)}


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
