"""Common parts of the page's panels, and notifications of changes between them.

A panel is a class: created with ``shared`` inside the open Blocks, it lays itself out and connects
its events. Handlers get the caller's session (``shared.with_session``) and return dicts keyed by
component. Two rules connect the panels:

- A panel that shows a part of the session listens to its ``Change``:
  ``shared.loaded.listen(components, show)``, where ``show(session)`` returns updates of them. The
  handler that changes it returns ``{**own, **shared.loaded.updates(session)}`` with outputs
  ``[*own, *shared.loaded.components]``: one response of the server for all panels.
- An event that needs another panel's components, such as those of a ``Change``, is connected by
  ``shared.when_built(wire)``: called after all panels are built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import gradio as gr

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import DEFAULT_ALPHA, DEFAULT_R, DEFAULT_RULE
from ram_studio.app.boxes import html
from ram_studio.app.session.deep_link import TUNE_DIALS
from ram_studio.app.session.jobs import JobControls, Updates, stop_button
from ram_studio.app.session.session import Session
from ram_studio.app.session.weights import usable_weights
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.evals.report.canvas_page import RANGES


class Change:
    """A part of a session that several panels show: loaded models, merges, a report."""

    def __init__(self) -> None:
        self._listeners: list[tuple[list[Any], Callable[[Session], Updates]]] = []

    def listen(self, components: Sequence[Any], show: Callable[[Session], Updates]) -> None:
        """Register ``show(session)``, which returns updates of these components after a change."""
        self._listeners.append((list(components), show))

    @property
    def components(self) -> list[Any]:
        """All components that show it."""
        return list(dict.fromkeys(c for components, _ in self._listeners for c in components))

    def updates(self, session: Session) -> Updates:
        """Return the updates of all listeners for a session."""
        return {c: update for _, show in self._listeners for c, update in show(session).items()}


def open_after(event: Any, step: gr.Textbox) -> None:
    """Open the step named in a hidden text after an event, "" for none."""
    event.then(fn=None, inputs=step, js="(step) => { window.RAM.open(step); }")


class TuneSettings(NamedTuple):
    """The settings in Tune: a method by its recipe name, and the values of all dials, by name.

    point: epsilon's index on the epsilon grid. own: settings other than RAM's three.
    """

    method: str = DEFAULT_RULE
    point: int = DEFAULT_INDEX
    r: float = DEFAULT_R
    alpha: float = DEFAULT_ALPHA
    own: Mapping[str, Any] = MappingProxyType({})
    weights: Mapping[str, float | list[float]] = MappingProxyType({})

    @property
    def epsilon(self) -> float:
        """The threshold."""
        return EPSILON_GRID[self.point]

    @property
    def values(self) -> dict[str, float]:
        """epsilon, r and alpha by name."""
        return {"epsilon": self.epsilon, "r": self.r, "alpha": self.alpha}

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings, as in a recipe."""
        known = {**self.values, **self.own}
        fields = METHODS[self.method].settings.model_fields
        return {name: known[name] for name in fields if name in known}


def read_tune_settings(text: str | None) -> TuneSettings:
    """Return the settings in the browser's JSON, see ``tune_settings_from``."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        values = {}
    return tune_settings_from(values if isinstance(values, dict) else {})


def tune_settings_from(values: Mapping[str, Any]) -> TuneSettings:
    """Return settings by name, clamped; missing ones are the paper's.

    values: any of method, point, r, alpha, further settings' names and weights.
    """

    def number(name: str, usual: float, most: float) -> float:
        value = values.get(name)
        if not isinstance(value, (int, float)) or value != value or abs(value) == math.inf:
            return usual
        return float(min(max(0.0, value), most))

    method = values.get("method")
    return TuneSettings(
        method if isinstance(method, str) and method in METHODS else DEFAULT_RULE,
        int(number("point", DEFAULT_INDEX, len(EPSILON_GRID) - 1)),
        number("r", DEFAULT_R, RANGES["r"]),
        number("alpha", DEFAULT_ALPHA, RANGES["alpha"]),
        {name: values[name] for name in (*TUNE_DIALS, "solver") if name in values},
        usable_weights(values.get("weights")),
    )


class TuneComponent(NamedTuple):
    """The component with Tune's settings, one JSON value, which other panels read and set."""

    value: gr.Textbox

    def read(self, data: Mapping[Any, Any]) -> TuneSettings:
        """Return its settings in a handler's inputs."""
        return read_tune_settings(data[self.value])

    def update(self, **settings: Any) -> Updates:
        """Return the update that sets some of method, point, r, alpha and other dials."""
        values = {name: value for name, value in settings.items() if value is not None}
        return {self.value: json.dumps(values)} if values else {}


@dataclass(frozen=True)
class CheckForm:
    """Check's form, which other panels can fill.

    components: updated by ``fill``. fill: from names of models and suites.
    """

    components: list[Any]
    fill: Callable[[Sequence[str], Sequence[str], Session], Updates]


@dataclass
class PageContext:
    """The page while it is built.

    steps: the stepper's buttons; the browser opens a step by clicking its button.
    loaded, merged, checked: the changes for listeners. tuning: set by Tune. seed: set by Merge.
    asking: Check's form, set by Check.
    """

    workspace: Workspace
    steps: Mapping[str, gr.Button]
    loaded: Change = field(default_factory=Change)
    merged: Change = field(default_factory=Change)
    checked: Change = field(default_factory=Change)
    tuning: TuneComponent = field(init=False)
    seed: gr.Number = field(init=False)
    asking: CheckForm = field(init=False)
    _later: list[Callable[[], None]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The settings of this run of the app."""
        return self.workspace.settings

    def with_session(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return an event handler: ``handle(*inputs, session)`` with the caller's session."""

        def handler(request: gr.Request, *inputs: Any) -> Any:
            return handle(*inputs, self.workspace.session_of(request))

        return handler

    def clear_on_load(self, *texts: Any) -> None:
        """Clear texts when models are loaded, as they refer to the previous models."""
        self.loaded.listen(texts, lambda session: dict.fromkeys(texts, ""))

    def job_controls(self, label: str, *, start: str, stop: str, status: str) -> JobControls:
        """Lay out a job's button, its Stop and its status; start, stop, status: their ids."""
        with gr.Row(elem_classes="actions"):
            started = gr.Button(label, variant="primary", elem_id=start)
            stopped = stop_button(stop)
        controls = JobControls(started, stopped, html(elem_id=status))
        self.clear_on_load(controls.status)
        return controls

    def when_built(self, wire: Callable[[], None]) -> None:
        """Connect events after all panels are built."""
        self._later.append(wire)

    def connect(self) -> None:
        """Run the registered connections; called once, by the page."""
        for wire in self._later:
            wire()
