"""The query of the page's URL, parsed and checked; assets/canvas/model/links.js writes it.

| key | meaning | | --- | --- | | ``set`` | the shipped set to load: ``shared-style``,
``independent``, ``dense`` or ``real`` | | ``rule`` | Tune's method by its recipe name, or
``average`` or ``sum`` | | ``epsilon``, ``r``, ``alpha``, ``scale``, ``density``, ``drop_rate`` |
its settings | | ``weights`` | of agents, as in Merge's form: ``coding=0.7, memory=0.2 0.8`` |
| ``dial`` | the active one: ``point`` (epsilon), or one of the other names | | ``step`` | the step
to open, default ``tune`` with a set | | ``pin`` | the settings of A: ``RULE~NAME=VALUE~...``;
missing ones have defaults | | ``tensor``, ``element`` | the weight under the microscope: its tensor
and index | | ``lesson`` | a scene of the lesson (assets/lesson/): its number, from 1, or its name |
| ``present`` | ``1``: in presentation mode |

All values are clamped to valid ones or ignored: a link never fails.
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
"""Scales of task arithmetic with a name; its default scale is 1/N."""

AVERAGE, SUM = PLACES


def method_title(name: str) -> str:
    """Return the title of a method, or of a scale with a name, on every screen."""
    return METHODS[name].title if name in METHODS else name.capitalize()


def shown_method(method: str, settings: Mapping[str, Any], n_agents: int) -> str:
    """Return a method's name on pages.

    Task arithmetic with scale 1 is the sum, with 1/N (for N agents, the default) the average; other
    scales have the method's name.
    """
    scale = settings.get("scale")
    scale = 1 / n_agents if scale is None else scale
    if method != "task-arithmetic" or not isinstance(scale, (int, float)):
        return method
    named = ((SUM, 1.0), (AVERAGE, 1 / n_agents))
    return next((name for name, wanted in named if math.isclose(scale, wanted)), method)


TUNE_DIALS = ("scale", "density", "drop_rate")
"""Settings of methods outside the RAM family with a dial in Tune."""

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
"""The titles of the lesson's scenes by name, in order, as in assets/lesson/."""


def scene_of(lesson: str | None) -> str | None:
    """Return the name of a link's scene, given by its number, from 1, or its name."""
    name = lesson or ""
    if re.fullmatch("[1-9]", name) and int(name) <= len(SCENES):
        return list(SCENES)[int(name) - 1]
    return name if name in SCENES else None


class Link(NamedTuple):
    """The parsed link; None for parts that are missing or invalid.

    settings, pin: of Tune, by name: method, point (on the epsilon grid), r, alpha, TUNE_DIALS and
    weights.
    tensor: not yet checked against the loaded models, see ``view``.
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
        """Return the browser's view of the loaded models; parts that do not fit are None.

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
    """Return the tensors of the microscope, with their numbers of elements."""
    entries = zip(loaded.analysis.tensors, loaded.analysis.counts.numel.tolist(), strict=True)
    return {entry.name: int(size) for entry, size in entries if size}


def read_link(query: Mapping[str, str]) -> Link:
    """Return the link in a page's query parameters.

    ``epsilon`` is rounded to the nearest grid point. A ``+`` in an unquoted ``rule=ram+`` arrives
    as a space and is accepted.
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
"""All keys of a link; others are ignored."""


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
    """Return the method of A and its settings, as written in a link."""
    rule, *entries = (text or "").split("~")
    return rule, dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _pin(text: str | None) -> dict[str, Any] | None:
    """Return the settings of A; None without a method of Tune."""
    found = _settings(*pin_parts(text))
    return found if "method" in found else None


def read_number(text: str | None, high: float) -> float | None:
    """Return a number in a link, from 0 to ``high``; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else min(max(value, 0.0), high)


def _whole(text: str | None) -> int | None:
    # Eighteen digits are enough for any element; more only take time to parse.
    return int(text) if text and len(text) <= 18 and text.isascii() and text.isdecimal() else None


def tune_query(set_name: str | None, rule: str, settings: Mapping[str, Any]) -> str:
    """Return a query that opens Tune with a merge's settings.

    settings: the recipe's, possibly with its weights; only numbers are used.
    """
    known = {"step": "tune"} | ({} if set_name is None else {"set": set_name})
    for name in RANGES:
        value = settings.get(name)
        if isinstance(value, (int, float)):
            known[name] = repr(value)
    if weights := settings.get("weights"):
        known["weights"] = weights_text(weights)
    return urlencode({**known, "rule": rule})
