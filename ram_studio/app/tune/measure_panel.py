"""Measure here: merge what the canvas shows in memory, and ask it the questions of the skill table.

The browser shows the button beside the skills where nothing was measured at a setting, and takes
the rows that the store has, see ``measured``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app.boxes import html
from ram_studio.app.jobs import LIGHT, JobControls, Updates, Work, connect, job_controls, watch
from ram_studio.app.session import Session
from ram_studio.app.shared import Shared
from ram_studio.app.templates import progress
from ram_studio.app.tune.measured import measure_work, measured_rows, tuned_recipe
from ram_studio.errors import RamStudioError


@dataclass(frozen=True)
class MeasurePanel:
    """The components. rows: what is measured besides the shipped table, drawn by the browser."""

    controls: JobControls
    rows: gr.HTML
    shared: Shared

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Measure Tune's setting, yielding updates as it goes."""
        workspace = self.shared.workspace

        def prepare() -> Work[None]:
            recipe = tuned_recipe(session.models, self.shared.tuning.read(data))
            return measure_work(recipe, session, workspace)

        def tell(event: tuple[str, int, int] | None) -> Updates:
            return {self.controls.status: progress_html(event)}

        def finish(_: None) -> Updates:
            return {self.rows: measured_rows(session, workspace)}

        yield from watch(session, self.controls, prepare, tell, finish)

    def show(self, session: Session) -> Updates:
        """Return what is measured of the loaded models; nothing where that cannot be read."""
        try:
            return {self.rows: measured_rows(session, self.shared.workspace)}
        except RamStudioError:
            # Check and History say what is wrong with the store; Tune works without it.
            return {self.rows: None}


def build(shared: Shared) -> MeasurePanel:
    """Lay the panel out inside the open Blocks and connect it."""
    with gr.Column(elem_id="measure-box"):
        ids = {"start": "measure", "stop": "stop-measure", "status": "measure-status"}
        controls = job_controls("Measure here", **ids)
        rows = html(
            None,
            html_template="<div></div>",
            js_on_load="window.RAM_READY.then((RAM) => RAM.mountMeasured(props, watch))",
            elem_id="measured",
        )
    panel = MeasurePanel(controls, rows, shared)
    shared.loaded.listen([rows], panel.show)
    shared.when_built(lambda: _wire(panel, shared))
    return panel


def _wire(panel: MeasurePanel, shared: Shared) -> None:
    connect(panel.controls, shared.workspace, panel.run, {*shared.tuning.all}, [panel.rows])

    def refresh(request: gr.Request) -> Updates:
        return panel.show(shared.session(request))

    # Checks, comparisons and sweeps may have answered since.
    if "tune" in shared.steps:
        shared.steps["tune"].click(refresh, None, [panel.rows], **LIGHT)


def progress_html(event: tuple[str, int, int] | None) -> Markup:
    """Return the progress bar: answers, of how many."""
    if event is None:
        return progress(None, "Merging in memory")
    _, answered, total = event
    return progress(answered / total, "Asking", f"{answered} of {total} prompts")
