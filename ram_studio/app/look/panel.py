"""Step 2, Look: figures of what the agents changed, at the epsilon of the Tune step.

Drawn on the server when the step is opened and only if the models or epsilon changed since, as
every new figure loses its hover state and costs the browser some tenths of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.app import markup, wording
from ram_studio.app.look import charts
from ram_studio.app.look.storage_view import report_of, storage_html
from ram_studio.app.markup import step_head
from ram_studio.app.session import Loaded

_HALF = (("density", "composition"), ("patterns", "magnitude"), ("layer_density", "layer_overlap"))


NARROW = 700
"""Page width in CSS pixels below which figures are drawn for a phone."""


@dataclass(frozen=True)
class LookStep:
    """The components of the step; ``drawn`` remembers what the figures show."""

    column: gr.Column
    head: gr.HTML
    plots: dict[str, gr.Plot]
    drawn: gr.State
    width: gr.Number
    next: gr.Button

    @property
    def outputs(self) -> list[Any]:
        """What ``draw`` returns values for."""
        return [self.drawn, self.head, *self.plots.values()]


def head_html(loaded: Loaded | None, point: int) -> str:
    """Return the step's heading, which names the epsilon, and what is stored."""
    lead = wording.LOOK_LEAD.format(epsilon=markup.epsilon_text(LADDER[point]))
    head = step_head(wording.LOOK_HEADING, lead)
    return head if loaded is None else head + storage_html(report_of(loaded, point))


def draw(
    loaded: Loaded | None, point: int | float, drawn: str | None, width: float | None = None
) -> list[Any]:
    """Return [what is drawn, heading, figures ...], or "no change" when they are up to date.

    width: of the page in CSS pixels, None when unknown.
    """
    if loaded is None:
        return [
            None,
            step_head(wording.LOOK_HEADING, wording.NEED_LOAD),
            *[None] * len(charts.FIGURES),
        ]
    index = min(max(0, int(point)), len(LADDER) - 1)
    narrow = bool(width) and float(width) < NARROW
    wanted = f"{loaded.identity}|{index}|{narrow}"
    if wanted == drawn:
        return [gr.skip()] * (2 + len(charts.FIGURES))
    figures = [figure(loaded.sketch, index, narrow) for figure in charts.FIGURES.values()]
    heading = head_html(loaded, index)
    if None in figures:
        heading += markup.callout(wording.NO_PATTERNS)
    return [wanted, heading, *figures]


def _figure(name: str) -> gr.Plot:
    title, note = wording.CHARTS[name]
    with gr.Column(elem_classes=["box", "chart"], min_width=300):
        gr.HTML(
            f"<h3>{escape(title)}</h3><p>{escape(note)}</p>",
            elem_classes="chart-head",
            apply_default_css=False,
        )
        return gr.Plot(show_label=False, container=False, elem_id=f"chart-{name}")


def build() -> LookStep:
    """Lay the step out inside the open Blocks."""
    plots: dict[str, gr.Plot] = {}
    with gr.Column(elem_id="step-look", elem_classes="step") as column:
        head = gr.HTML(head_html(None, DEFAULT_INDEX), apply_default_css=False)
        for pair in _HALF:
            with gr.Row(elem_classes="chart-row"):
                for name in pair:
                    plots[name] = _figure(name)
        plots["heatmap"] = _figure("heatmap")
        with gr.Row(elem_classes="next-row"):
            go_on = gr.Button(wording.NEXT["tune"], variant="primary", elem_classes="next")
    ordered = {name: plots[name] for name in charts.FIGURES}
    width = gr.Number(None, visible=False)
    return LookStep(column, head, ordered, gr.State(None), width, go_on)
