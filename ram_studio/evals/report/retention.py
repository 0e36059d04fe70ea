"""Did a merge keep what an agent had learnt? One verdict per merge and skill, on paired items.

Kept is the share of the specialist's gain over the base that the merge has,

    kept = (merge - base) / (specialist - base),

with a 95 % interval by the paired bootstrap: items are drawn with replacement, each with all three
verdicts, so that what the models have in common on an item stays in common.

The verdict is a test of non-inferiority against the specialist: with a margin of 5 points a merge
*survived* when its score is shown to be less than 5 points below the specialist's, it is *damaged*
when it is shown to be more than 5 points below, and else the items *cannot tell*. Both are score
tests for paired proportions at 2.5 %, one-sided (Tango, Statistics in Medicine 17, 1998). Where the
specialist itself is not shown to be better than the base, or not above the floor (see `floor`),
there is nothing that could be kept, and the items cannot tell either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from ram_studio.errors import EvaluationError
from ram_studio.evals.report.tables import EvalReport

if TYPE_CHECKING:
    import numpy as np

MARGIN = 0.05
LEVEL = 0.025
DRAWS = 10_000
_SEED = 2026
_MOST_ITEMS = 1_000_000

Survival = Literal["survived", "damaged", "cannot tell"]


@dataclass(frozen=True)
class Retention:
    """What a merge kept of one specialist's skill.

    domain: the skill; n: items that all three answered. base_score, specialist_score, merge_score:
    shares of right answers on them. kept: share of the specialist's gain, None where it has none;
    low95, high95: its interval, None where an end is out of sight. margin: in shares of items.
    outcome: see the module; why: what the items cannot tell; items_needed: about how many could,
    None where no number helps.
    """

    domain: str
    merge: str
    specialist: str
    base: str
    n: int
    base_score: float = 0.0
    specialist_score: float = 0.0
    merge_score: float = 0.0
    kept: float | None = None
    low95: float | None = None
    high95: float | None = None
    margin: float = MARGIN
    outcome: Survival = "cannot tell"
    why: str = "no item was answered by all three"
    items_needed: int | None = None

    @property
    def because(self) -> str:
        """Return `why` as it goes on after "cannot tell"."""
        return f"{' ' if self.why.startswith('whether') else ', '}{self.why}"

    def sentence(self) -> str:
        """Say the verdict in one line."""
        said = f"{self.merge} on {self.domain}: {self.outcome}"
        if self.outcome == "cannot tell":
            said += self.because
            if self.items_needed is not None:
                said += f" (needs about {self.items_needed:,} items)"
        return f"{said}; {self.kept_text()}."

    def kept_text(self) -> str:
        """Return "keeps 93 % of what coder gained (85 to 99 %, n = 200)"."""
        if self.kept is None:
            return f"{self.specialist} gained nothing here that could be kept (n = {self.n})"
        ends = "no bounds"
        if self.low95 is not None and self.high95 is not None:
            ends = f"{100 * self.low95:.0f} to {100 * self.high95:.0f} %"
        said = f"keeps {100 * self.kept:.0f} % of what {self.specialist} gained"
        return f"{said} ({ends}, n = {self.n})"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready values."""
        return vars(self).copy()


def check_margin(margin: float) -> None:
    """Raise EvaluationError for a margin that is not between 0 and 1."""
    if not 0 < margin < 1:
        raise EvaluationError(
            f"The margin is {100 * margin:g} points. Choose more than 0 and less than 100."
        )


def retention(
    report: EvalReport,
    merges: Sequence[str],
    specialists: Mapping[str, str],
    base: str,
    *,
    margin: float = MARGIN,
) -> tuple[Retention, ...]:
    """Return the verdict on every merge in every domain that has a specialist.

    Args:
        merges: names in the report. specialists: domain -> name of the agent trained for it.
        margin: share of items (0.05: five points) that a merge may be below its specialist.

    Raises:
        EvaluationError: a name or domain that is not in the report, a margin not between 0 and 1.
    """
    check_margin(margin)
    report.check_names((*merges, *specialists.values(), base), specialists)
    found = []
    for domain, specialist in specialists.items():
        for merge in merges:
            answers = [report.models[name].answers[domain] for name in (base, specialist, merge)]
            rows = [
                tuple(answer.is_correct for answer in row)
                for row in zip(*answers, strict=True)
                if all(answer.is_scored for answer in row)
            ]
            verdict = _verdict(rows, (domain, merge, specialist, base), margin)
            if rows and report.is_at_floor(domain, verdict.specialist_score):
                floor = f"the {100 * report.floors[domain]:.0f} % that nonsense gets"
                why = f"as {specialist} is not above {floor}"
                verdict = replace(verdict, outcome="cannot tell", why=why, items_needed=None)
            found.append(verdict)
    return tuple(found)


def verdicts_of(
    report: EvalReport, specialists: Mapping[str, str], base: str | None, *, margin: float = MARGIN
) -> tuple[Retention, ...]:
    """Return the verdict on all models that are neither base nor specialist; none without either.

    Args: as for `retention`.
    """
    merges = report.merges(base, specialists)
    if base is None or not specialists or not merges:
        return ()
    return retention(report, merges, specialists, base, margin=margin)


