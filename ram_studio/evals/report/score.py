"""Shares of right answers with their uncertainty: of one domain, and the average of several.

The interval is written out: importing scipy takes longer than a check whose answers are stored.

There is one average everywhere: the mean of the skills' scores, every skill counting the same
however many questions it has. Tests of one model against another count questions instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol


class Marked(Protocol):
    """An answer, as far as a score needs it."""

    @property
    def is_correct(self) -> bool:
        """Whether it is right."""

    @property
    def is_scored(self) -> bool:
        """Whether the question was answered at all."""


class Share:
    """What a share of right answers tells, whatever it is over."""

    n: int
    correct: int

    @property
    def score(self) -> float:
        """Fraction of right answers, 0 to 1; NaN for n = 0."""
        raise NotImplementedError

    @property
    def stderr(self) -> float:
        """Standard error of the score. 0 at 0 and 1: trust `ci95` there. NaN for n = 0."""
        raise NotImplementedError

    @property
    def _weight(self) -> float:
        """How many questions of one kind would tell as much."""
        raise NotImplementedError

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % Wilson interval of the score; (0, 1) for n = 0."""
        return self.interval_at(0.95)

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

    def interval(self) -> dict[str, float | None]:
        """Return {"score", "low95", "high95"} for a table's row; None where nothing was asked."""
        if not self.n:
            return {"score": None, "low95": None, "high95": None}
        low, high = self.ci95
        return {"score": self.score, "low95": low, "high95": high}

    def to_dict(self) -> dict[str, Any]:
        """Return {"n", "correct", "score", "stderr", "ci95": [low, high]}."""
        return {
            "n": self.n,
            "correct": self.correct,
            "score": number(self.score),
            "stderr": number(self.stderr),
            "ci95": list(self.ci95),
        }


@dataclass(frozen=True)
class DomainScore(Share):
    """How many of `n` answers are right, and how far chance alone could move that."""

    n: int
    correct: int

    @staticmethod
    def of(answers: Iterable[Marked]) -> DomainScore:
        """Return the score of these answers; questions that were not answered are left out."""
        marks = [answer.is_correct for answer in answers if answer.is_scored]
        return DomainScore(len(marks), sum(marks))

    @property
    def score(self) -> float:
        """Fraction of right answers, 0 to 1; NaN for n = 0."""
        return self.correct / self.n if self.n else math.nan

    @property
    def stderr(self) -> float:
        """Binomial standard error sqrt(p (1 - p) / n)."""
        return math.sqrt(self.score * (1.0 - self.score) / self.n) if self.n else math.nan

    @property
    def _weight(self) -> float:
        return self.n


@dataclass(frozen=True)
class Average(Share):
    """The mean of several domains' scores; domains without an answer are left out.

    n, correct: over all of them. The interval is Wilson's at the number of questions that, asked of
    one domain, would have the mean's standard error; at most k^2 / sum(1 / n_i), which is what it
    comes to when all k scores are equal, and n where all domains are of one size.
    """

    parts: tuple[DomainScore, ...] = ()

    @property
    def n(self) -> int:  # type: ignore[override]
        """Questions answered."""
        return sum(part.n for part in self.parts)

    @property
    def correct(self) -> int:  # type: ignore[override]
        """Right answers."""
        return sum(part.correct for part in self.parts)

    @property
    def _asked(self) -> list[DomainScore]:
        return [part for part in self.parts if part.n]

    @property
    def score(self) -> float:
        """Mean of the domains' scores, 0 to 1; NaN for n = 0."""
        own = self._asked
        return math.fsum(part.score for part in own) / len(own) if own else math.nan

    @property
    def stderr(self) -> float:
        """Standard error sqrt(sum p_i (1 - p_i) / n_i) / k."""
        own = self._asked
        return math.sqrt(sum(part.stderr**2 for part in own)) / len(own) if own else math.nan

    @property
    def _weight(self) -> float:
        own = self._asked
        most = len(own) ** 2 / math.fsum(1.0 / part.n for part in own)
        spread, share = self.stderr**2, self.score
        return min(most, share * (1.0 - share) / spread) if spread else most


def number(value: float) -> float | None:
    """Return a number as JSON has it: NaN is None."""
    return None if math.isnan(value) else value
