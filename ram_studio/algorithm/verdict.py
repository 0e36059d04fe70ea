"""The effect of RAM on these agents, in one sentence about the most serious finding.

Everything is by energy (sums of tau^2), never by count: many small changes may be little of an
update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Literal, NamedTuple

import numpy as np

from ram_studio.algorithm import scaling
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import (
    BIN_COUNT,
    DEFAULT_INDEX,
    EPSILON_GRID,
    edge_value,
)
from ram_studio.algorithm.meters.cosine_bounds import cosine_bounds
from ram_studio.algorithm.meters.relation_preview import rounding_preview, rounding_warning
from ram_studio.algorithm.meters.storage import SURVIVING, Finding

NOTHING = 0.05
"""An agent with less than this share of its update above epsilon is lost in effect."""

ALMOST_NOTHING = 0.2
"""Below this retained share of an update its loss is worse than any scaling."""

LITTLE = 0.5
"""Below this retained share of an update the verdict warns."""

FAR_FACTOR = 1.5
PAPER_MOST = 1.4
"""lambda at r 0.2 and alpha 2, the largest of the paper's Table 2."""

LITTLE_UNIQUE = 0.1
"""Below this unique share RAM mostly averages."""

ALIKE = 0.3
"""Above this mean cosine agents share an update, not only elements."""

ORTHOGONAL = 0.1
"""Up to this mean cosine arXiv 2607.16062 found no difference between methods."""

Key = Literal[
    "unknown",
    "unchanged",
    "lost-to-epsilon",
    "reduced-by-epsilon",
    "far-lambda",
    "one-agent",
    "common",
    "averaging",
    "reduced-by-averaging",
    "storage",
    "rounding",
    "retained",
]


class Verdict(NamedTuple):
    """The verdict on a merge before it runs.

    Attributes:
        key: its identifier.
        tone: "good", "warn" or "bad".
        lead: the first sentence or its beginning; rest: the text after it, may be "".
    """

    key: Key
    tone: Literal["good", "warn", "bad"]
    lead: str
    rest: str = ""

    @property
    def text(self) -> str:
        """The whole verdict."""
        return f"{self.lead} {self.rest}".rstrip()


@dataclass(frozen=True)
class _Agent:
    """An agent that changed any weight: shares of its update, and its lambda."""

    name: str
    index: int
    active: int
    factor: float
    retained: float
    above_epsilon: float
    lost_to_averaging: float

    @property
    def is_lost_to_epsilon(self) -> bool:
        return 1.0 - self.above_epsilon >= self.lost_to_averaging


@dataclass(frozen=True)
class _Merge:
    """A setting of an analysis, and its effect on the agents that changed any weight."""

    analysis: Analysis
    point: int
    agents: Sequence[_Agent]

    @property
    def reduced(self) -> list[_Agent]:
        """Agents with a retained share below one half."""
        return [agent for agent in self.agents if agent.retained < LITTLE]


def verdict(
    analysis: Analysis,
    point: int = DEFAULT_INDEX,
    rule: str = scaling.DEFAULT_RULE,
    r: float = scaling.DEFAULT_R,
    alpha: float = scaling.DEFAULT_ALPHA,
) -> Verdict:
    """Return the verdict on RAM at a point of the epsilon grid.

    Checks the retained shares first, then lambda, then the unique shares.

    Args: as ``Analysis.preview`` takes them.
    Raises: SettingsError, AnalysisError as ``Analysis.preview`` does.
    """
    previewed = analysis.preview(point, rule, r, alpha)["agents"]
    if analysis.energies is None:
        return Verdict(
            "unknown",
            "warn",
            "How much of each update remains is not known:",
            "analyze the models again, with relations.",
        )
    agents = [
        _Agent(
            name,
            t,
            own["active"],
            own["lambda"],
            own["retained"]["total"],
            1.0 - own["retained"]["lost_to_epsilon"],
            own["retained"]["lost_to_averaging"],
        )
        for t, (name, own) in enumerate(previewed.items())
        if own["retained"] is not None
    ]
    merge = _Merge(analysis, point, agents)
    return next(found for check in _CHECKS if (found := check(merge)) is not None)


class LostToEpsilon(NamedTuple):
    """Agents whose update an epsilon removes in effect, and the sentence on it."""

    agents: tuple[str, ...]
    lead: str
    rest: str

    @property
    def finding(self) -> Finding:
        """The same as a warning."""
        return Finding("lost-to-epsilon", f"{self.lead} {self.rest}", self.agents)


