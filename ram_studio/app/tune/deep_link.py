"""Settings carried by the page's address: ``?example=1&epsilon=1e-5&r=0.1&alpha=2&rule=ram%2B``.

Whatever is written there is clamped to what the sliders allow or left out: a link never fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ram_studio.algorithm.ladder import LADDER, snap
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.load.examples import FOLDERS

R_MAX = 1.0
ALPHA_MAX = 10.0

SHOWN = (*RULES, "task-arithmetic-mean", "task-arithmetic-sum", "ties")
"""Methods that the canvas shows, as assets/canvas/methods.js names them."""


class Link(NamedTuple):
    """What the address asks for; None where it says nothing usable."""

    example: str | None = None
    point: int | None = None
    r: float | None = None
    alpha: float | None = None
    rule: str | None = None


def _number(text: str | None, low: float, high: float) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else min(max(value, low), high)


def read_link(query: Mapping[str, str]) -> Link:
    """Return the link in a page's query parameters.

    ``epsilon`` goes to the nearest ladder point. A ``+`` in an unquoted ``rule=ram+`` arrives as a
    space and is understood.
    """
    example = query.get("example")
    if example in ("true", "yes", "example"):
        example = "1"
    epsilon = _number(query.get("epsilon"), 0.0, LADDER[-1])
    rule = (query.get("rule") or "").replace(" ", "+")
    return Link(
        example if example in FOLDERS else None,
        None if epsilon is None else snap(epsilon),
        _number(query.get("r"), 0.0, R_MAX),
        _number(query.get("alpha"), 0.0, ALPHA_MAX),
        rule if rule in SHOWN else None,
    )
