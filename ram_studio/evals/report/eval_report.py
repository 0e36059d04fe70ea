"""The table of answers: questions by domain, and each model's answer to each question.

Scores, tests and verdicts come from it, see `eval_result`. No model and no file is read here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ram_studio.errors import EvalSettingsError
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.chance_level import BASELINES, chance_level
from ram_studio.evals.report.comparison import (
    Comparison,
    Pair,
    PairedCounts,
    answered_by_all,
    holm,
    paired_counts,
    pairs_of,
)
from ram_studio.evals.report.score import Average, DomainScore
from ram_studio.evals.suites import apart
from ram_studio.evals.suites.demo.tasks import RETENTION_DOMAIN, SKILL_DOMAINS
from ram_studio.evals.until import StopDecision

if TYPE_CHECKING:
    from pandas import DataFrame

_T = TypeVar("_T")
# Prefix of lm-eval's task names for a suite's name.
HARNESS = "lm-eval:"


@dataclass(frozen=True)
class ModelAnswers:
    """One model's row: `answers[domain][i]` belongs to `EvalReport.items[domain][i]`.

    skills: the domains in `average`. health: numbers that need no right answer (see `health`), when
    requested. settings: evaluation settings, as stored; empty where unknown.
    """

    name: str
    path: str | None
    answers: dict[str, tuple[Answer, ...]]
    seconds: float
    skills: tuple[str, ...] = SKILL_DOMAINS
    health: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        name: str,
        path: str | None,
        answered: Iterable[tuple[Question, Answer]],
        suites: Sequence[str],
        *,
        seconds: float | None = None,
        health: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> ModelAnswers:
        """Return the row of these answers; seconds: of all, None for the sum over answers.

        suites: they decide which domains are skills, see `skills_of`.
        """
        answers: dict[str, list[Answer]] = {}
        for question, answer in answered:
            answers.setdefault(question.domain, []).append(answer)
        if seconds is None:
            seconds = sum(a.seconds or 0.0 for own in answers.values() for a in own)
        fixed = {domain: tuple(own) for domain, own in answers.items()}
        skills = skills_of(suites, answers)
        return ModelAnswers(name, path, fixed, seconds, skills, health, settings or {})

    @property
    def every(self) -> list[Answer]:
        return [answer for own in self.answers.values() for answer in own]

    @property
    def domains(self) -> dict[str, DomainScore]:
        """Score per domain, in the suite's order, over the questions that were answered."""
        return {domain: DomainScore.of(answers) for domain, answers in self.answers.items()}

    @property
    def average(self) -> Average:
        return Average.over_skills(self.domains, self.skills)

    @property
    def retention(self) -> float:
        """Score of the retention domain (follow): what remains of the base's abilities."""
        scores = self.domains
        return scores[RETENTION_DOMAIN].score if RETENTION_DOMAIN in scores else math.nan


def skills_of(suites: Collection[str], domains: Iterable[str]) -> tuple[str, ...]:
    """Return the domains in the average: those that their suites do not exclude.

    An lm-eval task with several answer filters has a domain "task (filter)" each; the first counts.
    """
    first: dict[str, str] = {}
    is_harness = any(name.startswith(HARNESS) for name in suites)
    for domain in domains:
        first.setdefault(domain.partition(" (")[0] if is_harness else domain, domain)
    beside = apart(suites)
    return tuple(domain for domain in first.values() if domain not in beside)


