"""The panel "Compare methods side by side": every merge in memory, asked the same questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app.asking.suites import Questions
from ram_studio.app.boxes import choice, html, slider
from ram_studio.app.experiment import view, work
from ram_studio.app.experiment.table import method_grid, result_table
from ram_studio.app.session.jobs import LIGHT, Updates, Work, connect, job_controls, watch
from ram_studio.app.session.session import Comparison, Session
from ram_studio.app.session.shared import Shared
from ram_studio.app.templates import callout, failure, progress
from ram_studio.errors import RamStudioError
from ram_studio.evals.experiment.method_table import MethodTable
from ram_studio.evals.experiment.presets import EXPERIMENTS

_OWN = "My choice of methods"
_OWN_NOTE = "RAM rows use your ε, r and α from Tune; the others their defaults."


def keep(table: MethodTable, title: str, session: Session) -> Comparison:
    """Write a comparison's CSV, report and figure into the session's folder; return it.

    Raises: OutputError when they cannot be written.
    """
    described = table.to_dict()
    stem = f"comparison-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"
    files = {
        f"{stem}.csv": table.to_frame().to_csv(index=False),
        f"{stem}.html": view.report_html(described, title),
        f"{stem}.svg": view.time_score_file(described),
    }
    return Comparison(title, described, session.save(files))


class ComparePanel:
    """Compare methods, laid out and wired."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        shape = {"open": False, "elem_id": "compare-methods", "elem_classes": "panel"}
        with gr.Accordion("Compare methods side by side", **shape) as fold:
            html(
                '<p class="lead">Each method merges the same agents in memory and answers the same '
                "prompts; no model folder is written. The table says where a difference is no more "
                "than chance.</p>"
            )
            self._lay_out_form()
            self._lay_out_result()
        self.asked.wire(fold)
        form = {self.preset, self.methods, self.limit, *self.asked.form, *shared.tuning}
        connect(self.controls, shared.workspace, self.run, form, self._shown)
        self.preset.input(self._show_about, self.preset, [self.methods, self.about], **LIGHT)
        shared.loaded.listen(self._shown, self._show)

    def _lay_out_form(self) -> None:
        with gr.Row(elem_classes="check-form"):
            presets = [(_OWN, ""), *((EXPERIMENTS[name].title, name) for name in work.PRESETS)]
            shape = {"min_width": 220, "elem_id": "compare-preset"}
            self.preset = choice("What to compare", presets, "", **shape)
            shape = {"min_width": 220, "elem_id": "compare-limit"}
            self.limit = slider("Prompts per skill", (10, 300), 100, 10, **shape)
        self.methods = gr.CheckboxGroup(
            [(row.title, name) for name, row in work.CHOICES.items()],
            value=list(work.USUAL),
            label="Methods",
            elem_id="compare-choice",
        )
        self.about = html(_OWN_NOTE, elem_id="compare-about", elem_classes="fine")
        self.asked = Questions(self.shared, "compare-")
        ids = {"start": "compare", "stop": "stop-compare", "status": "compare-status"}
        self.controls = job_controls("Compare", **ids)

    def _lay_out_result(self) -> None:
        with gr.Column(visible=False, elem_id="comparison", elem_classes="compared") as self.result:
            self.summary = html()
            self.table = result_table("compare-table")
            self.details = html()
            with gr.Row(elem_classes="actions"):
                self.files = [
                    gr.DownloadButton("Download CSV", elem_id="compare-csv"),
                    gr.DownloadButton("Download report (HTML)", elem_id="compare-report"),
                    gr.DownloadButton("Download figure (SVG)", elem_id="compare-figure"),
                ]

    @property
    def _shown(self) -> list[Any]:
        return [self.result, self.summary, self.table, self.details, *self.files]

    def _show(self, session: Session) -> Updates:
        found = session.comparison
        if found is None:
            return {self.result: gr.update(visible=False)}
        return {
            self.result: gr.update(visible=True),
            self.summary: view.summary_html(found.table),
            self.table: gr.update(value=method_grid(found.table).value(), visible=True),
            self.details: view.details_html(found.table),
            **{
                box: gr.update(value=str(p)) for box, p in zip(self.files, found.files, strict=True)
            },
        }

    def _show_about(self, preset: str) -> Updates:
        text = EXPERIMENTS[preset].description if preset else _OWN_NOTE
        return {self.methods: gr.update(visible=not preset), self.about: text}

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Compare as the form says, yielding updates as it goes."""
        preset = data[self.preset] or ""
        title = EXPERIMENTS[preset].title if preset else _OWN

        def prepare() -> Work[MethodTable]:
            tuned = self.shared.tuning.read(data).values
            methods = data[self.methods] or ()
            rows = work.rows_for(session.models, preset, methods, tuned)
            asked = self.asked.read(data, data[self.limit], session.data)
            return work.compare_work(rows, asked, session, self.shared.workspace)

        def finish(table: MethodTable) -> Updates:
            session.comparison = found = keep(table, title, session)
            said = callout(work.STOPPED) if found.table["ending"] == "stopped" else ""
            return {self.controls.status: said, **self._show(session)}

        def explain(error: RamStudioError, job: Any) -> str:
            return failure(error, str(error))

        yield from watch(session, self.controls, prepare, progress_html, finish, explain=explain)


def progress_html(event: tuple[str, int, int] | None) -> Markup:
    """Return the progress bar of a comparison: row, rows done, rows in all."""
    if event is None or not event[0]:
        return progress(None, "Preparing the models")
    row, done, total = event
    return progress(done / total, row, f"row {done + 1} of {total}")
