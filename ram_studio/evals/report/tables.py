"""What an evaluation returns: counts with their uncertainty, every answer, and paired comparisons.

Pure bookkeeping: no model, no file, no torch.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import UNSCORED, Answer, Asked, Question
from ram_studio.evals.report.floor import FACT, best_nonsense
from ram_studio.evals.report.score import Average, DomainScore, number
from ram_studio.evals.suites import apart
from ram_studio.evals.suites.demo.tasks import RETENTION_DOMAIN, SKILL_DOMAINS

if TYPE_CHECKING:
    from pandas import DataFrame

_T = TypeVar("_T")
# A difference with a larger McNemar p than this is reported as within noise.
SIGNIFICANCE = 0.05
# What names of lm-eval's tasks begin with where a suite's name is meant.
HARNESS = "lm-eval:"


@dataclass(frozen=True)
class ModelResult:
    """One model's row: `answers[domain][i]` belongs to `EvalReport.items[domain][i]`.

    skills: the domains that `average` is the mean of; the others are not averaged. health: numbers
    that need no right answer (see `health`), when they were asked for. asked: the settings under
    which it was asked, as the store keeps them; empty where they are not known.
    """

    name: str
    path: str | None
    answers: dict[str, tuple[Answer, ...]]
    seconds: float
    skills: tuple[str, ...] = SKILL_DOMAINS
    health: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        name: str,
        path: str | None,
        answered: Iterable[tuple[Question, Answer]],
        suites: Sequence[str],
        *,
        seconds: float | None = None,
        health: Mapping[str, Any] | None = None,
        asked: Mapping[str, Any] | None = None,
    ) -> "ModelResult":
        """Return the row of these answers; seconds: of all, None for the sum of each one's.

        suites: they decide which domains are skills, see `skills_of`.
        """
        answers: dict[str, list[Answer]] = {}
        for question, answer in answered:
            answers.setdefault(question.domain, []).append(answer)
        if seconds is None:
            seconds = sum(a.seconds or 0.0 for own in answers.values() for a in own)
        fixed = {domain: tuple(own) for domain, own in answers.items()}
        skills = skills_of(suites, answers)
        return ModelResult(name, path, fixed, seconds, skills, health, asked or {})

    @property
    def domains(self) -> dict[str, DomainScore]:
        """Score per domain, in the suite's order, over the questions that were answered."""
        return {domain: DomainScore.of(answers) for domain, answers in self.answers.items()}

    @property
    def over_skills(self) -> Average:
        """The mean of the skills' scores; what stands apart from them is no part of it."""
        own = self.domains
        return Average.over(own[domain] for domain in own if domain in self.skills)

    @property
    def average(self) -> float:
        """Mean score of the skill domains, see `over_skills`; NaN where none was asked."""
        return self.over_skills.score

    @property
    def retention(self) -> float:
        """Score of the retention domain (follow): what the model has not forgotten."""
        scores = self.domains
        return scores[RETENTION_DOMAIN].score if RETENTION_DOMAIN in scores else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return {"path", "domains", "average", "average_ci95", "retention", "seconds",
        "outcomes"}, "health" if measured.

        An average over no domain is None (NaN is not JSON).
        """
        result = {
            "path": self.path,
            "domains": {domain: value.to_dict() for domain, value in self.domains.items()},
            "average": number(self.average),
            "average_ci95": list(self.over_skills.ci95),
            "retention": number(self.retention),
            "seconds": self.seconds,
            "outcomes": {d: outcomes(answers) for d, answers in self.answers.items()},
        }
        return result if self.health is None else {**result, "health": dict(self.health)}


def skills_of(suites: Collection[str], domains: Iterable[str]) -> tuple[str, ...]:
    """Return the domains that make up the average: those that their suites do not keep apart.

    Of a task of lm-eval with several answer filters, each a domain "task (filter)", the first.
    """
    first: dict[str, str] = {}
    is_harness = any(name.startswith(HARNESS) for name in suites)
    for domain in domains:
        first.setdefault(domain.partition(" (")[0] if is_harness else domain, domain)
    beside = apart(suites)
    return tuple(domain for domain in first.values() if domain not in beside)


def outcomes(answers: Iterable[Answer]) -> dict[str, int]:
    """Return how many questions there were, how many were answered, and what befell the others.

    {"questions", "asked" (what the score is over), "timed_out", "too long", "cut off", "empty",
    "refused", "failed"}; of those asked, "cut off" and "empty" ones count as they are judged, and
    "timed_out" ones as wrong: the model or its judge ran out of time.
    """
    answers = list(answers)
    ends = [answer.finish for answer in answers]
    return {
        "questions": len(ends),
        "asked": sum(end not in UNSCORED for end in ends),
        "timed_out": sum(answer.has_timed_out for answer in answers),
        "too long": ends.count("too long"),
        "cut off": ends.count("length"),
        "empty": ends.count("empty"),
        "refused": ends.count("refused"),
        "failed": ends.count("failed"),
    }


@dataclass(frozen=True)
class EvalReport:
    """Models scored on the same prompts: suite, seed and items per domain, one result per model.

    floors: by domain the share of right answers at the chance level, see `floor`; without an entry
    where it is not known. seed: None where it is not known. until: how asking until decided ended,
    see `evals.until.Decided`; empty where so much was asked as was said.
    """

    suite: str
    seed: int | None
    n: int
    items: dict[str, tuple[Question, ...]]
    models: dict[str, ModelResult]
    floors: Mapping[str, float] = field(default_factory=dict)
    until: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        suites: Sequence[str], seed: int | None, asked: Asked, models: dict[str, ModelResult]
    ) -> "EvalReport":
        """Return the report of these questions by suite; n is that of the largest domain.

        Its floors are those that the answers tell.
        """
        items: dict[str, list[Question]] = {}
        for question in (q for questions in asked.values() for q in questions):
            items.setdefault(question.domain, []).append(question)
        n = max((len(questions) for questions in items.values()), default=0)
        fixed = {domain: tuple(questions) for domain, questions in items.items()}
        report = EvalReport(",".join(suites), seed, n, fixed, models)
        best = {domain: best_nonsense(report.facts(domain)) for domain in fixed}
        return replace(report, floors={d: found[1] for d, found in best.items() if found})

    def facts(self, domain: str) -> list[Mapping[str, Any]]:
        """Return of each question the facts of the first answer with trivial baselines, or none."""
        rows = [model.answers[domain] for model in self.models.values()]
        each = zip(*rows, strict=True)
        return [next((a.facts for a in own if FACT in a.facts), {}) for own in each]

    def check_names(self, models: Iterable[str], domains: Iterable[str] = ()) -> None:
        """Raise EvaluationError for a model or a specialist's domain that is not in the report."""
        for name in models:
            if name not in self.models:
                raise EvaluationError(
                    f"The report has no model {name!r}. "
                    f"Choose from: {', '.join(self.models) or 'none'}."
                )
        for domain in domains:
            if domain not in self.items:
                raise EvaluationError(
                    f"A specialist is named for {domain!r}, which was not evaluated. "
                    f"Choose from: {', '.join(self.items)}."
                )

    def without(self, places: Mapping[str, Collection[int]]) -> "EvalReport":
        """Return the report without the questions at these places, by domain; floors stay."""

        def left(domain: str, row: tuple[_T, ...]) -> tuple[_T, ...]:
            out = set(places.get(domain, ()))
            return tuple(one for place, one in enumerate(row) if place not in out) if out else row

        models = {
            name: replace(row, answers={d: left(d, own) for d, own in row.answers.items()})
            for name, row in self.models.items()
        }
        items = {domain: left(domain, own) for domain, own in self.items.items()}
        return replace(self, items=items, models=models)

    def merges(self, base: str | None, specialists: Mapping[str, str]) -> list[str]:
        """Return the models that are neither base nor specialist."""
        return [name for name in self.models if name not in {base, *specialists.values()}]

    @property
    def skills(self) -> tuple[str, ...]:
        """The domains that make the average; the others are shown beside it."""
        named = {domain for model in self.models.values() for domain in model.skills}
        return tuple(domain for domain in self.items if domain in named)

    def to_dict(self) -> dict[str, Any]:
        """Return {"suite", "seed", "n", "floors", "models": {NAME: {...}}}, without answers.

        Each domain of a model has its "chance" beside the score: the chance level, None where it
        is not known. And "until", where it was asked until decided.
        """
        models = {name: result.to_dict() for name, result in self.models.items()}
        for model in models.values():
            for domain, own in model["domains"].items():
                own["chance"] = self.floors.get(domain)
        found = {
            "suite": self.suite,
            "seed": self.seed,
            "n": self.n,
            "floors": dict(self.floors),
            "models": models,
        }
        return {**found, "until": dict(self.until)} if self.until else found

    def is_at_floor(self, domain: str, *scores: float) -> bool:
        """Return whether none of these scores is above the chance level of a domain."""
        return domain in self.floors and max(scores) <= self.floors[domain]

    def to_frame(self) -> "DataFrame":
        """Return one row per model and domain: n, correct, score, stderr, low95, high95."""
        from pandas import DataFrame

        columns = ["model", "domain", "n", "correct", "stderr", "score", "low95", "high95"]
        rows = [
            {
                "model": name,
                "domain": domain,
                **vars(score),
                "stderr": number(score.stderr),
                **score.interval(),
            }
            for name, result in self.models.items()
            for domain, score in result.domains.items()
        ]
        return DataFrame(rows, columns=columns)


