"""Which differences between models the items really show, once all the looking is counted.

Pairs of models on the same items are compared by the exact McNemar test (only the items on which
they disagree say anything), and all pairs of a report are corrected together by Holm's method. Of
scipy only `special` is used: its `stats`, and statsmodels, take longer to import than a check whose
answers are stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from ram_studio.evals.report.tables import SIGNIFICANCE, EvalReport, PairedCounts, compare

Against = Literal["base", "specialist", "merge"]
Outcome = Literal["better", "worse", "no difference shown"]
Pair = tuple[str, str, str, Against]


@dataclass(frozen=True)
class Comparison:
    """Model `a` against model `b` in one domain.

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
        """Items both answered."""
        return self.counts.n

    @property
    def is_within_noise(self) -> bool:
        """Whether it could well be chance, given how many comparisons the table has."""
        return self.p_adjusted >= SIGNIFICANCE

    @property
    def outcome(self) -> Outcome:
        """What the items show about `a`, at 5 % for the whole table together."""
        if self.is_within_noise:
            return "no difference shown"
        return "better" if self.counts.wins > self.counts.losses else "worse"

    def sentence(self) -> str:
        """Say the outcome in one sentence, with what it rests on."""
        counts = self.counts
        basis = (
            f"{counts.wins} wins, {counts.losses} losses, {counts.ties} ties of {self.n}; "
            f"adjusted p {self.p_adjusted:.2g}"
        )
        if self.outcome != "no difference shown":
            return f"{self.a} is {self.outcome} than {self.b} on {self.domain} ({basis})."
        return f"{self.a} and {self.b} on {self.domain}: no difference shown ({basis})."

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready values."""
        own = {name: value for name, value in vars(self).items() if name != "counts"}
        return {**own, **self.counts.to_dict(), "n": self.n, "outcome": self.outcome}


def compare_all(
    report: EvalReport,
    *,
    base: str | None = None,
    specialists: Mapping[str, str] | None = None,
    judged: EvalReport | None = None,
) -> tuple[Comparison, ...]:
    """Return every comparison that matters in a report, corrected for their number.

    Each model is compared in each domain with the base, with that domain's specialist, and models
    that are neither base nor specialist (the merges) with one another. The number of comparisons
    made is the length of the result; p-values are adjusted by Holm's method over all of them, so
    the chance that even one "better" or "worse" of the table is false stays below 5 %.

    Args: base: name of the base's row, None to leave it out. specialists: domain -> name of the
        agent trained for it. judged: the report without the questions that a specialist was
        chosen by: those compare nobody with it.

    Raises: EvaluationError: a name that is not in the report, or a domain that is not.
    """
    specialists = dict(specialists or {})
    report.check_names((), specialists)
    merges = report.merges(base, specialists)
    pairs: list[Pair] = []
    for domain in report.items:
        expert = specialists.get(domain)
        if base is not None:
            pairs += [(domain, name, base, "base") for name in report.models if name != base]
        if expert is not None:
            others = [name for name in report.models if name not in (expert, base)]
            pairs += [(domain, name, expert, "specialist") for name in others]
        pairs += [(domain, first, second, "merge") for first, second in combinations(merges, 2)]
    return compare_pairs(report, pairs, judged)


def compare_pairs(
    report: EvalReport, pairs: Sequence[Pair], judged: EvalReport | None = None
) -> tuple[Comparison, ...]:
    """Return these comparisons, (domain or "skills", a, b, what b is), corrected for their number.

    judged: see `compare_all`.

    Raises: EvaluationError for a name that is not in the report.
    """
    counts = [
        compare(judged if judged and against == "specialist" else report, a, b)[domain]
        for domain, a, b, against in pairs
    ]
    adjusted = holm([pair.p_value for pair in counts])
    return tuple(
        Comparison(*pair, count, p) for pair, count, p in zip(pairs, counts, adjusted, strict=True)
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's step-down method, in the same order."""
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return tuple(adjusted)
