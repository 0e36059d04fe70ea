"""What an evaluation found: scores, comparisons and verdicts, as they are printed, drawn, exported.

It is made once of the table of answers (`EvalReport`); its JSON is its own dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field, InstanceOf
from pydantic.dataclasses import dataclass

from ram_studio.evals.question import Answer
from ram_studio.evals.report.comparison import Comparison
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.reproducibility import Outcomes, Reproducibility
from ram_studio.evals.report.score import (
    Average,
    DomainScore,
    SampleScores,
    sample_rows,
    sample_scores,
)
from ram_studio.evals.report.skill_verdict import (
    MARGIN,
    SkillVerdict,
    Specialists,
    skill_verdicts,
)
from ram_studio.evals.suites import ALL_SUITES
from ram_studio.evals.until import Decided

_MISSING = {
    "too_long": "do not fit its context with their answers and were not asked",
    "refused": "were refused",
    "failed": "got no answer, run the same again to ask them again",
}


@dataclass(frozen=True)
class DomainResult(DomainScore):
    """One model's score in one domain, and what it is made of.

    chance_level: the score of trivial answers; null where it is not known. categories: the score of
    each kind of question. samples: what several samples of each question show; null where there is
    one. summary: figures as the suite's publishers make them.
    """

    chance_level: float | None
    outcomes: Outcomes
    categories: dict[str, DomainScore]
    samples: SampleScores | None
    summary: dict[str, float]


@dataclass(frozen=True)
class ModelResult:
    """One model's row. average: the mean of the skills' scores; retention: see `ModelAnswers`.

    path: of a model folder. seconds: of its answers. health: numbers that need no right answer.
    """

    path: str | None
    domains: dict[str, DomainResult]
    average: Average
    retention: float
    seconds: float
    health: dict[str, Any] | None = None

    @staticmethod
    def of(report: EvalReport, row: ModelAnswers) -> ModelResult:
        """Return a row of a report as it is told."""
        domains = {domain: _domain(report, row.answers[domain], domain) for domain in report.items}
        health = None if row.health is None else dict(row.health)
        return ModelResult(row.path, domains, row.average, row.retention, row.seconds, health)


def _domain(report: EvalReport, answers: Sequence[Answer], domain: str) -> DomainResult:
    kinds: dict[str, list[Answer]] = {}
    for item, answer in zip(report.items[domain], answers, strict=True):
        kinds.setdefault(item.category, []).append(answer)
    categories = {name: DomainScore.of(own) for name, own in kinds.items()}
    suite, summary = ALL_SUITES.get(domain), {}
    if suite is not None and suite.summary is not None:
        tally = {name: (own.correct, own.n) for name, own in categories.items()}
        summary = dict(suite.summary(tally, [a.facts for a in answers if a.is_scored]))
    score = DomainScore.of(answers)
    return DomainResult(
        score.n,
        score.correct,
        report.chance_levels.get(domain),
        Outcomes.of(answers),
        categories,
        sample_scores(answers),
        summary,
    )


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found.

    n: questions of the largest domain. skills: the domains that make the average. chance_levels:
    by domain, where it is known. comparisons, verdicts: each corrected for their number (Holm).
    margin: of the verdicts, a share of questions. until: how asking until decided ended. report:
    the answers, which its JSON leaves out; judged: those that verdicts are made of.
    """

    suite: str
    seed: int | None
    n: int
    skills: tuple[str, ...]
    chance_levels: dict[str, float]
    models: dict[str, ModelResult]
    comparisons: tuple[Comparison, ...]
    verdicts: tuple[SkillVerdict, ...]
    margin: float
    reproducibility: Reproducibility
    until: Decided | None
    report: InstanceOf[EvalReport] = Field(exclude=True, repr=False)
    judged: InstanceOf[EvalReport] = Field(exclude=True, repr=False)

    @staticmethod
    def of(
        report: EvalReport,
        comparisons: Iterable[Comparison] = (),
        verdicts: Iterable[SkillVerdict] = (),
        margin: float = MARGIN,
        judged: EvalReport | None = None,
    ) -> EvalResult:
        """Return what a table of answers shows."""
        questions = [question for items in report.items.values() for question in items]
        return EvalResult(
            report.suite,
            report.seed,
            report.n,
            report.skills,
            dict(report.chance_levels),
            {name: ModelResult.of(report, row) for name, row in report.models.items()},
            tuple(comparisons),
            tuple(verdicts),
            margin,
            Reproducibility.of(report.seed, questions, report.models),
            report.until,
            report,
            judged or report,
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """What is needed to make the table again, a sentence each."""
        return self.reproducibility.lines(self.chance_levels)

    @property
    def sample_rows(self) -> list[tuple[str, list[str]]]:
        """What several samples show, a row for each figure; see `score.sample_rows`."""
        return sample_rows(
            {d: own.samples for d, own in model.domains.items() if own.samples is not None}
            for model in self.models.values()
        )

    def category_rows(self) -> list[tuple[str, list[DomainScore]]]:
        """Return ("domain: kind of question", each model's score), where a domain has several."""
        first = next(iter(self.models.values()), None)
        return [
            (f"{d}: {kind}", [m.domains[d].categories[kind] for m in self.models.values()])
            for d, domain in (first.domains.items() if first else ())
            if len(domain.categories) > 1
            for kind in domain.categories
        ]

    def missing(self) -> list[str]:
        """Return sentences on questions without a whole answer, model by model."""
        said = []
        rows = [(f"{name}, {d}", own.outcomes) for name, model in self.models.items()
                for d, own in model.domains.items()]  # fmt: skip
        for where, found in rows:
            parts = [f"{n} {text}" for key, text in _MISSING.items() if (n := getattr(found, key))]
            if parts:
                said.append(
                    f"{where}: of {found.questions} questions {'; '.join(parts)}. "
                    "They are in no score and no comparison."
                )
            if found.timed_out:
                said.append(
                    f"{where}: {found.timed_out} of {found.asked} questions timed out. They count "
                    "as wrong."
                )
            if found.cut_off:
                said.append(
                    f"{where}: {found.cut_off} of {found.asked} answers were cut off at the limit "
                    "of tokens."
                )
        return said


def judge(
    report: EvalReport,
    base: str | None,
    chosen: Specialists,
    *,
    merges: Sequence[str] | None = None,
    verdicts_on: Iterable[str] | None = None,
    margin: float = MARGIN,
) -> EvalResult:
    """Return a report's comparisons with base and specialists, and the verdict on every merge.

    Args: base: name of the base's row, None where it was not asked. merges: names in the report; by
        default all that are neither base nor specialist. verdicts_on: domains; by default all that
        have a specialist. margin: see `skill_verdicts`.

    Raises: EvaluationError for a name, domain or margin that cannot be.
    """
    agents = chosen.agents
    pairs = report.compare_all(base=base, specialists=agents, judged=chosen.judged)
    wanted = set(agents if verdicts_on is None else verdicts_on)
    verdicts = skill_verdicts(
        chosen.judged,
        {domain: agent for domain, agent in agents.items() if domain in wanted},
        base,
        merges=merges,
        margin=margin,
        chosen_on=chosen.chosen_on,
    )
    return EvalResult.of(report, pairs, verdicts, margin, chosen.judged)
