"""Plans of experiments: their merges, questions and budget.

A sweep and a comparison are two plans of one runner (`runner.Runner`).
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from ram_studio.algorithm.analysis import BASE
from ram_studio.algorithm.methods import get_method, make_settings
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import EvalSettingsError, EvaluationError, SettingsError
from ram_studio.evals.experiment.race import stage_shares
from ram_studio.evals.experiment.search import OptunaSearch, SlimSearch, require_optuna
from ram_studio.evals.experiment.space import Axis, Candidate, Space, with_method
from ram_studio.evals.question import Question, QuestionsBySuite
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, Suite, SuiteSettings, apart, check_suites

# Of a fixed suite, at most this share of questions chooses the winner; the rest check it.
SEARCH_SHARE = 2 / 3


@dataclass(frozen=True)
class Items:
    """Questions by suite.

    chosen_by: merges are compared on these, asked in this order; held_out: asked at the end only.
    """

    chosen_by: QuestionsBySuite
    held_out: QuestionsBySuite

    @property
    def count(self) -> int:
        """Number of questions that merges are compared on."""
        return sum(map(len, self.chosen_by.values()))


def count_skills(asked: QuestionsBySuite) -> int:
    """Return the number of questions that make the score; the others (retention) do not."""
    beside = apart(asked)
    return sum(q.domain not in beside for own in asked.values() for q in own)


def draw_items(names: Sequence[str], settings: SuiteSettings, held_out: int) -> Items:
    """Return the questions for these suites, the same ones for the same arguments.

    A generated suite (demo, memory) is made twice, with its seed and with the next one, without
    common questions. A fixed one is shuffled by the seed and split: at most two thirds choose.

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
                f"{len(first[name])} questions."
            )
    beside = apart(names)
    first = {name: tuple(q for q in own if q.domain not in beside) for name, own in first.items()}
    return Items(first, second)


def _digests(suite: Suite, settings: SuiteSettings) -> set[str]:
    """Return the digests of a suite's questions, to compare them with those of another seed."""
    return {question.digest for question in suite.questions(replace(settings, limit=1))}


def by_stage(
    questions: Sequence[Question], shares: Sequence[float]
) -> tuple[tuple[Question, ...], ...]:
    """Return the questions of each stage: the next part of every domain's questions."""
    stages: list[list[Question]] = [[] for _ in shares]
    for domain in dict.fromkeys(q.domain for q in questions):
        own = [q for q in questions if q.domain == domain]
        start = 0
        for stage, share in zip(stages, shares, strict=True):
            end = math.ceil(len(own) * share)
            stage += own[start:end]
            start = end
    return tuple(tuple(stage) for stage in stages)


How = Literal["grid", "optuna", "slim"]

DEFAULT_ITEMS = 50
DEFAULT_TRIALS = 20
DEFAULT_LIMIT = 300
DEFAULT_DRAWS = 3
MAX_SETTINGS = 200


@dataclass(frozen=True)
class Plan(ABC):
    """The fields of every experiment.

    recipe: base and agents, including every agent that any merge names. settings: evaluation
    settings, without health; their seed is also a search's. held_out: questions per suite for a
    final check, None for as many as choose, 0 for none. minutes: time limit, which includes the
    final check.
    """

    recipe: Recipe
    settings: EvalSettings = field(default_factory=EvalSettings)
    _: KW_ONLY
    held_out: int | None = None
    minutes: float | None = None

    # Questions per suite where the settings have no limit.
    default_limit = DEFAULT_LIMIT
    # Whether clearly losing merges are dropped early, see `race`.
    early_stop = False

    @property
    def most_items(self) -> int:
        until = self.settings.until
        if until is not None:
            return until.most
        limit = self.settings.limit
        assert not isinstance(limit, dict), "checked with the candidates"
        return self.default_limit if limit is None else limit

    @property
    def held_out_count(self) -> int:
        return self.most_items if self.held_out is None else self.held_out

    def shares(self, count: int) -> tuple[float, ...]:
        """Return the shares of `count` questions after which merges are compared; the last is 1."""
        until = self.settings.until
        if until is None:
            return stage_shares(count, self.early_stop)
        return tuple(size / until.most for size in until.sizes)

    def start(self) -> Candidate | None:
        """Return the merge that others are compared with, asked first; None where there is none."""
        return None

    def candidates(self) -> list[Candidate]:
        """Check everything that needs no file; return the merges to try (for a search: none).

        Raises: SettingsError, EvaluationError: an invalid budget, suite, axis, row or value.
        """
        check_suites(self.settings.suites)
        if isinstance(self.settings.limit, dict):
            raise SettingsError("An experiment has one limit for all suites. Give a number.")
        if self.settings.engine != "transformers":
            raise SettingsError("Merges made in memory need the engine 'transformers'.")
        if self.settings.is_harness:
            raise SettingsError(
                "lm-eval cannot ask merges made in memory. Write them, then evaluate them."
            )
        at_least("held-out questions", self.held_out_count, 0)
        if self.minutes is not None and not self.minutes > 0:
            raise SettingsError(f"The budget is {self.minutes} minutes. Choose more than 0.")
        self.settings.check_machine()
        return []

    def recipes(self) -> list[Recipe]:
        """Return recipes whose methods show which facts are needed before the first merge."""
        return [c.recipe for c in self.candidates() if c.recipe is not None]

    @abstractmethod
    def draw(self, count_tokens: Callable[[str], int]) -> Items:
        """Return the questions; count_tokens: text -> length in the model's tokens."""


