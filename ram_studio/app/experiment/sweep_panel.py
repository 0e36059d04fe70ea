"""The panel "Search settings": choose what is varied, watch, take the winner to Tune."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.asking.suites import Questions
from ram_studio.app.boxes import html, slider, unchecked
from ram_studio.app.experiment import work
from ram_studio.app.experiment.sweep_figure import axes_of, axis_label, sweep_figure
from ram_studio.app.experiment.table import result_table, sweep_grid
from ram_studio.app.numbers import epsilon_text, setting_text
from ram_studio.app.session.deep_link import ALPHA_MAX, R_MAX
from ram_studio.app.session.jobs import LIGHT, Updates, Work, connect, job_controls, watch
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import Shared
from ram_studio.app.templates import callout, progress, render
from ram_studio.errors import RamStudioError
from ram_studio.evals.experiment.plan import SweepPlan
from ram_studio.evals.experiment.table import SweepState
from ram_studio.evals.report.breakdown import drawn_rows
from ram_studio.evals.report.trust import trust_lines

# A chart is drawn anew in the page each time: more often would flicker.
_CHART_SECONDS = 1.0
_RANGES = {
    # name: label, varied, from, to, values, largest
    "r": ("r, strength of the rescaling", True, 0.0, 0.5, 6, R_MAX),
    "alpha": ("α, cap on ρ (RAM+)", False, 0.0, 4.0, 5, ALPHA_MAX),
    "epsilon": ("ε, what counts as changed", False, 1e-6, 1e-3, 4, 1.0),
    "scale": ("Scale (methods other than RAM)", False, 0.2, 1.0, 5, 10.0),
}
_THRESHOLDS = [
    (epsilon_text(EPSILON_GRID[i]), EPSILON_GRID[i])
    for i in dict.fromkeys(snap(step * 10.0**d) for d in range(-8, -1) for step in (1, 3))
]


class SweepPanel:
    """The panel, laid out and wired. ranges: per parameter varied, from, to, values."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        shape = {"open": False, "elem_id": "sweep-panel", "elem_classes": "panel"}
        with gr.Accordion("Search settings", **shape) as fold:
            html(
                '<p class="lead">Many settings are merged in memory and answer the same questions; '
                "no model folder is written. Clearly losing ones stop early, and the winner is "
                "scored again on questions it was not chosen by.</p>"
            )
            self._lay_out_form()
            self._lay_out_result()
        self._wire(fold)

    def _lay_out_form(self) -> None:
        self.methods = gr.CheckboxGroup(
            [(METHODS[name].title, name) for name in work.SWEPT],
            value=["ram+", "ram+s"],
            label="Methods",
            elem_id="sweep-methods",
        )
        self.ranges = {name: _range_line(name) for name in _RANGES}
        html('<p class="fine">What is not varied is as set in Tune.</p>')
        with gr.Row():
            self.search = gr.Radio(
                [("Every combination", "grid"), ("Search (Optuna)", "optuna")],
                value="grid",
                label="How",
                min_width=330,
                elem_id="sweep-search",
            )
            trials = {"visible": False, "min_width": 180, "elem_id": "sweep-trials"}
            self.trials = slider("Settings to try", (4, work.MAX_SETTINGS), 12, 1, **trials)
            items = {"min_width": 180, "elem_id": "sweep-items"}
            self.items = slider("Questions per skill", (10, work.MAX_ITEMS), 30, 5, **items)
            self.minutes = gr.Number(
                min(5.0, self.shared.settings.max_sweep_minutes),
                label="At most minutes",
                minimum=0.1,
                maximum=self.shared.settings.max_sweep_minutes,
                min_width=120,
                elem_id="sweep-minutes",
            )
        self.asked = Questions(self.shared, "sweep-")

    def _lay_out_result(self) -> None:
        self.count = html("", elem_id="sweep-count", elem_classes="fine")
        ids = {"start": "sweep-start", "stop": "stop-sweep", "status": "sweep-status"}
        self.controls = job_controls("Start", **ids)
        self.axis = unchecked(
            gr.Radio([], label="Show against", visible=False, elem_id="sweep-axis")
        )
        self.chart = gr.Plot(visible=False, show_label=False, elem_id="sweep-chart")
        self.found = html(elem_id="sweep-found")
        self.table = result_table("sweep-table")
        with gr.Row(elem_classes="actions", visible=False) as self.actions:
            shape = {"elem_id": "sweep-pick", "min_width": 240}
            self.pick = unchecked(gr.Dropdown([], label="Setting", **shape))
            self.use = gr.Button("Use this setting in Tune", variant="primary", elem_id="sweep-use")
            self.csv = gr.DownloadButton("Download CSV", elem_id="sweep-csv")
        self.note = html(elem_id="sweep-note")
        self.target = gr.Textbox(visible=False)

    @property
    def form(self) -> set[Any]:
        """What ``plan`` reads."""
        lines = [component for line in self.ranges.values() for component in line]
        rest = [self.search, self.trials, self.items, self.minutes]
        return {self.methods, *lines, *rest, *self.asked.form, *self.shared.tuning}

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        result = [self.axis, self.chart, self.found, self.table]
        return [*result, self.actions, self.pick, self.csv, self.note]

    def _wire(self, fold: gr.Accordion) -> None:
        self.asked.wire(fold)
        shared = self.shared
        connect(self.controls, shared.workspace, self.run, {self.axis, *self.form}, self.shown)
        gr.on(
            [component.change for component in self.form - set(shared.tuning)],
            shared.with_session(self._count),
            self.form,
            [self.count, self.trials],
            trigger_mode="always_last",
            **LIGHT,
        )
        self.axis.input(shared.with_session(self._draw), self.axis, self.chart, **LIGHT)
        used = [*shared.tuning, self.note, self.target]
        self.use.click(shared.with_session(self.use_setting), self.pick, used, **LIGHT).then(
            fn=None, inputs=self.target, js="(step) => { window.RAM.open(step); }"
        )
        shared.loaded.listen(self.shown, lambda session: self.show(session.sweep))

    def plan(self, data: Mapping[Any, Any], session: Session) -> SweepPlan:
        """Return the checked plan of the form, for what a session has loaded.

        Raises: SettingsError, EvaluationError for what cannot be asked or swept.
        """
        most, minutes = self.shared.settings.max_sweep_minutes, data[self.minutes]
        return work.plan_of(
            session.models,
            data[self.methods] or (),
            {name: [data[box] for box in line] for name, line in self.ranges.items()},
            self.shared.tuning.read(data).values,
            self.asked.read(data, data[self.items], session.data),
            minutes=most if minutes is None else min(float(minutes), most),
            search="optuna" if data[self.search] == "optuna" else "grid",
            trials=max(1, min(int(data[self.trials]), work.MAX_SETTINGS)),
        )

    def _count(self, data: dict[Any, Any], session: Session) -> Updates:
        return {
            self.count: Markup("<p>{}</p>").format(self.count_text(data, session)),
            self.trials: gr.update(visible=data[self.search] == "optuna"),
        }

    def count_text(self, data: Mapping[Any, Any], session: Session) -> str:
        """Return in a sentence how much the form asks for, or what is wrong with it."""
        if session.loaded is None:
            return ""
        try:
            return work.count_text(self.plan(data, session))
        except RamStudioError as error:
            return str(error)

    def _draw(self, axis: str | None, session: Session) -> Any:
        return gr.skip() if session.sweep is None else sweep_figure(session.sweep, axis or "")

    def show(
        self, state: SweepState | None, axis: str | None = None, csv: str | None = None
    ) -> Updates:
        """Return updates for a sweep, or for none yet.

        csv: the finished table's file; the settings are offered with it, not before.
        """
        if state is None or not state.measured:
            hidden = gr.update(visible=False)
            return {
                **dict.fromkeys((self.axis, self.table, self.actions), hidden),
                self.chart: gr.update(value=None, visible=False),
                self.found: "",
                self.note: "",
            }
        axes = axes_of(state)
        chosen = axis if axis in axes else axes[0]
        is_final = state.ending != "running"
        updates = {
            self.axis: gr.update(
                choices=[(axis_label(name), name) for name in axes],
                value=chosen,
                visible=len(axes) > 1,
            ),
            self.chart: gr.update(value=sweep_figure(state, chosen), visible=True),
            self.found: found_html(state),
            self.table: gr.update(value=sweep_grid(state).value(), visible=True),
            self.actions: gr.update(visible=is_final),
            self.note: "",
        }
        if is_final:
            names = [row.label for row in state.ranked if row.n]
            updates[self.pick] = gr.update(choices=names, value=state.winner)
            updates[self.csv] = gr.update(value=csv, visible=csv is not None)
        return updates

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Sweep as the form says, yielding updates as it goes."""
        axis, drawn = data[self.axis], [-math.inf]

        def prepare() -> Work[SweepState]:
            return work.sweep_work(self.plan(data, session), session, self.shared.workspace)

        def tell(state: SweepState | None) -> Updates:
            updates: Updates = {self.controls.status: progress_html(state)}
            if state is not None and time.monotonic() - drawn[0] > _CHART_SECONDS:
                updates |= self.show(state, axis)
                drawn[0] = time.monotonic()
            return updates

        def finish(state: SweepState) -> Updates:
            session.sweep = state
            (csv,) = session.save({"sweep.csv": state.to_frame().to_csv(index=False)})
            said = callout(work.STOPPED) if state.ending == "stopped" else ""
            return {self.controls.status: said, **self.show(state, axis, str(csv))}

        yield from watch(session, self.controls, prepare, tell, finish)

    def use_setting(self, label: str | None, session: Session) -> Updates:
        """Return updates that set Tune's four settings and open it, or say why not."""
        state = session.sweep
        if state is None or label not in [row.label for row in state.rows]:
            return {self.note: "", self.target: ""}
        values = work.tune_values(state.row(label))
        if values is None:
            text = f"{label} has no sliders in Tune: choose this method and its setting in Merge."
            return {self.note: callout(text, "note"), self.target: ""}
        pairs = zip(self.shared.tuning, values, strict=True)
        return {
            **{box: value for box, value in pairs if value is not None},
            self.note: callout(f"{label} is now set in Tune.", "good"),
            self.target: "tune",
        }


