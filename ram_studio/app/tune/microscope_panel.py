"""The microscope in the Tune step: pickers, a grid of weights, and the formula of one of them.

Folded by default and silent until opened. While it is open, a pause in moving Tune's settings asks
for the same weights again (assets/microscope.js presses the hidden button).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from ram_studio.app import markup, wording
from ram_studio.app.load.opened import open_loaded
from ram_studio.app.session import Loaded
from ram_studio.app.tune import details_wording
from ram_studio.app.tune import microscope_data as data
from ram_studio.app.tune.microscope_data import EVERYWHERE, ScopeForm
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.engine.microscope.search import CONFLICT, SHARED, UNIQUE, find_element
from ram_studio.engine.microscope.view import find_tensor
from ram_studio.errors import RamStudioError

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_ANYWHERE = [(details_wording.SCOPE_ALL, EVERYWHERE)]


@dataclass(frozen=True)
class ScopePanel:
    """The components of the panel."""

    box: gr.Accordion
    layer: gr.Dropdown
    module: gr.Dropdown
    tensor: gr.Dropdown
    start: gr.Slider
    layout: gr.Radio
    target: gr.Dropdown
    jump: gr.Button
    dtype: gr.Dropdown
    rounding: gr.Radio
    refresh: gr.Button
    status: gr.HTML
    view: gr.HTML

    @property
    def form(self) -> list[Any]:
        """The pickers, in the order handlers take them."""
        return [
            self.layer,
            self.module,
            self.tensor,
            self.start,
            self.layout,
            self.target,
            self.dtype,
            self.rounding,
        ]

    @property
    def outputs(self) -> list[Any]:
        """What the handlers return values for."""
        return [
            self.layer,
            self.module,
            self.tensor,
            self.start,
            self.target,
            self.status,
            self.view,
        ]


def build() -> ScopePanel:
    """Lay the panel out inside the open Blocks."""
    with gr.Accordion(details_wording.SCOPE_HEADING, open=False, elem_id="microscope") as box:
        gr.HTML(
            f'<p class="lead">{escape(details_wording.SCOPE_LEAD)}</p>', apply_default_css=False
        )
        with gr.Row(elem_classes="scope-pickers"):
            layer = gr.Dropdown(
                _ANYWHERE,
                value=EVERYWHERE,
                label=details_wording.SCOPE_LAYER,
                min_width=90,
                scale=1,
                elem_id="scope-layer",
            )
            module = gr.Dropdown(
                _ANYWHERE,
                value=EVERYWHERE,
                label=details_wording.SCOPE_MODULE,
                min_width=120,
                scale=2,
                elem_id="scope-module",
            )
            tensor = gr.Dropdown(
                [],
                label=details_wording.SCOPE_TENSOR,
                min_width=240,
                scale=5,
                elem_id="scope-tensor",
            )
        with gr.Row(elem_classes="scope-pickers"):
            start = gr.Slider(
                0,
                1,
                value=0,
                step=1,
                label=details_wording.SCOPE_START,
                buttons=[],
                min_width=240,
                scale=4,
                elem_id="scope-start",
            )
            target = gr.Dropdown(
                [],
                label=details_wording.SCOPE_JUMP_TO,
                filterable=False,
                min_width=220,
                scale=4,
                elem_id="scope-target",
            )
            jump = gr.Button(
                details_wording.SCOPE_JUMP, size="md", min_width=90, scale=0, elem_id="scope-jump"
            )
        with gr.Row(elem_classes="scope-pickers"):
            layout = gr.Radio(
                details_wording.SCOPE_LAYOUTS,
                value="run",
                label=details_wording.SCOPE_LAYOUT,
                min_width=220,
                elem_id="scope-layout",
            )
            dtype = gr.Dropdown(
                details_wording.SCOPE_DTYPES,
                value="",
                label=wording.DTYPE_LABEL,
                filterable=False,
                min_width=120,
                elem_id="scope-dtype",
            )
            rounding = gr.Radio(
                wording.ROUNDINGS,
                value="nearest",
                label=wording.ROUNDING_LABEL,
                min_width=220,
                elem_id="scope-rounding",
            )
        status = gr.HTML("", elem_id="scope-status", apply_default_css=False)
        view = gr.HTML(
            None,
            html_template='<div class="scope"></div>',
            js_on_load="window.RAM && window.RAM.mountScope(element, props, watch)",
            elem_id="scope",
            apply_default_css=False,
        )
        refresh = gr.Button("", elem_id="scope-refresh", elem_classes="unseen")
    return ScopePanel(
        box,
        layer,
        module,
        tensor,
        start,
        layout,
        target,
        jump,
        dtype,
        rounding,
        refresh,
        status,
        view,
    )


def _pickers(
    report: CompatibilityReport, layer: str, module: str, tensor: str, start: int, target: str
) -> list[Any]:
    """Return updates of the layer, module, tensor, start and target boxes."""
    layers, modules = data.choices_of(report)
    names = data.names_of(report, layer, module)
    last = max(1, find_tensor(report, tensor).numel - 1)
    agents = [agent.name for agent in report.agents]
    targets = [(details_wording.SCOPE_UNIQUE.format(agent=a), f"{UNIQUE}{a}") for a in agents]
    if len(agents) > 1:
        shared, conflict = (
            (details_wording.SCOPE_SHARED, SHARED),
            (details_wording.SCOPE_CONFLICT, CONFLICT),
        )
        targets = [shared, *targets, conflict]
    known = [value for _, value in targets]
    return [
        gr.update(choices=[*_ANYWHERE, *layers], value=layer),
        gr.update(choices=[*_ANYWHERE, *modules], value=module),
        gr.update(choices=names, value=tensor),
        gr.update(maximum=last, value=min(start, last)),
        gr.update(choices=targets, value=target if target in known else known[0]),
    ]


def show(loaded: Loaded | None, values: Sequence[Any], *, jumps: bool = False) -> list[Any]:
    """Return updates of ``ScopePanel.outputs`` for the form's values.

    values: of Tune's settings, the seed, and ``ScopePanel.form``. jumps: go to the target first.
    A tensor that is not among the chosen layer and module, or of what is loaded, is replaced.
    """
    if loaded is None:
        return [*[gr.skip()] * 5, markup.callout(wording.NEED_LOAD, "warn"), None]
    point, r, alpha, rule, seed, layer, module, tensor, start, layout, target, dtype, how = values
    settings = ScopeForm(
        int(point), r, alpha, rule, "", 0, layout, dtype or None, how, int(seed or 0)
    )
    try:
        report = open_loaded(loaded)
        layers, modules = data.choices_of(report)
        layer = layer if layer in layers else EVERYWHERE
        module = module if module in modules else EVERYWHERE
        names = data.names_of(report, layer, module)
        if not names:  # this layer has no such module
            module = EVERYWHERE
            names = data.names_of(report, layer, module)
        focus, message = None, ""
        if tensor not in names:
            tensor, start = names[0], 0
            if layer == module == EVERYWHERE:
                tensor, first = data.first_view(loaded, report, settings.epsilon)
                start = max(0, first - data.BEFORE)
        start = int(start or 0)
        if jumps:
            focus, message = _jump(report, tensor, target, settings.epsilon, start)
            start = start if focus is None else max(0, focus - data.BEFORE)
        form = ScopeForm(**{**vars(settings), "tensor": tensor, "start": start, "focus": focus})
        drawn = data.panel_data(loaded, report, form)
    except RamStudioError as error:
        return [*[gr.skip()] * 5, markup.callout(str(error), "bad"), None]
    return [*_pickers(report, layer, module, tensor, start, target), message, drawn]


def _jump(
    report: CompatibilityReport, name: str, target: str, epsilon: float, start: int
) -> tuple[int | None, str]:
    """Return where the next such element lies, or None and what to say instead."""
    tensor = find_tensor(report, name)
    # The element shown in focus lies BEFORE places after the start: look behind it.
    found = find_element(
        report,
        tensor,
        target,
        epsilon=epsilon,
        start=min(start + data.BEFORE + 1, tensor.numel),
        limit=data.SEARCH_LIMIT,
    )
    if found is not None:
        return found.index, ""
    if tensor.numel - start > data.SEARCH_LIMIT:
        cut = f"{data.SEARCH_LIMIT:,}".replace(",", " ")
        return None, markup.callout(details_wording.SCOPE_CUT.format(n=cut), "note")
    return None, markup.callout(details_wording.SCOPE_NOT_FOUND, "note")


def wire(panel: ScopePanel, settings: list[Any], seed: gr.Number, workspace: Workspace) -> None:
    """Connect the panel's events. settings: Tune's; seed: the Merge step's."""
    inputs = [*settings, seed, *panel.form]

    def look(request: gr.Request, *values: Any) -> list[Any]:
        return show(workspace.session(request.session_hash).loaded, values)

    def jump(request: gr.Request, *values: Any) -> list[Any]:
        return show(workspace.session(request.session_hash).loaded, values, jumps=True)

    pickers = (
        panel.layer,
        panel.module,
        panel.tensor,
        panel.start,
        panel.layout,
        panel.dtype,
        panel.rounding,
    )
    gr.on(
        [panel.box.expand, panel.refresh.click, *(picker.input for picker in pickers)],
        look,
        inputs,
        panel.outputs,
        trigger_mode="always_last",
        concurrency_limit=2,
        **_QUIET,
    )
    panel.jump.click(
        jump,
        inputs,
        panel.outputs,
        concurrency_limit=2,
        **{**_QUIET, "show_progress": "minimal"},
        show_progress_on=panel.status,
    )
