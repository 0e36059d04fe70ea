"""Which differences between models the questions really show, once all tests are counted.

Pairs of models on the same questions are compared by the exact McNemar test (only the questions on
which they disagree say anything), and all pairs of a report are corrected together by Holm's
method. Where questions share documents, all differences of a document change sign together in the
test, and intervals are cluster-robust. Of scipy only `special` is used: its `stats`, and
statsmodels, take longer to import than a check whose answers are stored.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from itertools import chain, combinations
from typing import Literal

from pydantic import Field, computed_field
from pydantic.dataclasses import dataclass

from ram_studio.checkpoints.read.describe import plural
from ram_studio.evals.question import CLUSTER, Answer
from ram_studio.evals.report.score import Z95, effective_size

SIGNIFICANCE = 0.05
"""A difference with a larger p than this may well be chance."""

Against = Literal["base", "specialist", "merge"]
Outcome = Literal["better", "worse", "inconclusive"]
Pair = tuple[str, str, str, Against]


@dataclass(frozen=True)
class PairedCounts:
    """Two models on the same questions: wins: only the first is right, losses: only the second.

    clusters: where questions share documents, by document the first's mark less the second's of
    each question (1, 0 or -1); None where every question has its own. stated_n: the effective
    number of questions where it was read and no clusters are known.
    """

    wins: int
    losses: int
    ties: int
    _: KW_ONLY
    clusters: tuple[tuple[int, ...], ...] | None = Field(default=None, exclude=True, repr=False)
    stated_n: float | None = Field(default=None, exclude=True, repr=False)

    @staticmethod
    def of(
        verdicts: Iterable[tuple[bool, bool]], clusters: Iterable[Hashable] | None = None
    ) -> PairedCounts:
        """Return the counts of these pairs: whether the first is right, whether the second is.

        clusters: what each question shares with others, say a document.
        """
        pairs = list(verdicts)
        wins, losses = pairs.count((True, False)), pairs.count((False, True))
        alike: dict[Hashable, list[int]] = {}
        for cluster, (a, b) in zip(clusters or (), pairs, strict=clusters is not None):
            alike.setdefault(cluster, []).append(int(a) - int(b))
        by_cluster = tuple(map(tuple, alike.values())) if len(alike) < len(pairs) else None
        return PairedCounts(
            wins, losses, len(pairs) - wins - losses, clusters=by_cluster if alike else None
        )

    @staticmethod
    def over(parts: Iterable[PairedCounts]) -> PairedCounts:
        """Return the counts of several domains together, which share no document."""
        parts = tuple(parts)
        clusters = None
        if any(part.clusters for part in parts):
            clusters = tuple(chain.from_iterable(part._differences for part in parts))
        wins, losses, ties = (
            sum(getattr(part, name) for part in parts) for name in ("wins", "losses", "ties")
        )
        return PairedCounts(wins, losses, ties, clusters=clusters)

    @property
    def _differences(self) -> tuple[tuple[int, ...], ...]:
        """The differences by cluster; where there are none, of each question."""
        alone = (((1,),) * self.wins) + (((-1,),) * self.losses) + (((0,),) * self.ties)
        return self.clusters or alone

    @computed_field
    @property
    def n(self) -> int:
        """Questions that both answered."""
        return self.wins + self.losses + self.ties

    @computed_field
    @property
    def effective_n(self) -> float | None:
        """How many questions of their own would give as wide an interval, see `clusters`."""
        return self.stated_n if self.clusters is None else interval_size(self.clusters)

    @computed_field
    @property
    def p_value(self) -> float:
        """Exact two-sided McNemar p: how often chance splits the disagreements this unevenly.

        With clusters how often it does by turning round what a whole cluster shows.
        """
        worse, better = sorted((self.wins, self.losses))
        if self.clusters is None:
            return min(1.0, 2.0 * sign_test(better, worse))
        sums = [sum(own) for own in self.clusters]
        return min(1.0, 2.0 * flip_test(sums if sum(sums) > 0 else [-one for one in sums]))

    def difference(self) -> tuple[float, float, float]:
        """Return how far the first is above, in shares of questions, with its 95 % interval.

        The interval is Wald's of paired shares, with a half added to each of the four patterns
        (Agresti and Min 2005), at `effective_n` questions, cut at -1 and 1.
        """
        n = self.n if self.effective_n is None else self.effective_n
        won, lost = (count * n / self.n + 0.5 for count in (self.wins, self.losses))
        middle = (won - lost) / (n + 2.0)
        half = Z95 * math.sqrt(((won + lost) / (n + 2.0) - middle**2) / (n + 2.0))
        low, high = max(-1.0, middle - half), min(1.0, middle + half)
        return (self.wins - self.losses) / self.n, low, high

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
    chance_level: the score of trivial answers where neither model is above it: then nothing is
    concluded. None elsewhere.
    """

    domain: str
    a: str
    b: str
    against: Against
    counts: PairedCounts
    p_adjusted: float
    chance_level: float | None = None

    @property
    def n(self) -> int:
        """Questions that both answered."""
        return self.counts.n

    @computed_field
    @property
    def outcome(self) -> Outcome:
        """What the questions show about `a`, at 5 % for the whole table together."""
        if self.chance_level is not None:
            return "inconclusive"
        return self.counts.outcome(self.p_adjusted)

    @property
    def cell(self) -> str:
        """The outcome as a table has it, with what it rests on."""
        outcome = self.outcome.replace("inconclusive", "no significant difference")
        p = "< 0.001" if self.p_adjusted < 0.001 else f"{self.p_adjusted:.3f}"
        return f"{outcome} · +{self.counts.wins} −{self.counts.losses}, p {p}"

    def sentence(self) -> str:
        """Say the outcome in one sentence, with what it rests on."""
        counts = self.counts
        basis = (
            f"{counts.wins} gained, {counts.losses} lost, {counts.ties} tied of {self.n}; "
            f"adjusted p {self.p_adjusted:.2g}"
        )
        if self.outcome != "inconclusive":
            return f"{self.a} is {self.outcome} than {self.b} on {self.domain} ({basis})."
        found = "no significant difference"
        if self.chance_level is not None:
            found = f"neither is above the chance level of {100 * self.chance_level:.0f} %"
        return f"{self.a} and {self.b} on {self.domain}: {found} ({basis})."


