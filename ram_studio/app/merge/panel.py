"""Step 3, Merge: choose a method, see its needs, run or stop it, download the result."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from ram_studio.algorithm.meters.storage import pass_findings
from ram_studio.algorithm.methods import METHODS
from ram_studio.app import templates
from ram_studio.app.boxes import choice, dtype_box, html, number_box, rounding_box
from ram_studio.app.load.view import progress_html
from ram_studio.app.merge import controls, push_panel, recipes, view
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.jobs import (
    LIGHT,
    JobControls,
    Updates,
    Work,
    connect,
    missing_text,
    stop_button,
    watch,
)
from ram_studio.app.session.session import LoadedModels, MergedModel, Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.session.weights import MOST, read_weights, weights_text
from ram_studio.app.shell import download_link
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import RamStudioError

DEFAULT_METHOD = "ram+"
_NOTHING = "Nothing merged yet."
_FIRST = f"{_NOTHING} Choose a method and press Merge."
_MORE = "Options"
_STOPPED = "Stopped. Nothing was left behind."


def _devices() -> list[tuple[str, str]]:
    """Return the offered devices; CUDA only where torch is installed and sees a GPU."""
    choices = [("Automatic", "auto"), ("CPU", "cpu")]
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            choices.append(("GPU (CUDA)", "cuda"))
    return choices


class MergePanel:
    """The step. own: the methods' own settings, in the order of CONTROLS."""

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        with gr.Column(elem_id="step-merge", elem_classes="step"):
            lead = "Writes the merged model. Stopped merges leave nothing behind."
            html(templates.step_head("Merge", lead))
            with gr.Row(elem_classes="two-sides"):
                with gr.Column(elem_classes="box", scale=5, min_width=300):
                    self._lay_out_form()
                with gr.Column(scale=6, min_width=300, elem_classes="side"):
                    self._lay_out_side()
                    push_panel.build(shared)
        shared.seed = self.seed
        self._result = [self.result, self.download, self.next, self.recipe_box, self.recipe]
        shared.loaded.listen(self._result, self._show)
        self._wire_form()
        shared.when_built(self._wire_merge)

    def _lay_out_form(self) -> None:
        titles = [(METHODS[name].title, name) for name in controls.OFFERED]
        self.method = choice("Method", titles, DEFAULT_METHOD, elem_id="method")
        # The page writes the sliders' values into it.
        self.from_tune = html(
            '<p class="from-tune"><span class="muted">From Tune:</span> '
            '<b data-live="settings"></b> '
            '<button type="button" class="link" data-go="tune">Change</button></p>',
            elem_id="from-tune",
        )
        self.other_base = gr.Checkbox(
            label="Merge although an agent seems to have another base",
            visible=False,
            elem_id="other-base",
        )
        with gr.Accordion(_MORE, open=False, elem_id="merge-more"):
            with gr.Row(elem_classes="extras"):
                self.own = controls.build_controls(DEFAULT_METHOD)
            with gr.Row():
                self.dtype = dtype_box("dtype", {"float32": " (twice the size)"}, min_width=140)
                shape = {"min_width": 140, "elem_id": "device"}
                self.device = choice("Device", _devices(), "auto", **shape)
            with gr.Row():
                self.rounding = rounding_box("rounding", scale=3)
                shape = {"min_width": 90, "scale": 1, "elem_id": "seed"}
                self.seed = number_box(0, "Seed", precision=0, minimum=0, **shape)
            self.weights = gr.Textbox(
                label="Weights of agents",
                info="How much each agent counts, by name. Several numbers span the layers.",
                placeholder="coding=0.7, memory=0.2 0.8",
                max_lines=1,
                max_length=MOST,
                elem_id="weights",
            )
            self.name = gr.Textbox(
                label="Name of this merge",
                placeholder="empty: the method's name",
                max_lines=1,
                max_length=60,
                elem_id="merge-name",
            )
            self.upload = gr.UploadButton(
                "Load a recipe",
                file_types=[".yaml", ".yml", ".json"],
                type="filepath",
                size="sm",
                elem_id="load-recipe",
            )
        self.upload_status = html(elem_id="recipe-status")

    def _lay_out_side(self) -> None:
        self.plan = html(elem_id="plan")
        with gr.Row(elem_classes="actions"):
            # For a plan with agents whose update is all below epsilon.
            self.no_epsilon = gr.Button("Use epsilon 0", visible=False, elem_id="use-epsilon-0")
            merge = gr.Button("Merge", variant="primary", elem_id="merge")
            stop = stop_button("stop")
        self.job = JobControls(merge, stop, html(elem_id="merge-status"))
        self.shared.clear_on_load(self.upload_status, self.plan, self.job.status)
        self.result = html(templates.empty_state(_NOTHING), elem_id="merge-result")
        with gr.Row(elem_classes="actions"):
            self.download = gr.Button("Download as zip", visible=False, elem_id="download")
            # Like the stepper's own button, with all its effects.
            self.next = gr.Button("Next: check the result", visible=False, elem_classes="next")
            self.next.click(fn=None, js="() => { window.RAM.open('check'); }")
        title = "Recipe (repeat this merge from the command line)"
        with gr.Accordion(title, open=False, visible=False) as self.recipe_box:
            # Not gr.Code, whose editor adds 130 kB to every page.
            shape = {"lines": 6, "max_lines": 24, "buttons": ["copy"], "elem_id": "recipe"}
            self.recipe = gr.Textbox("", label="YAML", interactive=False, **shape)

    @property
    def _form(self) -> set[Any]:
        """All components that define a merge."""
        plain = {self.method, self.dtype, self.rounding, self.seed, self.device, self.name}
        return {*self.shared.tuning, *self.own, *plain, self.other_base, self.weights}

    def _recipe(self, data: dict[Any, Any], loaded: LoadedModels) -> Recipe:
        """Return the validated recipe of the form.

        Raises: SettingsError that names the field.
        """
        method, tuned = data[self.method], self.shared.tuning.read(data).values
        own = controls.own_settings(method, [data[component] for component in self.own])
        return recipes.recipe_from(
            loaded,
            method,
            {**controls.tuned_settings(method, tuned), **own},
            dtype=data[self.dtype],
            rounding=data[self.rounding],
            seed=data[self.seed] or 0,
            other_base=bool(data[self.other_base]),
            weights=read_weights(data[self.weights] or ""),
        )

    def _show(self, session: Session) -> Updates:
        """Return updates that show the last merge of a session, or that there is none."""
        if not session.merges:
            hidden = gr.update(visible=False)
            text = _NOTHING if missing_text(session.loaded) else _FIRST
            nothing = [templates.empty_state(text), hidden, hidden, hidden, ""]
            return dict(zip(self._result, nothing, strict=True))
        merged = list(session.merges.values())[-1]
        link = download_link(session.key, merged.folder)
        return {
            self.result: view.result_html(merged, self.shared.settings),
            self.download: gr.update(visible=True, link=link),
            self.next: gr.update(visible=True),
            self.recipe_box: gr.update(visible=True),
            self.recipe: merged.recipe,
        }

    def _wire_form(self) -> None:
        shared = self.shared
        shown, plan = self._planned, shared.with_session(self._show_plan)
        inputs = [self.method.input, self.dtype.input, self.rounding.input, self.weights.blur]
        gr.on(
            [*inputs, shared.steps["merge"].click],
            plan,
            self._form,
            shown,
            trigger_mode="always_last",
            **LIGHT,
        )
        tuning = shared.tuning
        filled = [self.method, *tuning, *self.own, self.dtype, self.rounding, self.seed]
        filled.append(self.weights)
        use_upload = shared.with_session(self._use_upload)
        self.upload.upload(use_upload, self.upload, [self.upload_status, *filled], **LIGHT).then(
            plan, self._form, shown, **LIGHT
        )
        self.no_epsilon.click(
            fn=None, outputs=tuning.value, js="() => window.RAM.dropEpsilon()"
        ).then(plan, self._form, shown, **LIGHT)
        # Tune's method and settings are preselected here, without a request.
        by_control = json.dumps([{"name": c.name, "methods": c.methods} for c in controls.CONTROLS])
        tuning.value.change(
            fn=None,
            inputs=[tuning.value, self.method, self.weights, *self.own],
            outputs=[self.method, self.weights, *self.own],
            js=f"(text, method, weights, ...own) => "
            f"window.RAM.mergeForm({by_control}, text, method, weights, own)",
        )

    @property
    def _planned(self) -> list[Any]:
        """What ``_show_plan`` returns updates of."""
        return [self.plan, self.no_epsilon, self.from_tune, self.other_base, *self.own]

    def _show_plan(self, data: dict[Any, Any], session: Session) -> Updates:
        method, loaded = data[self.method], session.loaded
        is_tuned = bool(controls.tuned_by(method))
        # Such an agent seems to have another base.
        is_dense = loaded and any(f.kind == "dense" for f in pass_findings(loaded.analysis))
        plan, lost = self._plan_html(data, session)
        return {
            self.plan: plan,
            self.no_epsilon: gr.update(visible=bool(lost)),
            # Hidden, not removed: the page writes the sliders' values into it.
            self.from_tune: gr.update(visible=is_tuned or "hidden"),
            self.other_base: gr.update(visible=bool(is_dense)),
            **controls.show_controls(method, self.own),
        }

    def _plan_html(self, data: dict[Any, Any], session: Session) -> tuple[str, str]:
        """Return the plan, and its sentence on agents whose update is all below epsilon."""
        if missing := missing_text(session.loaded):
            return templates.callout(missing, "warn"), ""
        try:
            recipe = self._recipe(data, session.models)
        except RamStudioError as error:
            return templates.callout(str(error), "bad"), ""
        plan = view.plan_merge(
            session.models, recipe, self.shared.workspace.root, session.merges.values()
        )
        return view.plan_html(plan, recipe.method), plan.lost

    def _use_upload(self, path: str, session: Session) -> Updates:
        try:
            uploaded = recipes.read_upload(path, session.loaded)
        except RamStudioError as error:
            return {self.upload_status: templates.callout(str(error), "bad")}
        recipe = uploaded.recipe
        lines = [
            f"{uploaded.name} is in the form, for the agents loaded here; the folders or "
            "Hub ids it names are not opened.",
            *uploaded.notes,
        ]
        tone: templates.Tone = "note" if uploaded.notes else "good"
        return {
            self.upload_status: templates.callout(" ".join(lines), tone),
            self.method: recipe.method,
            **self.shared.tuning.update(**uploaded.tuned),
            **controls.show_controls(recipe.method, self.own, recipe.settings),
            self.dtype: recipe.dtype or "",
            self.rounding: recipe.rounding,
            self.seed: recipe.seed,
            self.weights: weights_text(recipe.weights),
        }

    def _wire_merge(self) -> None:
        outputs = [*self._result, *self.shared.merged.components]
        done = connect(self.job, self.shared.workspace, self._run, self._form, outputs)
        # A merge takes room, and tells how long the next one takes.
        plan = self.shared.with_session(self._show_plan)
        done.then(plan, self._form, self._planned, **LIGHT)

    def _run(self, data: dict[Any, Any], session: Session) -> Iterator[Updates]:
        settings = self.shared.settings

        def prepare() -> Work[MergedModel]:
            recipe, name = self._recipe(data, session.models), data[self.name] or ""
            return merge_work(recipe, session, settings, name=name, device=data[self.device])

        def explain(error: RamStudioError, job: Any) -> str:
            return view.in_form_words(templates.failure(error, _STOPPED))

        yield from watch(
            session,
            self.job,
            prepare,
            lambda event: progress_html(event, "Starting"),
            lambda merged: {**self._show(session), **self.shared.merged.updates(session)},
            explain=explain,
        )
