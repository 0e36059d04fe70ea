"""The microscope of Tune: a drawer with a grid of weights, and what becomes of one of them.

Silent until a layer of the canvas is pressed. While it is open, the browser decides which weights
count as changed; a pause in moving the settings asks for the same weights again, for what each
method would store (assets/microscope.js presses the hidden buttons).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.boxes import dtype_box, html, rounding_box, slider
from ram_studio.app.jobs import NEED_LOAD, QUIET, Updates
from ram_studio.app.load.opened import open_loaded
from ram_studio.app.numbers import count_text
from ram_studio.app.session import Loaded
from ram_studio.app.shared import Shared
from ram_studio.app.tune import microscope_data as data_of
from ram_studio.app.tune.microscope_data import EVERYWHERE, ScopeForm
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.engine.microscope.search import CONFLICT, SHARED, UNIQUE, find_element
from ram_studio.engine.microscope.view import find_tensor
from ram_studio.errors import RamStudioError

NOT_FOUND = "There is no such weight further on in this tensor."
_CUT = (
    f"There is none among the next {count_text(data_of.SEARCH_LIMIT)} weights; move the start and "
    "search on."
)
_ANYWHERE = [("All", EVERYWHERE)]


@dataclass(frozen=True)
class ScopePanel:
    """The components of the panel."""

    layer: gr.Dropdown
    module: gr.Dropdown
    tensor: gr.Dropdown
    start: gr.Slider
    target: gr.Dropdown
    jump: gr.Button
    layout: gr.Radio
    dtype: gr.Dropdown
    rounding: gr.Radio
    status: gr.HTML
    view: gr.HTML
    asked: gr.Textbox
    ask: gr.Button
    refresh: gr.Button

    @property
    def places(self) -> list[Any]:
        """The pickers that lead to a weight; each changes with what is chosen before it."""
        return [self.layer, self.module, self.tensor, self.start, self.target]

    @property
    def pickers(self) -> list[Any]:
        """Everything whose input asks for other weights."""
        return [*self.places[:-1], self.layout, self.dtype, self.rounding]


def build(shared: Shared) -> ScopePanel:
    """Lay the panel out inside the open Blocks and connect it."""
    with gr.Column(elem_id="microscope", elem_classes="drawer"):
        view = html(
            None,
            html_template='<div class="scope"></div>',
            js_on_load="window.RAM_READY.then((RAM) => RAM.mountScope(element, props, watch))",
            elem_id="scope",
        )
        status = html(elem_id="scope-status")
        with gr.Accordion("Look elsewhere", open=False, elem_id="scope-where"):
            with gr.Row(elem_classes="scope-pickers"):
                layer = _picker("Layer", "scope-layer", _ANYWHERE, min_width=90, scale=1)
                module = _picker("Module", "scope-module", _ANYWHERE, min_width=120, scale=2)
            tensor = _picker("Tensor", "scope-tensor", [], min_width=240)
            start = slider("First weight shown", (0, 1), 0, 1, min_width=240, elem_id="scope-start")
            with gr.Row(elem_classes="scope-pickers"):
                target = _picker(
                    "Jump to the next", "scope-target", [], filterable=False, min_width=220, scale=4
                )
                jump = gr.Button("Jump", size="md", min_width=90, scale=0, elem_id="scope-jump")
            layout = gr.Radio(
                [("Matrix window", "window"), ("Run", "run")],
                value="window",
                label="Show",
                min_width=220,
                elem_id="scope-layout",
            )
        with gr.Row(elem_classes="scope-pickers"):
            dtype = dtype_box("scope-dtype", min_width=120)
            rounding = rounding_box("scope-rounding")
        asked = gr.Textbox("", visible=False)
        ask = gr.Button("", visible="hidden", elem_id="scope-ask")
        refresh = gr.Button("", visible="hidden", elem_id="scope-refresh")
    places = (layer, module, tensor, start, target)
    shows = (jump, layout, dtype, rounding, status, view)
    panel = ScopePanel(*places, *shows, asked, ask, refresh)
    shared.when_built(lambda: _wire(panel, shared))
    return panel


def _picker(label: str, elem_id: str, choices: list[Any], **options: Any) -> gr.Dropdown:
    value = EVERYWHERE if choices else None
    return gr.Dropdown(choices, value=value, label=label, elem_id=elem_id, **options)


def _wire(panel: ScopePanel, shared: Shared) -> None:
    inputs = {*shared.tuning.all, shared.seed, *panel.pickers, panel.target, panel.asked}
    outputs = [*panel.places, panel.status, panel.view, panel.asked]

    def show_form(data: dict[Any, Any], request: gr.Request, jumps: bool) -> Updates:
        tuned = shared.tuning.read(data)
        form = ScopeForm(
            tuned.point,
            tuned.r,
            tuned.alpha,
            tuned.rule,
            layer=data[panel.layer],
            module=data[panel.module],
            tensor=data[panel.tensor] or "",
            start=int(data[panel.start] or 0),
            target=data[panel.target] or "",
            layout=data[panel.layout],
            dtype=data[panel.dtype] or None,
            rounding=data[panel.rounding],
            seed=int(data[shared.seed] or 0),
            asked=data[panel.asked] or "",
        )
        session = shared.session(request)
        with acting_as(session.token):
            return {panel.asked: "", **show(panel, session.loaded, form, jumps=jumps)}

    def look(data: dict[Any, Any], request: gr.Request) -> Updates:
        return show_form(data, request, False)

    def jump(data: dict[Any, Any], request: gr.Request) -> Updates:
        return show_form(data, request, True)

    gr.on(
        [panel.refresh.click, *(picker.input for picker in panel.pickers)],
        look,
        inputs,
        outputs,
        trigger_mode="always_last",
        concurrency_limit=2,
        **QUIET,
    )
    panel.ask.click(fn=None, outputs=panel.asked, js="() => window.RAM.askedPlace()").then(
        look, inputs, outputs, concurrency_limit=2, **QUIET
    )
    panel.jump.click(
        jump,
        inputs,
        outputs,
        concurrency_limit=2,
        **{**QUIET, "show_progress": "minimal"},
        show_progress_on=panel.status,
    )


def show(
    panel: ScopePanel, loaded: Loaded | None, form: ScopeForm, *, jumps: bool = False
) -> Updates:
    """Return the updates that show the form's weights. jumps: go to the target first.

    A tensor that is not among the chosen layer and module, or of what is loaded, is replaced.
    """
    if loaded is None:
        return {panel.status: templates.callout(NEED_LOAD, "warn"), panel.view: None}
    try:
        report = open_loaded(loaded)
        form, message = data_of.settle(loaded, report, form), ""
        if jumps:
            form, message = _jump(report, form)
        drawn = data_of.panel_data(loaded, report, form)
    except RamStudioError as error:
        return {panel.status: templates.callout(str(error), "bad"), panel.view: None}
    return {**_pickers(panel, report, form), panel.status: message, panel.view: drawn}


def _pickers(panel: ScopePanel, report: CompatibilityReport, form: ScopeForm) -> Updates:
    layers, modules = data_of.choices_of(report)
    last = max(1, find_tensor(report, form.tensor).numel - 1)
    agents = [agent.name for agent in report.agents]
    targets = [(f"weight that only {name} changed", f"{UNIQUE}{name}") for name in agents]
    if len(agents) > 1:
        shared = ("weight that several agents changed", SHARED)
        targets = [shared, *targets, ("strongest conflict of this tensor", CONFLICT)]
    is_known = form.target in [value for _, value in targets]
    names = data_of.names_of(report, form.layer, form.module)
    return {
        panel.layer: gr.update(choices=[*_ANYWHERE, *layers], value=form.layer),
        panel.module: gr.update(choices=[*_ANYWHERE, *modules], value=form.module),
        panel.tensor: gr.update(choices=names, value=form.tensor),
        panel.start: gr.update(maximum=last, value=min(form.start, last)),
        panel.target: gr.update(choices=targets, value=form.target if is_known else targets[0][1]),
    }


def _jump(report: CompatibilityReport, form: ScopeForm) -> tuple[ScopeForm, str]:
    """Return the form at the next such element; or as it is, and what to say instead."""
    tensor = find_tensor(report, form.tensor)
    # The element shown in focus lies BEFORE places after the start: look behind it.
    found = find_element(
        report,
        tensor,
        form.target,
        epsilon=form.epsilon,
        start=min(form.start + data_of.BEFORE + 1, tensor.numel),
        limit=data_of.SEARCH_LIMIT,
    )
    if found is not None:
        start = max(0, found.index - data_of.BEFORE)
        return replace(form, start=start, focus=found.index), ""
    is_cut = tensor.numel - form.start > data_of.SEARCH_LIMIT
    return form, templates.callout(_CUT if is_cut else NOT_FOUND, "note")
