"""Which differences between models the questions really show, once all tests are counted.

Pairs of models on the same questions are compared by the exact McNemar test (only the questions on
which they disagree say anything), and all pairs of a report are corrected together by Holm's
method. Of scipy only `special` is used: its `stats`, and statsmodels, take longer to import than a
check whose answers are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

from pydantic import computed_field
from pydantic.dataclasses import dataclass

from ram_studio.evals.question import Answer

SIGNIFICANCE = 0.05
"""A difference with a larger p than this may well be chance."""

Against = Literal["base", "specialist", "merge"]
Outcome = Literal["better", "worse", "inconclusive"]
Pair = tuple[str, str, str, Against]


@dataclass(frozen=True)
class PairedCounts:
    """Two models on the same questions: wins: only the first is right, losses: only the second."""

    wins: int
    losses: int
    ties: int

    @staticmethod
    def of(verdicts: Iterable[tuple[bool, bool]]) -> PairedCounts:
        """Return the counts of these pairs: whether the first is right, whether the second is."""
        pairs = list(verdicts)
        wins, losses = pairs.count((True, False)), pairs.count((False, True))
        return PairedCounts(wins, losses, len(pairs) - wins - losses)

    @computed_field
    @property
    def n(self) -> int:
        """Questions that both answered."""
        return self.wins + self.losses + self.ties

    @computed_field
    @property
    def p_value(self) -> float:
        """Exact two-sided McNemar p: how often chance splits the disagreements this unevenly."""
        from scipy.special import bdtr

        disagreements = self.wins + self.losses
        return min(1.0, 2.0 * float(bdtr(min(self.wins, self.losses), disagreements, 0.5)))

    def outcome(self, p: float) -> Outcome:
        """Return what they show about the first, by a p-value of theirs."""
        if p >= SIGNIFICANCE:
            return "inconclusive"
        return "better" if self.wins > self.losses else "worse"


@dataclass(frozen=True)
class Comparison:
    """Model `a` against model `b` in one domain, or over all of them ("skills").

    against: what `b` is to `a`: the base, the domain's own specialist, or another merge.
    p_adjusted: the McNemar p after Holm's correction over all comparisons of the table.
    """

    domain: str
    a: str
    b: str
    against: Against
    counts: PairedCounts
    p_adjusted: float

    @property
    def n(self) -> int:
        """Questions that both answered."""
        return self.counts.n

    @computed_field
    @property
    def outcome(self) -> Outcome:
        """What the questions show about `a`, at 5 % for the whole table together."""
        return self.counts.outcome(self.p_adjusted)

    def sentence(self) -> str:
        """Say the outcome in one sentence, with what it rests on."""
        counts = self.counts
        basis = (
            f"{counts.wins} wins, {counts.losses} losses, {counts.ties} ties of {self.n}; "
            f"adjusted p {self.p_adjusted:.2g}"
        )
        if self.outcome != "inconclusive":
            return f"{self.a} is {self.outcome} than {self.b} on {self.domain} ({basis})."
        return f"{self.a} and {self.b} on {self.domain}: no significant difference ({basis})."


def answered_by_all(rows: Iterable[Sequence[Answer]]) -> list[tuple[Answer, ...]]:
    """Return the answers to each question that all models answered, a tuple for each question.

    rows: by model, the answers to the same questions.
    """
    return [row for row in zip(*rows, strict=True) if all(answer.is_scored for answer in row)]


def paired_counts(first: Sequence[Answer], second: Sequence[Answer]) -> PairedCounts:
    """Return the counts of two models on the questions that both answered."""
    pairs = answered_by_all([first, second])
    return PairedCounts.of((a.is_correct, b.is_correct) for a, b in pairs)


def pairs_of(
    domains: Iterable[str],
    models: Sequence[str],
    base: str | None,
    specialists: Mapping[str, str],
) -> list[Pair]:
    """Return every comparison that matters: (domain, a, b, what b is to a).

    In each domain every model with the base and with that domain's specialist; models that are
    neither base nor specialist (the merges) with one another.
    """
    merges = [name for name in models if name not in {base, *specialists.values()}]
    pairs: list[Pair] = []
    for domain in domains:
        expert = specialists.get(domain)
        if base is not None:
            pairs += [(domain, name, base, "base") for name in models if name != base]
        if expert is not None:
            others = [name for name in models if name not in (expert, base)]
            pairs += [(domain, name, expert, "specialist") for name in others]
        pairs += [(domain, first, second, "merge") for first, second in combinations(merges, 2)]
    return pairs


def corrected(pairs: Sequence[Pair], counts: Sequence[PairedCounts]) -> tuple[Comparison, ...]:
    """Return comparisons with their p-values corrected for the number of them (Holm)."""
    adjusted = holm([count.p_value for count in counts])
    rows = zip(pairs, counts, adjusted, strict=True)
    return tuple(Comparison(*pair, count, p) for pair, count, p in rows)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's step-down method, in the same order."""
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return tuple(adjusted)
