"""The result of an evaluation: scores, comparisons and verdicts, for printing, figures and exports.

It is computed once from the table of answers (`EvalReport`); its JSON is its own dump.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, InstanceOf, computed_field
from pydantic.dataclasses import dataclass

from ram_studio.checkpoints.record.provenance import not_checked
from ram_studio.evals.question import UNSCORED, Answer, Question
from ram_studio.evals.report.comparison import Comparison
from ram_studio.evals.report.damage import Damage, damages, find_inherited
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.score import (
    Average,
    DomainScore,
    ParaphraseScores,
    SampleScores,
    paraphrase_scores,
    sample_rows,
    sample_scores,
)
from ram_studio.evals.report.skill_verdict import (
    MARGIN,
    SkillVerdict,
    Specialists,
    skill_verdicts,
)
from ram_studio.evals.store import join_versions
from ram_studio.evals.suites import ALL_SUITES
from ram_studio.evals.suites.suite import repeated_share
from ram_studio.evals.until import StopDecision

_TEMPLATES = {"own": "the model's own", "none": "none, plain text", "unknown": "not known"}
_COUNTED = ("timed_out", "too_long", "cut_off", "empty", "refused", "failed")


@dataclass(frozen=True)
class Outcomes:
    """Numbers of questions by outcome.

    asked: those in the score; of them, cut_off and empty ones are judged as they are, and timed_out
    ones count as wrong: the model or its judge ran out of time. too_long: they do not fit the
    model's context. refused: by the server. failed: no valid reply came, a retry may help.
    """

    questions: int
    asked: int
    timed_out: int
    too_long: int
    cut_off: int
    empty: int
    refused: int
    failed: int

    @staticmethod
    def of(answers: Iterable[Answer]) -> Outcomes:
        answers = list(answers)
        ends = [answer.finish for answer in answers]
        return Outcomes(
            questions=len(ends),
            asked=sum(end not in UNSCORED for end in ends),
            timed_out=sum(answer.has_timed_out for answer in answers),
            too_long=ends.count("too_long"),
            cut_off=ends.count("length"),
            empty=ends.count("empty"),
            refused=ends.count("refused"),
            failed=ends.count("failed"),
        )


@dataclass(frozen=True)
class ModelDetails:
    """Reproducibility details of one model.

    repetition: share of word 4-grams that occurred before in their answer. template: which chat
    template was used. software: versions by name that gave the answers. settings: of its answers.
    """

    outcomes: Outcomes
    repetition: float
    template: Literal["own", "none", "unknown"]
    software: dict[str, str]
    settings: dict[str, Any]

    @staticmethod
    def of(row: ModelAnswers) -> ModelDetails:
        chat = row.settings.get("chat")
        return ModelDetails(
            Outcomes.of(row.every),
            repeated_share([a.text.lower().split() for a in row.every if a.is_scored]),
            ("own" if chat else "none") if isinstance(chat, bool) else "unknown",
            join_versions(answer.origin for answer in row.every),
            dict(row.settings),
        )

    def facts(self, software: Mapping[str, str]) -> list[str]:
        """Return a model's details, a few words each; software: of the whole table."""
        counts = ", ".join(
            f"{number} {key.replace('_', ' ')}"
            for key in _COUNTED
            if (number := getattr(self.outcomes, key))
        )
        return [
            counts or "every question answered to its end",
            f"{100 * self.repetition:.0f} % of word 4-grams repeated",
            f"template: {_TEMPLATES[self.template]}",
            *([_versions(self.software)] if self.software not in ({}, software) else []),
            *(f"{key} {value}" for key, value in self.settings.items() if key != "chat"),
        ]


@dataclass(frozen=True)
class Questions:
    """The number of questions, and 12 hex digits that are equal for equal ones."""

    questions: int
    prompts: str

    @staticmethod
    def of(questions: Iterable[Question]) -> Questions:
        """Count and hash questions, in any order: the store's order differs from a check's."""
        prompts = sorted(question.prompt for question in questions)
        text = "".join(f"{prompt}\0" for prompt in prompts).encode("utf-8", "replace")
        return Questions(len(prompts), hashlib.blake2b(text, digest_size=6).hexdigest())


