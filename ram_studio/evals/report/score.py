"""Shares of right answers with their uncertainty: of one domain, of several, of several samples.

The interval is written out: importing scipy takes longer than a check whose answers are stored.

There is one average everywhere: the mean of the skills' scores, every skill counting the same
however many questions it has. Tests of one model against another count questions instead.

Of several answers to each question, drawn with other seeds, the first is the one that tables, tests
and verdicts are made of: one fair sample. All of them make the mean share of right answers, whose
error is that of questions (answers to one question are alike), and pass@k, the chance that one of k
samples is right, by the unbiased estimate

    1 - C(n - c, k) / C(n, k),    c of n samples right         (Chen et al. 2021)

which with k = n is the best of n.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from pydantic import Field, TypeAdapter, computed_field
from pydantic.dataclasses import dataclass

from ram_studio.evals.question import SAMPLES, Answer, Question


@dataclass(frozen=True)
class DomainScore:
    """How many of `n` answers are right, and how far chance alone could move that."""

    n: int
    correct: int

    @staticmethod
    def of(answers: Iterable[Answer]) -> DomainScore:
        """Return the score of these answers; questions that were not answered are left out."""
        marks = [answer.is_correct for answer in answers if answer.is_scored]
        return DomainScore(len(marks), sum(marks))

    @computed_field
    @property
    def score(self) -> float:
        """Fraction of right answers, 0 to 1; NaN for n = 0."""
        return self.correct / self.n if self.n else math.nan

    @computed_field
    @property
    def stderr(self) -> float:
        """Standard error sqrt(p (1 - p) / n). 0 at 0 and 1: use `ci95` there. NaN for n = 0."""
        return math.sqrt(self.score * (1.0 - self.score) / self.n) if self.n else math.nan

    @computed_field
    @property
    def ci95(self) -> tuple[float, float]:
        """95 % Wilson interval of the score; (0, 1) for n = 0."""
        return self.interval_at(0.95)

    @property
    def _weight(self) -> float:
        """How many questions of one kind would tell as much."""
        return self.n

    def interval_at(self, level: float) -> tuple[float, float]:
        """Return the Wilson interval of the score at a level such as 0.99; (0, 1) for n = 0."""
        if not self.n:
            return 0.0, 1.0
        z = NormalDist().inv_cdf((1.0 + level) / 2)
        share, n, squared = self.score, self._weight, z * z
        middle = share + squared / (2 * n)
        half = z * math.sqrt(share * (1.0 - share) / n + squared / (4 * n * n))
        whole = 1.0 + squared / n
        # Exact at the ends, where the two parts are equal but for rounding.
        low = 0.0 if share == 0.0 else (middle - half) / whole
        high = 1.0 if share == 1.0 else (middle + half) / whole
        return max(0.0, low), min(1.0, high)

    def columns(self) -> dict[str, float | None]:
        """Return {"score", "low95", "high95"} for a table's row; None where nothing was asked."""
        values = (self.score, *self.ci95) if self.n else (None, None, None)
        return dict(zip(("score", "low95", "high95"), values, strict=True))


@dataclass(frozen=True)
class Average(DomainScore):
    """The mean of several domains' scores; n, correct: over all of them.

    The interval is Wilson's at the number of questions that, asked of one domain, would have the
    mean's standard error: n where all domains are of one size and score.
    """

    parts: tuple[DomainScore, ...] = Field(exclude=True)

    @staticmethod
    def over(parts: Iterable[DomainScore]) -> Average:
        """Return the mean of these scores; domains without an answer are left out."""
        asked = tuple(part for part in parts if part.n)
        return Average(sum(part.n for part in asked), sum(part.correct for part in asked), asked)

    @computed_field
    @property
    def score(self) -> float:
        """Mean of the domains' scores, 0 to 1; NaN for n = 0."""
        return math.fsum(p.score for p in self.parts) / len(self.parts) if self.n else math.nan

    @computed_field
    @property
    def stderr(self) -> float:
        """Standard error sqrt(sum p_i (1 - p_i) / n_i) / k; NaN for n = 0."""
        squares = sum(part.stderr**2 for part in self.parts)
        return math.sqrt(squares) / len(self.parts) if self.n else math.nan

    @property
    def _weight(self) -> float:
        # Where all are right or wrong the scores tell no error: as if of four more answers, spread
        # over the domains, two were right.
        added = 2.0 / len(self.parts)
        near = [(part.correct + added) / (part.n + 2 * added) for part in self.parts]
        share = math.fsum(near) / len(near)
        parts = zip(near, self.parts, strict=True)
        squares = math.fsum(p * (1.0 - p) / part.n for p, part in parts)
        return len(near) ** 2 * share * (1.0 - share) / squares


