"""What the page's address carries, read and checked here; assets/canvas/model/links.js writes it.

| key | says |
| --- | --- |
| ``set`` | the shipped set to load: ``shared-style``, ``independent``, ``dense`` or ``real`` |
| ``rule`` | Tune's method, as recipes name it, or ``average`` or ``sum`` |
| ``epsilon``, ``r``, ``alpha``, ``scale``, ``density``, ``drop_rate`` | its settings |
| ``weights`` | of agents, as Merge's form has them: ``coding=0.7, memory=0.2 0.8`` |
| ``dial`` | the one in hand: ``point`` (epsilon), or one of the other names |
| ``step`` | the step to open, ``tune`` where a set is named |
| ``pin`` | the settings of A: ``RULE~NAME=VALUE~...``; what is left out is usual |
| ``tensor``, ``element`` | the weight under the microscope: its tensor and its place there |
| ``lesson`` | a scene of the lesson (assets/lesson/): its number, from 1, or its name |
| ``present`` | ``1``: in presentation mode |

Whatever is written there is clamped to what can be shown or left out: a link never fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from ram_studio.algorithm.epsilon_grid import snap
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.session.session import LoadedModels
from ram_studio.app.session.sets import TITLES
from ram_studio.app.session.weights import usable_weights, weights_text
from ram_studio.evals.report.canvas_page import RANGES, SHOWN

PLACES: Mapping[str, Mapping[str, Any]] = {
    "average": {"method": "task-arithmetic"},
    "sum": {"method": "task-arithmetic", "scale": 1.0},
}
"""Scales of task arithmetic that have a name; its usual scale is 1/N."""

AVERAGE, SUM = PLACES


def method_title(name: str) -> str:
    """Return what people call a method, or a scale that has a name, on every screen."""
    return METHODS[name].title if name in METHODS else name.capitalize()


def shown_method(method: str, settings: Mapping[str, Any], n_agents: int) -> str:
    """Return the name that pages show a method by: of task arithmetic the sum is the scale 1, and
    the average of N agents, which is usual, 1/N; other scales keep the method's.
    """
    scale = settings.get("scale")
    scale = 1 / n_agents if scale is None else scale
    if method != "task-arithmetic" or not isinstance(scale, (int, float)):
        return method
    named = ((SUM, 1.0), (AVERAGE, 1 / n_agents))
    return next((name for name, wanted in named if math.isclose(scale, wanted)), method)


TUNE_DIALS = ("scale", "density", "drop_rate")
"""Settings of methods other than RAM's that Tune has a dial for."""

STEPS = ("load", "tune", "merge", "check", "history")

SCENES: Mapping[str, str] = {
    "changed": "What training changed",
    "average": "Average them",
    "sum": "Add them up",
    "ram": "Keep and average",
    "epsilon": "How few weights carry a skill?",
    "rounding": "A small push",
    "limits": "A last word: when RAM cannot help",
}
"""The scenes of the lesson in their order, by name: their titles, as assets/lesson/ has them."""


def scene_of(lesson: str | None) -> str | None:
    """Return the name of the scene that a link asks for by its number, from 1, or its name."""
    name = lesson or ""
    if re.fullmatch("[1-9]", name) and int(name) <= len(SCENES):
        return list(SCENES)[int(name) - 1]
    return name if name in SCENES else None


class Link(NamedTuple):
    """What the address asks for; None where it says nothing usable.

    settings, pin: of Tune, by name: method, point (on the epsilon grid), r, alpha, TUNE_DIALS and
    weights.
    tensor: not yet compared with what is loaded, see ``view``.
    """

    set_name: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    step: str | None = None
    pin: Mapping[str, Any] | None = None
    dial: str | None = None
    tensor: str | None = None
    element: int = 0
    lesson: str | None = None
    present: bool = False

    def view(self, loaded: LoadedModels | None) -> dict[str, Any]:
        """Return what the browser is to show of what is loaded; parts that do not fit are None.

        Keys: step, lesson, present; pin (settings); dial; tensor and element.
        """
        sizes = {} if loaded is None else _sizes(loaded)
        return {
            "step": self.step,
            "lesson": self.lesson,
            "present": self.present,
            "pin": self.pin and dict(self.pin),
            "dial": self.dial,
            "tensor": self.tensor if self.tensor in sizes else None,
            "element": min(self.element, sizes.get(self.tensor or "", 1) - 1),
        }


def _sizes(loaded: LoadedModels) -> dict[str, int]:
    """Return the tensors that the microscope can show, with their numbers of elements."""
    entries = zip(loaded.analysis.tensors, loaded.analysis.counts.numel.tolist(), strict=True)
    return {entry.name: int(size) for entry, size in entries if size}


def read_link(query: Mapping[str, str]) -> Link:
    """Return the link in a page's query parameters.

    ``epsilon`` goes to the nearest grid point. A ``+`` in an unquoted ``rule=ram+`` arrives as a
    space and is understood.
    """
    set_name, step, dial = query.get("set"), query.get("step"), query.get("dial")
    lesson = query.get("lesson") or ""
    return Link(
        set_name if set_name in TITLES else None,
        _settings(query.get("rule"), query),
        step if step in STEPS else None,
        _pin(query.get("pin")),
        dial if dial in ("point", "r", "alpha", *TUNE_DIALS) else None,
        query.get("tensor"),
        _whole(query.get("element")) or 0,
        lesson if scene_of(lesson) else None,
        query.get("present") == "1",
    )


KEYS = (
    *("set", "rule", *RANGES, "weights", "dial", "step", "pin"),
    *("tensor", "element", "lesson", "present"),
)
"""All that an address can say; what else stands there is left out."""


def _settings(rule: str | None, values: Mapping[str, str]) -> dict[str, Any]:
    rule = (rule or "").replace(" ", "+")
    found = dict(PLACES.get(rule, {"method": rule} if rule in SHOWN else {}))
    for name, most in RANGES.items():
        value = read_number(values.get(name), most)
        if value is not None:
            found |= {"point": snap(value)} if name == "epsilon" else {name: value}
    if weights := usable_weights(values.get("weights")):
        found["weights"] = weights
    return found


def pin_parts(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the method of A and its settings, as a link writes them."""
    rule, *entries = (text or "").split("~")
    return rule, dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _pin(text: str | None) -> dict[str, Any] | None:
    """Return the settings of A; None without a method that Tune shows."""
    found = _settings(*pin_parts(text))
    return found if "method" in found else None


def read_number(text: str | None, high: float) -> float | None:
    """Return a number of the address, from 0 to ``high``; None for what is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else min(max(value, 0.0), high)


def _whole(text: str | None) -> int | None:
    # Eighteen digits name any element; more only cost time to read.
    return int(text) if text and len(text) <= 18 and text.isascii() and text.isdecimal() else None


def tune_query(set_name: str | None, rule: str, settings: Mapping[str, Any]) -> str:
    """Return a query that opens Tune with the settings of a merge that it can show.

    settings: the recipe's, perhaps with its weights; those that are no numbers are left out.
    """
    known = {"step": "tune"} | ({} if set_name is None else {"set": set_name})
    for name in RANGES:
        value = settings.get(name)
        if isinstance(value, (int, float)):
            known[name] = repr(value)
    if weights := settings.get("weights"):
        known["weights"] = weights_text(weights)
    return urlencode({**known, "rule": rule})
