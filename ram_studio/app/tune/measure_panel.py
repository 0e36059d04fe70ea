"""Measure here: merge what the canvas shows in memory, and ask it the questions of the skill table.

The browser shows the button where something about a setting is not known yet, and takes what is:
rows that the store has (``measured``), and what TIES keeps (``ties``), which small sets find when
TIES is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app.boxes import html
from ram_studio.app.jobs import LIGHT, JobControls, Updates, Work, connect, job_controls, watch
from ram_studio.app.load.view import progress_html as pass_html
from ram_studio.app.session import Session
from ram_studio.app.shared import Shared, Tuned
from ram_studio.app.templates import progress
from ram_studio.app.tune import measured, ties
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.engine.events import Progress
from ram_studio.errors import RamStudioError


@dataclass(frozen=True)
class MeasurePanel:
    """The components. known: what is measured besides the shipped table, for the browser:

    {"agents": names, "table": rows or None, "ties": by agent or None, "is_quick": whether TIES is
    merged unasked}.
    """

    controls: JobControls
    known: gr.HTML
    ask_ties: gr.Button
    shared: Shared

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Measure Tune's setting, yielding updates as it goes."""

        def tell(event: Any) -> Updates:
            return {self.controls.status: progress_html(event)}

        yield from watch(
            session,
            self.controls,
            lambda: self._work(self.shared.tuning.read(data), session),
            tell,
            lambda _: self.show(session),
        )

    def _work(self, tuned: Tuned, session: Session) -> Work[None]:
        loaded = session.models
        if tuned.rule == "ties" and session.ties is None and loaded.example is None:
            return ties.ties_work(session)
        recipe = measured.tuned_recipe(loaded, tuned)
        return measured.measure_work(recipe, session, self.shared.workspace)

    def show(self, session: Session, *, merges_ties: bool = False) -> Updates:
        """Return what is measured of the loaded models; nothing where that cannot be read."""
        if session.loaded is None:
            return {self.known: None}
        agents = list(session.loaded.sketch.agents)
        known: dict[str, Any] = {
            "agents": agents,
            "table": None,
            "ties": session.ties,
            "is_quick": False,
        }
        try:
            known["is_quick"] = ties.is_quick(session.loaded)
            if merges_ties and known["is_quick"]:
                known["ties"] = ties.find_ties(session)
            known["table"] = measured.measured_rows(session, self.shared.workspace)
        except RamStudioError:
            # Merge, Check and History say what is wrong with files or store; Tune works without.
            pass
        # Text: Gradio looks for files at every number of a nested value.
        return {self.known: json.dumps(known)}


def build(shared: Shared) -> MeasurePanel:
    """Lay the panel out inside the open Blocks and connect it."""
    with gr.Column(elem_id="measure-box"):
        ids = {"start": "measure", "stop": "stop-measure", "status": "measure-status"}
        controls = job_controls("Measure here", **ids)
        known = html(
            None,
            html_template="<div></div>",
            js_on_load="window.RAM_READY.then((RAM) => RAM.mountMeasured(props, watch))",
            elem_id="measured",
        )
        ask_ties = gr.Button("", visible="hidden", elem_id="ask-ties")
    panel = MeasurePanel(controls, known, ask_ties, shared)
    shared.loaded.listen([known], panel.show)
    shared.when_built(lambda: _wire(panel, shared))
    return panel


def _wire(panel: MeasurePanel, shared: Shared) -> None:
    connect(panel.controls, shared.workspace, panel.run, {*shared.tuning.all}, [panel.known])

    def refresh(request: gr.Request) -> Updates:
        return panel.show(shared.session(request))

    def merge_ties(request: gr.Request) -> Updates:
        session = shared.session(request)
        with acting_as(session.token):
            return panel.show(session, merges_ties=True)

    panel.ask_ties.click(merge_ties, None, [panel.known], **LIGHT)
    # Checks, comparisons and sweeps may have answered since.
    if "tune" in shared.steps:
        shared.steps["tune"].click(refresh, None, [panel.known], **LIGHT)


def progress_html(event: Progress | tuple[str, int, int] | None) -> Markup:
    """Return the progress bar: of a pass over files, or answers, of how many."""
    if isinstance(event, tuple):
        _, answered, total = event
        return progress(answered / total, "Asking", f"{answered} of {total} prompts")
    return pass_html(event, "Merging in memory")
