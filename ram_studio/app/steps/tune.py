"""Step 3, Tune: sliders whose every effect is computed and drawn in the browser.

No slider move reaches the server: the events below have no Python function. The counts come once,
as the value of the live panel; assets/live.js does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import gradio as gr

from ram_studio.algorithm import scaling
from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.app import microscope_panel, wording
from ram_studio.app.deep_link import ALPHA_MAX, R_MAX
from ram_studio.app.microscope_panel import ScopePanel


@dataclass(frozen=True)
class TuneStep:
    """The components of the step that other steps read or set."""

    column: gr.Column
    epsilon: gr.Slider
    r: gr.Slider
    alpha: gr.Slider
    rule: gr.Radio
    live: gr.HTML
    scope: ScopePanel
    next: gr.Button

    @property
    def settings(self) -> list[gr.components.Component]:
        """The four settings, in the order handlers take them."""
        return [self.epsilon, self.r, self.alpha, self.rule]


def _template() -> str:
    head = "".join(f"<th scope='col'>{escape(c)}</th>" for c in wording.DIALECTS_COLUMNS)
    return f"""
<div class="live"><h2 class="unseen">{escape(wording.TUNE_HEADING)}</h2>
  <p class="callout" data-part="verdict" role="status" hidden>
    <span data-part="verdict-text"></span></p>
  <div class="cards" data-part="cards"></div>
  <section class="box">
    <div class="figure-head"><h3>{escape(wording.BARS_HEADING)}</h3>
      <div class="segmented" role="group">
        <button type="button" data-grouping="layer">{wording.BY_LAYER}</button>
        <button type="button" data-grouping="module">{wording.BY_MODULE}</button>
      </div></div>
    <p class="readout" data-part="readout" role="status"></p>
    <div class="bars" data-part="bars" tabindex="0"></div>
  </section>
  <section class="box">
    <div class="figure-head"><h3>{escape(wording.OVERLAP_HEADING)}</h3>
      <span class="muted" data-part="changed" style="font-size:13px"></span></div>
    <div class="overlap" data-part="overlap" role="img"></div>
    <p class="legend" data-part="overlap-legend"></p>
  </section>
  <section class="box">
    <h3 style="font-size:15px;font-weight:650">{escape(wording.DIALECTS_HEADING)}</h3>
    <div class="table-scroll"><table class="plain"><thead><tr>{head}</tr></thead>
      <tbody data-part="dialects"></tbody></table></div>
    <p class="fine">{escape(wording.DIALECTS_NOTE)}</p>
  </section>
  <p data-part="link" role="status"></p>
</div>"""


def build() -> TuneStep:
    """Lay the step out inside the open Blocks and wire its client-side events."""
    with gr.Column(elem_id="step-tune", elem_classes="step") as column:
        with gr.Row(elem_id="tune-row"):
            with gr.Column(elem_id="controls"):
                with gr.Column(elem_classes="box"):
                    gr.HTML(
                        f"<div class='eps-read'><span>{wording.EPSILON_LABEL}</span>"
                        "<b data-live='epsilon'></b></div>",
                        apply_default_css=False,
                    )
                    epsilon = gr.Slider(
                        0,
                        len(LADDER) - 1,
                        value=DEFAULT_INDEX,
                        step=1,
                        label=wording.EPSILON_LABEL,
                        show_label=False,
                        buttons=[],
                        elem_id="epsilon",
                    )
                    r = gr.Slider(
                        0,
                        R_MAX,
                        value=scaling.DEFAULT_R,
                        step=0.01,
                        label=wording.R_LABEL,
                        buttons=[],
                        elem_id="r",
                    )
                    alpha = gr.Slider(
                        0,
                        ALPHA_MAX,
                        value=scaling.DEFAULT_ALPHA,
                        step=0.05,
                        label=wording.ALPHA_LABEL,
                        buttons=[],
                        elem_id="alpha",
                    )
                    rule = gr.Radio(
                        wording.RULES,
                        value=scaling.DEFAULT_RULE,
                        label=wording.RULE_LABEL,
                        elem_id="rule",
                    )
                with gr.Row(elem_id="tune-buttons"):
                    reset = gr.Button(wording.RESET, size="md", elem_id="reset")
                    link = gr.Button(wording.COPY_LINK, size="md", elem_id="copy-link")
                go_on = gr.Button(wording.NEXT["merge"], variant="primary", elem_classes="next")
            live = gr.HTML(
                None,
                html_template=_template(),
                js_on_load="window.RAM && window.RAM.mount(element, props, watch)",
                elem_id="live",
                apply_default_css=False,
            )
        scope = microscope_panel.build()
    step = TuneStep(column, epsilon, r, alpha, rule, live, scope, go_on)

    # Both events: .input while dragging, .change when the value was set by a link, reset or load.
    gr.on(
        [event for c in step.settings for event in (c.input, c.change)],
        fn=None,
        inputs=step.settings,
        js="(e, r, a, rule) => { window.RAM.update(e, r, a, rule); }",
        trigger_mode="multiple",
        show_progress="hidden",
    )
    defaults = [DEFAULT_INDEX, scaling.DEFAULT_R, scaling.DEFAULT_ALPHA, scaling.DEFAULT_RULE]
    reset.click(
        fn=None,
        outputs=step.settings,
        js=f"() => {defaults!r}",
    )
    link.click(fn=None, js="() => { window.RAM.copyLink(); }")
    return step
