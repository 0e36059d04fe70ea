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
from ram_studio.app import wording
from ram_studio.app.tune import details_wording, microscope_panel
from ram_studio.app.tune.deep_link import ALPHA_MAX, R_MAX
from ram_studio.app.tune.microscope_panel import ScopePanel


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


def _columns(names: tuple[str, ...]) -> str:
    return "".join(f"<th scope='col'>{escape(name)}</th>" for name in names)


def _segmented(attribute: str, names: tuple[str, ...], values: tuple[object, ...]) -> str:
    buttons = "".join(
        f'<button type="button" data-{attribute}="{value}">{escape(name)}</button>'
        for name, value in zip(names, values, strict=True)
    )
    return f'<div class="segmented" role="group">{buttons}</div>'


def _rounding() -> str:
    """Return the section on rounding: a sentence, and unfolded, numbers by format and layer."""
    formats = _segmented(
        "format", details_wording.FORMATS, tuple(range(len(details_wording.FORMATS)))
    )
    return f"""<section class="box" data-part="rounding">
    <h3>{escape(details_wording.ROUNDING_HEADING)}</h3>
    <p class="finding" data-part="rounding-line" role="status"></p>
    <details data-part="rounding-more"><summary>{details_wording.ROUNDING_MORE}</summary>
      <div class="table-scroll"><table class="plain kept-table">
        <thead><tr data-part="kept-head"></tr></thead><tbody data-part="kept"></tbody></table></div>
      <p class="fine">{escape(details_wording.ROUNDING_NOTE)}</p>
      <div class="figure-head"><h4>{escape(details_wording.ROUNDING_LAYERS)}</h4>{formats}</div>
      <p class="readout" data-part="rounding-readout" role="status"></p>
      <div class="bars" data-part="rounding-chart" tabindex="0"></div>
    </details>
  </section>"""


def _relations() -> str:
    """Return the section on signs and sizes: a sentence, and unfolded, agents, pairs and layers."""
    measures = _segmented("measure", details_wording.AGREE_MEASURES, ("conflict", "cancelled"))
    return f"""<section class="box" data-part="relations">
    <h3>{escape(details_wording.AGREE_HEADING)}</h3>
    <p class="finding" data-part="relations-line" role="status"></p>
    <details data-part="relations-more"><summary>{details_wording.AGREE_MORE}</summary>
      <div class="table-scroll"><table class="plain">
        <thead><tr>{_columns(details_wording.AGREE_AGENTS)}</tr></thead>
        <tbody data-part="agree-agents"></tbody></table></div>
      <p class="fine">{escape(details_wording.AGREE_NOTE)}</p>
      <div class="table-scroll"><table class="plain">
        <thead><tr>{_columns(details_wording.AGREE_PAIRS)}</tr></thead>
        <tbody data-part="pairs"></tbody></table></div>
      <h4>{escape(details_wording.COSINE_HEADING)}</h4>
      <div class="table-scroll"><table class="plain cosine">
        <thead><tr data-part="cosine-head"></tr></thead><tbody data-part="cosine"></tbody></table>
      </div>
      <p class="fine">{escape(details_wording.COSINE_NOTE)}</p>
      <div class="figure-head"><h4>{escape(details_wording.AGREE_LAYERS)}</h4>{measures}</div>
      <p class="readout" data-part="relations-readout" role="status"></p>
      <div class="bars" data-part="relations-chart" tabindex="0"></div>
    </details>
  </section>"""


def _template() -> str:
    head = _columns(wording.DIALECTS_COLUMNS)
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
  {_rounding()}
  {_relations()}
  <section class="box">
    <details data-part="dialects-more"><summary>{escape(wording.DIALECTS_HEADING)}</summary>
    <div class="table-scroll"><table class="plain"><thead><tr>{head}</tr></thead>
      <tbody data-part="dialects"></tbody></table></div>
    <p class="fine">{escape(wording.DIALECTS_NOTE)}</p></details>
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
                        [(text, rule) for text, rule in wording.RULES if rule in scaling.RULES],
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