def answered_by_all(rows: Iterable[Sequence[Answer]]) -> list[tuple[Answer, ...]]:
    """Return the answers to each question that all models answered, a tuple for each question.

    rows: by model, the answers to the same questions.
    """
    return [row for row in zip(*rows, strict=True) if all(answer.is_scored for answer in row)]


def paired_counts(first: Sequence[Answer], second: Sequence[Answer]) -> PairedCounts:
    """Return the counts of two models on the questions that both answered."""
    pairs = answered_by_all([first, second])
    clusters = (a.facts.get(CLUSTER, place) for place, (a, _) in enumerate(pairs))
    return PairedCounts.of(((a.is_correct, b.is_correct) for a, b in pairs), clusters)


def interval_size(clusters: Sequence[Sequence[int]]) -> float:
    """Return how many questions of their own would give as wide a 95 % interval.

    It is `effective_size` by (z / t)^2, t with one degree of freedom less than there are clusters:
    few clusters estimate their own error badly (Korn and Graubard, Survey Methodology 24, 1998). At
    least 1. Where all answers are alike no error was estimated, and `effective_size` is no more
    than the number of clusters.
    """
    found = effective_size(clusters)
    if len({mark for own in clusters for mark in own}) == 1 or len(clusters) < 2:
        return found
    from scipy.special import stdtrit

    return max(1.0, found * (Z95 / float(stdtrit(len(clusters) - 1, 0.975))) ** 2)


def sign_test(wins: int, losses: int) -> float:
    """Return how likely a fair coin gives at least `wins` of `wins + losses`.

    It is `flip_test` of as many ones, at once: a model card may state millions of questions.
    """
    from scipy.special import bdtr

    return float(bdtr(losses, wins + losses, 0.5))


def flip_test(differences: Sequence[int]) -> float:
    """Return how likely the sum of these is as high where each is as likely of the other sign.

    Exact and one-sided; of ones it is the sign test. differences: of clusters, none depends on
    another.
    """
    import numpy as np

    chance, total = np.ones(1), 0  # of each sum from -total to total, in steps of one
    for size in map(abs, filter(None, differences)):
        wider = np.zeros(len(chance) + 2 * size)
        wider[: len(chance)] += chance / 2
        wider[2 * size :] += chance / 2
        chance, total = wider, total + size
    return min(1.0, float(chance[total + sum(differences) :].sum()))


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


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's step-down method, in the same order."""
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return tuple(adjusted)


def holm_note(count: int, noun: str) -> str:
    """Return how a table's verdicts or comparisons were corrected, a sentence; empty for none."""
    if not count:
        return ""
    made = "was made" if count == 1 else "were made and corrected together"
    return f"{plural(count, noun)} {made} (Holm, 5 %)."
