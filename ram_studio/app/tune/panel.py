"""Step 2, Tune: one canvas; every effect of a setting is computed and drawn in the browser.

No move reaches the server: the events below have no Python function. The counts come once, as the
value of the canvas; assets/canvas/ does the rest. Gradio's sliders, which nobody sees, hold the
values that other steps, links and recipes read and set; the canvas and they follow one another
(assets/tune.js).
"""

from __future__ import annotations

import gradio as gr

from ram_studio.algorithm import scaling
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app import templates
from ram_studio.app.boxes import html, slider
from ram_studio.app.details.panel import DetailsPanel
from ram_studio.app.load import watch
from ram_studio.app.session.deep_link import ALPHA_MAX, R_MAX, SHOWN
from ram_studio.app.session.sets import profile_of
from ram_studio.app.session.shared import Shared, Tuning
from ram_studio.app.tune.measure_panel import MeasurePanel
from ram_studio.app.tune.microscope_panel import ScopePanel


class TunePanel:
    """The step; its settings are ``shared.tuning``."""

    def __init__(self, shared: Shared) -> None:
        with gr.Column(elem_id="step-tune", elem_classes="step"):
            watch.build(shared)
            live = html(
                None,
                html_template=templates.render("tune/canvas.html.j2"),
                js_on_load="window.RAM_READY.then((RAM) => RAM.mount(element, props, watch))",
                elem_id="live",
            )
            shared.tuning, record = _build_settings()
            MeasurePanel(shared)
            ScopePanel(shared)
            DetailsPanel(shared)
        settings = [*shared.tuning]
        # Both: .change when the value was set by a link, a recipe or the canvas, .input by hand.
        gr.on(
            [event for c in settings for event in (c.input, c.change)],
            fn=None,
            inputs=settings,
            js="(e, r, a, rule) => { window.RAM.update(e, r, a, rule); }",
            trigger_mode="multiple",
            show_progress="hidden",
        )
        record.click(fn=None, outputs=settings, js="() => window.RAM.settings()")
        shared.loaded.listen([live], lambda session: {live: profile_of(session.models)})


def _build_settings() -> tuple[Tuning, gr.Button]:
    """Return the sliders of record, and the button by which the canvas sets them."""
    with gr.Column(elem_id="record"):
        epsilon = slider("epsilon", (0, len(EPSILON_GRID) - 1), DEFAULT_INDEX, 1, elem_id="epsilon")
        r = slider("r", (0, R_MAX), scaling.DEFAULT_R, 0.01, elem_id="r")
        alpha = slider("alpha", (0, ALPHA_MAX), scaling.DEFAULT_ALPHA, 0.05, elem_id="alpha")
        rule = gr.Radio(list(SHOWN), value=scaling.DEFAULT_RULE, label="method", elem_id="rule")
        record = gr.Button("", elem_id="record-settings")
    return Tuning(epsilon, r, alpha, rule), record