@dataclass(frozen=True)
class Reproducibility:
    """The details that are needed to reproduce a table of scores.

    seed: of the questions: a number, several, or null where it was not recorded. questions,
    prompts: their number, and their hash. software: versions by name that gave the answers, several
    separated by commas. models: by row. held_out: questions that check a sweep's winner.
    """

    seed: int | list[int] | None
    questions: int
    prompts: str
    software: dict[str, str]
    models: dict[str, ModelDetails]
    held_out: Questions | None = None

    @staticmethod
    def of(
        seed: int | None,
        questions: Iterable[Question],
        models: Mapping[str, ModelAnswers],
        held_out: Iterable[Question] = (),
    ) -> Reproducibility:
        """Return the details of rows of answers; seed: None for the seeds in the answers."""
        every = [answer for row in models.values() for answer in row.every]
        asked, others = Questions.of(questions), Questions.of(held_out)
        return Reproducibility(
            _seeds_of(every) if seed is None else seed,
            asked.questions,
            asked.prompts,
            join_versions(answer.origin for answer in every),
            {name: ModelDetails.of(row) for name, row in models.items()},
            others if others.questions else None,
        )

    def lines(self, chance_levels: Mapping[str, float]) -> tuple[str, ...]:
        """Return sentences: on the table, on all models, and on their differences."""
        seeds = self.seed if isinstance(self.seed, list) else [self.seed]
        seed = " and ".join("not recorded" if one is None else str(one) for one in seeds)
        levels = ", ".join(f"{name} {100 * share:.0f} %" for name, share in chance_levels.items())
        held = self.held_out
        parts = [
            f"{self.questions} questions (hash {self.prompts}, seed {seed})",
            *([f"{held.questions} held out (hash {held.prompts})"] if held else []),
            f"chance level: {levels or 'not known'}",
            _versions(self.software),
        ]
        return (f"{'; '.join(parts)}.", *self._model_lines())

    def _model_lines(self) -> Iterator[str]:
        facts = {name: row.facts(self.software) for name, row in self.models.items()}
        shared = [
            fact
            for fact in next(iter(facts.values()), [])
            if len(facts) > 1 and all(fact in others for others in facts.values())
        ]
        if shared:
            yield f"every model: {'; '.join(shared)}."
        alike: dict[str, list[str]] = {}
        for name, own in facts.items():
            rest = "; ".join(fact for fact in own if fact not in shared)
            alike.setdefault(rest, []).append(name)
        for rest, names in alike.items():
            if rest:
                yield f"{', '.join(names)}: {rest}."


def _seeds_of(answers: Iterable[Answer]) -> int | list[int] | None:
    """Return the seed of these answers' questions, or all of several."""
    seeds = {answer.origin["seed"] for answer in answers if answer.origin.get("seed") is not None}
    return next(iter(seeds), None) if len(seeds) < 2 else sorted(seeds)


def _versions(software: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in software.items())


_MISSING = {
    "too_long": "do not fit its context with their answers and were not asked",
    "refused": "were refused",
    "failed": "got no answer, run the same again to ask them again",
}
_CUT = {
    "timed_out": "questions timed out. They count as wrong",
    "cut_off": "answers were cut off at the limit of tokens",
}


@dataclass(frozen=True)
class DomainResult(DomainScore):
    """One model's score in one domain, with details.

    chance_level: the score of trivial answers; null where unknown. categories: the score of each
    kind of question. samples: the scores of several samples of each question; null for one.
    summary: figures as defined by the suite's publishers. paraphrases: the scores of several
    wordings; null for one.
    """

    chance_level: float | None
    outcomes: Outcomes
    categories: dict[str, DomainScore]
    samples: SampleScores | None
    summary: dict[str, float]
    paraphrases: ParaphraseScores | None


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
        """Return the result for a row of a report."""
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
        paraphrase_scores(answers),
        effective_n=score.effective_n,
    )


