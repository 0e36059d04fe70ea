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
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from itertools import chain
from statistics import NormalDist
from typing import Any

from pydantic import Field, TypeAdapter, computed_field
from pydantic.dataclasses import dataclass

from ram_studio.evals.question import CLUSTER, PARAPHRASES, SAMPLES, Answer, Question

Z95 = 1.959964
"""The normal quantile of a 95 % interval."""


@dataclass(frozen=True)
class DomainScore:
    """How many of `n` answers are right, and how far chance alone could move that.

    effective_n: how many questions of their own would give as wide an interval, where some share a
    document or have several answers; None where none do.
    """

    n: int
    correct: int
    _: KW_ONLY
    effective_n: float | None = None

    @staticmethod
    def of(answers: Iterable[Answer]) -> DomainScore:
        """Return the score of these answers; questions that were not answered are left out."""
        scored = (answer for answer in answers if answer.is_scored)
        marks = ((a.facts.get(CLUSTER, n), [a.is_correct]) for n, a in enumerate(scored))
        return DomainScore.of_clusters(marks)

    @staticmethod
    def over_draws(questions: Iterable[Sequence[Answer]]) -> DomainScore:
        """Return the mean score of several draws, all samples counted; answers to one question are
        alike, as questions about one document are.

        Args: questions: of each question an answer of every draw.
        """
        return DomainScore.of_clusters(
            (answer.facts.get(CLUSTER, place), marks_of(answer))
            for place, drawn in enumerate(questions)
            for answer in drawn
        )

    @staticmethod
    def of_clusters(marks: Iterable[tuple[Hashable, Sequence[bool]]]) -> DomainScore:
        """Return the score of answers, right or wrong, with what those that are alike share.

        The error is the jackknife's with two clusters of average size added, one all right and one
        all wrong: few clusters, or clusters that are all right, would underestimate it. It is
        scaled by (G - 1) / G, so that G clusters of one question each count as G questions.
        """
        clusters: dict[Hashable, list[bool]] = {}
        for cluster, own in marks:
            clusters.setdefault(cluster, []).extend(own)
        alike = [own for own in clusters.values() if own]
        n, right, effective = sum(map(len, alike)), sum(map(sum, alike)), None
        if max(map(len, alike), default=0) > 1:
            added, groups = n / len(alike), len(alike) + 2
            mean, variance = _jackknife([*_sums(alike), (added, added), (added, 0.0)])
            size = mean * (1.0 - mean) / (variance * (groups - 1) / groups)
            effective = max(1.0, min(float(n), size * len(alike) / groups))
        return DomainScore(n, right, effective_n=effective)

    @computed_field
    @property
    def score(self) -> float:
        """Fraction of right answers, 0 to 1; NaN for n = 0."""
        return self.correct / self.n if self.n else math.nan

    @computed_field
    @property
    def stderr(self) -> float:
        """Standard error sqrt(p (1 - p) / n). 0 at 0 and 1: use `ci95` there. NaN for n = 0.

        Where answers are alike it is that of `effective_n`.
        """
        return math.sqrt(self.score * (1.0 - self.score) / self._weight) if self.n else math.nan

    @computed_field
    @property
    def ci95(self) -> tuple[float, float]:
        """95 % interval of the score, see `interval_at`; (0, 1) for n = 0."""
        return self.interval_at(0.95)

    @property
    def _weight(self) -> float:
        """How many questions of one kind would tell as much."""
        return self.n if self.effective_n is None else self.effective_n

    def interval_at(self, level: float) -> tuple[float, float]:
        """Return the interval of the score at a level such as 0.99; (0, 1) for n = 0.

        It is Wilson's. With `effective_n`, which is an estimate, it is Agresti and Coull's, which
        is wider, unless the score is 0 or 1.
        """
        if not self.n:
            return 0.0, 1.0
        z = NormalDist().inv_cdf((1.0 + level) / 2)
        share, n, squared = self.score, self._weight, z * z
        middle = (share * n + squared / 2) / (n + squared)
        half = z * math.sqrt(n * share * (1.0 - share) + squared / 4) / (n + squared)
        if self.effective_n is not None and 0.0 < share < 1.0:
            half = z * math.sqrt(middle * (1.0 - middle) / (n + squared))
        # Exact at the ends, where the two parts are equal but for rounding.
        low = 0.0 if share == 0.0 else middle - half
        high = 1.0 if share == 1.0 else middle + half
        return max(0.0, low), min(1.0, high)

    def columns(self) -> dict[str, float | None]:
        """Return {"score", "low95", "high95"} for a table's row; None where nothing was asked."""
        values = (self.score, *self.ci95) if self.n else (None, None, None)
        return dict(zip(("score", "low95", "high95"), values, strict=True))


