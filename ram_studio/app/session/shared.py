"""What the panels of the page share, and how one tells the others that something changed.

A panel is a class: made with ``shared`` inside the open Blocks, it lays itself out and connects its
events. Handlers are given the session of whoever asks (``shared.with_session``) and return dicts
keyed by component. Two rules join the panels:

- A panel that shows something of the session listens to its ``Change``:
  ``shared.loaded.listen(components, show)``, where ``show(session)`` returns updates of them. The
  handler that changes it returns ``{**own, **shared.loaded.updates(session)}`` with outputs
  ``[*own, *shared.loaded.components]``: one answer of the server for all panels.
- An event that needs another panel's components, such as those of a ``Change``, is connected by
  ``shared.when_built(wire)``: called once every panel stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gradio as gr

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.app.session.jobs import Updates
from ram_studio.app.session.session import Session
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings


class Change:
    """Something of a session that several panels show: loaded models, merges, a report."""

    def __init__(self) -> None:
        self._listeners: list[tuple[list[Any], Callable[[Session], Updates]]] = []

    def listen(self, components: Sequence[Any], show: Callable[[Session], Updates]) -> None:
        """Have ``show(session)`` called at a change; it returns updates of these components."""
        self._listeners.append((list(components), show))

    @property
    def components(self) -> list[Any]:
        """Every component that shows it."""
        return list(dict.fromkeys(c for components, _ in self._listeners for c in components))

    def updates(self, session: Session) -> Updates:
        """Return what every listener shows for a session."""
        return {c: update for _, show in self._listeners for c, update in show(session).items()}


class Tuned(NamedTuple):
    """The values of Tune's settings; point: on the epsilon grid of thresholds."""

    point: int
    r: float
    alpha: float
    rule: str

    @property
    def epsilon(self) -> float:
        """The threshold."""
        return EPSILON_GRID[self.point]

    @property
    def values(self) -> dict[str, float]:
        """epsilon, r and alpha by name."""
        return {"epsilon": self.epsilon, "r": self.r, "alpha": self.alpha}


def clamp_grid_index(point: float | None) -> int:
    """Return a slider's value as a grid point, clamped: it comes from the browser."""
    return min(max(0, int(point or 0)), len(EPSILON_GRID) - 1)


class Tuning(NamedTuple):
    """The components of Tune's settings, which other panels read and set; in ``Tuned``'s order."""

    epsilon: gr.Slider
    r: gr.Slider
    alpha: gr.Slider
    rule: gr.Radio

    def read(self, data: Mapping[Any, Any]) -> Tuned:
        """Return their values among a handler's inputs."""
        point, r, alpha, rule = (data[component] for component in self)
        return Tuned(clamp_grid_index(point), float(r), float(alpha), rule)


@dataclass(frozen=True)
class Asking:
    """What Check is to ask, settable from elsewhere.

    components: all that ``fill`` updates. fill: from names of models and suites.
    """

    components: list[Any]
    fill: Callable[[Sequence[str], Sequence[str], Session], Updates]


@dataclass
class Shared:
    """The page while it is built.

    steps: the stepper's buttons; the browser opens a step by pressing its button.
    loaded, merged, checked: what panels listen to. tuning: set by Tune. seed: set by Merge.
    asking: Check's form, set by Check.
    """

    workspace: Workspace
    steps: Mapping[str, gr.Button]
    loaded: Change = field(default_factory=Change)
    merged: Change = field(default_factory=Change)
    checked: Change = field(default_factory=Change)
    tuning: Tuning = field(init=False)
    seed: gr.Number = field(init=False)
    asking: Asking = field(init=False)
    _later: list[Callable[[], None]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The settings of this run of the app."""
        return self.workspace.settings

    def session(self, request: gr.Request) -> Session:
        """Return the session of whoever asks."""
        return self.workspace.session_of(request)

    def with_session(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler of an event: ``handle(*inputs, session)`` for whoever asks."""

        def handler(request: gr.Request, *inputs: Any) -> Any:
            return handle(*inputs, self.session(request))

        return handler

    def when_built(self, wire: Callable[[], None]) -> None:
        """Have events connected once every panel stands."""
        self._later.append(wire)

    def connect(self) -> None:
        """Connect what waited for other panels; called once, by the page."""
        for wire in self._later:
            wire()