def at_least(what: str, value: int, least: int) -> None:
    if value < least:
        raise SettingsError(f"The number of {what} is {value}. Choose {least} or more.")


@dataclass(frozen=True)
class SweepPlan(Plan):
    """A search for the best setting, whose winner is checked on held-out questions.

    recipe: also the setting to start from; axes: see `space`. search: "grid" takes every
    combination, "optuna" proposes `trials` settings, "slim" those that its surrogate needs, see
    `search`. max_settings: larger plans are refused. early_stop: whether clearly losing settings
    are dropped early, see `race`; SLIM needs complete scores.
    """

    _: KW_ONLY
    axes: tuple[Axis, ...]
    search: How = "grid"
    trials: int = DEFAULT_TRIALS
    max_settings: int = MAX_SETTINGS
    early_stop: bool = True

    default_limit = DEFAULT_ITEMS

    @property
    def is_search(self) -> bool:
        """Whether settings are proposed by earlier answers."""
        return self.search != "grid"

    @property
    def proposals(self) -> int:
        return SlimSearch(self.space).trials if self.search == "slim" else self.trials

    def searching(self) -> OptunaSearch | SlimSearch:
        if self.search == "slim":
            return SlimSearch(self.space)
        return OptunaSearch(self.space, seed=self.settings.seed, trials=self.trials)

    def shares(self, count: int) -> tuple[float, ...]:
        """Return `Plan.shares`; SLIM compares once, at the end."""
        return (1.0,) if self.search == "slim" else super().shares(count)

    @property
    def space(self) -> Space:
        """All settings that may be tried."""
        return Space(self.recipe, self.axes)

    def start(self) -> Candidate:
        """Return the recipe unchanged."""
        return self.space.start()

    def candidates(self) -> list[Candidate]:
        super().candidates()
        at_least("trials", self.trials, 1)
        at_least("settings", self.max_settings, 1)
        if self.search not in ("grid", "optuna", "slim"):
            raise SettingsError(f"The search is {self.search!r}; it must be grid, optuna or slim.")
        space = self.space
        if self.search == "optuna":
            require_optuna()
        if self.is_search:
            self._check_count("search", self.proposals)
            if self.settings.until is not None:
                raise SettingsError(
                    "A search proposes settings by scores on equally many questions, so it cannot "
                    "ask until decided. Try every combination, or leave --ci-width out."
                )
            return []
        # Counted before they are made: a few axes can span more than fits in memory.
        self._check_count("grid", space.grid_size())
        return space.grid()

    def _check_count(self, what: str, count: int) -> None:
        if count > self.max_settings:
            advice = "Try fewer" if self.is_search else "Take fewer values, or let a search choose"
            raise SettingsError(
                f"The {what} has {count} settings, the budget is {self.max_settings}. {advice}."
            )

    def recipes(self) -> list[Recipe]:
        """Return the recipe and each method's own defaults."""
        usual = {name: get_method(name).settings().model_dump() for name in self.space.methods}
        return [self.recipe, *(with_method(self.recipe, n, values) for n, values in usual.items())]

    def draw(self, count_tokens: Callable[[str], int]) -> Items:
        """Return questions that choose the winner, and others that check it."""
        drawn = self.settings.suite_settings(count_tokens, self.most_items)
        return draw_items(self.settings.suites, drawn, self.held_out_count)


