"""Test now: merge the stage's setting in memory, and ask it the questions of the skill table.

For the user's own models a dozen more settings are asked, see ``own_test``. The browser shows the
button for untested settings, and gets the measured rows of the store, see ``measured``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.algorithm.methods import METHODS
from ram_studio.app.boxes import mount_point
from ram_studio.app.load.view import progress_html as pass_html
from ram_studio.app.session.jobs import LIGHT, Updates, Work, connect, watch
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.templates import callout, progress
from ram_studio.app.tune import measured
from ram_studio.errors import RamStudioError
from ram_studio.evals.experiment.result import ExperimentResult

STOPPED = "Stopped. Finished answers are stored; press Test now to continue."


class MeasurePanel:
    """The panel. known: rows besides the shipped table, for the browser: {"table": rows}."""

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        with gr.Column(elem_id="measure-box"):
            ids = {"start": "measure", "stop": "stop-measure", "status": "measure-status"}
            self.controls = shared.job_controls("Test now", **ids)
            self.known = mount_point("mountMeasured(props, watch)", "measured")
        shared.loaded.listen([self.known], self.show)
        shared.when_built(self._wire)

    def _wire(self) -> None:
        shared, outputs = self.shared, [self.known]
        connect(self.controls, shared.workspace, self._run, {*shared.tuning}, outputs)
        # Checks, comparisons and sweeps may have added answers.
        shared.steps["tune"].click(shared.with_session(self.show), None, outputs, **LIGHT)

    def _run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        tested = [0]

        def show_progress(event: Any) -> Updates:
            updates: Updates = {self.controls.status: progress_html(event)}
            if isinstance(event, ExperimentResult):
                # Every completely answered merge appears on the curve immediately.
                done = _count_done(event)
                updates |= self.show(session) if done > tested[0] else {}
                tested[0] = done
            return updates

        def finish(result: ExperimentResult | None) -> Updates:
            message = callout(STOPPED) if result is not None and result.ending == "stopped" else ""
            return {self.controls.status: message, **self.show(session)}

        def prepare() -> Work[Any]:
            recipe = measured.tuned_recipe(session.models, self.shared.tuning.read(data))
            return measured.measure_work(recipe, session, self.shared.workspace)

        yield from watch(session, self.controls, prepare, show_progress, finish)

    def show(self, session: Session) -> Updates:
        """Return the measured rows of the loaded models; nothing where they cannot be read."""
        if session.loaded is None:
            return {self.known: None}
        known: dict[str, Any] = {"table": None}
        # Merge, Check and History report faults of files or store; Tune works without.
        with contextlib.suppress(RamStudioError):
            known["table"] = measured.measured_rows(session, self.shared.workspace)
        # As text: Gradio searches every number of a nested value for files.
        return {self.known: json.dumps(known)}


def _count_done(result: ExperimentResult) -> int:
    """Return the number of completely answered merges."""
    return sum(row.kind == "merge" and row.status == "finished" for row in result.rows)


def progress_html(event: Any) -> Markup:
    """Return the progress bar: of a pass over files, answers, or all settings of a test."""
    if isinstance(event, tuple):
        _, answered, total = event
        return progress(answered / total, "Asking", f"{answered:,} of {total:,} answers")
    if isinstance(event, ExperimentResult):
        share = event.answers / max(1, event.total_answers)
        merges = sum(row.kind == "merge" and row.status != "duplicate" for row in event.rows)
        text = f"{_count_done(event)} of {merges} settings"
        titles = {row.label: METHODS[row.method].title for row in event.rows if row.method}
        return progress(share, f"Testing {titles.get(event.now, event.now)}".strip(), text)
    return pass_html(event, "Merging in memory")
