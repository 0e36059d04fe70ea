"""The panel "Find a good setting": choose what is varied, watch the sweep, take the winner to Tune.

`sweep_panel(tune, workspace, waiting=..., quiet=..., heavy=...)` lays the panel out where it is
called, inside the open Blocks and after Tune was built, wires it and returns its components. Where
a page restores a session it appends `SweepPanel.shown` to its outputs and `show(session.sweep)` to
their updates; that also empties the panel when other checkpoints are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from ram_studio.algorithm.ladder import LADDER, snap
from ram_studio.app import markup, wording
from ram_studio.app.experiment import sweep_view, sweep_wording, sweeping
from ram_studio.app.markup import epsilon_text
from ram_studio.app.session import Session
from ram_studio.app.shared import Tuning
from ram_studio.app.tune.deep_link import ALPHA_MAX, R_MAX
from ram_studio.app.workspace import Workspace
from ram_studio.errors import OutputError
from ram_studio.evals.experiment.table import SweepState
from ram_studio.evals.suites import ALL_SUITES

# A chart is drawn anew in the page each time: more often would flicker.
_CHART_SECONDS = 1.0
_DEFAULT_METHODS = ("ram+", "ram+s")
_RANGES = {
    # name: varied, from, to, values, largest
    "r": (True, 0.0, 0.5, 6, R_MAX),
    "alpha": (False, 0.0, 4.0, 5, ALPHA_MAX),
    "epsilon": (False, 1e-6, 1e-3, 4, 1.0),
    "scale": (False, 0.2, 1.0, 5, 10.0),
}
_THRESHOLDS = [
    (epsilon_text(LADDER[i]), LADDER[i])
    for i in dict.fromkeys(snap(step * 10.0**d) for d in range(-8, -1) for step in (1, 3))
]


@dataclass(frozen=True)
class SweepPanel:
    """The components of the panel. ranges: per parameter varied, from, to, values."""

    methods: gr.CheckboxGroup
    ranges: dict[str, list[Any]]
    search: gr.Radio
    trials: gr.Slider
    suites: gr.CheckboxGroup
    items: gr.Slider
    minutes: gr.Number
    count: gr.HTML
    start: gr.Button
    stop: gr.Button
    status: gr.HTML
    axis: gr.Radio
    chart: gr.Plot
    found: gr.HTML
    actions: gr.Row
    pick: gr.Dropdown
    use: gr.Button
    csv: gr.DownloadButton
    note: gr.HTML
    target: gr.Textbox

    @property
    def form(self) -> list[Any]:
        """What ``read_form`` reads, before Tune's epsilon, r and alpha."""
        lines = [component for line in self.ranges.values() for component in line]
        rest = [self.search, self.trials, self.suites, self.items, self.minutes]
        return [self.methods, *lines, *rest]

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [self.axis, self.chart, self.found, self.actions, self.pick, self.csv, self.note]


def read_form(values: Sequence[Any]) -> sweeping.Form:
    """Return the values of ``SweepPanel.form`` and Tune's three sliders by name."""
    methods, *rest = values
    ranges = {}
    for name in sweeping.PARAMETERS:
        line, rest = rest[:4], rest[4:]
        ranges[name] = sweeping.Range(*line)
    search, trials, suites, items, minutes, point, r, alpha = rest
    tuned = sweeping.tuned_values(point, r, alpha)
    return sweeping.Form(methods or (), ranges, search, trials, suites or (), items, minutes, tuned)


def show(state: SweepState | None, axis: str | None = None, csv: str | None = None) -> list[Any]:
    """Return updates of ``SweepPanel.shown`` for a sweep, or for none yet.

    csv: the finished table's file; the settings are offered with it, not before.
    """
    if state is None or not state.measured:
        hidden = gr.update(visible=False)
        return [hidden, gr.update(value=None, visible=False), "", hidden, gr.skip(), gr.skip(), ""]
    axes = sweep_view.axes_of(state)
    chosen = axis if axis in axes else axes[0]
    names = [row.label for row in sweep_view.ordered(state) if row.n]
    is_final = state.ending != "running"
    return [
        gr.update(
            choices=[(sweep_view.axis_label(name), name) for name in axes],
            value=chosen,
            visible=len(axes) > 1,
        ),
        gr.update(value=sweep_view.figure(state, chosen), visible=True),
        sweep_view.found_html(state),
        gr.update(visible=is_final),
        gr.update(choices=names, value=state.winner) if is_final else gr.skip(),
        gr.update(value=csv, visible=csv is not None) if is_final else gr.skip(),
        "",
    ]


