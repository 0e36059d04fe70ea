"""Step 4, Merge: choose a method, see what it needs, run it, stop it, take the result home."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import RULES
from ram_studio.app import templates
from ram_studio.app.boxes import choice, dtype_box, html, next_button, rounding_box
from ram_studio.app.jobs import QUIET, JobControls, Updates, Work, connect, stop_button, watch
from ram_studio.app.load.view import progress_html
from ram_studio.app.merge import controls, push_panel, recipes, view
from ram_studio.app.merge.work import MergeForm, merge_work
from ram_studio.app.public.zips import download_link
from ram_studio.app.session import Merged, Session
from ram_studio.app.shared import Shared
from ram_studio.errors import RamStudioError

DEFAULT_METHOD = "ram+"
_NOTHING = "Nothing merged yet. Choose a method and press Merge."
_MORE = "Settings, format, rounding, name, recipe"
_STOPPED = "Stopped. Nothing was left behind."


def _devices() -> list[tuple[str, str]]:
    """Return the devices to choose from; CUDA only where torch is there and sees a GPU."""
    choices = [("Automatic", "auto"), ("CPU", "cpu")]
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            choices.append(("GPU (CUDA)", "cuda"))
    return choices


@dataclass(frozen=True)
class Result:
    """The components of a finished merge."""

    html: gr.HTML
    download: gr.Button
    recipe_box: gr.Accordion
    recipe: gr.Code

    @property
    def all(self) -> list[Any]:
        """All of them."""
        return [self.html, self.download, self.recipe_box, self.recipe]


@dataclass(frozen=True)
class Panel:
    """The components of the step. own: the methods' own settings, in the order of CONTROLS."""

    method: gr.Dropdown
    from_tune: gr.HTML
    own: list[Any]
    dtype: gr.Dropdown
    rounding: gr.Radio
    seed: gr.Number
    device: gr.Dropdown
    name: gr.Textbox
    other_base: gr.Checkbox
    upload: gr.UploadButton
    upload_status: gr.HTML
    plan: gr.HTML
    job: JobControls
    result: Result

    def form(self, shared: Shared) -> set[Any]:
        """Everything that ``read`` takes."""
        rest = {self.method, self.dtype, self.rounding, self.seed, self.device, self.name}
        rest.add(self.other_base)
        return {*shared.tuning.all, *self.own, *rest}

    def read(self, data: dict[Any, Any], shared: Shared) -> MergeForm:
        """Return the form among a handler's inputs."""
        tuned = shared.tuning.read(data)
        method = data[self.method]
        return MergeForm(
            method,
            tuned.point,
            tuned.r,
            tuned.alpha,
            controls.own_settings(method, [data[component] for component in self.own]),
            dtype=data[self.dtype],
            rounding=data[self.rounding],
            seed=data[self.seed],
            device=data[self.device],
            name=data[self.name] or "",
            other_base=bool(data[self.other_base]),
        )


def build(shared: Shared) -> Panel:
    """Lay the step out inside the open Blocks and connect it."""
    with gr.Column(elem_id="step-merge", elem_classes="step"):
        lead = "One streaming pass over the files writes a finished model folder, or nothing."
        html(templates.step_head("Merge", lead))
        with gr.Row(elem_classes="two-sides"):
            with gr.Column(elem_classes="box", scale=5, min_width=300):
                form = _build_form()
            with gr.Column(scale=6, min_width=300, elem_classes="side"):
                side = _build_side()
                push_panel.build(shared)
    panel = Panel(**form, **side)
    shared.seed = panel.seed
    shared.loaded.listen(panel.result.all, lambda session: _show(panel, session, shared))
    _wire_form(panel, shared)
    shared.when_built(lambda: _wire_merge(panel, shared))
    return panel


def _build_form() -> dict[str, Any]:
    form: dict[str, Any] = {}
    titles = [(METHODS[name].title, name) for name in controls.OFFERED]
    form["method"] = choice("Method", titles, DEFAULT_METHOD, elem_id="method")
    # The page writes the sliders' values into it.
    form["from_tune"] = html(
        '<p class="from-tune"><span class="muted">From Tune:</span> <b data-live="settings"></b> '
        '<button type="button" class="link" data-go="tune">Change</button></p>',
        elem_id="from-tune",
    )
    form["other_base"] = gr.Checkbox(
        label="Merge although an agent seems to be of another base",
        visible=False,
        elem_id="other-base",
    )
    with gr.Accordion(_MORE, open=False, elem_id="merge-more"):
        with gr.Row(elem_classes="extras"):
            form["own"] = controls.build_controls(DEFAULT_METHOD)
        with gr.Row():
            form["dtype"] = dtype_box("dtype", {"float32": " (twice the size)"}, min_width=140)
            form["device"] = choice("Device", _devices(), "auto", min_width=140, elem_id="device")
        with gr.Row():
            form["rounding"] = rounding_box("rounding", scale=3)
            form["seed"] = gr.Number(
                0, label="Seed", precision=0, minimum=0, min_width=90, scale=1, elem_id="seed"
            )
        form["name"] = gr.Textbox(
            label="Name of this merge",
            placeholder="as the method, if left empty",
            max_lines=1,
            max_length=60,
            elem_id="merge-name",
        )
        form["upload"] = gr.UploadButton(
            "Load a recipe",
            file_types=[".yaml", ".yml", ".json"],
            type="filepath",
            size="sm",
            elem_id="load-recipe",
        )
    form["upload_status"] = html(elem_id="recipe-status")
    return form