def _range_line(name: str) -> list[Any]:
    label, is_varied, low, high, count, most = _RANGES[name]
    with gr.Row(elem_classes="sweep-range"):
        varied = gr.Checkbox(is_varied, label=label, min_width=210, elem_id=f"sweep-{name}")
        ends = []
        for end, value in (("from", low), ("to", high)):
            options = {"label": f"{setting_text(name)} {end}", "min_width": 120}
            if name == "epsilon":
                ends.append(gr.Dropdown(_THRESHOLDS, value=EPSILON_GRID[snap(value)], **options))
            else:
                ends.append(gr.Number(value, minimum=0, maximum=most, **options))
        values = slider("Values", (2, 12), count, 1, min_width=150)
    return [varied, *ends, values]


def found_html(state: SweepState) -> Markup:
    """Return what was found, in sentences."""
    trusted = trust_lines(state.trust) if state.trust else ()
    parts = {row.label: {"samples": row.samples} for row in state.ranked if row.samples}
    drawn = [[what, *texts] for what, texts in drawn_rows(parts)]
    told = {"labels": list(parts), "drawn": drawn, "trusted": trusted}
    return render("experiment/found.html.j2", state=state, **told)


def progress_html(state: SweepState | None) -> Markup:
    """Return the progress bar of a sweep."""
    if state is None or not state.rows:
        return progress(None, "Loading the base")
    finished = sum(row.status not in ("waiting", "running", "open") for row in state.rows)
    left = sum(row.is_out for row in state.rows) * state.chosen_by
    spent = sum(row.n for row in state.rows if row.is_out)
    total = max(1, state.total_answers - left + spent)
    details = f"{finished} of {state.settings} settings done · {state.answers} answers"
    return progress(min(1.0, state.answers / total), state.now or "", details)
