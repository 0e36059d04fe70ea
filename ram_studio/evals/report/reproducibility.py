"""What a table needs to be made again: questions, seeds, settings, software; and how answers ended.

One record for a check, a comparison and a sweep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from ram_studio.evals.question import UNSCORED, Answer, Question
from ram_studio.evals.report.eval_report import ModelAnswers
from ram_studio.evals.store import joined
from ram_studio.evals.suites.health import repeated_share

_TEMPLATES = {"own": "the model's own", "none": "none, plain text", "unknown": "not known"}
_COUNTED = ("timed_out", "too_long", "cut_off", "empty", "refused", "failed")


@dataclass(frozen=True)
class Outcomes:
    """How many questions there were, how many were answered, and what befell the others.

    asked: what the score is over; of those, cut_off and empty ones count as they are judged, and
    timed_out ones as wrong: the model or its judge ran out of time. too_long: they do not fit the
    model's context. refused: by the server. failed: no usable reply came, asking again may help.
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
        """Count these answers."""
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
    """How one model answered.

    repetition: share of four-word runs that occurred before in their answer. template: whose chat
    template was used. software: versions by name that gave the answers. settings: it was asked
    with.
    """

    outcomes: Outcomes
    repetition: float
    template: Literal["own", "none", "unknown"]
    software: dict[str, str]
    settings: dict[str, Any]

    @staticmethod
    def of(row: ModelAnswers) -> ModelDetails:
        """Return what a row of answers shows."""
        chat = row.settings.get("chat")
        return ModelDetails(
            Outcomes.of(row.every),
            repeated_share([a.text.lower().split() for a in row.every if a.is_scored]),
            ("own" if chat else "none") if isinstance(chat, bool) else "unknown",
            joined(answer.origin for answer in row.every),
            dict(row.settings),
        )

    def sentence(self, name: str, software: Mapping[str, str]) -> str:
        """Return what is to be known of a model; software: of the whole table."""
        counts = ", ".join(
            f"{number} {key.replace('_', ' ')}"
            for key in _COUNTED
            if (number := getattr(self.outcomes, key))
        )
        how = ", ".join(f"{key} {value}" for key, value in self.settings.items() if key != "chat")
        own = [_versions(self.software)] if self.software not in ({}, software) else []
        parts = [
            counts or "every question answered to its end",
            f"{100 * self.repetition:.0f} % repeated",
            f"template: {_TEMPLATES[self.template]}",
            *own,
            *([how] if how else []),
        ]
        return f"{name}: {'; '.join(parts)}."


@dataclass(frozen=True)
class Questions:
    """How many questions, and 12 hex digits that are equal for equal ones."""

    questions: int
    prompts: str

    @staticmethod
    def of(questions: Iterable[Question]) -> Questions:
        """Count and hash questions, in any order: the store keeps another than a check does."""
        prompts = sorted(question.prompt for question in questions)
        text = "".join(f"{prompt}\0" for prompt in prompts).encode("utf-8", "replace")
        return Questions(len(prompts), hashlib.blake2b(text, digest_size=6).hexdigest())


@dataclass(frozen=True)
class Reproducibility:
    """What a table of scores needs to be made again.

    seed: of the questions: a number, several, or null where it was not recorded. questions,
    prompts: how many, and their hash. software: versions by name that gave the answers, several
    parted by commas. models: by row. held_out: questions that check a sweep's winner.
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
        """Return what rows of answers rest on; seed: None for the seeds that the answers tell."""
        every = [answer for row in models.values() for answer in row.every]
        asked, others = Questions.of(questions), Questions.of(held_out)
        return Reproducibility(
            _seed(every) if seed is None else seed,
            asked.questions,
            asked.prompts,
            joined(answer.origin for answer in every),
            {name: ModelDetails.of(row) for name, row in models.items()},
            others if others.questions else None,
        )

    def lines(self, chance_levels: Mapping[str, float]) -> tuple[str, ...]:
        """Return it as sentences: one on the table, one on each model."""
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
        rows = (row.sentence(name, self.software) for name, row in self.models.items())
        return (f"{'; '.join(parts)}.", *rows)


def _seed(answers: Iterable[Answer]) -> int | list[int] | None:
    """Return the seed that these answers' questions were made with, all where there are several."""
    seeds = {answer.origin["seed"] for answer in answers if answer.origin.get("seed") is not None}
    return next(iter(seeds), None) if len(seeds) < 2 else sorted(seeds)


def _versions(software: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in software.items())