def _build_side() -> dict[str, Any]:
    plan = html(elem_id="plan")
    with gr.Row(elem_classes="actions"):
        merge = gr.Button("Merge", variant="primary", elem_id="merge")
        stop = stop_button("stop")
    status = html(elem_id="merge-status")
    shown = html(templates.empty_state(_NOTHING), elem_id="merge-result")
    with gr.Row(elem_classes="actions"):
        download = gr.Button("Download as zip", visible=False, elem_id="download")
        next_button("Next: check the result", "check", variant="secondary")
    title = "Recipe (repeat this merge from the command line)"
    with gr.Accordion(title, open=False, visible=False) as recipe_box:
        recipe = gr.Code("", language="yaml", label="YAML", elem_id="recipe")
    result = Result(shown, download, recipe_box, recipe)
    return {"plan": plan, "job": JobControls(merge, stop, status), "result": result}


def _show(panel: Panel, session: Session, shared: Shared) -> Updates:
    """Return the updates that show the last merge of a session, or that there is none."""
    if not session.merges:
        nothing = [templates.empty_state(_NOTHING), gr.update(visible=False)]
        return dict(zip(panel.result.all, [*nothing, gr.update(visible=False), ""], strict=True))
    merged = list(session.merges.values())[-1]
    return {
        panel.result.html: view.result_html(merged, shared.settings),
        panel.result.download: gr.update(
            visible=True, link=download_link(session.key, merged.folder)
        ),
        panel.result.recipe_box: gr.update(visible=True),
        panel.result.recipe: merged.recipe,
    }


def _wire_form(panel: Panel, shared: Shared) -> None:
    def plan(data: dict[Any, Any], request: gr.Request) -> Updates:
        form = panel.read(data, shared)
        session = shared.session(request)
        loaded, made = session.loaded, session.merges.values()
        is_tuned = bool(controls.tuned_by(form.method))
        return {
            panel.plan: view.plan_html(loaded, form, shared.workspace.root, made),
            # Hidden, not taken out: the page writes the sliders' values into it.
            panel.from_tune: gr.update(visible=True if is_tuned else "hidden"),
            panel.other_base: gr.update(visible=loaded is not None and view.has_other(loaded)),
            **controls.show_controls(form.method, panel.own),
        }

    shown = [panel.plan, panel.from_tune, panel.other_base, *panel.own]
    gr.on(
        [
            panel.method.input,
            panel.dtype.input,
            panel.rounding.input,
            shared.steps["merge"].click,
        ],
        plan,
        panel.form(shared),
        shown,
        queue=False,
        trigger_mode="always_last",
        **QUIET,
    )
    _wire_upload(panel, shared).then(plan, panel.form(shared), shown, queue=False, **QUIET)
    # The method chosen in Tune is the one offered here; no request for that.
    rule = shared.tuning.rule
    scale = controls.control_of("task-arithmetic", "scale", panel.own)
    gr.on(
        [rule.input, rule.change],
        fn=None,
        inputs=rule,
        outputs=[panel.method, scale],
        js="(rule) => window.RAM.mergeMethod(rule)",
    )


def _wire_upload(panel: Panel, shared: Shared) -> Any:
    tuning = shared.tuning

    def take(path: str, request: gr.Request) -> Updates:
        try:
            taken = recipes.take(path, shared.session(request).loaded)
        except RamStudioError as error:
            return {panel.upload_status: templates.callout(str(error), "bad")}
        recipe = taken.recipe
        said = [
            f"{taken.name} is in the form, for the agents loaded here; the folders or "
            "Hub ids it names are not opened.",
            *taken.notes,
        ]
        rule = recipe.method if recipe.method in RULES else None
        sliders = zip(tuning.all, (taken.point, taken.r, taken.alpha, rule), strict=True)
        return {
            panel.upload_status: templates.callout(
                " ".join(said), "note" if taken.notes else "good"
            ),
            panel.method: recipe.method,
            **{component: value for component, value in sliders if value is not None},
            **controls.fill_controls(recipe.method, recipe.settings, panel.own),
            panel.dtype: recipe.dtype or "",
            panel.rounding: recipe.rounding,
            panel.seed: recipe.seed,
        }

    filled = [panel.method, *tuning.all, *panel.own, panel.dtype, panel.rounding, panel.seed]
    return panel.upload.upload(
        take, panel.upload, [panel.upload_status, *filled], queue=False, **QUIET
    )


def _wire_merge(panel: Panel, shared: Shared) -> None:
    def run(data: dict[Any, Any], session: Session) -> Iterator[Updates]:
        def prepare() -> Work[Merged]:
            form = panel.read(data, shared)
            recipe = form.recipe(session.models)
            return merge_work(recipe, session, shared.settings, name=form.name, device=form.device)

        def explain(error: RamStudioError, job: Any) -> str:
            said = templates.failure(error, _STOPPED)
            return view.hide_paths(said, session, shared.settings)

        yield from watch(
            session,
            panel.job,
            prepare,
            lambda event: {panel.job.status: progress_html(event, "Starting")},
            lambda merged: {**_show(panel, session, shared), **shared.merged.updates(session)},
            explain=explain,
        )

    outputs = [*panel.result.all, *shared.merged.components]
    connect(panel.job, shared.workspace, run, panel.form(shared), outputs)
