"""The base class of both experiment panels, and the panel "Compare methods side by side"."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr

from ram_studio.app.asking.suites import Questions
from ram_studio.app.boxes import choice, html, slider, unchecked
from ram_studio.app.experiment import view, work
from ram_studio.app.experiment.figure import axes_of, axis_label, experiment_figure
from ram_studio.app.experiment.table import experiment_grid, result_table
from ram_studio.app.session.jobs import LIGHT, Updates, Work, connect, watch
from ram_studio.app.session.session import Experiment, Session
from ram_studio.app.session.shared import PageContext, open_after
from ram_studio.app.templates import callout, failure, render
from ram_studio.evals.experiment.presets import EXPERIMENTS
from ram_studio.evals.experiment.result import ExperimentResult, Kind

# Each update redraws the whole chart, so more often would flicker.
_CHART_SECONDS = 1.0
_OWN = "My choice of methods"
_OWN_NOTE = "RAM rows use your epsilon, r and alpha from Tune; others use defaults."


class ExperimentPanel:
    """A panel of one kind of experiment: a form, its job, and the result.

    kind: of experiment; prefix: of element ids; title, lead: heading and description; fold_id,
    start_id, result_id: ids that do not follow the prefix.
    """

    kind: Kind
    prefix: str
    title: str
    lead: str
    start_label = "Start"
    fold_id: str
    start_id: str
    result_id: str

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        shape = {"open": False, "elem_id": self.fold_id, "elem_classes": "panel"}
        with gr.Accordion(self.title, **shape) as self.fold:
            html(f'<p class="lead">{self.lead}</p>')
            self.lay_out_form()
            self.questions = Questions(shared, f"{self.prefix}-")
            self._lay_out_result()
        self.questions.wire(self.fold)
        self.wire()
        inputs = {self.axis, *self.form}
        connect(self.controls, shared.workspace, self.run, inputs, self.outputs)
        self.axis.input(shared.with_session(self._draw), self.axis, self.chart, **LIGHT)
        used = [*shared.tuning, self.note, self.target]
        event = self.use.click(shared.with_session(self.use_setting), self.pick, used, **LIGHT)
        open_after(event, self.target)
        shared.loaded.listen(
            self.outputs, lambda session: self.show(session.experiments.get(self.kind))
        )

    def lay_out_form(self) -> None:
        """Lay out the form's own components, without the questions."""
        raise NotImplementedError

    def wire(self) -> None:
        """Connect the events of the form's own components."""

    @property
    def form(self) -> set[Any]:
        """The components that ``prepare`` reads."""
        return {*self.questions.form, *self.shared.tuning}

    def prepare(self, data: Mapping[Any, Any], session: Session) -> Work[ExperimentResult]:
        """Return the work for the form's settings.

        Raises: SettingsError, EvaluationError for settings that cannot run.
        """
        raise NotImplementedError

    def name_of(self, data: Mapping[Any, Any]) -> str:
        """Return the experiment's name, for its report."""
        return self.title

    def _lay_out_result(self) -> None:
        self.count = html("", elem_id=f"{self.prefix}-count", elem_classes="fine")
        ids = {"stop": f"stop-{self.prefix}", "status": f"{self.prefix}-status"}
        self.controls = self.shared.job_controls(self.start_label, start=self.start_id, **ids)
        with gr.Column(visible=False, elem_id=self.result_id) as self.result:
            axis = gr.Radio([], label="Show against", elem_id=f"{self.prefix}-axis")
            self.axis = unchecked(axis)
            with gr.Column(elem_classes=["box", "chart"]):
                head = {"title": self.title, "note": "Average score with its 95 % interval."}
                html(render("tune/figure_head.html.j2", **head), elem_classes="chart-head")
                shape = {"show_label": False, "elem_id": f"{self.prefix}-chart"}
                self.chart = gr.Plot(container=False, **shape)
            self.found = html(elem_id=f"{self.prefix}-found")
            self.table = result_table(f"{self.prefix}-table")
            with gr.Row(elem_classes="actions", visible=False) as self.actions:
                shape = {"elem_id": f"{self.prefix}-pick", "min_width": 240}
                self.pick = unchecked(gr.Dropdown([], label="Setting", **shape))
                self.use = gr.Button(
                    "Use this setting in Tune", variant="primary", elem_id=f"{self.prefix}-use"
                )
                self.files = [
                    gr.DownloadButton("Download CSV", elem_id=f"{self.prefix}-csv"),
                    gr.DownloadButton("Download report (HTML)", elem_id=f"{self.prefix}-report"),
                ]
            self.note = html(elem_id=f"{self.prefix}-note")
        self.target = gr.Textbox(visible=False)

    @property
    def outputs(self) -> list[Any]:
        """The components that ``show`` updates."""
        result = [self.result, self.axis, self.chart, self.found, self.table]
        return [*result, self.actions, self.pick, *self.files, self.note]

    def show(self, found: Experiment | None, axis: str | None = None) -> Updates:
        """Return updates for an experiment, or for none yet; without files it is still running."""
        if found is None or not found.result.measured:
            return {
                self.result: gr.update(visible=False),
                self.chart: gr.update(value=None),
                self.actions: gr.update(visible=False),
            }
        result, axes = found.result, axes_of(found.result)
        chosen = axis if axis in axes else axes[0]
        updates = {
            self.result: gr.update(visible=True),
            self.axis: gr.update(
                choices=[(axis_label(name), name) for name in axes],
                value=chosen,
                visible=len(axes) > 1,
            ),
            self.chart: gr.update(value=experiment_figure(result, chosen)),
            self.found: view.found_html(result),
            self.table: gr.update(value=experiment_grid(result).value(), visible=True),
            self.actions: gr.update(visible=bool(found.files)),
            self.note: "",
        }
        if found.files:
            names = [row.label for row in result.ranked if row.n and row.kind == "merge"]
            wanted = result.winner or result.reference
            updates[self.pick] = gr.update(choices=names, value=wanted)
            pairs = zip(self.files, found.files, strict=True)
            updates |= {box: gr.update(value=str(file)) for box, file in pairs}
        return updates

    def _draw(self, axis: str | None, session: Session) -> Any:
        found = session.experiments.get(self.kind)
        return gr.skip() if found is None else experiment_figure(found.result, axis or "")

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Run the form's experiment, yielding updates."""
        axis, name, drawn = data.get(self.axis), self.name_of(data), [-math.inf]

        def show_progress(result: ExperimentResult | None) -> Updates:
            updates: Updates = {self.controls.status: view.progress_html(result)}
            if result is not None and time.monotonic() - drawn[0] > _CHART_SECONDS:
                updates |= self.show(Experiment(result, ()), axis)
                drawn[0] = time.monotonic()
            return updates

        def finish(result: ExperimentResult) -> Updates:
            session.experiments[self.kind] = found = save_experiment(result, name, session)
            message = callout(work.STOPPED) if result.ending == "stopped" else ""
            return {self.controls.status: message, **self.show(found, axis)}

        yield from watch(
            session,
            self.controls,
            lambda: self.prepare(data, session),
            show_progress,
            finish,
            explain=lambda error, job: failure(error, str(error)),
        )

    def use_setting(self, label: str | None, session: Session) -> Updates:
        """Return updates that set Tune's four settings and open it, or give the reason why not."""
        found = session.experiments.get(self.kind)
        if found is None or label not in [row.label for row in found.result.rows]:
            return {self.note: "", self.target: ""}
        row = found.result.row(label)
        if refusal := work.tune_refusal(row, session.models.agents):
            return {self.note: callout(refusal, "note"), self.target: ""}
        return {
            **self.shared.tuning.update(**work.tune_values(row)),
            self.note: callout(f"{label} is now set in Tune.", "good"),
            self.target: "tune",
        }


