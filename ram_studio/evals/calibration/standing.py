"""Where a model stands among calibrated ones: above which it is shown to be, and below which.

Compared are the same questions only, model by model, by the exact McNemar test; all comparisons of
a report are corrected together (Holm). What nonsense gets (the floor) and the report's own base
count as calibrated: they answered the same questions. Nothing is interpolated: a model stands
between two others, beside one, or on no side of any.

Whether our suites rank models as published benchmarks do is Kendall's tau over calibrated models.
With fewer than five measured on both not even perfect agreement would be beyond chance (p = 2 / 4!
= .083), so nothing is claimed then but how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from ram_studio.evals.calibration.record import DIGITS, calibrated, shipped_records
from ram_studio.evals.question import Answer
from ram_studio.evals.report.floor import FACT, best_nonsense
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.report.statistics import holm
from ram_studio.evals.report.tables import SIGNIFICANCE, EvalReport, PairedCounts

FLOOR = "nonsense"
LEAST = 5
"""Of fewer common questions nothing is said: not even winning them all would show anything."""

LEAST_MODELS = 5
PAIRS = (("tool", "bfcl-nonlive"), ("tool", "bfcl-live"), ("code", "humaneval"))
"""Domains of ours, and those of the benchmarks that ask for the same skill."""

Side = Literal["above", "below", "not told apart from"]


@dataclass(frozen=True)
class Beside:
    """A model beside a calibrated one, on the questions that both answered.

    name: of the calibrated one; its score and mine: each with its 95 % interval. p_adjusted: of the
    McNemar test, for all comparisons of the report.
    """

    name: str
    score: DomainScore
    mine: DomainScore
    counts: PairedCounts
    p_adjusted: float = 1.0

    @property
    def side(self) -> Side:
        """On which side of it the model is shown to be."""
        if self.p_adjusted >= SIGNIFICANCE:
            return "not told apart from"
        return "above" if self.counts.wins > self.counts.losses else "below"

    def text(self) -> str:
        """Return "SmolLM2-135M-Instruct (4 %, 1 to 14 %, n = 48)"."""
        low, high = self.score.ci95
        ends = f"{100 * low:.0f} to {100 * high:.0f} %"
        return f"{self.name} ({100 * self.score.score:.0f} %, {ends}, n = {self.counts.n})"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "name": self.name,
            "side": self.side,
            "n": self.counts.n,
            "score": self.score.to_dict(),
            "mine": self.mine.to_dict(),
            **self.counts.to_dict(),
            "p_adjusted": self.p_adjusted,
        }


@dataclass(frozen=True)
class Standing:
    """Where a model stands in a domain. beside: every calibrated one with common questions."""

    model: str
    domain: str
    beside: tuple[Beside, ...]

    def _on(self, side: Side) -> list[Beside]:
        found = [one for one in self.beside if one.side == side]
        return sorted(found, key=lambda one: one.score.score)

    def sentence(self) -> str:
        """Say it: between two, above or below one, or not told apart."""
        below, above = self._on("above"), self._on("below")
        equal = self._on("not told apart from")
        parts = []
        if below and above:
            parts.append(f"between {below[-1].text()} and {above[0].text()}")
        elif below:
            parts.append(f"above {below[-1].text()}")
        elif above:
            parts.append(f"below {above[0].text()}")
        if equal:
            parts.append(f"not told apart from {' or '.join(one.text() for one in equal)}")
        return f"{self.model} on {self.domain}: {'; '.join(parts)}."

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        beside = [one.to_dict() for one in self.beside]
        return {**vars(self), "beside": beside, "sentence": self.sentence()}


def standings(
    report: EvalReport,
    *,
    base: str | None = None,
    records: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Standing, ...]:
    """Return where every model stands in every domain that has a calibrated model.

    base: the report's base, which counts as calibrated for the others; None for none. records: the
    shipped ones where left out.
    """
    known = shipped_records() if records is None else records
    found: list[tuple[str, str, list[Beside]]] = []
    for domain, items in report.items.items():
        own = calibrated(known, domain)
        if not own:
            continue
        digests = [item.digest[:DIGITS] for item in items]
        others = {**own, **_of_report(report, domain, digests, base)}
        for name, row in report.models.items():
            marks = _marks(digests, row.answers[domain])
            rivals = {other: theirs for other, theirs in others.items() if other != name}
            beside = [_beside(other, theirs, marks) for other, theirs in rivals.items()]
            beside = [one for one in beside if one.counts.n >= LEAST]
            if any(one.name in own for one in beside):
                found.append((name, domain, beside))
    every = [one for *_, beside in found for one in beside]
    adjusted = iter(holm([one.counts.p_value for one in every]))
    return tuple(
        Standing(name, domain, tuple(replace(one, p_adjusted=next(adjusted)) for one in beside))
        for name, domain, beside in found
    )


def _of_report(
    report: EvalReport, domain: str, digests: Sequence[str], base: str | None
) -> dict[str, dict[str, bool]]:
    """Return the marks of the report's own base, and of the best answerer of nonsense."""
    facts, found = report.facts(domain), {}
    if best := best_nonsense(facts):
        found[FLOOR] = {d: best[0] in fact[FACT] for d, fact in zip(digests, facts, strict=True)}
    if base is not None and base in report.models:
        found[base] = _marks(digests, report.models[base].answers[domain])
    return found


def _marks(digests: Sequence[str], answers: Sequence[Answer]) -> dict[str, bool]:
    """Return which of the questions with these digests were answered right."""
    pairs = zip(digests, answers, strict=True)
    return {digest: answer.is_correct for digest, answer in pairs if answer.is_scored}


def _beside(name: str, theirs: Mapping[str, bool], mine: Mapping[str, bool]) -> Beside:
    pairs = [(mine[digest], theirs[digest]) for digest in mine if digest in theirs]
    my_score, score = (DomainScore(len(pairs), sum(pair[i] for pair in pairs)) for i in (0, 1))
    return Beside(name, score, my_score, PairedCounts.of(pairs))


def rank_agreement(
    records: Sequence[Mapping[str, Any]], ours: str, published: str
) -> dict[str, Any]:
    """Return {"ours", "published", "models", "tau", "p", "sentence"}; tau and p None for too few.

    Args: ours, published: domains; a record counts when it has answers in both.
    """
    scores = [
        {model: fmean(marks.values()) for model, marks in calibrated(records, domain).items()}
        for domain in (ours, published)
    ]
    models = [name for name in scores[0] if name in scores[1]]
    found: dict[str, Any] = {"ours": ours, "published": published, "models": models}
    said = f"Whether {ours} ranks models as {published} does"
    if len(models) < LEAST_MODELS:
        few = f"{len(models)} measured on both, at least {LEAST_MODELS} are needed"
        return {**found, "tau": None, "p": None, "sentence": f"{said} is not known: {few}."}
    from scipy.stats import kendalltau

    tau, p = map(float, kendalltau(*([own[name] for name in models] for own in scores)))
    said += f": Kendall's tau {tau:.2f} over {len(models)} models (p {p:.2g})."
    return {**found, "tau": tau, "p": p, "sentence": said}
