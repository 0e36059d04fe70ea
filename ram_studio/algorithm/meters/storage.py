"""Separates trained changes from those that only the storage format causes.

A checkpoint saved in another dtype than its base differs from it everywhere without any training.
An analysis shows which it is: it has counts as stored and counts with every agent rounded to the
base's dtype. This also finds agents that changed nothing, changed nearly everything, or are copies
of each other. Arithmetic on counts only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ram_studio.algorithm.analysis import BASE, Analysis
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.algorithm.meters.rounding_meter import PRECISION
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.scaling import overlap_unique_ratio

DENSE = 0.95
"""An agent that changed more than this share of all elements may be of another base."""

STORAGE_GAP = 1.5
"""If counts as stored exceed rounded ones by this factor, the dtype causes part of the density."""

SURVIVING = 0.1
"""Less than this share of the changed elements left after rounding: storage, not training."""

Kind = Literal[
    "storage",
    "equal-base",
    "equal-agents",
    "dense",
    "dtype",
    "config",
    "tokenizer",
    "chat-template",
    "stop-tokens",
    "tied-head",
    "sources",
    "adapter",
    "never-applied",
    "lost-to-epsilon",
]
Verdict = Literal["training", "partly-storage", "storage", "unchanged", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding to show the user before merging; it never stops a merge.

    Attributes:
        kind: its topic.
        text: one or two plain sentences that name the agents.
        agents: the agents concerned; empty for the base or all.
        level: "warn", or "note" for information only.
    """

    kind: Kind
    text: str
    agents: tuple[str, ...] = ()
    level: Literal["warn", "note"] = "warn"


