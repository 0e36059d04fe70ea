"""The only source of HTML: Jinja2 templates beside their views, with every value escaped.

A view calls ``render("room/name.html.j2", ...)``. In templates ``ui`` has the macros that several
panels use (shared.html.j2), and the functions of numbers.py are filters: ``{{ n | size }}``. The
result is ``Markup``: it can be passed to another template, and text added to it is escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from ram_studio.app import numbers
from ram_studio.errors import RamStudioError, Stopped
from ram_studio.evals.report.colors import SHAPE_PATHS
from ram_studio.resources import templates

Tone = Literal["good", "note", "warn", "bad", "plain"]

_ENVIRONMENT = templates(Path(__file__).parent)
_ENVIRONMENT.globals["shape_paths"] = SHAPE_PATHS
_FILTERS = ("epsilon", "size", "duration", "count", "percent", "ratio", "factor", "dtypes")
for _name in (*_FILTERS, "retained", "by_rounding"):
    _ENVIRONMENT.filters[_name] = getattr(numbers, f"{_name}_text")
_UI: Any = _ENVIRONMENT.get_template("shared.html.j2").module
_ENVIRONMENT.globals["ui"] = _UI


def render(template: str, **values: Any) -> Markup:
    """Return a rendered template of this folder; a missing value is an error.

    template: path below app/, such as "load/fit.html.j2".
    """
    return Markup(_ENVIRONMENT.get_template(template).render(values))


callout: Callable[..., Markup] = _UI.callout
"""Return a highlighted sentence; its second argument is a ``Tone``."""

empty_state: Callable[[str], Markup] = _UI.empty_state
"""Return the placeholder of a result."""

step_head: Callable[..., Markup] = _UI.step_head
"""Return a step's heading and its one-sentence lead."""


def failure(error: RamStudioError | None, stopped: str) -> Markup:
    """Return why a job has no result; ``stopped`` is shown after a stop."""
    if isinstance(error, Stopped):
        return callout(stopped)
    return callout(str(error), "bad")


def progress(fraction: float | None, title: str, details: str = "") -> Markup:
    """Return a progress bar; ``fraction`` None shows work of unknown length."""
    known = None if fraction is None else min(max(fraction, 0.0), 1.0)
    return Markup(_UI.progress(known, title, details))