@dataclass(frozen=True)
class EvalReport:
    """Models that answered the same questions: suite, seed, questions by domain, a row per model.

    chance_levels: by domain, see `chance_level`; without an entry where unknown. seed: None where
    unknown. until: the end of asking until decided; None where the settings fixed the number of
    questions.
    """

    suite: str
    seed: int | None
    items: dict[str, tuple[Question, ...]]
    models: dict[str, ModelAnswers]
    chance_levels: Mapping[str, float] = field(default_factory=dict)
    until: StopDecision | None = None

    @staticmethod
    def of(
        suites: Sequence[str],
        seed: int | None,
        questions: Iterable[Question],
        models: dict[str, ModelAnswers],
    ) -> EvalReport:
        """Return the report of these questions, with chance levels from the answers.

        Args: models: rows with an answer to each question.
        """
        items: dict[str, list[Question]] = {}
        for question in questions:
            items.setdefault(question.domain, []).append(question)
        fixed = {domain: tuple(own) for domain, own in items.items()}
        levels = {}
        for domain in fixed:
            each = zip(*(model.answers[domain] for model in models.values()), strict=True)
            # For each question the first answer with verdicts on trivial baselines.
            facts: list[Mapping[str, Any]] = [
                next((a.facts for a in own if BASELINES in a.facts), {}) for own in each
            ]
            if (level := chance_level(facts)) is not None:
                levels[domain] = level
        return EvalReport(",".join(suites), seed, fixed, models, levels)

    # ------------------------------------------------------------------ queries

    @property
    def n(self) -> int:
        """Questions of the largest domain."""
        return max(map(len, self.items.values()), default=0)

    @property
    def skills(self) -> tuple[str, ...]:
        """The domains in the average."""
        named = {domain for model in self.models.values() for domain in model.skills}
        return tuple(domain for domain in self.items if domain in named)

    @property
    def beside(self) -> tuple[str, ...]:
        """The domains outside the average."""
        return tuple(domain for domain in self.items if domain not in self.skills)

    def merges(self, base: str | None, others: Iterable[str]) -> list[str]:
        """Return the models that are neither base nor one of the others (agents)."""
        known = {base, *others}
        return [name for name in self.models if name not in known]

    def shared_answers(self, names: Iterable[str], domain: str) -> list[tuple[Answer, ...]]:
        """Return the answers of these models to each question of a domain that all answered."""
        return answered_by_all([self.models[name].answers[domain] for name in names])

    def is_at_chance(self, domain: str, *scores: float) -> bool:
        """Return whether none of these scores is above the chance level of a domain."""
        return domain in self.chance_levels and max(scores) <= self.chance_levels[domain]

    def without(self, places: Mapping[str, Collection[int]]) -> EvalReport:
        """Return the report without these questions, by domain; chance levels stay."""

        def left(domain: str, row: tuple[_T, ...]) -> tuple[_T, ...]:
            out = set(places.get(domain, ()))
            return tuple(one for place, one in enumerate(row) if place not in out) if out else row

        models = {
            name: replace(row, answers={d: left(d, own) for d, own in row.answers.items()})
            for name, row in self.models.items()
        }
        items = {domain: left(domain, own) for domain, own in self.items.items()}
        return replace(self, items=items, models=models)

    # ------------------------------------------------------------------ comparisons

    def compare(self, a: str, b: str) -> dict[str, PairedCounts]:
        """Return the comparison of `a` with `b` by domain, and under "skills" over all skills.

        Questions that one of them did not answer are left out. The p-values are per comparison;
        choosing the best of many pairs needs a correction.

        Raises: EvaluationError: a name is not in the report.
        """
        self.check_names((a, b))
        first, second = self.models[a], self.models[b]
        found = {d: paired_counts(first.answers[d], second.answers[d]) for d in self.items}
        return found | {"skills": PairedCounts.over(found[d] for d in found if d in first.skills)}

    def compare_pairs(
        self, pairs: Sequence[Pair], judged: EvalReport | None = None
    ) -> tuple[Comparison, ...]:
        """Return these comparisons, corrected for their number; judged: see `compare_all`.

        Raises: EvaluationError for a name that is not in the report.
        """
        found = []
        for domain, a, b, against in pairs:
            report = judged if judged and against == "specialist" else self
            counts = report.compare(a, b)[domain]
            level = report.common_chance_level(domain, a, b) if counts.n else None
            found.append((counts, level))
        adjusted = holm([counts.p_value for counts, _ in found])
        return tuple(
            Comparison(*pair, counts, p, level)
            for pair, (counts, level), p in zip(pairs, found, adjusted, strict=True)
        )

    def common_chance_level(self, domain: str, a: str, b: str) -> float | None:
        """Return a domain's chance level where neither model is above it, else None."""
        if domain not in self.chance_levels:  # such as "skills", which covers several domains
            return None
        scores = (self.models[name].domains[domain].score for name in (a, b))
        return self.chance_levels[domain] if self.is_at_chance(domain, *scores) else None

    def compare_all(
        self,
        *,
        base: str | None = None,
        specialists: Mapping[str, str] | None = None,
        judged: EvalReport | None = None,
    ) -> tuple[Comparison, ...]:
        """Return every relevant comparison (see `pairs_of`), corrected for their number.

        p-values are adjusted by Holm's method over all comparisons of the result, so the chance
        that even one "better" or "worse" in the table is false stays below 5 %.

        Args: base: name of the base's row, None to leave it out. specialists: domain -> name of the
            agent trained for it. judged: the report without the questions that chose a specialist,
            which are not compared with it.

        Raises: EvaluationError: a name that is not in the report, or a domain that is not.
        """
        specialists = dict(specialists or {})
        self.check_names((), specialists)
        pairs = pairs_of(self.items, list(self.models), base, specialists)
        return self.compare_pairs(pairs, judged)

    def check_names(self, models: Iterable[str], domains: Iterable[str] = ()) -> None:
        """Raise EvaluationError for a model or a specialist's domain that is not in the report."""
        for name in models:
            if name not in self.models:
                raise EvalSettingsError(
                    f"The report has no model {name!r}. "
                    f"Choose from: {', '.join(self.models) or 'none'}."
                )
        for domain in domains:
            if domain not in self.items:
                raise EvalSettingsError(
                    f"A specialist is named for {domain!r}, which was not evaluated. "
                    f"Choose from: {', '.join(self.items)}."
                )

    def to_frame(self) -> DataFrame:
        """Return one row per model and domain: n, correct, score, stderr, low95, high95."""
        from pandas import DataFrame

        columns = ["model", "domain", "n", "correct", "stderr", "score", "low95", "high95"]
        rows = [
            {
                "model": name,
                "domain": domain,
                "n": score.n,
                "correct": score.correct,
                "stderr": score.stderr,
                **score.columns(),
            }
            for name, result in self.models.items()
            for domain, score in result.domains.items()
        ]
        return DataFrame(rows, columns=columns)