def lost_to_epsilon(
    epsilon: float,
    left: Mapping[str, float],
    changed: Mapping[str, float],
    total: int,
    bounds: Mapping[str, float],
    *,
    is_sampled: bool = False,
) -> LostToEpsilon | None:
    """Return the agents with less than `NOTHING` of their update above epsilon, or None.

    Args:
        left: share of each update above epsilon, by energy, of agents that changed any weight.
        changed: weights that an agent changed at epsilon 0, of total; is_sampled: by a sample.
        bounds: upper bound on the changes of an agent's weights, where known.
    """
    lost = {name: share for name, share in left.items() if share < NOTHING}
    if not lost:
        return None
    # The sentence names the agent with the smallest share above epsilon.
    worst, most = min(lost, key=lost.__getitem__), max(lost.values())
    at_most = "at most " if len(lost) > 1 else ""
    rest = "nothing" if most <= 0 else f"{at_most}{_share(most)}"
    how_many = "some weights"
    if count := changed.get(worst):
        how_many = f"{_number(count, is_sampled)} weights ({_share(count / total)})"
    by = f" by at most {_threshold(_round_up(bounds[worst]))}" if worst in bounds else ""
    return LostToEpsilon(
        tuple(lost),
        f"Epsilon {_threshold(epsilon)} leaves {rest} of {_names(list(lost))}:",
        f"{'it' if len(lost) == 1 else worst} changed {how_many}{by}. Use epsilon 0.",
    )


def find_lost_agents(analysis: Analysis, point: int = DEFAULT_INDEX) -> LostToEpsilon | None:
    """Return the agents of an analysis whose update is lost at a point of the epsilon grid.

    Without relations only agents without any weight above epsilon are known.
    """
    active, energies = analysis.model.active[0], analysis.energies
    moved = {name: t for t, name in enumerate(analysis.agents) if active[0, t]}
    if energies is None:
        left = {name: float(active[point, t] > 0) for name, t in moved.items()}
    else:
        energy = energies.energy[point].sum(-1)
        left = {name: float(energy[t]) for name, t in moved.items()}
    # The bin of the largest change; the last one has no upper edge.
    sizes = {name: np.flatnonzero(analysis.magnitudes[t]) for name, t in moved.items()}
    largest = {name: int(bins[-1]) for name, bins in sizes.items() if len(bins)}
    return lost_to_epsilon(
        EPSILON_GRID[point],
        left,
        {name: float(active[0, t]) for name, t in moved.items()},
        analysis.total,
        {name: edge_value(k + 1) for name, k in largest.items() if k < BIN_COUNT - 1},
    )


def _check_unchanged(merge: _Merge) -> Verdict | None:
    if merge.agents:
        return None
    return Verdict("unchanged", "bad", "No agent differs from the base: the merge is the base.")


def _check_lost_to_epsilon(merge: _Merge) -> Verdict | None:
    lost = find_lost_agents(merge.analysis, merge.point)
    return None if lost is None else Verdict("lost-to-epsilon", "bad", lost.lead, lost.rest)


def _check_almost_lost(merge: _Merge) -> Verdict | None:
    reduced = [agent for agent in merge.reduced if agent.is_lost_to_epsilon]
    if all(agent.retained >= ALMOST_NOTHING for agent in reduced):
        return None
    return Verdict("reduced-by-epsilon", "bad", *_little_left("At this epsilon", reduced))


def _check_far_factor(merge: _Merge) -> Verdict | None:
    far = max(merge.agents, key=lambda agent: agent.factor)
    if far.factor <= FAR_FACTOR:
        return None
    return Verdict(
        "far-lambda",
        "bad",
        f"Lambda {far.factor:.{1 if far.factor < 10 else 0}f} for {far.name} is far outside "
        f"what the paper tried (at most {PAPER_MOST}).",
    )


def _check_reduced(merge: _Merge) -> Verdict | None:
    reduced = [agent for agent in merge.reduced if agent.is_lost_to_epsilon]
    if not reduced:
        return None
    return Verdict("reduced-by-epsilon", "warn", *_little_left("At this epsilon", reduced))


def _check_one_agent(merge: _Merge) -> Verdict | None:
    if len(merge.agents) > 1:
        return None
    (agent,) = merge.agents
    return Verdict(
        "one-agent",
        "good",
        f"Only {agent.name} changed anything:",
        f"the merge retains {_share(agent.retained)} of its update.",
    )


def _check_little_unique(merge: _Merge) -> Verdict | None:
    energies = merge.analysis.energies
    assert energies is not None, "checked before"
    square = energies.square[merge.point]
    unique = float(square[:, 0].sum() / square.sum())
    if unique >= LITTLE_UNIQUE:
        return None
    cosine = _mean_cosine(energies.norm2, energies.cross[0])
    if cosine >= ALIKE:
        return Verdict(
            "common",
            "good",
            f"The agents moved in similar directions (mean cosine {cosine:.2f}): "
            "averaging retains what they have in common.",
            f"A sum would apply it {len(merge.analysis.agents)} times.",
        )
    return Verdict(
        "averaging",
        "warn",
        f"Only {_share(unique)} of the change, by energy, is unique: RAM mostly averages.",
        f"{_directions(merge.analysis, cosine)}Compare it with the sum (task arithmetic, scale 1).",
    )