@dataclass(frozen=True)
class ComparePlan(Plan):
    """A comparison of methods or settings, all on the questions of an evaluation.

    rows: recipes by label, of one base; an agent's name means the same source in all. reference:
    the row that others are compared with. has_sources: whether base and agents have rows too,
    before the merges; has_control: whether the norm-matched control has one, for two agents or
    more. only: digests of the questions to ask; all when left out. draws: number of draws of a
    random merge, with consecutive seeds from the recipe's, and of sampled answers; a row's score is
    their mean, see `draws`.
    """

    _: KW_ONLY
    rows: Mapping[str, Recipe]
    reference: str
    has_sources: bool = True
    has_control: bool = True
    only: frozenset[str] | None = None
    draws: int = DEFAULT_DRAWS

    @classmethod
    def of(
        cls,
        rows: Mapping[str, Recipe],
        settings: EvalSettings,
        *,
        reference: str | None = None,
        sources: bool = True,
        draws: int = DEFAULT_DRAWS,
        **plan: Any,
    ) -> ComparePlan:
        """Return the plan of a comparison.

        Args:
            reference: label; default the first "ram+" row, else the first row.
            sources: whether the base and the agents have rows too.
            draws: see `ComparePlan`.
            plan: further fields of `ComparePlan`.

        Raises: SettingsError, EvaluationError for rows with different bases or agents.
        """
        recipe = _common_recipe(rows)
        at_least("draws", draws, 1)
        if settings.temperature and settings.samples == 1:
            settings = settings.model_copy(update={"samples": draws})
        if reference is None:
            ram_plus = (label for label, row in rows.items() if row.method == "ram+")
            reference = next(ram_plus, next(iter(rows)))
        elif reference not in rows:
            raise SettingsError(
                f"The reference row is {reference!r}; it must be one of {', '.join(rows)}."
            )
        return cls(
            recipe,
            settings,
            held_out=0,
            rows=dict(rows),
            reference=reference,
            has_sources=sources,
            draws=draws,
            **plan,
        )

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that have their own row."""
        return tuple(self.recipe.agents) if self.has_sources else ()

    @property
    def controls(self) -> int:
        """Number of controls asked at the end."""
        return int(self.has_control and len(self.agents) > 1)

    def candidates(self) -> list[Candidate]:
        super().candidates()
        for row in self.rows.values():
            make_settings(row.method, row.settings)
        labels = [BASE, *self.agents] if self.has_sources else []
        for label in labels:
            if label in self.rows:
                raise SettingsError(
                    f"A row is called {label!r}, as the base or an agent; rename it."
                )
        sources = [Candidate(label, {}, None) for label in labels]
        return [
            *sources,
            *(one for label, row in self.rows.items() for one in self._of(label, row)),
        ]

    def _of(self, label: str, row: Recipe) -> Iterator[Candidate]:
        """Yield a row's merge, and its further draws where the merge depends on the seed."""
        yield Candidate(label, {}, row)
        is_drawn = get_method(row.method).draws(make_settings(row.method, row.settings))
        for seed in range(row.seed + 1, row.seed + self.draws):
            if is_drawn or row.rounding == "stochastic":
                drawn = row.model_copy(update={"seed": seed % 2**64})
                yield Candidate(f"{label}, seed {seed}", {}, drawn, draw_of=label)

    def draw(self, count_tokens: Callable[[str], int]) -> Items:
        """Return the questions that `evaluate` would ask, or those of them in `only`.

        Raises: EvaluationError when one of `only` cannot be made again.
        """
        drawn = self.settings.suite_settings(count_tokens, self.most_items)
        asked = {suite.name: suite.questions(drawn) for suite in self.settings.question_suites}
        only = self.only
        if only is None:
            return Items(asked, {})
        selected = {name: tuple(q for q in own if q.digest in only) for name, own in asked.items()}
        found = sum(map(len, selected.values()))
        if found < len(only):
            raise EvaluationError(
                f"Of {len(only)} questions only {found} can be made again: the others were "
                "asked with another seed, difficulty or budget. Ask all models anew in Check."
            )
        return Items(selected, {})


def _common_recipe(rows: Mapping[str, Recipe]) -> Recipe:
    """Return a recipe with the one base and all agents, by name, of the rows."""
    if not rows:
        raise EvalSettingsError("No row to compare was given; give at least one method.")
    first = next(iter(rows.values()))
    agents: dict[str, Any] = {}
    for label, recipe in rows.items():
        if recipe.base != first.base:
            raise SettingsError(
                f"Row {label!r} has the base {recipe.base}, others have {first.base}."
            )
        for name, source in recipe.agents.items():
            if agents.setdefault(name, source) != source:
                raise SettingsError(
                    f"Row {label!r} has {source} as agent {name!r}, others have {agents[name]}."
                )
    return first.model_copy(update={"agents": agents})