@dataclass(frozen=True)
class EvalResult:
    """The result of an evaluation.

    n: questions of the largest domain. skills: the domains that make the average. chance_levels: by
    domain, where known. comparisons, verdicts: each corrected for their number (Holm). margin: of
    the verdicts, a share of questions. until: the end of asking until decided. report: the answers,
    which its JSON leaves out; judged: those that decide verdicts. damage: losses of agents outside
    their own skills.
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
    until: StopDecision | None
    report: InstanceOf[EvalReport] = Field(exclude=True, repr=False)
    judged: InstanceOf[EvalReport] = Field(exclude=True, repr=False)
    damage: tuple[Damage, ...] = ()

    @staticmethod
    def of(
        report: EvalReport,
        comparisons: Iterable[Comparison] = (),
        verdicts: Iterable[SkillVerdict] = (),
        margin: float = MARGIN,
        judged: EvalReport | None = None,
        damage: tuple[Damage, ...] = (),
    ) -> EvalResult:
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
            damage,
        )

    @computed_field
    @property
    def not_checked(self) -> tuple[str, ...]:
        """Skills that this evaluation did not check, as in the provenance."""
        return not_checked(self.suite.split(","))

    @property
    def lines(self) -> tuple[str, ...]:
        """The reproducibility details, a sentence each."""
        return self.reproducibility.lines(self.chance_levels)

    @property
    def sample_rows(self) -> list[tuple[str, list[str]]]:
        """The scores of several samples and wordings, a row for each figure."""
        models = [model.domains.items() for model in self.models.values()]
        return sample_rows(
            (
                {d: own.samples for d, own in row if own.samples},
                {d: own.paraphrases for d, own in row if own.paraphrases},
            )
            for row in models
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

    @property
    def measured(self) -> dict[str, dict[str, Any]]:
        """The health of the models that have it, by name."""
        return {name: model.health for name, model in self.models.items() if model.health}

    def health_rows(self) -> list[tuple[str, list[str]]]:
        """Return health's measurements, each with the text of every model of `measured`."""
        from ram_studio.evals.suites.health import MEASURES, measure_text

        every = list(self.measured.values())
        return [
            (label, [measure_text(key, own[key]) for own in every])
            for key, label in MEASURES.items()
        ]

    @property
    def inherited_damage(self) -> list[Damage]:
        """The losses of agents that one of the judged merges shows too."""
        merges = dict.fromkeys(one.merge for one in self.verdicts)
        base = next((one.base for one in self.verdicts), None)
        scores = {name: model.domains for name, model in self.models.items()}
        return find_inherited(self.damage, scores.get(base or "", {}), [scores[m] for m in merges])

    def missing(self) -> list[str]:
        """Return sentences on questions without a complete answer, by model."""
        sentences = []
        rows = [(f"{name}, {d}", own.outcomes) for name, model in self.models.items()
                for d, own in model.domains.items()]  # fmt: skip
        for where, found in rows:
            parts = [f"{n} {text}" for key, text in _MISSING.items() if (n := getattr(found, key))]
            if parts:
                sentences.append(
                    f"{where}: of {found.questions} questions {'; '.join(parts)}. "
                    "They are in no score and no comparison."
                )
            for key, text in _CUT.items():
                if number := getattr(found, key):
                    sentences.append(f"{where}: {number} of {found.asked} {text}.")
        return sentences


def judge(
    report: EvalReport,
    base: str | None,
    chosen: Specialists,
    *,
    merges: Sequence[str] | None = None,
    verdicts_on: Iterable[str] | None = None,
    margin: float = MARGIN,
    everyone: Sequence[str] | None = None,
) -> EvalResult:
    """Return a report's comparisons with base and specialists, and the verdict on every merge.

    Args: base: name of the base's row, None where it was not asked. merges: names in the report; by
        default all that are neither base nor specialist. verdicts_on: domains; by default all that
        have a specialist. margin: see `skill_verdicts`. everyone: the agents to test for losses
        outside their own skills; by default the specialists.

    Raises: EvaluationError for an invalid name, domain or margin.
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
    own = {agent: [d for d, best in agents.items() if best == agent] for agent in agents.values()}
    lost = damages(report, base, list(own) if everyone is None else everyone, own)
    return EvalResult.of(report, pairs, verdicts, margin, chosen.judged, lost)