@dataclass(frozen=True)
class SampleScores:
    """What several samples of each question show.

    samples: of a question; questions: those with all of their samples answered, which alone count.
    mean: share of right answers. ci95: its normal interval over questions as if there were two
    more, one always right and one always wrong (after Agresti and Coull), so that it has a width
    where all are right; cut at 0 and 1. pass_at: by k, "1", "2", "4", ... and samples.
    """

    samples: int
    questions: int
    mean: float
    ci95: tuple[float, float]
    pass_at: dict[str, float]


def with_samples(
    samples: Sequence[Sequence[tuple[Question, Answer]]],
) -> list[tuple[Question, Answer]]:
    """Return the first sample's answers, each with what became of all samples of its question.

    samples: the same questions in the same order.
    """
    if len(samples) == 1:
        return list(samples[0])
    result = []
    for row in zip(*samples, strict=True):
        question, first = row[0]
        marks = [answer.is_correct for _, answer in row if answer.is_scored]
        result.append((question, replace(first, facts={**first.facts, SAMPLES: marks})))
    return result


def sample_scores(answers: Iterable[Answer]) -> SampleScores | None:
    """Return what several samples of these questions show; None where there is one of each."""
    rows = [answer.facts[SAMPLES] for answer in answers if answer.facts.get(SAMPLES)]
    if not rows:
        return None
    n = max(map(len, rows))
    right = [sum(row) for row in rows if len(row) == n]
    shares = [c / n for c in right]
    padded = [0.0, 1.0, *shares]
    middle = math.fsum(padded) / len(padded)
    squares = math.fsum((share - middle) ** 2 for share in padded)
    half = 1.96 * math.sqrt(squares) / len(padded)
    sizes = sorted({*(2**i for i in range(n.bit_length()) if 2**i <= n), n})
    return SampleScores(
        n,
        len(shares),
        math.fsum(shares) / len(shares),
        (max(0.0, middle - half), min(1.0, middle + half)),
        {
            str(k): math.fsum(1.0 - math.comb(n - c, k) / math.comb(n, k) for c in right)
            / len(right)
            for k in sizes
        },
    )


def sample_rows(models: Iterable[dict[str, SampleScores]]) -> list[tuple[str, list[str]]]:
    """Return what several samples show, (what, a text for each model); empty without samples.

    "math: mean of 4", "math: pass@2", ...; "-" where a model has none. models: by domain.
    """
    sampled = list(models)
    rows: list[tuple[str, list[str]]] = []
    for domain, first in {d: found for own in sampled for d, found in own.items()}.items():
        own = [found.get(domain) for found in sampled]
        texts = [
            "-" if f is None else f"{f.mean:.3f} [{f.ci95[0]:.2f}, {f.ci95[1]:.2f}]" for f in own
        ]
        rows.append((f"{domain}: mean of {first.samples}", texts))
        rows += [
            (f"{domain}: pass@{k}", ["-" if f is None else f"{f.pass_at[k]:.3f}" for f in own])
            for k in first.pass_at
            if k != "1"
        ]
    return rows


def as_json(result: Any) -> Any:
    """Return a result as JSON has it: its fields and figures, null for one that does not exist."""
    return json.loads(TypeAdapter(type(result)).dump_json(result))
