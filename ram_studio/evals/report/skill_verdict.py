"""Did a merge retain an agent's skill? One verdict per merge and skill, on paired items.

The retained gain is the share of the specialist's gain over the base that the merge has,

    (merge - base) / (specialist - base),

with a 95 % interval after Fieller (1954): all shares k that a test of merge - base = k (specialist
- base) does not reject. Its variances are those of the table of eight patterns (base x specialist x
merge right) with half a question added to each, so that the interval has a width where all are
right or all wrong. It is not cut at 0 and 1: a merge can be better than the specialist.

The verdict is a test of non-inferiority with a margin of 5 points: a merge *survived* when its
score is shown to be less than 5 points below the specialist's, it is *damaged* when it is shown to
be more than 5 points below, else the questions are *inconclusive*. Both are score tests for paired
proportions (Tango, Statistics in Medicine 17, 1998). Both also need a specialist that is shown to
be better than the base (exact McNemar test): without a gain there is nothing to retain. The p of a
verdict is the larger of the two, two-sided, corrected by Holm's method over all verdicts of the
table, so that the chance that even one of them is wrong stays below 5 %. Where questions share
documents the patterns count as those of as many questions as have the cluster-robust error of both
differences (Rao and Scott, Biometrics 48, 1992). For the margin that error is computed about the
margin, as in Tango's test: about their own mean a few documents without any loss would look
certain. The p is that of a t distribution with one degree of freedom less than there are documents.

The specialist is chosen without the answers that judge merges against it. The best of several
agents on the same questions looks better there than it is, and an equally good merge looks damaged.
So an agent that is named after a domain (`tool`, or `code` for `code-generated`) is its specialist,
whatever its score. Where the name fits no agent or several, the best one on one half of the
questions is chosen, and merges are judged on the other half.
"""

from __future__ import annotations

import dataclasses as stdlib
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from ram_studio.errors import EvalSettingsError
from ram_studio.evals.report.comparison import SIGNIFICANCE, holm, interval_size, paired_counts
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.score import Z95, DomainScore, effective_size
from ram_studio.evals.suites.demo.tasks import AGENT_DOMAINS

if TYPE_CHECKING:
    import numpy as np

MARGIN = 0.05
# Added to each pattern's count for the variances of the interval.
_ADDED = 0.5

Verdict = Literal["survived", "damaged", "inconclusive"]
Reason = Literal["no_questions", "gain_not_shown", "chance_level", "margin_not_shown"]
"""Why a verdict is inconclusive, or why a retained gain has no interval (the first two)."""


