"""Step 4, Merge: choose a method, see what it needs, run it, stop it, take the result home."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.app import markup, wording
from ram_studio.app.merge import merging
from ram_studio.app.merge.controls import CONTROLS, OFFERED, own_settings
from ram_studio.app.merge.merging import MergeForm
from ram_studio.app.session import Merged, Session
from ram_studio.app.settings import Settings
from ram_studio.app.tune.panel import TuneStep

DEFAULT_METHOD = "ram+"


@dataclass(frozen=True)
class MergeStep:
    """The components of the step."""

    column: gr.Column
    method: gr.Dropdown
    from_tune: gr.HTML
    extras: list[gr.components.Component]
    dtype: gr.Dropdown
    rounding: gr.Radio
    seed: gr.Number
    device: gr.Dropdown
    name: gr.Textbox
    plan: gr.HTML
    merge: gr.Button
    stop: gr.Button
    status: gr.HTML
    result: gr.HTML
    download: gr.DownloadButton
    recipe: gr.Code
    recipe_box: gr.Accordion
    load_recipe: gr.UploadButton
    recipe_status: gr.HTML
    next: gr.Button

    def form(self, tune: TuneStep) -> list[Any]:
        """Everything that ``read_form`` takes, in its order."""
        return [
            self.method,
            tune.epsilon,
            tune.r,
            tune.alpha,
            *self.extras,
            self.dtype,
            self.rounding,
            self.seed,
            self.device,
            self.name,
        ]

    @property
    def outputs(self) -> list[Any]:
        """What ``run`` yields values for."""
        return [
            self.merge,
            self.stop,
            self.status,
            self.result,
            self.download,
            self.recipe,
            self.recipe_box,
        ]


def read_form(values: tuple[Any, ...]) -> MergeForm:
    """Return the form from the values of ``MergeStep.form``."""
    method, point, r, alpha, *rest = values
    own = own_settings(method, rest[: len(CONTROLS)])
    return MergeForm(method, point, r, alpha, own, *rest[len(CONTROLS) :])


def show_result(merged: Merged | None, session: Session, settings: Settings) -> list[Any]:
    """Return updates of (result, download, recipe, recipe box) for a merge, or for none yet."""
    if merged is None or session.loaded is None:
        return [
            markup.empty_state(wording.NOTHING_MERGED),
            gr.update(visible=False, value=None),
            "",
            gr.update(visible=False),
        ]
    archive = merging.zip_of(merged, session, settings)
    files = "" if archive else merging.files_html(merged)
    return [
        merging.result_html(merged, session.loaded, settings) + files,
        gr.update(visible=archive is not None, value=str(archive) if archive else None),
        merged.recipe,
        gr.update(visible=True),
    ]


def run(form: MergeForm, session: Session, settings: Settings) -> Iterator[list[Any]]:
    """Merge, yielding updates of ``MergeStep.outputs``."""
    idle = [gr.update(interactive=True), gr.update(visible=False)]
    busy = [gr.update(interactive=False), gr.update(visible=True)]
    for status, merged in merging.run_merge(form, session, settings):
        if merged is not None:
            yield [*idle, "", *show_result(merged, session, settings)]
        else:
            state = busy if session.is_busy else idle
            yield [*state, status, *[gr.skip()] * 4]


def build(devices: list[tuple[str, str]]) -> MergeStep:
    """Lay the step out inside the open Blocks."""
    with gr.Column(elem_id="step-merge", elem_classes="step") as column:
        gr.HTML(
            markup.step_head(wording.MERGE_HEADING, wording.MERGE_LEAD), apply_default_css=False
        )
        with gr.Row(elem_classes="two-sides"):
            with gr.Column(elem_classes="box", scale=5, min_width=300):
                method = gr.Dropdown(
                    [(wording.METHOD_NAMES.get(name, name), name) for name in OFFERED],
                    value=DEFAULT_METHOD,
                    label=wording.METHOD_LABEL,
                    filterable=False,
                    elem_id="method",
                )
                from_tune = gr.HTML(
                    f'<p class="from-tune"><span class="muted">{wording.FROM_TUNE}</span> '
                    '<b data-live="settings"></b> '
                    '<button type="button" class="link" data-go="tune">'
                    f"{wording.CHANGE}</button></p>",
                    elem_id="from-tune",
                    apply_default_css=False,
                )
                with gr.Row(elem_classes="extras"):
                    extras = [c.build(visible=DEFAULT_METHOD in c.methods) for c in CONTROLS]
                with gr.Row():
                    dtype = gr.Dropdown(
                        wording.DTYPES,
                        value="",
                        label=wording.DTYPE_LABEL,
                        filterable=False,
                        min_width=140,
                        elem_id="dtype",
                    )
                    device = gr.Dropdown(
                        devices,
                        value="auto",
                        label=wording.DEVICE_LABEL,
                        filterable=False,
                        min_width=140,
                        elem_id="device",
                    )
                with gr.Row():
                    rounding = gr.Radio(
                        wording.ROUNDINGS,
                        value="nearest",
                        label=wording.ROUNDING_LABEL,
                        min_width=220,
                        scale=3,
                        elem_id="rounding",
                    )
                    seed = gr.Number(
                        0,
                        label=wording.SEED_LABEL,
                        precision=0,
                        minimum=0,
                        min_width=90,
                        scale=1,
                        elem_id="seed",
                    )
                name = gr.Textbox(
                    label=wording.NAME_OF_MERGE,
                    placeholder=wording.NAME_PLACEHOLDER,
                    max_lines=1,
                    max_length=60,
                    elem_id="merge-name",
                )
                load_recipe = gr.UploadButton(
                    wording.LOAD_RECIPE,
                    file_types=[".yaml", ".yml"],
                    type="filepath",
                    size="sm",
                    elem_id="load-recipe",
                )
                recipe_status = gr.HTML("", elem_id="recipe-status", apply_default_css=False)
            with gr.Column(scale=6, min_width=300, elem_classes="side"):
                plan = gr.HTML("", elem_id="plan", apply_default_css=False)
                with gr.Row(elem_classes="actions"):
                    merge = gr.Button(wording.MERGE_BUTTON, variant="primary", elem_id="merge")
                    stop = gr.Button(wording.STOP, variant="stop", visible=False, elem_id="stop")
                status = gr.HTML("", elem_id="merge-status", apply_default_css=False)
                result = gr.HTML(
                    markup.empty_state(wording.NOTHING_MERGED),
                    elem_id="merge-result",
                    apply_default_css=False,
                )
                with gr.Row(elem_classes="actions"):
                    download = gr.DownloadButton(
                        wording.DOWNLOAD, visible=False, elem_id="download"
                    )
                    go_on = gr.Button(wording.NEXT["check"], elem_classes="next")
                with gr.Accordion(wording.RECIPE, open=False, visible=False) as recipe_box:
                    recipe = gr.Code(
                        "", language="yaml", label=wording.RECIPE_LABEL, elem_id="recipe"
                    )
    return MergeStep(
        column,
        method,
        from_tune,
        extras,
        dtype,
        rounding,
        seed,
        device,
        name,
        plan,
        merge,
        stop,
        status,
        result,
        download,
        recipe,
        recipe_box,
        load_recipe,
        recipe_status,
        go_on,
    )
