"""The microscope of Tune: a drawer with a grid of weights, and the merged values of one of them.

Inactive until a user clicks a layer of the canvas. While it is open, the browser decides which
weights count as changed; after a pause in moving the settings it requests the same weights again,
for each method's stored values (assets/microscope.js clicks the hidden buttons).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.boxes import dtype_box, html, mount_point, rounding_box, slider, unchecked
from ram_studio.app.load.work import open_loaded
from ram_studio.app.numbers import count_text
from ram_studio.app.session.jobs import NEED_LOAD, QUIET, Updates
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.tune import microscope_data as data_of
from ram_studio.app.tune.microscope_data import EVERYWHERE, ScopeForm
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.engine.microscope.search import CONFLICT, SHARED, UNIQUE, find_element
from ram_studio.engine.microscope.view import find_tensor
from ram_studio.errors import RamStudioError

NOT_FOUND = "The rest of this tensor has no such weight."
_CUT = (
    f"None found in the next {count_text(data_of.SEARCH_LIMIT)} weights; move the first weight to "
    "search further."
)
_ANYWHERE = [("All", EVERYWHERE)]
# For the last input, after any others.
_NUMBERED = "(...given) => [...given.slice(0, -1), window.RAM.askNumber()]"


class ScopePanel:
    """The panel. number: of the page's requests, increasing; only the last one is answered."""

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        with gr.Column(elem_id="microscope", elem_classes="drawer"):
            place = '<div class="scope"></div><p class="unseen" role="status"></p>'
            self.view = mount_point("mountScope(element, props, watch)", "scope", place)
            self.status = html(elem_id="scope-status")
            with gr.Accordion("Choose other weights", open=False, elem_id="scope-where"):
                self._lay_out_pickers()
            with gr.Row(elem_classes="scope-pickers"):
                self.dtype = dtype_box("scope-dtype", min_width=120)
                self.rounding = rounding_box("scope-rounding")
            self.place = gr.Textbox("", visible=False)
            self.ask = gr.Button("", visible="hidden", elem_id="scope-ask")
            self.refresh = gr.Button("", visible="hidden", elem_id="scope-refresh")
        shared.when_built(self._wire)

    def _lay_out_pickers(self) -> None:
        with gr.Row(elem_classes="scope-pickers"):
            self.layer = _picker("Layer", "scope-layer", _ANYWHERE, min_width=90, scale=1)
            self.module = _picker("Module", "scope-module", _ANYWHERE, min_width=120, scale=2)
        self.tensor = _picker("Tensor", "scope-tensor", [], min_width=240)
        shape = {"min_width": 240, "elem_id": "scope-start"}
        self.start = unchecked(slider("First weight shown", (0, 1), 0, 1, **shape))
        with gr.Row(elem_classes="scope-pickers"):
            shape = {"filterable": False, "min_width": 220, "scale": 4}
            self.target = _picker("Jump to the next", "scope-target", [], **shape)
            self.jump = gr.Button("Jump", size="md", min_width=90, scale=0, elem_id="scope-jump")
        self.layout = gr.Radio(
            [("Matrix window", "window"), ("Run", "run")],
            value="window",
            label="Show",
            min_width=220,
            elem_id="scope-layout",
        )

    def _wire(self) -> None:
        shared = self.shared
        # Built last, so that it is the last input: inputs are in the order of building.
        self.number = gr.Number(0, visible=False)
        places = [self.layer, self.module, self.tensor, self.start]
        pickers = [*places, self.layout, self.dtype, self.rounding]
        inputs = {*shared.tuning, shared.seed, *pickers, self.target, self.place, self.number}
        outputs = [*places, self.target, self.status, self.view, self.place]
        options: dict[str, Any] = {"js": _NUMBERED, "concurrency_limit": 2, **QUIET}
        probe = shared.with_session(self.answer)
        gr.on(
            [self.refresh.click, *(picker.input for picker in pickers)],
            probe,
            inputs,
            outputs,
            trigger_mode="always_last",
            **options,
        )
        asks = "() => [window.RAM.askedPlace(), '']"
        self.ask.click(fn=None, outputs=[self.place, self.status], js=asks).then(
            probe, inputs, outputs, **options
        )
        self.jump.click(
            shared.with_session(lambda data, session: self.answer(data, session, jumps=True)),
            inputs,
            outputs,
            **{**options, "show_progress": "minimal"},
            show_progress_on=self.status,
        )

    def answer(self, data: dict[Any, Any], session: Session, *, jumps: bool = False) -> Updates:
        """Return updates that show the form's weights; none if there is a newer request.

        A busy server may answer an update after a jump that was clicked in the meantime.
        """
        mine = (session.client, data[self.number])
        if session.last_probe[0] == mine[0] and session.last_probe > mine:
            return gr.skip()
        session.last_probe = mine
        form = ScopeForm(
            self.shared.tuning.read(data),
            layer=data[self.layer],
            module=data[self.module],
            tensor=data[self.tensor] or "",
            start=max(0, int(data[self.start] or 0)),
            target=data[self.target] or "",
            layout=data[self.layout],
            dtype=data[self.dtype] or None,
            rounding=data[self.rounding],
            seed=int(data[self.shared.seed] or 0),
            place=data[self.place] or "",
        )
        with acting_as(session.token):
            shown = self.show(session.loaded, form, jumps=jumps)
        # Unique for each request: an unchanged value is not sent to the browser.
        shown[self.view]["number"] = data[self.number]
        return {self.place: "", **shown} if session.last_probe == mine else gr.skip()

    def show(self, loaded: LoadedModels | None, form: ScopeForm, *, jumps: bool = False) -> Updates:
        """Return updates that show the form's weights. jumps: go to the target first.

        A tensor outside the chosen layer and module, or the loaded models, is replaced.
        """
        if loaded is None:
            return {self.status: templates.callout(NEED_LOAD, "warn"), self.view: {}}
        try:
            report = open_loaded(loaded)
            form, message = data_of.settle(loaded, report, form), ""
            if jumps:
                form, message = _jump(report, form)
            drawn = data_of.panel_data(loaded, report, form)
        except RamStudioError as error:
            return {self.status: templates.callout(str(error), "bad"), self.view: {}}
        return {**self._places(report, form), self.status: message, self.view: drawn}

    def _places(self, report: CompatibilityReport, form: ScopeForm) -> Updates:
        """Return updates of the pickers; each depends on the choices before it."""
        layers, modules = data_of.choices_of(report)
        last = max(1, find_tensor(report, form.tensor).numel - 1)
        agents = [agent.name for agent in report.agents]
        targets = [(f"weight that only {name} changed", f"{UNIQUE}{name}") for name in agents]
        if len(agents) > 1:
            shared = ("weight that several agents changed", SHARED)
            targets = [shared, *targets, ("strongest conflict of this tensor", CONFLICT)]
        is_known = form.target in [value for _, value in targets]
        target = form.target if is_known else targets[0][1]
        names = data_of.names_of(report, form.layer, form.module)
        return {
            self.layer: gr.update(choices=[*_ANYWHERE, *layers], value=form.layer),
            self.module: gr.update(choices=[*_ANYWHERE, *modules], value=form.module),
            self.tensor: gr.update(choices=names, value=form.tensor),
            self.start: gr.update(maximum=last, value=min(form.start, last)),
            self.target: gr.update(choices=targets, value=target),
        }


def _picker(label: str, elem_id: str, choices: list[Any], **options: Any) -> gr.Dropdown:
    value = EVERYWHERE if choices else None
    return unchecked(gr.Dropdown(choices, value=value, label=label, elem_id=elem_id, **options))


def _jump(report: CompatibilityReport, form: ScopeForm) -> tuple[ScopeForm, str]:
    """Return the form at the next such element; or unchanged, with a message."""
    tensor = find_tensor(report, form.tensor)
    # The focused element is BEFORE places after the start: search after it.
    found = find_element(
        report,
        tensor,
        form.target,
        epsilon=form.tuned.epsilon,
        start=min(form.start + data_of.BEFORE + 1, tensor.numel),
        limit=data_of.SEARCH_LIMIT,
    )
    if found is not None:
        start = max(0, found.index - data_of.BEFORE)
        return replace(form, start=start, focus=found.index), ""
    is_cut = tensor.numel - form.start > data_of.SEARCH_LIMIT
    return form, templates.callout(_CUT if is_cut else NOT_FOUND, "note")