def run(
    values: Sequence[Any], axis: str | None, session: Session, workspace: Workspace
) -> Iterator[list[Any]]:
    """Sweep, yielding updates of (start, stop, status) and ``SweepPanel.shown``."""
    drawn = 0.0
    for status, state in sweeping.run_sweep(read_form(values), session, workspace):
        is_busy = session.is_busy
        buttons = [gr.update(interactive=not is_busy), gr.update(visible=is_busy)]
        shown = [gr.skip()] * 7
        is_final = state is not None and state.ending != "running"
        if state is not None and (is_final or time.monotonic() - drawn > _CHART_SECONDS):
            shown = show(state, axis, _write_csv(state, session) if is_final else None)
            drawn = time.monotonic()
        yield [*buttons, status, *shown]


def _write_csv(state: SweepState, session: Session) -> str:
    path = session.folder / "downloads" / "sweep.csv"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        state.to_frame().to_csv(path, index=False)
    except OSError as error:
        raise OutputError(f"The table could not be written: {error.strerror or error}.") from error
    return str(path)


def use(label: str | None, session: Session) -> list[Any]:
    """Return updates of Tune's four settings, a note, and the step to open ("" for none)."""
    state = session.sweep
    if state is None or label not in [row.label for row in state.rows]:
        return [*[gr.skip()] * 4, "", ""]
    values = sweeping.tune_values(state.row(label))
    if values is None:
        text = sweep_wording.USE_ELSEWHERE.format(label=label)
        return [*[gr.skip()] * 4, markup.callout(text, "note"), ""]
    said = markup.callout(sweep_wording.USED.format(label=label), "good")
    return [*(gr.skip() if value is None else value for value in values), said, "tune"]


def _range_line(name: str) -> list[Any]:
    is_varied, low, high, count, most = _RANGES[name]
    with gr.Row(elem_classes="sweep-range"):
        varied = gr.Checkbox(
            is_varied,
            label=sweep_wording.PARAMETERS[name],
            min_width=210,
            elem_id=f"sweep-{name}",
        )
        ends = []
        for label, value in ((sweep_wording.FROM, low), (sweep_wording.TO, high)):
            hint = f"{wording.SETTING_SIGNS.get(name, name)} {label.lower()}"
            if name == "epsilon":
                near = LADDER[snap(value)]
                end = gr.Dropdown(_THRESHOLDS, value=near, label=hint, min_width=120)
            else:
                end = gr.Number(value, label=hint, minimum=0, maximum=most, min_width=120)
            ends.append(end)
        values = gr.Slider(
            2, 12, value=count, step=1, label=sweep_wording.COUNT, buttons=[], min_width=150
        )
    return [varied, *ends, values]