@dataclass(frozen=True)
class RetainedGain:
    """The merge's share of the specialist's gain, with its 95 % interval.

    value: None where the specialist gained nothing. low, high: None where the interval is
    unbounded, see `reason`.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: Reason | None = "no_questions"


@dataclass(frozen=True)
class SkillVerdict:
    """The verdict on one specialist's skill in a merge.

    domain: the skill; n: questions that all three answered. base_score, specialist_score,
    merge_score: shares of right answers on them. margin: in shares of questions. verdict: see the
    module; reason: why it is inconclusive. p: of this verdict alone; p_adjusted: by Holm's method
    over the table; below 5 % the verdict is no longer inconclusive. chance: the score of trivial
    answers, where the specialist is not above it. chosen_on: number of other questions that chose
    the specialist, 0 where it was named.
    """

    domain: str
    merge: str
    specialist: str
    base: str
    n: int = 0
    base_score: float = 0.0
    specialist_score: float = 0.0
    merge_score: float = 0.0
    retained_gain: RetainedGain = RetainedGain()
    margin: float = MARGIN
    verdict: Verdict = "inconclusive"
    reason: Reason | None = "no_questions"
    p: float = 1.0
    p_adjusted: float = 1.0
    chance: float | None = None
    chosen_on: int = 0

    @property
    def why(self) -> str:
        """Return why it is inconclusive, as a clause; empty where it is not."""
        if self.reason is None:
            return ""
        return {
            "no_questions": "no question was answered by all three",
            "gain_not_shown": f"{self.specialist} is not shown to be better than {self.base}",
            "chance_level": f"{self.specialist} is not above the {100 * (self.chance or 0):.0f} % "
            "that trivial answers get",
            "margin_not_shown": "the questions do not show whether it is less than "
            f"{100 * self.margin:g} points below {self.specialist}",
        }[self.reason]

    def sentence(self) -> str:
        text = f"{self.merge} on {self.domain}: {self.verdict}"
        if self.why:
            text += f", as {self.why}"
        return f"{text}; {self.gain_text()}."

    def gain_text(self) -> str:
        """Return "retains 93 % of coder's gain (85 to 99 %, n = 200)"."""
        gain = self.retained_gain
        basis = f"n = {self.n}"
        if self.chosen_on:
            basis += f"; {self.specialist} chosen by {self.chosen_on} others"
        if gain.value is None:
            return f"{self.specialist} gained nothing here ({basis})"
        ends = "no interval"
        if gain.low is not None and gain.high is not None:
            ends = f"{100 * gain.low:z.0f} to {100 * gain.high:z.0f} %"
        return f"retains {100 * gain.value:z.0f} % of {self.specialist}'s gain ({ends}, {basis})"


@stdlib.dataclass(frozen=True)
class Specialists:
    """The specialists of a report.

    agents: by domain; domains without an evaluated agent have none. judged: the report without the
    questions by which a specialist was chosen. chosen_on: their number, by domain.
    """

    agents: Mapping[str, str]
    judged: EvalReport
    chosen_on: Mapping[str, int]


def choose_specialists(report: EvalReport, agents: Sequence[str]) -> Specialists:
    """Return the specialist of each domain among these agents, see the module."""
    present = [agent for agent in agents if agent in report.models]
    found: dict[str, str] = {}
    chosen_by: dict[str, list[int]] = {}
    for domain in report.items:
        named = [agent for agent in present if is_named_after(agent, domain)]
        candidates = named or present
        if len(candidates) > 1:
            chosen_by[domain] = _half(report, domain)
            found[domain] = _best(report, domain, candidates, chosen_by[domain])
        elif candidates:
            found[domain] = candidates[0]
    sizes = {domain: len(places) for domain, places in chosen_by.items()}
    return Specialists(found, report.without(chosen_by), sizes)


def is_named_after(agent: str, domain: str) -> bool:
    """Return whether an agent's name shows that it was trained for a domain."""
    name = AGENT_DOMAINS.get(agent.lower(), agent.lower())
    return domain == name or domain.startswith(f"{name}-")


