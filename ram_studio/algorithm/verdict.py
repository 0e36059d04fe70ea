"""One sentence, before anyone merges, on what RAM can do for these agents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ram_studio.algorithm.ladder import DEFAULT_INDEX
from ram_studio.algorithm.sketch import Sketch

LITTLE_UNIQUE = 0.10
"""Below this unique share RAM is plain averaging in effect (dense example: 1 to 5 %)."""


ALIKE = 0.3
"""From this mean cosine on agents share an update, not only places (house style 0.6, others 0)."""


class Verdict(NamedTuple):
    """level: "helps", "mixed", "common", "averages" or "alone"; text: one or two sentences."""

    level: str
    text: str


def verdict(sketch: Sketch, point: int = DEFAULT_INDEX) -> Verdict:
    """Return what to expect from RAM at a ladder point, from the unique share of each agent.

    RAM can protect only what one agent alone changed; everything shared is averaged. That costs
    nothing where the agents moved it alike.
    """
    shared = sketch.model.shared[0, point]
    shares = {
        agent: int(counts[0]) / int(counts.sum())
        for agent, counts in zip(sketch.agents, shared, strict=True)
        if counts.sum()
    }
    if not shares:
        return Verdict("alone", "No agent changed anything at this epsilon: the merge is the base.")
    if len(sketch.agents) == 1 or len(shares) == 1:
        return Verdict("alone", "Only one agent changed anything: the merge is that agent.")
    overall = int(shared[:, 0].sum()) / int(shared.sum())
    alike = mean_cosine(sketch)
    if overall < LITTLE_UNIQUE and alike is not None and alike >= ALIKE:
        return Verdict(
            "common",
            f"The agents moved much alike (mean cosine {alike:.2f}): averaging keeps what they "
            f"have in common, a sum would apply it {len(sketch.agents)} times. What is unique, "
            f"{overall:.1%} of all changes, keeps its full strength.",
        )
    if overall < LITTLE_UNIQUE:
        return Verdict(
            "averages",
            f"RAM can only protect what is unique, and only {overall:.1%} of the changes are. "
            "Expect plain averaging; try task arithmetic with scale 1 and compare.",
        )
    low = [agent for agent, share in shares.items() if share < LITTLE_UNIQUE]
    text = f"{overall:.0%} of all changes are unique to one agent and keep their full strength."
    if low:
        names = ", ".join(low)
        return Verdict(
            "mixed",
            f"{text} Little of {names} is unique ({min(shares[a] for a in low):.1%}): most of its "
            "changes are averaged, and rescaling matters most there.",
        )
    return Verdict("helps", f"{text} Averaging would divide them by {len(sketch.agents)}.")


def mean_cosine(sketch: Sketch) -> float | None:
    """Return the mean cosine between two agents' tau over the model, epsilon 0.

    sum of tau_a . tau_b / sum of |tau_a| |tau_b| over pairs: pairs weigh as their sizes. None
    without the sums for it, or when fewer than two agents changed anything.
    """
    if sketch.relations is None:
        return None
    dots = sketch.relations.dots.sum(0)
    squares = dots.trace()
    sizes = np.sqrt(dots.diagonal()).sum() ** 2 - squares
    return float((dots.sum() - squares) / sizes) if sizes > 0 else None