def effective_size(clusters: Sequence[Sequence[int]]) -> float:
    """Return how many questions of their own would have the mean's standard error.

    The error is that of the jackknife, which leaves out one of G clusters at a time: its square is
    (G - 1) / G * sum of (a cluster's summed residuals / the number of questions elsewhere)^2. Of
    clusters of one size it is the usual cluster-robust error; a large one beside small ones does
    not look more certain than it is. At most n, which clusters of answers that differ would exceed;
    at least 1. Where all answers are alike they tell nothing of that, and each cluster counts as
    one question.

    Args: clusters: of questions that share a document, whether the answer is right, or one
        model's mark less another's.
    """
    n, groups = sum(map(len, clusters)), len(clusters)
    if groups < 2:
        return float(groups)
    mean, variance = _jackknife(_sums(clusters))
    spread = sum(mark * mark for own in clusters for mark in own) / n - mean * mean
    if not variance:
        # Clusters that are each half right at a mean of one half hide no error either.
        return float(n if spread else groups)
    return max(1.0, min(float(n), spread / variance))


def _sums(clusters: Iterable[Sequence[int]]) -> list[tuple[float, float]]:
    return [(len(own), sum(own)) for own in clusters]


def _jackknife(clusters: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean and its squared error, of clusters (how many marks, their sum)."""
    groups, n = len(clusters), math.fsum(size for size, _ in clusters)
    mean = math.fsum(total for _, total in clusters) / n
    shifts = ((total - size * mean) / (n - size) for size, total in clusters)
    return mean, (groups - 1) / groups * math.fsum(shift * shift for shift in shifts)


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

    @staticmethod
    def over_skills(domains: Mapping[str, DomainScore], skills: Collection[str]) -> Average:
        """Return the mean over the domains that are skills; what stands apart is no part of it."""
        return Average.over(score for domain, score in domains.items() if domain in skills)

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
        parts = [(part.score, part._weight) for part in self.parts]
        near = [(score * n + added) / (n + 2 * added) for score, n in parts]
        share = math.fsum(near) / len(near)
        squares = math.fsum(p * (1.0 - p) / n for p, (_, n) in zip(near, parts, strict=True))
        return len(near) ** 2 * share * (1.0 - share) / squares


@dataclass(frozen=True)
class SampleScores:
    """What several samples of each question show.

    samples: of a question; questions: those with all of their samples answered, which alone count.
    mean: share of right answers. ci95: its interval, see `DomainScore`; answers to one question are
    alike. pass_at: by k, "1", "2", "4", ... and samples.
    """

    samples: int
    questions: int
    mean: float
    ci95: tuple[float, float]
    pass_at: dict[str, float]


def with_marks(
    answered: Sequence[tuple[Question, Answer]],
    what: str,
    rounds: Sequence[Sequence[tuple[Question, Answer]]],
) -> list[tuple[Question, Answer]]:
    """Return answers, each with whether its question was answered right in each of several rounds.

    Args: what: SAMPLES or PARAPHRASES, the fact that tells it. rounds: of samples or wordings, the
        same questions in the same order; one of them alone tells nothing more.
    """
    if len(rounds) == 1:
        return list(answered)
    result = []
    for (question, answer), *row in zip(answered, *rounds, strict=True):
        marks = [one.is_correct for _, one in row if one.is_scored]
        result.append((question, replace(answer, facts={**answer.facts, what: marks})))
    return result


def marks_of(answer: Answer) -> Sequence[bool]:
    """Return whether each sample of an answer is right; of a question with one, that one."""
    marks: Sequence[bool] | None = answer.facts.get(SAMPLES)
    return ([answer.is_correct] if answer.is_scored else []) if marks is None else marks


def sample_scores(answers: Iterable[Answer]) -> SampleScores | None:
    """Return what several samples of these questions show; None where there is one of each."""
    rows = _whole(answers, SAMPLES)
    if not rows:
        return None
    n, right = len(rows[0][0]), [sum(marks) for marks, _ in rows]
    sizes = sorted({*(2**i for i in range(n.bit_length()) if 2**i <= n), n})
    return SampleScores(
        n,
        len(rows),
        math.fsum(c / n for c in right) / len(rows),
        _interval(rows),
        {
            str(k): math.fsum(1.0 - math.comb(n - c, k) / math.comb(n, k) for c in right)
            / len(right)
            for k in sizes
        },
    )


def _whole(answers: Iterable[Answer], what: str) -> list[tuple[Sequence[bool], Hashable]]:
    """Return what is right of each question that has all of its samples, and its cluster.

    Where no question has all, of those with most, two at least.

    Args: what: SAMPLES, or PARAPHRASES for wordings.
    """
    found = ((a.facts.get(what), a.facts.get(CLUSTER, place)) for place, a in enumerate(answers))
    rows = [(marks, cluster) for marks, cluster in found if marks]
    most = max((len(marks) for marks, _ in rows), default=0)
    return [row for row in rows if len(row[0]) == most > 1]


def _interval(rows: Iterable[tuple[Sequence[bool], Hashable]]) -> tuple[float, float]:
    """Return the interval of the mean share of right answers; those to one question are alike."""
    return DomainScore.of_clusters((cluster, marks) for marks, cluster in rows).ci95


@dataclass(frozen=True)
class ParaphraseScores:
    """What several wordings of each question show.

    questions: those answered in all wordings, which alone count. scores: by wording; mean, and its
    interval over questions as in `SampleScores`; spread: between the best and the worst wording.
    """

    questions: int
    scores: tuple[float, ...]
    mean: float
    ci95: tuple[float, float]
    spread: float


def paraphrase_scores(answers: Iterable[Answer]) -> ParaphraseScores | None:
    """Return what several wordings of these questions show; None where there is one of each."""
    rows = _whole(answers, PARAPHRASES)
    if not rows:
        return None
    columns = zip(*(marks for marks, _ in rows), strict=True)
    scores = tuple(sum(column) / len(rows) for column in columns)
    mean, spread = math.fsum(scores) / len(scores), max(scores) - min(scores)
    return ParaphraseScores(len(rows), scores, mean, _interval(rows), spread)


def sample_rows(
    models: Iterable[tuple[Mapping[str, SampleScores], Mapping[str, ParaphraseScores]]],
) -> list[tuple[str, list[str]]]:
    """Return what several samples and wordings show, (what, a text for each model).

    "math: mean of 4", "math: pass@2", ..., "math: mean of 3 wordings"; "-" where a model has none,
    or fewer than another, as no question got all of its answers.

    Args: models: samples and wordings of each, by domain.
    """
    rows: list[tuple[str, list[str]]] = []
    shown = list(models)
    sampled, worded = [own for own, _ in shown], [own for _, own in shown]

    def add(what: str, texts: Iterable[str | None]) -> None:
        rows.append((what, [text or "-" for text in texts]))

    def mean(found: SampleScores | ParaphraseScores) -> str:
        low, high = found.ci95
        return f"{found.mean:.3f} [{low:.2f}, {high:.2f}]"

    for domain in dict.fromkeys(chain(*sampled)):
        every = [own.get(domain) for own in sampled]
        most = max(one.samples for one in every if one)
        full = [one if one and one.samples == most else None for one in every]
        add(f"{domain}: mean of {most}", (mean(one) if one else None for one in full))
        for k in next(filter(None, full)).pass_at:
            if k != "1":
                shares = (f"{one.pass_at[k]:.3f}" if one else None for one in full)
                add(f"{domain}: pass@{k}", shares)
    for domain in dict.fromkeys(chain(*worded)):
        found = [own.get(domain) for own in worded]
        most = max(len(one.scores) for one in found if one)
        texts = (
            f"{mean(one)}, spread {one.spread:.3f}" if one and len(one.scores) == most else None
            for one in found
        )
        add(f"{domain}: mean of {most} wordings", texts)
    return rows


def as_json(result: Any) -> Any:
    """Return a result as JSON has it: its fields and figures, null for one that does not exist."""
    return json.loads(TypeAdapter(type(result)).dump_json(result))