@dataclass(frozen=True)
class PairedCounts:
    """Two models on the same items: wins = only the first is right, losses = only the second."""

    wins: int
    losses: int
    ties: int

    @staticmethod
    def of(verdicts: Iterable[tuple[bool, bool]]) -> "PairedCounts":
        """Return the counts of these pairs: whether the first is right, whether the second is."""
        pairs = list(verdicts)
        wins, losses = pairs.count((True, False)), pairs.count((False, True))
        return PairedCounts(wins, losses, len(pairs) - wins - losses)

    @property
    def n(self) -> int:
        """Items both answered."""
        return self.wins + self.losses + self.ties

    @property
    def p_value(self) -> float:
        """Exact two-sided McNemar p: how often chance splits the disagreements this unevenly."""
        from scipy.special import bdtr

        disagreements = self.wins + self.losses
        return min(1.0, 2.0 * float(bdtr(min(self.wins, self.losses), disagreements, 0.5)))

    @property
    def is_within_noise(self) -> bool:
        """Whether the difference could well be chance (p of 0.05 or more)."""
        return self.p_value >= SIGNIFICANCE

    def to_dict(self) -> dict[str, Any]:
        """Return {"wins", "losses", "ties", "p_value", "is_within_noise"}."""
        return {**vars(self), "p_value": self.p_value, "is_within_noise": self.is_within_noise}


def compare(report: EvalReport, a: str, b: str) -> dict[str, PairedCounts]:
    """Return how `a` fares against `b` per domain, and under "skills" over all skill domains.

    Questions that one of them was not asked, or got no answer to, are left out. The p-values are
    per comparison; looking at many pairs and picking the best needs a stricter bar.

    Raises: EvaluationError: a name is not in the report.
    """
    report.check_names((a, b))
    first, second = report.models[a].answers, report.models[b].answers
    pairs = {
        domain: [
            (x.is_correct, y.is_correct)
            for x, y in zip(first[domain], second[domain], strict=True)
            if x.is_scored and y.is_scored
        ]
        for domain in report.items
    }
    skills = [pair for d, own in pairs.items() if d in report.models[a].skills for pair in own]
    return {name: PairedCounts.of(own) for name, own in [*pairs.items(), ("skills", skills)]}
