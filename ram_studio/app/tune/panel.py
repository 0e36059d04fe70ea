"""Step 3, Tune: sliders whose every effect is computed and drawn in the browser.

No slider move reaches the server: the events below have no Python function. The counts come once,
as the value of the live panel; assets/live.js does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from ram_studio.algorithm import scaling
from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.app import templates
from ram_studio.app.boxes import html, next_button, slider
from ram_studio.app.load.examples import profile_of
from ram_studio.app.shared import Shared, Tuning
from ram_studio.app.tune import microscope_panel
from ram_studio.app.tune.deep_link import ALPHA_MAX, R_MAX
from ram_studio.app.tune.microscope_panel import ScopePanel

_EPSILON = "ε · what counts as changed"
_RULES = {
    "ram": "RAM: keep them as they are",
    "ram+": "RAM+: rescale, capped",
    "ram+s": "RAM+s: rescale, softly",
    "ram+m": "RAM+m: capped, by size",
}
_DEFAULTS = [DEFAULT_INDEX, scaling.DEFAULT_R, scaling.DEFAULT_ALPHA, scaling.DEFAULT_RULE]


@dataclass(frozen=True)
class Panel:
    """The components of the step; its settings are ``shared.tuning``."""

    live: gr.HTML
    scope: ScopePanel


def build(shared: Shared) -> Panel:
    """Lay the step out inside the open Blocks and connect it."""
    with gr.Column(elem_id="step-tune", elem_classes="step"):
        with gr.Row(elem_id="tune-row"):
            with gr.Column(elem_id="controls"):
                shared.tuning = _build_settings()
                with gr.Row(elem_id="tune-buttons"):
                    reset = gr.Button("Reset", size="md", elem_id="reset")
                    link = gr.Button("Copy link", size="md", elem_id="copy-link")
                next_button("Next: merge", "merge")
            live = html(
                None,
                html_template=templates.render("tune/live.html.j2"),
                js_on_load="window.RAM_READY.then((RAM) => RAM.mount(element, props, watch))",
                elem_id="live",
            )
        scope = microscope_panel.build(shared)
    settings = shared.tuning.all
    # Both events: .input while dragging, .change when the value was set by a link, reset or load.
    gr.on(
        [event for c in settings for event in (c.input, c.change)],
        fn=None,
        inputs=settings,
        js="(e, r, a, rule) => { window.RAM.update(e, r, a, rule); }",
        trigger_mode="multiple",
        show_progress="hidden",
    )
    reset.click(fn=None, outputs=settings, js=f"() => {_DEFAULTS!r}")
    link.click(fn=None, js="() => { window.RAM.copyLink(); }")
    shared.loaded.listen([live], lambda session: {live: profile_of(session.models)})
    return Panel(live, scope)


def _build_settings() -> Tuning:
    with gr.Column(elem_classes="box"):
        html(f"<div class='eps-read'><span>{_EPSILON}</span><b data-live='epsilon'></b></div>")
        points = (0, len(LADDER) - 1)
        epsilon = slider(_EPSILON, points, DEFAULT_INDEX, 1, show_label=False, elem_id="epsilon")
        r = slider("r · how much to rescale", (0, R_MAX), scaling.DEFAULT_R, 0.01, elem_id="r")
        alpha = slider("α · cap on ρ", (0, ALPHA_MAX), scaling.DEFAULT_ALPHA, 0.05, elem_id="alpha")
        rule = gr.Radio(
            [(_RULES.get(rule, rule), rule) for rule in scaling.RULES],
            value=scaling.DEFAULT_RULE,
            label="Rule for unique changes",
            elem_id="rule",
        )
    return Tuning(epsilon, r, alpha, rule)
