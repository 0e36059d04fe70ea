"""Step 2, Look: figures of what the agents changed, at the epsilon of the Tune step.

Drawn on the server when the step is opened and only if the models or epsilon changed since, as
every new figure loses its hover state and costs the browser some tenths of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import gradio as gr
import plotly.graph_objects as go
from gradio.components.plot import PlotData
from markupsafe import Markup

from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.algorithm.sketch import Sketch
from ram_studio.app import templates
from ram_studio.app.boxes import html, next_button
from ram_studio.app.jobs import LIGHT, NEED_LOAD, Updates
from ram_studio.app.load.examples import load_example
from ram_studio.app.look.charts import composition, density, magnitude, patterns
from ram_studio.app.look.layer_charts import heatmap, layer_density, layer_overlap
from ram_studio.app.look.storage_view import report_of, storage_html
from ram_studio.app.numbers import epsilon_text
from ram_studio.app.session import Loaded
from ram_studio.app.shared import Shared, ladder_point
from ram_studio.checkpoints.hub.rights import acting_as

NARROW = 700
"""Page width in CSS pixels below which figures are drawn for a phone."""


class Figure(NamedTuple):
    """A figure of the step. draw: from sketch, ladder point, and whether the page is narrow."""

    draw: Callable[[Sketch, int, bool], go.Figure | None]
    title: str
    note: str


FIGURES = {
    "density": Figure(
        density,
        "How much each agent changed",
        "Share of all weights that moved. RL often moves very few, and how few differs by agent.",
    ),
    "composition": Figure(
        composition,
        "Alone or together",
        "Of the weights an agent changed: the share it changed alone, and with others. RAM keeps "
        "the first in full and averages the rest.",
    ),
    "patterns": Figure(
        patterns, "Who meets whom", "Weights changed by exactly these agents and no others."
    ),
    "magnitude": Figure(
        magnitude,
        "How far weights moved",
        "Weights by size of their change. What lies left of the ε line counts as unchanged.",
    ),
    "layer_density": Figure(
        layer_density,
        "Where in the model: density by layer",
        "Share of each layer's weights that each agent changed.",
    ),
    "layer_overlap": Figure(
        layer_overlap,
        "Where they meet: overlap by layer",
        "Of each layer's changed weights, how many agents changed them.",
    ),
    "heatmap": Figure(
        heatmap,
        "Layer by module",
        "Share of weights changed in each kind of module; brighter means more. One scale for all "
        "agents.",
    ),
}
"""In the order of the step, two in a row."""

_NO_PATTERNS = "With more than six agents the single patterns are not counted."


@dataclass(frozen=True)
class Panel:
    """The components of the step. drawn: what the figures show."""

    head: gr.HTML
    plots: dict[str, gr.Plot]
    drawn: gr.State


def head_html(loaded: Loaded | None, point: int) -> Markup:
    """Return the step's heading, which names the epsilon, and what is stored."""
    lead = NEED_LOAD
    if loaded is not None:
        lead = (
            f"A weight counts as changed when it moved by more than ε = "
            f"{epsilon_text(LADDER[point])}. Change ε in Tune; these figures follow."
        )
    head = templates.step_head("What each agent changed", lead)
    return head if loaded is None else head + storage_html(report_of(loaded, point))


def draw(panel: Panel, loaded: Loaded, point: int, drawn: str | None, is_narrow: bool) -> Updates:
    """Return heading and figures, or "no change" when they are up to date."""
    wanted = f"{loaded.identity}|{point}|{is_narrow}"
    if wanted == drawn:
        return gr.skip()
    heading, figures = _shown(loaded, point, is_narrow)
    plots = {panel.plots[name]: figure for name, figure in figures.items()}
    return {panel.drawn: wanted, panel.head: heading, **plots}


def _shown(loaded: Loaded, point: int, is_narrow: bool) -> tuple[Markup, dict[str, Any]]:
    """Return the heading and the figures as the browser takes them."""
    if loaded.example is not None:
        return _shown_example(loaded.example, point, is_narrow)
    return _draw_all(loaded, point, is_narrow)


@lru_cache(maxsize=64)
def _shown_example(example: str, point: int, is_narrow: bool) -> tuple[Markup, dict[str, Any]]:
    # Thirty visitors look at the same example: drawn once, it costs each a tenth.
    return _draw_all(load_example(example), point, is_narrow)


def _draw_all(loaded: Loaded, point: int, is_narrow: bool) -> tuple[Markup, dict[str, Any]]:
    figures = {n: figure.draw(loaded.sketch, point, is_narrow) for n, figure in FIGURES.items()}
    heading = head_html(loaded, point)
    if None in figures.values():
        heading += templates.callout(_NO_PATTERNS)
    return heading, {name: _as_sent(figure) for name, figure in figures.items()}


def _as_sent(figure: go.Figure | None) -> PlotData | None:
    return None if figure is None else PlotData(type="plotly", plot=figure.to_json())


def _plot(name: str) -> gr.Plot:
    _, title, note = FIGURES[name]
    with gr.Column(elem_classes=["box", "chart"], min_width=300):
        html(f"<h3>{title}</h3><p>{note}</p>", elem_classes="chart-head")
        return gr.Plot(show_label=False, container=False, elem_id=f"chart-{name}")


def build(shared: Shared) -> Panel:
    """Lay the step out inside the open Blocks and connect it."""
    plots: dict[str, gr.Plot] = {}
    names = list(FIGURES)
    with gr.Column(elem_id="step-look", elem_classes="step"):
        head = html(head_html(None, DEFAULT_INDEX))
        for pair in (names[i : i + 2] for i in range(0, len(names), 2)):
            with gr.Row(elem_classes="chart-row"):
                plots.update({name: _plot(name) for name in pair})
        with gr.Row(elem_classes="next-row"):
            next_button("Next: tune", "tune")
    panel = Panel(head, plots, gr.State(None))
    shared.when_built(lambda: _wire(panel, shared))
    return panel


def _wire(panel: Panel, shared: Shared) -> None:
    width = gr.Number(None, visible=False)

    def draw_figures(
        point: float, drawn: str | None, pixels: float | None, request: gr.Request
    ) -> Updates:
        session = shared.session(request)
        if session.loaded is None:
            return gr.skip()
        is_narrow = 0 < (pixels or 0) < NARROW
        with acting_as(session.token):
            return draw(panel, session.loaded, ladder_point(point), drawn, is_narrow)

    shared.steps["look"].click(
        draw_figures,
        [shared.tuning.epsilon, panel.drawn, width],
        [panel.drawn, panel.head, *panel.plots.values()],
        js="(point, drawn) => [point, drawn, window.innerWidth]",
        **{**LIGHT, "show_progress": "minimal"},
        show_progress_on=panel.head,
    )
