"""What an evaluation returns: counts with their uncertainty, every answer, and paired comparisons.

Pure bookkeeping: no model, no file, no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.suites.demo.tasks import RETENTION_DOMAIN, SKILL_DOMAINS, Item

# A difference with a larger McNemar p than this is reported as within noise.
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class DomainScore:
    """How many of `n` answers are right, and how far chance alone could move that."""

    n: int
    correct: int

    @property
    def score(self) -> float:
        """Fraction of right answers, 0 to 1; NaN for n = 0."""
        return self.correct / self.n if self.n else math.nan

    @property
    def stderr(self) -> float:
        """Binomial standard error sqrt(p (1 - p) / n). 0 at p = 0 and 1: trust `ci95` there."""
        return math.sqrt(self.score * (1.0 - self.score) / self.n) if self.n else math.nan

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % Wilson interval of the score; (0, 1) for n = 0."""
        from scipy.stats import binomtest

        if not self.n:
            return 0.0, 1.0
        interval = binomtest(self.correct, self.n).proportion_ci(0.95, method="wilson")
        return float(interval.low), float(interval.high)

    def to_dict(self) -> dict[str, Any]:
        """Return {"n", "correct", "score", "stderr", "ci95": [low, high]}."""
        return {
            "n": self.n,
            "correct": self.correct,
            "score": _number(self.score),
            "stderr": _number(self.stderr),
            "ci95": list(self.ci95),
        }


@dataclass(frozen=True)
class Answer:
    """One model output with its verdict.

    note: why it is wrong or remarkable, in words ("cut off after 48 tokens"); often empty. facts:
    what the checker counted, e.g. single constraints. seconds: the item's share of its batch.
    """

    text: str
    is_correct: bool
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True)
class ModelResult:
    """One model's row: `answers[domain][i]` belongs to `EvalReport.items[domain][i]`.

    skills: the domains that `average` is the mean of; the others are not averaged. health: numbers
    that need no right answer (see `health`), when they were asked for.
    """

    name: str
    path: str | None
    answers: dict[str, tuple[Answer, ...]]
    seconds: float
    skills: tuple[str, ...] = SKILL_DOMAINS
    health: Mapping[str, Any] | None = None

    @property
    def domains(self) -> dict[str, DomainScore]:
        """Score per domain, in the suite's order."""
        return {
            domain: DomainScore(len(answers), sum(answer.is_correct for answer in answers))
            for domain, answers in self.answers.items()
        }

    @property
    def average(self) -> float:
        """Mean score of the skill domains; the retention domain is not part of it."""
        scores = [value.score for domain, value in self.domains.items() if domain in self.skills]
        return sum(scores) / len(scores) if scores else math.nan

    @property
    def retention(self) -> float:
        """Score of the retention domain (follow): what the model has not forgotten."""
        scores = self.domains
        return scores[RETENTION_DOMAIN].score if RETENTION_DOMAIN in scores else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return {"path", "domains", "average", "retention", "seconds"}, "health" if measured.

        An average over no domain is None (NaN is not JSON).
        """
        result = {
            "path": self.path,
            "domains": {domain: value.to_dict() for domain, value in self.domains.items()},
            "average": _number(self.average),
            "retention": _number(self.retention),
            "seconds": self.seconds,
        }
        return result if self.health is None else {**result, "health": dict(self.health)}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class EvalReport:
    """Models scored on the same prompts: suite, seed and items per domain, one result per model."""

    suite: str
    seed: int
    n: int
    items: dict[str, tuple[Item, ...]]
    models: dict[str, ModelResult]

    def to_dict(self) -> dict[str, Any]:
        """Return {"suite", "seed", "n", "models": {NAME: {...}}}, without the single answers."""
        return {
            "suite": self.suite,
            "seed": self.seed,
            "n": self.n,
            "models": {name: result.to_dict() for name, result in self.models.items()},
        }

    def joined(self, other: "EvalReport") -> "EvalReport":
        """Return this report with the other's models added after its own.

        Raises:
            EvaluationError: the prompts differ, or a model name occurs in both.
        """
        if (self.suite, self.seed, self.n, self.items) != (
            other.suite,
            other.seed,
            other.n,
            other.items,
        ):
            raise EvaluationError(
                f"Reports of different prompts cannot be joined: suite {self.suite!r}, seed "
                f"{self.seed}, n {self.n} and suite {other.suite!r}, seed {other.seed}, n "
                f"{other.n}. Evaluate with equal settings."
            )
        twice = sorted(set(self.models) & set(other.models))
        if twice:
            raise EvaluationError(f"Both reports have a model named {twice}. Rename one of them.")
        return replace(self, models={**self.models, **other.models})


@dataclass(frozen=True)
class PairedCounts:
    """Two models on the same items: wins = only the first is right, losses = only the second."""

    wins: int
    losses: int
    ties: int

    @property
    def p_value(self) -> float:
        """Exact two-sided McNemar p: how often chance splits the disagreements this unevenly."""
        from scipy.stats import binomtest

        disagreements = self.wins + self.losses
        return float(binomtest(self.wins, disagreements, 0.5).pvalue) if disagreements else 1.0

    @property
    def is_within_noise(self) -> bool:
        """Whether the difference could well be chance (p of 0.05 or more)."""
        return self.p_value >= SIGNIFICANCE

    def to_dict(self) -> dict[str, Any]:
        """Return {"wins", "losses", "ties", "p_value", "is_within_noise"}."""
        return {
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "p_value": self.p_value,
            "is_within_noise": self.is_within_noise,
        }


def compare(report: EvalReport, a: str, b: str) -> dict[str, PairedCounts]:
    """Return how `a` fares against `b` per domain, and under "skills" over all skill domains.

    The p-values are per comparison; looking at many pairs and picking the best needs a stricter
    bar.

    Raises:
        EvaluationError: a name is not in the report.
    """
    for name in (a, b):
        if name not in report.models:
            raise EvaluationError(
                f"The report has no model {name!r}. "
                f"Choose from: {', '.join(report.models) or 'none'}."
            )
    first, second = report.models[a].answers, report.models[b].answers
    counts = {domain: _paired(first[domain], second[domain]) for domain in report.items}
    skills = [counts[domain] for domain in report.items if domain in report.models[a].skills]
    counts["skills"] = PairedCounts(
        sum(pair.wins for pair in skills),
        sum(pair.losses for pair in skills),
        sum(pair.ties for pair in skills),
    )
    return counts


def _paired(first: tuple[Answer, ...], second: tuple[Answer, ...]) -> PairedCounts:
    verdicts = [(x.is_correct, y.is_correct) for x, y in zip(first, second, strict=True)]
    wins, losses = verdicts.count((True, False)), verdicts.count((False, True))
    return PairedCounts(wins, losses, len(verdicts) - wins - losses)