def _build() -> SweepPanel:
    with gr.Accordion(sweep_wording.HEADING, open=False, elem_id="sweep-panel"):
        gr.HTML(f'<p class="lead">{sweep_wording.LEAD}</p>', apply_default_css=False)
        methods = gr.CheckboxGroup(
            [(label, name) for name, label in sweep_wording.CHOICES.items()],
            value=list(_DEFAULT_METHODS),
            label=sweep_wording.METHODS,
            elem_id="sweep-methods",
        )
        ranges = {name: _range_line(name) for name in sweeping.PARAMETERS}
        gr.HTML(f'<p class="fine">{sweep_wording.FIXED}</p>', apply_default_css=False)
        with gr.Row():
            search = gr.Radio(
                [(label, name) for name, label in sweep_wording.SEARCHES.items()],
                value="grid",
                label=sweep_wording.HOW,
                min_width=330,
                elem_id="sweep-search",
            )
            trials = gr.Slider(
                4,
                sweeping.MAX_SETTINGS,
                value=12,
                step=1,
                label=sweep_wording.TRIALS,
                buttons=[],
                visible=False,
                min_width=180,
                elem_id="sweep-trials",
            )
            items = gr.Slider(
                10,
                sweeping.MAX_ITEMS,
                value=30,
                step=5,
                label=sweep_wording.ITEMS,
                buttons=[],
                min_width=180,
                elem_id="sweep-items",
            )
            minutes = gr.Number(
                5,
                label=sweep_wording.MINUTES,
                minimum=0.1,
                maximum=sweeping.MAX_MINUTES,
                min_width=120,
                elem_id="sweep-minutes",
            )
        suites = gr.CheckboxGroup(
            [(suite.title, name) for name, suite in ALL_SUITES.items()],
            value=["demo"],
            label=sweep_wording.SUITES,
            elem_id="sweep-suites",
        )
        count = gr.HTML("", elem_id="sweep-count", elem_classes="fine", apply_default_css=False)
        with gr.Row(elem_classes="actions"):
            start = gr.Button(sweep_wording.START, variant="primary", elem_id="sweep-start")
            stop = gr.Button(wording.STOP, variant="stop", visible=False, elem_id="stop-sweep")
        status = gr.HTML("", elem_id="sweep-status", apply_default_css=False)
        axis = gr.Radio([], label=sweep_wording.AXIS, visible=False, elem_id="sweep-axis")
        chart = gr.Plot(visible=False, show_label=False, elem_id="sweep-chart")
        found = gr.HTML("", elem_id="sweep-found", apply_default_css=False)
        with gr.Row(elem_classes="actions", visible=False) as actions:
            pick = gr.Dropdown([], label=sweep_wording.PICK, elem_id="sweep-pick", min_width=240)
            use_it = gr.Button(sweep_wording.USE, variant="primary", elem_id="sweep-use")
            csv = gr.DownloadButton(sweep_wording.CSV, elem_id="sweep-csv")
        note = gr.HTML("", elem_id="sweep-note", apply_default_css=False)
        target = gr.Textbox(visible=False)
    return SweepPanel(
        methods,
        ranges,
        search,
        trials,
        suites,
        items,
        minutes,
        count,
        start,
        stop,
        status,
        axis,
        chart,
        found,
        actions,
        pick,
        use_it,
        csv,
        note,
        target,
    )


def sweep_panel(
    tune: Tuning,
    workspace: Workspace,
    *,
    waiting: str,
    quiet: dict[str, Any],
    heavy: dict[str, Any],
) -> SweepPanel:
    """Lay the panel out inside the open Blocks, wire it and return its components.

    Args:
        tune: gives the values that are not varied, and takes the chosen setting.
        workspace: of the sessions.
        waiting: script that shows the queue's progress bar at once, as the other steps have it.
        quiet, heavy: options of light and of queued events, as the other steps have them.
    """
    panel = _build()

    def session_of(request: gr.Request) -> Session:
        return workspace.session(request.session_hash)

    # The request comes first: Gradio puts it at its position, which *values would shift.
    def run_sweep(request: gr.Request, axis: str | None, *values: Any) -> Iterator[list[Any]]:
        yield from run(values, axis, session_of(request), workspace)

    def stop_sweep(request: gr.Request) -> None:
        job = session_of(request).job
        if job is not None:
            job.stop()

    def count_sweep(request: gr.Request, *values: Any) -> list[Any]:
        form = read_form(values)
        text = sweeping.count_text(form, session_of(request).loaded)
        return [f"<p>{escape(text)}</p>", gr.update(visible=form.search == "optuna")]

    def draw_sweep(request: gr.Request, axis: str | None) -> Any:
        state = session_of(request).sweep
        return gr.skip() if state is None else sweep_view.figure(state, axis or "")

    def use_setting(request: gr.Request, label: str | None) -> list[Any]:
        return use(label, session_of(request))

    tuned = [tune.epsilon, tune.r, tune.alpha]
    form = [*panel.form, *tuned]
    panel.start.click(fn=None, js=waiting, outputs=panel.status)
    panel.start.click(
        run_sweep,
        [panel.axis, *form],
        [panel.start, panel.stop, panel.status, *panel.shown],
        **heavy,
    )
    panel.stop.click(stop_sweep, None, None, queue=False, **quiet)
    gr.on(
        [component.change for component in panel.form],
        count_sweep,
        form,
        [panel.count, panel.trials],
        queue=False,
        trigger_mode="always_last",
        **quiet,
    )
    panel.axis.input(draw_sweep, panel.axis, panel.chart, queue=False, **quiet)
    panel.use.click(
        use_setting, panel.pick, [*tune.all, panel.note, panel.target], queue=False, **quiet
    ).then(
        fn=None,
        inputs=panel.target,
        js="(step) => { if (step) { window.RAM.open(step); } }",
    )
    return panel