def _verdict(
    rows: Sequence[tuple[bool, ...]], names: tuple[str, str, str, str], margin: float
) -> Retention:
    import numpy as np

    _, _, specialist, base = names
    found = Retention(*names, n=len(rows), margin=margin)
    if not rows:
        return found
    counts = pattern_counts(np.array(rows, dtype=bool))
    before, best, after = map(float, scores_of(counts))
    kept = low = high = None
    if best > before:
        kept = (after - before) / (best - before)
        low, high = (float(end) if np.isfinite(end) else None for end in kept_interval(counts))
    outcome: Survival = "cannot tell"
    why, needed = "", None
    if shown_above(counts, 1, 0, 0.0) >= LEVEL:
        why = f"as {specialist} is not shown to be better than {base}"
        needed = _needed(counts, 1, 0, 0.0) if best > before else None
    elif shown_above(counts, 2, 1, -margin) < LEVEL:
        outcome = "survived"
    elif shown_above(counts, 1, 2, margin) < LEVEL:
        outcome = "damaged"
    else:
        why = f"whether it is less than {100 * margin:g} points below {specialist}"
        needed = _needed(counts, 2, 1, -margin)
    return replace(
        found,
        base_score=before,
        specialist_score=best,
        merge_score=after,
        kept=kept,
        low95=low,
        high95=high,
        outcome=outcome,
        why=why,
        items_needed=needed,
    )


def pattern_counts(rows: np.ndarray) -> np.ndarray:
    """Return how many items have each pattern: shape "8", int64.

    rows: "items 3" of bool: base, specialist, merge right; pattern = 4 base + 2 specialist + merge.
    """
    import numpy as np

    return np.bincount(rows @ np.array([4, 2, 1]), minlength=8)


def scores_of(counts: np.ndarray) -> np.ndarray:
    """Return the three shares of right answers, "... 3", of pattern counts "... 8"."""
    return counts @ _right().T / counts.sum(-1, keepdims=True)


def _right() -> np.ndarray:
    """Return by model ("3 8", bool) the patterns in which it is right."""
    import numpy as np

    return (np.arange(8) >> np.array([[2], [1], [0]])) & 1 == 1


def kept_interval(counts: np.ndarray, *, draws: int = DRAWS, seed: int = _SEED) -> tuple[Any, Any]:
    """Return the 95 % percentile interval of kept, by the paired bootstrap.

    A draw in which the specialist is not better than the base says that anything may be kept: it
    counts as minus or plus infinity by the sign of what the merge gained in it.

    Args: counts: of one experiment, "8".
    """
    import numpy as np

    n = int(counts.sum())
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=draws)
    base, specialist, merge = scores_of(drawn).T
    gained, whole = merge - base, specialist - base
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(whole > 0, gained / whole, np.copysign(np.inf, gained))
    low, high = np.quantile(kept, [0.025, 0.975], method="nearest")
    return low, high


def shown_above(counts: np.ndarray, a: int, b: int, difference: float) -> Any:
    """Return the one-sided p of "a scores at most `difference` above b", on paired items.

    Tango's score test: z = (x - y - n d) / sqrt(n (2 q + d (1 - d))), where x and y are the items
    that only a and only b has right, and q is the likeliest share of the latter if the difference
    is d.

    Args: counts: pattern counts "... 8". a, b: 0 base, 1 specialist, 2 merge. difference: between
        -1 and 1.
    """
    import numpy as np
    from scipy.special import ndtr

    has = _right()
    x = counts[..., has[a] & ~has[b]].sum(-1)
    y = counts[..., has[b] & ~has[a]].sum(-1)
    n, d = counts.sum(-1), difference
    linear = -x - y + (2 * n - x + y) * d
    root = np.sqrt(np.maximum(linear**2 + 8 * n * y * d * (1 - d), 0))
    share = (root - linear) / (4 * n)
    spread = np.sqrt(np.maximum(n * (2 * share + d * (1 - d)), 1e-12))
    return ndtr(-(x - y - n * d) / spread)


def _needed(counts: np.ndarray, a: int, b: int, difference: float) -> int | None:
    """Return about how many items of the same kind would decide, with 80 % power; None for none."""
    n, scores = int(counts.sum()), scores_of(counts)
    seen = float(scores[a] - scores[b])
    apart = seen - difference
    if abs(apart) < 1e-9:
        return None
    has = _right()
    differ = has[a] != has[b]
    # Where they never differ, one item more could.
    share = max(float(counts[differ].sum()), 1.0) / n
    spread = share - min(seen**2, share)
    null = max(share, abs(difference)) - difference**2
    normal = NormalDist()
    wanted = -normal.inv_cdf(LEVEL) * math.sqrt(null) - normal.inv_cdf(0.2) * math.sqrt(
        max(spread, 0.0)
    )
    needed = math.ceil((wanted / apart) ** 2)
    return None if needed > _MOST_ITEMS else max(needed, n + 1)