def _directions(analysis: Analysis, cosine: float) -> str:
    """Return published findings on methods where updates share elements, not directions."""
    bounds = cosine_bounds(analysis)
    if bounds is None:
        return ""
    most = bounds.mean_ceiling
    at_most = "" if most is None else f", at most {most:.2f}"
    found = (
        f"Mean cosine {round(cosine, 3) + 0.0:.3f} (shuffled: ±{bounds.mean_floor:.3f}{at_most}). "
    )
    if abs(cosine) > ORTHOGONAL:
        return found
    return f"{found}For such agents no method differed in arXiv 2607.16062. "


def _check_reduced_by_averaging(merge: _Merge) -> Verdict | None:
    if not merge.reduced:
        return None
    return Verdict("reduced-by-averaging", "warn", *_little_left("After averaging", merge.reduced))


def _check_only_stored(merge: _Merge) -> Verdict | None:
    analysis = merge.analysis
    if analysis.rounded is None:
        return None
    left = analysis.grouped("model", analysis.rounded).active[0, merge.point]
    for agent in merge.agents:
        if left[agent.index] < SURVIVING * agent.active:
            return Verdict(
                "storage",
                "warn",
                f"What {agent.name} changed is storage, not training:",
                "in the base's format less than a tenth of its changed weights still differ.",
            )
    return None


def _check_lost_by_rounding(merge: _Merge) -> Verdict | None:
    factors = {agent.name: agent.factor for agent in merge.agents}
    previewed = rounding_preview(merge.analysis, merge.point, factors)
    advice = previewed and rounding_warning(merge.analysis, previewed)
    if not advice:
        return None
    lead, rest = advice.split(": ", 1)
    return Verdict("rounding", "warn", f"{lead}:", rest)


def _check_retained(merge: _Merge) -> Verdict:
    least = min(merge.agents, key=lambda agent: agent.retained)
    return Verdict(
        "retained",
        "good",
        f"The merge retains at least {_share(least.retained)} of every update",
        f"(least: {least.name}).",
    )


_CHECKS: tuple[Callable[[_Merge], Verdict | None], ...] = (
    _check_unchanged,
    _check_lost_to_epsilon,
    _check_almost_lost,
    _check_far_factor,
    _check_reduced,
    _check_one_agent,
    _check_little_unique,
    _check_reduced_by_averaging,
    _check_only_stored,
    _check_lost_by_rounding,
    _check_retained,
)


def _mean_cosine(norm2: np.ndarray, cross: np.ndarray) -> float:
    """Return the mean cosine between two agents' updates, weighted by their norms.

    sum of tau_a . tau_b / sum of |tau_a| |tau_b| over pairs of agents, at epsilon 0; 0 for one.
    """
    sizes = float(np.sqrt(norm2).sum() ** 2 - norm2.sum())
    return float(cross.sum()) / sizes if sizes > 0 else 0.0


# ------------------------------------------------------------------ words


def _little_left(where: str, reduced: Sequence[_Agent]) -> tuple[str, str]:
    least = min(reduced, key=lambda agent: agent.retained)
    share = _share(least.retained)
    if len(reduced) == 1:
        return f"{where} only {share} of {least.name}'s update remains.", ""
    names = _names([agent.name for agent in reduced])
    return f"{where} little of {names} remains:", f"down to {share} ({least.name})."


def _names(names: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c", or how many there are."""
    if len(names) > 3:
        return f"{len(names)} agents"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _share(share: float) -> str:
    """Return a share in percent: 47 %, 2.9 %, 0.24 %, 99.8 %; never rounded to 0 % or 100 %."""
    percent = 100 * float(share)
    if percent <= 0:
        return "0 %"
    if percent < 0.01:
        return "< 0.01 %"
    is_nearly_all = 99.5 < percent < 99.995
    digits = 1 + (percent > 99.95) if is_nearly_all else 2 if percent < 1 else int(percent < 10)
    return f"{percent:.{digits}f} %"


def _number(count: float, is_sampled: bool) -> str:
    """Return a number as text: 20.9 M; below a million all digits, three for a sample."""
    about = "about " if is_sampled else ""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{about}{count / size:.1f} {unit}"
    return f"{about}{int(float(f'{count:.3g}') if is_sampled else count):,}"


def _round_up(bound: float) -> float:
    """Return a bound that holds in three digits, too."""
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(bound)))


def _threshold(epsilon: float) -> str:
    """Return an epsilon in three digits: 0, 1e-5, 0.002."""
    return f"{epsilon:.3g}".replace("e-0", "e-")
