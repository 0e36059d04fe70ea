"""Step 2, Tune: one stage; every effect of a setting is computed and drawn in the browser.

Moving a slider sends no request: the events below have no Python function. Counts are sent once, as
the value of the stage; assets/canvas/ does the rest. A hidden text holds the settings as JSON,
which other steps, links and recipes read and set; the stage and the text are synchronized
(assets/tune.js).
"""

from __future__ import annotations

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.boxes import mount_point
from ram_studio.app.load import watch
from ram_studio.app.session.sets import profile_of
from ram_studio.app.session.shared import PageContext, TuneComponent
from ram_studio.app.tune.details_panel import DetailsPanel
from ram_studio.app.tune.measure_panel import MeasurePanel
from ram_studio.app.tune.microscope_panel import ScopePanel


class TunePanel:
    """The step; its settings are ``shared.tuning``."""

    def __init__(self, shared: PageContext) -> None:
        with gr.Column(elem_id="step-tune", elem_classes="step"):
            watch.build(shared)
            canvas = templates.render("tune/canvas.html.j2")
            live = mount_point("mount(element, props, watch)", "live", canvas)
            with gr.Column(elem_id="record"):
                value = gr.Textbox("", label="settings", elem_id="settings")
                record = gr.Button("", elem_id="record-settings")
            shared.tuning = TuneComponent(value)
            MeasurePanel(shared)
            ScopePanel(shared)
            DetailsPanel(shared)
        # Set by a link, a recipe, a sweep, or the stage itself.
        value.change(
            fn=None,
            inputs=value,
            js="(text) => { window.RAM.update(text); }",
            trigger_mode="multiple",
            show_progress="hidden",
        )
        record.click(fn=None, outputs=value, js="() => window.RAM.giveSettings()")
        shared.loaded.listen([live], lambda session: {live: profile_of(session.models)})
