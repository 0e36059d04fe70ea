"""Test now: merge what the stage shows in memory, and ask it the questions of the skill table.

The browser shows the button where a setting was not tested yet, and takes what is known: rows that
the store has, see ``measured``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app.boxes import html
from ram_studio.app.load.view import progress_html as pass_html
from ram_studio.app.session.jobs import LIGHT, Updates, Work, connect, job_controls, watch
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import Shared, Tuned
from ram_studio.app.templates import progress
from ram_studio.app.tune import measured
from ram_studio.engine.events import Progress
from ram_studio.errors import RamStudioError


class MeasurePanel:
    """The panel. known: what is measured besides the shipped table, for the browser:

    {"table": rows or None}.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        with gr.Column(elem_id="measure-box"):
            ids = {"start": "measure", "stop": "stop-measure", "status": "measure-status"}
            self.controls = job_controls("Test now", **ids)
            self.known = html(
                None,
                html_template="<div></div>",
                js_on_load="window.RAM_READY.then((RAM) => RAM.mountMeasured(props, watch))",
                elem_id="measured",
            )
        shared.loaded.listen([self.known], self.show)
        shared.when_built(self._wire)

    def _wire(self) -> None:
        shared, outputs = self.shared, [self.known]
        connect(self.controls, shared.workspace, self._run, {*shared.tuning}, outputs)
        # Checks, comparisons and sweeps may have answered since.
        shared.steps["tune"].click(shared.with_session(self.show), None, outputs, **LIGHT)

    def _run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        yield from watch(
            session,
            self.controls,
            lambda: self._work(self.shared.tuning.read(data), session),
            progress_html,
            lambda _: self.show(session),
        )

    def _work(self, tuned: Tuned, session: Session) -> Work[None]:
        recipe = measured.tuned_recipe(session.models, tuned)
        return measured.measure_work(recipe, session, self.shared.workspace)

    def show(self, session: Session) -> Updates:
        """Return what is measured of the loaded models; nothing where that cannot be read."""
        if session.loaded is None:
            return {self.known: None}
        known: dict[str, Any] = {"table": None}
        # Merge, Check and History say what is wrong with files or store; Tune works without.
        with contextlib.suppress(RamStudioError):
            known["table"] = measured.measured_rows(session, self.shared.workspace)
        # Text: Gradio looks for files at every number of a nested value.
        return {self.known: json.dumps(known)}


def progress_html(event: Progress | tuple[str, int, int] | None) -> Markup:
    """Return the progress bar: of a pass over files, or answers, of how many."""
    if isinstance(event, tuple):
        _, answered, total = event
        return progress(answered / total, "Asking", f"{answered} of {total} prompts")
    return pass_html(event, "Merging in memory")
