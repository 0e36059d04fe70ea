"""The panel "Search settings": choose what to vary, watch, open the winner in Tune."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.algorithm.analysis import BASE
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.boxes import html, number_box, slider
from ram_studio.app.experiment import work
from ram_studio.app.experiment.panel import ExperimentPanel
from ram_studio.app.numbers import epsilon_text, setting_text
from ram_studio.app.session.answers import open_answers
from ram_studio.app.session.jobs import LIGHT, Updates, Work, missing_text
from ram_studio.app.session.session import Session
from ram_studio.errors import RamStudioError
from ram_studio.evals.experiment.plan import SweepPlan
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.report.canvas_page import RANGES

_RANGES = {
    # name: label, varied, from, to, values, largest
    "r": ("r, strength of the rescaling", True, 0.0, 0.5, 6, RANGES["r"]),
    "alpha": ("alpha, cap on ρ (RAM+)", False, 0.0, 4.0, 5, RANGES["alpha"]),
    "epsilon": ("epsilon, threshold of change", False, 1e-6, 1e-3, 4, 1.0),
    "scale": ("Scale (methods other than RAM)", False, 0.2, 1.0, 5, 10.0),
    "weight": ("Weight of each agent", False, 0.0, 1.0, 3, 10.0),
    "ramp": ("Weights in first and last layer", False, 0.0, 1.0, 2, 10.0),
}
_HOW = {
    "grid": "Every combination",
    "optuna": "Search (Optuna)",
    "slim": "Weights by few merges (SLIM)",
}
_THRESHOLDS = [
    (epsilon_text(EPSILON_GRID[i]), EPSILON_GRID[i])
    for i in dict.fromkeys(snap(step * 10.0**d) for d in range(-8, -1) for step in (1, 3))
]


class SweepPanel(ExperimentPanel):
    """The panel. ranges: by parameter the components varied, from, to, values."""

    kind = "sweep"
    prefix = "sweep"
    title = "Search settings"
    lead = (
        "Many settings are merged in memory and answer the same questions; no model folder is "
        "written. Clearly losing ones stop early, and the winner is scored again on held-out "
        "questions."
    )
    fold_id, start_id, result_id = "sweep-panel", "sweep-start", "sweep-result"

    def lay_out_form(self) -> None:
        """Lay out the ranges, and the number of questions."""
        self.methods = gr.CheckboxGroup(
            [(METHODS[name].title, name) for name in work.SWEPT],
            value=["ram+", "ram+s"],
            label="Methods",
            elem_id="sweep-methods",
        )
        self.ranges = {name: _range_line(name) for name in _RANGES}
        html('<p class="fine">Settings that are not varied stay as in Tune.</p>')
        with gr.Row():
            self.search = gr.Radio(
                # Optuna is an extra.
                [(t, how) for how, t in _HOW.items() if how != "optuna" or find_spec("optuna")],
                value="grid",
                label="Search method",
                min_width=330,
                elem_id="sweep-search",
            )
            trials = {"visible": False, "min_width": 180, "elem_id": "sweep-trials"}
            self.trials = slider("Settings to try", (4, work.MAX_SETTINGS), 12, 1, **trials)
            items = {"min_width": 180, "elem_id": "sweep-items"}
            self.items = slider("Questions per skill", (10, work.MAX_ITEMS), 30, 5, **items)
            self.minutes = number_box(
                min(5.0, self.shared.settings.max_sweep_minutes),
                "Time limit (minutes)",
                minimum=0.1,
                maximum=self.shared.settings.max_sweep_minutes,
                min_width=120,
                elem_id="sweep-minutes",
            )

    @property
    def form(self) -> set[Any]:
        """The components that ``plan`` reads."""
        lines = [component for line in self.ranges.values() for component in line]
        rest = [self.search, self.trials, self.items, self.minutes]
        return {self.methods, *lines, *rest, *super().form}

    def wire(self) -> None:
        """Update the size of the sweep when the panel opens and when the form changes."""
        changes = [component.change for component in self.form - set(self.shared.tuning)]
        gr.on(
            [self.fold.expand, *changes],
            self.shared.with_session(self._count),
            self.form,
            [self.count, self.trials],
            trigger_mode="always_last",
            **LIGHT,
        )

    def plan(self, data: Mapping[Any, Any], session: Session) -> SweepPlan:
        """Return the form's checked plan, for a session's loaded models.

        Raises: SettingsError, EvaluationError for settings that cannot be asked or swept.
        """
        most, minutes = self.shared.settings.max_sweep_minutes, data[self.minutes]
        tuned = self.shared.tuning.read(data)
        return work.plan_of(
            session.models,
            data[self.methods] or (),
            {n: [*map(data.get, line), _RANGES[n][-1]] for n, line in self.ranges.items()},
            tuned.values,
            self.questions.read(data, data[self.items], session.data),
            weights=tuned.weights,
            minutes=most if minutes is None else min(float(minutes), most),
            search=data[self.search] if data[self.search] in _HOW else "grid",
            trials=max(1, min(int(data[self.trials]), work.MAX_SETTINGS)),
        )

    def prepare(self, data: Mapping[Any, Any], session: Session) -> Work[ExperimentResult]:
        """Return the work of the form's sweep."""
        return work.sweep_work(self.plan(data, session), session, self.shared.workspace)

    def _count(self, data: dict[Any, Any], session: Session) -> Updates:
        return {
            self.count: Markup("<p>{}</p>").format(self.count_text(data, session)),
            self.trials: gr.update(visible=data[self.search] == "optuna"),
        }

    def count_text(self, data: Mapping[Any, Any], session: Session) -> str:
        """Return the size of the form's sweep as a sentence, or an error in the form."""
        if missing_text(session.loaded):
            return ""
        try:
            with open_answers(session, self.shared.workspace) as store:
                # At the speed of the latest answers of these models and their merges.
                seconds = store.seconds_each(_paths(session))
                return work.count_text(self.plan(data, session), seconds)
        except RamStudioError as error:
            return str(error)


def _paths(session: Session) -> list[str]:
    """Return the paths of the loaded models and their merges in a store."""
    asked = session.report.models if session.report is not None else {}
    # A model on the Hub was asked in the cache's folder.
    folders = (asked[name].path for name in (BASE, *session.models.agents) if name in asked)
    merges = (str(merged.folder) for merged in session.merges.values())
    return [*session.models.sources, *merges, *filter(None, folders)]


def _range_line(name: str) -> list[Any]:
    label, is_varied, low, high, count, most = _RANGES[name]
    with gr.Row(elem_classes="sweep-range"):
        varied = gr.Checkbox(is_varied, label=label, min_width=210, elem_id=f"sweep-{name}")
        ends = []
        for end, value in (("from", low), ("to", high)):
            title = f"{setting_text(name)} {end}"
            if name == "epsilon":
                at = EPSILON_GRID[snap(value)]
                ends.append(gr.Dropdown(_THRESHOLDS, value=at, label=title, min_width=120))
            else:
                ends.append(number_box(value, title, minimum=0, maximum=most, min_width=120))
        values = slider(f"{setting_text(name)} values", (2, 12), count, 1, min_width=150)
    return [varied, *ends, values]
