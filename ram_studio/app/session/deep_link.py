"""What the page's address carries, read and checked here; assets/link.js writes it.

| key | says |
| --- | --- |
| ``set`` | the shipped set to load: ``shared-style``, ``independent`` or ``dense`` |
| ``epsilon``, ``r``, ``alpha``, ``rule`` | Tune's settings; ``rule`` is the method that it shows |
| ``step`` | the step to open, ``tune`` where a set is named |
| ``pin`` | the settings of A: ``METHOD_EPSILON_R_ALPHA`` |
| ``focus`` | the agent that is looked at, by name |
| ``tensor``, ``element`` | the weight under the microscope: its tensor and its place there |
| ``lesson`` | a scene of the lesson (assets/lesson/): its number, from 1, or its name |
| ``present`` | ``1``: in presentation mode |

Whatever is written there is clamped to what can be shown or left out: a link never fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.session.session import Loaded
from ram_studio.app.session.sets import TITLES

R_MAX = 1.0
ALPHA_MAX = 10.0

SHOWN = (*RULES, "task-arithmetic-mean", "task-arithmetic-sum", "ties")
"""Methods that the canvas shows, as assets/canvas/methods.js names them."""

STEPS = ("load", "tune", "merge", "check", "history")


class Settings(NamedTuple):
    """Tune's settings; None where the address says nothing usable."""

    point: int | None = None
    r: float | None = None
    alpha: float | None = None
    rule: str | None = None


class Link(NamedTuple):
    """What the address asks for; None where it says nothing usable.

    pin: complete settings. focus, tensor: not yet compared with what is loaded, see ``view``.
    """

    set_name: str | None = None
    settings: Settings = Settings()
    step: str | None = None
    pin: Settings | None = None
    focus: str | None = None
    tensor: str | None = None
    element: int = 0
    lesson: str | None = None
    present: bool = False

    def view(self, loaded: Loaded | None) -> dict[str, Any]:
        """Return what the browser is to show of what is loaded; parts that do not fit are None.

        Keys: step, lesson, present; pin (point, r, alpha, method); focus (the agent's place);
        tensor and element.
        """
        sizes = {} if loaded is None else _sizes(loaded)
        agents = () if loaded is None else loaded.analysis.agents
        pin = self.pin
        return {
            "step": self.step,
            "lesson": self.lesson,
            "present": self.present,
            "pin": pin and dict(zip(("point", "r", "alpha", "method"), pin, strict=True)),
            "focus": agents.index(self.focus) if self.focus in agents else None,
            "tensor": self.tensor if self.tensor in sizes else None,
            "element": min(self.element, sizes.get(self.tensor or "", 1) - 1),
        }


def _sizes(loaded: Loaded) -> dict[str, int]:
    """Return the tensors that the microscope can show, with their numbers of elements."""
    entries = zip(loaded.analysis.tensors, loaded.analysis.counts.numel.tolist(), strict=True)
    return {entry.name: int(size) for entry, size in entries if size}


def read_link(query: Mapping[str, str]) -> Link:
    """Return the link in a page's query parameters.

    ``epsilon`` goes to the nearest grid point. A ``+`` in an unquoted ``rule=ram+`` arrives as a
    space and is understood.
    """
    set_name = query.get("set")
    step = query.get("step")
    lesson = query.get("lesson") or ""
    return Link(
        set_name if set_name in TITLES else None,
        _settings(query.get("epsilon"), query.get("r"), query.get("alpha"), query.get("rule")),
        step if step in STEPS else None,
        _pin(query.get("pin")),
        query.get("focus"),
        query.get("tensor"),
        _whole(query.get("element")) or 0,
        lesson if re.fullmatch("[1-9]|[a-z]{1,20}", lesson) else None,
        query.get("present") == "1",
    )


def _settings(epsilon: str | None, r: str | None, alpha: str | None, rule: str | None) -> Settings:
    threshold = _number(epsilon, EPSILON_GRID[-1])
    rule = (rule or "").replace(" ", "+")
    return Settings(
        None if threshold is None else snap(threshold),
        _number(r, R_MAX),
        _number(alpha, ALPHA_MAX),
        rule if rule in SHOWN else None,
    )


def _pin(text: str | None) -> Settings | None:
    """Return the settings of A; None unless all four are there."""
    parts = (text or "").split("_")
    if len(parts) != len(Settings._fields):
        return None
    rule, epsilon, r, alpha = parts
    found = _settings(epsilon, r, alpha, rule)
    return None if None in found else found


def _number(text: str | None, high: float) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else min(max(value, 0.0), high)


def _whole(text: str | None) -> int | None:
    # Eighteen digits name any element; more only cost time to read.
    return int(text) if text and len(text) <= 18 and text.isascii() and text.isdecimal() else None


def tune_query(set_name: str | None, rule: str, settings: Mapping[str, Any]) -> str:
    """Return a query that opens Tune with a merge's settings; empty for methods it cannot show.

    settings: the recipe's; those that are no numbers are left out.
    """
    if rule not in RULES:
        return ""
    known = {"step": "tune"} | ({} if set_name is None else {"set": set_name})
    for name in ("epsilon", "r", "alpha"):
        value = settings.get(name)
        if isinstance(value, (int, float)):
            known[name] = repr(value)
    return urlencode({**known, "rule": rule})