def save_experiment(result: ExperimentResult, name: str, session: Session) -> Experiment:
    """Write an experiment's CSV and report into the session's folder; return it.

    Raises: OutputError when they cannot be written.
    """
    stem = f"{result.kind}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"
    files = {
        f"{stem}.csv": result.to_frame().to_csv(index=False),
        f"{stem}.html": view.report_html(result, name),
    }
    return Experiment(result, tuple(session.save(files)))


class ComparePanel(ExperimentPanel):
    """Compare methods."""

    kind = "comparison"
    prefix = "compare"
    title = "Compare methods side by side"
    lead = (
        "Each method merges the same agents in memory and answers the same questions; no model "
        "folder is written. The table says where a difference is no more than chance."
    )
    start_label = "Compare"
    fold_id, start_id, result_id = "compare-methods", "compare", "comparison"

    def lay_out_form(self) -> None:
        """Lay out the choice of rows."""
        with gr.Row(elem_classes="check-form"):
            presets = [(_OWN, ""), *((EXPERIMENTS[name].title, name) for name in work.PRESETS)]
            shape = {"min_width": 220, "elem_id": "compare-preset"}
            self.preset = choice("Comparison", presets, "", **shape)
            shape = {"min_width": 220, "elem_id": "compare-limit"}
            self.limit = slider("Questions per skill", (10, 300), 100, 10, **shape)
        self.methods = gr.CheckboxGroup(
            [(row.title, name) for name, row in work.CHOICES.items()],
            value=list(work.USUAL),
            label="Methods",
            elem_id="compare-choice",
        )
        self.about = html(_OWN_NOTE, elem_id="compare-about", elem_classes="fine")

    def wire(self) -> None:
        """Connect the note on the chosen preset."""
        self.preset.input(self._show_about, self.preset, [self.methods, self.about], **LIGHT)

    @property
    def form(self) -> set[Any]:
        """The components that ``prepare`` reads."""
        return {self.preset, self.methods, self.limit, *super().form}

    def _show_about(self, preset: str) -> Updates:
        text = EXPERIMENTS[preset].description if preset else _OWN_NOTE
        return {self.methods: gr.update(visible=not preset), self.about: text}

    def name_of(self, data: Mapping[Any, Any]) -> str:
        """Return the preset's name."""
        return EXPERIMENTS[data[self.preset]].title if data[self.preset] else _OWN

    def prepare(self, data: Mapping[Any, Any], session: Session) -> Work[ExperimentResult]:
        """Return the work of the form's comparison."""
        tuned = self.shared.tuning.read(data).values
        chosen = data[self.methods] or ()
        rows = work.rows_for(session.models, data[self.preset] or "", chosen, tuned)
        settings = self.questions.read(data, data[self.limit], session.data)
        return work.compare_work(rows, settings, session, self.shared.workspace)