@dataclass(frozen=True, slots=True)
class Share:
    """How much one agent changed at one epsilon, in elements; `active` is `unique` + `shared`."""

    total: int
    active: int
    unique: int

    @property
    def shared(self) -> int:
        """Elements that other agents changed too."""
        return self.active - self.unique

    @property
    def density(self) -> float:
        """Changed elements of all, a fraction; 0 where there are none at all."""
        return self.active / self.total if self.total else 0.0

    @property
    def rho(self) -> float:
        """Overlap-unique ratio; infinite where nothing is unique but something is shared."""
        return overlap_unique_ratio(self.shared, self.unique)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; an infinite rho is None."""
        rho = self.rho if math.isfinite(self.rho) else None
        return asdict(self) | {"shared": self.shared, "density": self.density, "rho": rho}


@dataclass(frozen=True, slots=True)
class AgentStorage:
    """How one agent is stored, and the cause of its differences from the base.

    Attributes:
        verdict: "training"; "partly-storage" when the dtype causes a third or more of the density;
            "storage" when it causes nearly all; "unchanged"; "unknown" before a pass.
        text: one or two sentences that name the agent.
        stored: counts as stored; None before a pass.
        rounded: counts as if every agent were stored in the base's dtype; None when all are.
        dtypes: {dtype: elements}; empty when only an analysis is known.
    """

    verdict: Verdict
    text: str
    stored: Share | None = None
    rounded: Share | None = None
    dtypes: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        shares = {"stored": self.stored, "rounded": self.rounded}
        return {
            "dtypes": self.dtypes,
            "verdict": self.verdict,
            "text": self.text,
            **{name: None if share is None else share.to_dict() for name, share in shares.items()},
        }


def storage_verdicts(analysis: Analysis, point: int = DEFAULT_INDEX) -> dict[str, AgentStorage]:
    """Return the cause of each agent's differences from the base, at a grid point.

    Where an agent's changes are all at or below that epsilon, the verdict is that of epsilon 0;
    `stored` and `rounded` are always those of `point`.
    """
    rounded = None if analysis.rounded is None else analysis.grouped("model", analysis.rounded)
    found = {}
    for t, agent in enumerate(analysis.agents):
        dtypes = analysis.dtypes.get(agent, "?"), analysis.dtypes.get(BASE, "?")

        def shares(at: int, t: int = t) -> tuple[Share, Share | None]:
            stored = _share(analysis, analysis.model, at, t)
            return stored, None if rounded is None else _share(analysis, rounded, at, t)

        own = shares(point)
        verdict, text = _judge(agent, *dtypes, *(own if own[0].active else shares(0)))
        found[agent] = AgentStorage(verdict, text, *own)
    return found


def _share(analysis: Analysis, counts: OverlapCounts, point: int, agent: int) -> Share:
    shared = counts.shared[0, point, agent]
    return Share(analysis.total, int(shared.sum()), int(shared[0]))


def _judge(
    agent: str, dtype: str, base_dtype: str, stored: Share, rounded: Share | None
) -> tuple[Verdict, str]:
    name = f'Agent "{agent}"'
    if stored.active == 0:
        return "unchanged", f"{name} equals the base: nothing was changed, so lambda is 1."
    differing = f"{stored.density:.2%} of its elements differ from the base as stored"
    if rounded is not None and rounded.active < SURVIVING * stored.active:
        return "storage", (
            f"{name}: storage, not training. It is stored as {dtype} beside a {base_dtype} base; "
            f"{differing}, {rounded.density:.2%} when rounded to {base_dtype}. The difference is "
            f"below the last place of {base_dtype}. Give its original checkpoint, or leave the "
            "agent out."
        )
    if rounded is not None and stored.active > STORAGE_GAP * rounded.active:
        return "partly-storage", (
            f"{name} is stored as {dtype} beside a {base_dtype} base: {differing}, "
            f"{rounded.density:.2%} when rounded to {base_dtype}. The difference may be storage "
            "rather than training."
        )
    is_narrower = PRECISION.get(dtype, 24) < PRECISION.get(base_dtype, 0)
    if is_narrower and stored.density > DENSE:
        return "storage", (
            f"{name}: this may be storage, not training. It is stored as {dtype} beside a "
            f"{base_dtype} base, and {differing}: rounding to {dtype} alone does that. Convert the "
            f"base to {dtype} first and compare again."
        )
    if rounded is not None and rounded.active != stored.active:
        return "training", (
            f"{name} was trained: {differing}, {rounded.density:.2%} when rounded to {base_dtype}."
        )
    return "training", f"{name} was trained: {differing}."


def pass_findings(analysis: Analysis, point: int = DEFAULT_INDEX) -> tuple[Finding, ...]:
    """Return the findings of a counting pass for the user."""
    found = []
    for agent, verdict in storage_verdicts(analysis, point).items():
        if verdict.verdict == "unchanged":
            found.append(Finding("equal-base", verdict.text, (agent,)))
        elif verdict.verdict in ("storage", "partly-storage"):
            found.append(Finding("storage", verdict.text, (agent,)))
        elif (share := verdict.rounded or verdict.stored) and share.density > DENSE:
            found.append(dense_finding(agent, share.density))
    for pair in equal_agents(analysis):
        found.append(
            Finding(
                "equal-agents",
                f'Agents "{pair[0]}" and "{pair[1]}" changed exactly the same elements by the same '
                "amounts: one model given twice, perhaps stored in another way. All their changes "
                "count as shared.",
                pair,
            )
        )
    return tuple(found)


def dense_finding(agent: str, density: float, *, is_sampled: bool = False) -> Finding:
    """Return the warning of an agent that changed more than DENSE."""
    about = "about " if is_sampled else ""
    return Finding(
        "dense",
        f'Agent "{agent}" changed {about}{density:.1%} of all elements. Is this the base it was '
        "trained from?",
        (agent,),
    )


def equal_agents(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the pairs of agents that are equal by a pass; not pairs of agents equal to the base.

    Two agents count as equal when their histograms of |tau| (128 bins per octave) are equal; in
    every tensor and at every epsilon of the epsilon grid neither changed an element that the other
    did not (up to six agents); and, where the analysis has relations, tau_a . tau_b is |tau_a|^2
    and |tau_b|^2 in every tensor (to 1e-12). A copy with other shards, or in a wider dtype, is
    found too. With more than six agents and no relations nothing is found.
    """
    if analysis.counts.patterns is None and analysis.relations is None:
        return []
    found: list[tuple[str, str]] = []
    for b in range(len(analysis.agents)):
        for a in range(b):
            same = np.array_equal(analysis.magnitudes[a], analysis.magnitudes[b])
            if analysis.model.active[0, 0, a] == 0 or not same:
                continue
            if _same_elements(analysis, a, b) and _same_direction(analysis, a, b):
                found.append((analysis.agents[a], analysis.agents[b]))
                break  # two pairs are enough for three equal agents
    return found


def _same_elements(analysis: Analysis, a: int, b: int) -> bool:
    if analysis.counts.patterns is None:
        return True
    masks = np.arange(analysis.counts.patterns.shape[-1])
    apart = (masks >> a & 1) != (masks >> b & 1)
    return not analysis.counts.patterns[:, :, apart].any()


def _same_direction(analysis: Analysis, a: int, b: int) -> bool:
    if analysis.relations is None:
        return True
    dots = analysis.relations.dots
    return bool(np.isclose(dots[:, a, b, None], dots[:, (a, b), (a, b)], rtol=1e-12, atol=0).all())


def texts(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the sentences of the warnings among these, each once."""
    return tuple(dict.fromkeys(f.text for f in findings if f.level == "warn"))


def combine_findings(
    from_headers: tuple[Finding, ...], counted: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Return both lists as one, without the header warnings that the pass replaces."""
    answered = {(f.kind, f.agents) for f in counted}
    unanswered = [f for f in from_headers if (f.kind, f.agents) not in answered]
    levels: dict[str, Literal["warn", "note"]] = {"dtype": "note", "never-applied": "warn"}
    return tuple(
        replace(f, level=levels.get(f.kind, f.level))
        for f in (*unanswered, *counted)
        if f.kind != "never-applied" or ("equal-base", f.agents) in answered
    )
