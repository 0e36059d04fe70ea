"""Which differences between models the items really show, once all the looking is counted.

Pairs of models on the same items are compared by the exact McNemar test (only the items on which
they disagree say anything), all pairs of a report are corrected together by Holm's method, and
every pair says how many items it would take to tell the two apart. Of scipy only `special` is
used: its `stats`, and statsmodels, take longer to import than a check whose answers are stored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist
from typing import Any, Literal

from ram_studio.evals.report.tables import SIGNIFICANCE, EvalReport, PairedCounts, compare

POWER = 0.8
# Above this many disagreements the exact power and the normal approximation agree to about 1 %.
EXACT_UP_TO = 1000

Against = Literal["base", "specialist", "merge"]
Outcome = Literal["better", "worse", "no difference shown"]
Pair = tuple[str, str, str, Against]


@dataclass(frozen=True)
class Comparison:
    """Model `a` against model `b` in one domain.

    against: what `b` is to `a`: the base, the domain's own specialist, or another merge.
    p_adjusted: the McNemar p after Holm's correction over all comparisons of the table.
    items_needed: about how many items would tell the two apart, see `items_needed`; None when the
    items favour neither.
    """

    domain: str
    a: str
    b: str
    against: Against
    counts: PairedCounts
    p_adjusted: float
    items_needed: int | None

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
        if self.items_needed is None:
            need = "neither is ahead"
        else:
            need = f"you would need about {self.items_needed} items to tell these apart"
        return f"{self.a} and {self.b} on {self.domain}: no difference shown ({basis}); {need}."

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready values."""
        own = {name: value for name, value in vars(self).items() if name != "counts"}
        return {**own, **self.counts.to_dict(), "n": self.n, "outcome": self.outcome}


def compare_all(
    report: EvalReport, *, base: str | None = None, specialists: Mapping[str, str] | None = None
) -> tuple[Comparison, ...]:
    """Return every comparison that matters in a report, corrected for their number.

    Each model is compared in each domain with the base, with that domain's specialist, and models
    that are neither base nor specialist (the merges) with one another. The number of comparisons
    made is the length of the result; p-values are adjusted by Holm's method over all of them, so
    the chance that even one "better" or "worse" of the table is false stays below 5 %.

    Args: base: name of the base's row, None to leave it out. specialists: domain -> name of the
        agent trained for it.

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
    return compare_pairs(report, pairs)


def compare_pairs(report: EvalReport, pairs: Sequence[Pair]) -> tuple[Comparison, ...]:
    """Return these comparisons, (domain or "skills", a, b, what b is), corrected for their number.

    Raises: EvaluationError for a name that is not in the report.
    """
    counts = [compare(report, a, b)[domain] for domain, a, b, _ in pairs]
    adjusted = holm([pair.p_value for pair in counts])
    return tuple(
        Comparison(
            domain, a, b, against, count, p, items_needed(count, alpha=SIGNIFICANCE / len(pairs))
        )
        for (domain, a, b, against), count, p in zip(pairs, counts, adjusted, strict=True)
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's step-down method, in the same order."""
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return tuple(adjusted)


def items_needed(
    counts: PairedCounts, *, alpha: float = SIGNIFICANCE, power: float = POWER
) -> int | None:
    """Return about how many items it takes to tell two models apart; None if neither is ahead.

    Assumes that the models go on disagreeing on the same share of items, in the same proportion of
    wins to losses, as on the items seen. Then the exact two-sided McNemar test at level `alpha`
    finds the difference with probability `power`. From few disagreements this is a rough guess.

    Args:
        counts: what was seen; wins and losses set the assumed rates.
        alpha: level of the test; in a table of m comparisons the first Holm step is 0.05 / m.
        power: wanted chance of finding the difference, between 0 and 1.
    """
    disagreements = counts.wins + counts.losses
    if counts.wins == counts.losses:
        return None
    share_of_wins = max(counts.wins, counts.losses) / disagreements
    needed = _disagreements_needed(share_of_wins, alpha, power)
    return math.ceil(needed * counts.n / disagreements)


@lru_cache(maxsize=4096)
def _disagreements_needed(share: float, alpha: float, power: float) -> int:
    """Return how many disagreements a sign test needs when one model wins `share` of them."""
    import numpy as np
    from scipy.special import bdtr, bdtrc, bdtrik

    # Cohen's h, the difference of two shares on the scale where its error is the same everywhere.
    effect = 2 * math.asin(math.sqrt(share)) - math.pi / 2
    normal = NormalDist()
    rough = ((normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) / effect) ** 2
    if rough > EXACT_UP_TO:
        return math.ceil(rough)
    m = np.arange(1, 2 * math.ceil(rough) + 50)
    # Largest count of losses that is still significant, -1 for none.
    losses = np.floor(np.nan_to_num(bdtrik(alpha / 2, m, 0.5), nan=-1.0))
    losses -= (losses >= 0) & (bdtr(np.maximum(losses, 0), m, 0.5) > alpha / 2)
    losses += bdtr(losses + 1, m, 0.5) <= alpha / 2
    few = np.where(losses < 0, 0.0, bdtr(np.maximum(losses, 0), m, 1 - share))
    many = np.where(losses < 0, 0.0, bdtrc(m - losses - 1, m, 1 - share))
    return int(m[np.argmax(few + many >= power)])