def _half(report: EvalReport, domain: str) -> list[int]:
    """Return the indices of one half of a domain's questions, the same for the same questions."""
    # By a hash: neighbors are often similar, or alternate between kinds.
    keys = [hashlib.blake2b(item.id.encode()).digest() for item in report.items[domain]]
    return sorted(range(len(keys)), key=keys.__getitem__)[: len(keys) // 2]


def _best(report: EvalReport, domain: str, candidates: Iterable[str], places: Sequence[int]) -> str:
    def score(agent: str) -> float:
        answers = report.models[agent].answers[domain]
        own = DomainScore.of(answers[place] for place in places)
        return own.score if own.n else -1.0

    return max(candidates, key=score)


def check_margin(margin: float) -> None:
    """Raise EvaluationError for a margin that is not between 0 and 1."""
    if not 0 < margin < 1:
        raise EvalSettingsError(
            f"The margin is {100 * margin:g} points. Choose more than 0 and less than 100."
        )


def skill_verdicts(
    report: EvalReport,
    specialists: Mapping[str, str],
    base: str | None,
    *,
    merges: Sequence[str] | None = None,
    margin: float = MARGIN,
    chosen_on: Mapping[str, int] | None = None,
) -> tuple[SkillVerdict, ...]:
    """Return the verdict on every merge in every domain that has a specialist, as one table.

    Args:
        specialists: domain -> name of the agent trained for it; chosen without these answers.
        base: name of the base's row; without it there are no verdicts.
        merges: names in the report; by default all that are neither base nor specialist.
        margin: share of questions (0.05: five points) that a merge may be below its specialist.
        chosen_on: domain -> number of other questions that chose its specialist.

    Raises:
        EvaluationError: a name or domain that is not in the report, a margin not between 0 and 1.
    """
    check_margin(margin)
    if base is None:
        return ()
    if merges is None:
        merges = report.merges(base, specialists.values())
    report.check_names((*merges, *specialists.values(), base), specialists)
    sizes = chosen_on or {}
    found = [
        _alone(
            report,
            SkillVerdict(
                domain, merge, specialist, base, margin=margin, chosen_on=sizes.get(domain, 0)
            ),
        )
        for domain, specialist in specialists.items()
        for merge in merges
    ]
    # Without common answers, nothing was tested.
    adjusted = iter(holm([one.p for one in found if one.n]))
    return tuple(_apply_correction(one, next(adjusted)) if one.n else one for one in found)


def _alone(report: EvalReport, found: SkillVerdict) -> SkillVerdict:
    """Return the uncorrected verdict on one merge and skill."""
    import numpy as np
    from scipy.special import ndtri, stdtr

    names = (found.base, found.specialist, found.merge)
    rows = report.shared_answers(names, found.domain)
    if not rows:
        return found
    base, agent, merge = zip(*rows, strict=True)
    gained, retained = paired_counts(agent, base), paired_counts(merge, agent)
    counts = pattern_counts(np.array([[a.is_correct for a in row] for row in rows], dtype=bool))
    share = at_margin = 1.0
    if gained.clusters is not None and retained.clusters is not None:
        both = gained.clusters, retained.clusters
        share = min(map(interval_size, both)) / len(rows)
        at_margin = min(*map(effective_size, both), _size_about(retained.clusters, -found.margin))
        at_margin /= len(rows)
    before, best, after = map(float, scores_of(counts * share))
    gain = retained_gain(counts * share)
    p_gain = gained.p_value if best > before else 1.0
    is_above, p_margin = margin_test(counts * at_margin, found.margin)
    if retained.clusters is not None:
        p_margin = float(2 * stdtr(max(1, len(retained.clusters) - 1), ndtri(p_margin / 2)))
    at_chance = report.is_at_chance(found.domain, best)
    reason: Reason = "margin_not_shown"
    if p_gain >= SIGNIFICANCE or p_gain > p_margin:
        reason = "gain_not_shown"
    if at_chance:
        reason = "chance_level"
    return replace(
        found,
        n=len(rows),
        base_score=before,
        specialist_score=best,
        merge_score=after,
        retained_gain=gain,
        verdict="survived" if is_above else "damaged",
        reason=reason,
        p=max(p_gain, p_margin),
        chance=report.chance_levels[found.domain] if at_chance else None,
    )


def _size_about(clusters: Sequence[Sequence[int]], mean: float) -> float:
    """Return the number of independent questions with the same error about a known mean."""
    apart = [[mark - mean for mark in own] for own in clusters]
    alone = math.fsum(one * one for own in apart for one in own)
    together = math.fsum(math.fsum(own) ** 2 for own in apart)
    return sum(map(len, apart)) * alone / max(alone, together)


def _apply_correction(found: SkillVerdict, p_adjusted: float) -> SkillVerdict:
    """Return a verdict with its corrected p, inconclusive where that is too large."""
    is_shown = p_adjusted < SIGNIFICANCE and found.chance is None
    return replace(
        found,
        p_adjusted=p_adjusted,
        verdict=found.verdict if is_shown else "inconclusive",
        reason=None if is_shown else found.reason,
    )


def pattern_counts(rows: np.ndarray) -> np.ndarray:
    """Return the number of questions with each pattern: shape "8", int64.

    rows: "questions 3" of bool: base, specialist, merge right; pattern = 4 base + 2 specialist +
    merge.
    """
    import numpy as np

    return np.bincount(rows @ np.array([4, 2, 1]), minlength=8)


def scores_of(counts: np.ndarray) -> np.ndarray:
    """Return the three shares of right answers, "... 3", of pattern counts "... 8"."""
    return counts @ _right().T / counts.sum(-1, keepdims=True)


def _right() -> np.ndarray:
    """Return the patterns in which each model is right: shape "3 8", bool."""
    import numpy as np

    return (np.arange(8) >> np.array([[2], [1], [0]])) & 1 == 1


def _discordant(counts: np.ndarray, a: int, b: int) -> tuple[int, int]:
    """Return the questions that only model a has right, and those that only b has."""
    has = _right()
    return round(counts[has[a] & ~has[b]].sum()), round(counts[has[b] & ~has[a]].sum())


def retained_gain(counts: np.ndarray) -> RetainedGain:
    """Return the retained gain of one merge with its 95 % interval, see the module.

    counts: by pattern, "8". Where the specialist's own gain is not shown, the interval would be
    unbounded, and there is none.
    """
    import numpy as np

    right = _right().astype(float)
    gained, whole = right[2] - right[0], right[1] - right[0]
    if counts @ whole <= 0:
        return RetainedGain(reason="gain_not_shown")
    padded = counts + _ADDED
    n = padded.sum()
    mean = np.array([padded @ whole, padded @ gained]) / n
    moments = np.stack([whole, gained]) * padded @ np.stack([whole, gained]).T / n
    # Rejected where a k^2 - 2 b k + c > 0.
    (a, b), (_, c) = np.outer(mean, mean) - Z95**2 * (moments - np.outer(mean, mean)) / n
    value = float(counts @ gained / (counts @ whole))
    if a <= 0:
        return RetainedGain(value, reason="gain_not_shown")
    half = np.sqrt(max(b * b - a * c, 0.0))
    return RetainedGain(value, float((b - half) / a), float((b + half) / a), None)


def margin_test(counts: np.ndarray, margin: float) -> tuple[bool, float]:
    """Return whether the merge is above specialist - margin, and the two-sided p of that side."""
    n = round(counts.sum())
    gains, losses = _discordant(counts, 2, 1)
    above = p_above(gains, losses, n, -margin)
    below = p_above(losses, gains, n, margin)
    return above < below, min(1.0, 2 * min(above, below))


@lru_cache(maxsize=65536)
def p_above(x: int, y: int, n: int, difference: float) -> float:
    """Return the one-sided p of "a scores at most `difference` above b", on n paired questions.

    Tango's score test; its p is the exact probability of a score at least as high, at the maximum
    likelihood share of questions that only b has right (the normal approximation is inaccurate in
    the far tails, which a correction for many verdicts uses).

    Args: x, y: questions that only a, only b has right. difference: between -1 and 1.
    """
    import numpy as np
    from scipy.special import bdtr, gammaln, xlog1py, xlogy

    seen, share = _score(np.array([x]), np.array([y]), n, difference)
    only_b = float(share[0])
    only_a = min(max(only_b + difference, 0.0), 1.0)
    a = np.arange(n + 1)
    # For each number that only a has right, the most that only b may have for a score as high.
    low, high = np.full(n + 1, -1), n - a
    while (low < high).any():
        middle = (low + high + 1) // 2
        is_as_high = _score(a, middle, n, difference)[0] >= seen - 1e-9
        low, high = np.where(is_as_high, middle, low), np.where(is_as_high, high, middle - 1)
    ways = gammaln(n + 1) - gammaln(a + 1) - gammaln(n - a + 1)
    chance = np.exp(ways + xlogy(a, only_a) + xlog1py(n - a, -only_a))
    rest = min(only_b / (1.0 - only_a), 1.0) if only_a < 1.0 else 0.0
    fewer = np.where(low < 0, 0.0, bdtr(np.maximum(low, 0), n - a, rest))
    return min(1.0, float(chance @ fewer))


def _score(x: np.ndarray, y: np.ndarray, n: int, d: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Tango's score and the maximum likelihood share of questions that only b has right.

    z = (x - y - n d) / sqrt(n (2 q + d (1 - d))), where q is that share if the difference is d.
    """
    import numpy as np

    linear = -x - y + (2 * n - x + y) * d
    root = np.sqrt(np.maximum(linear**2 + 8 * n * y * d * (1 - d), 0))
    share = np.maximum((root - linear) / (4 * n), 0.0)
    spread = np.sqrt(np.maximum(n * (2 * share + d * (1 - d)), 1e-12))
    return (x - y - n * d) / spread, share
