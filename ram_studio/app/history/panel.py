"""History: past merges and checks, chosen ones side by side, taken home, or opened in Check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.app import markup
from ram_studio.app.check import panel as check
from ram_studio.app.check import wording as words
from ram_studio.app.check.panel import CheckStep
from ram_studio.app.history import past, past_view
from ram_studio.app.session import Session
from ram_studio.app.workspace import Workspace
from ram_studio.errors import RamStudioError

_CHOSEN = (
    "(_, ...rest) => [[...document.querySelectorAll('#history-list input:checked')]"
    ".map((box) => box.value).join(','), ...rest]"
)


@dataclass(frozen=True)
class HistoryPage:
    """The components of the page. chosen: ids of the ticked rows, written by the browser."""

    column: gr.Column
    open: gr.Button
    rows: gr.HTML
    chosen: gr.Textbox
    kind: gr.Radio
    reference: gr.Dropdown
    compare: gr.Button
    result: gr.HTML
    actions: gr.Row
    in_check: gr.Button
    json: gr.DownloadButton
    csv: gr.DownloadButton
    html: gr.DownloadButton
    target: gr.Textbox

    @property
    def outputs(self) -> list[Any]:
        """What ``compare`` returns updates of."""
        return [
            self.rows,
            self.kind,
            self.reference,
            self.result,
            self.actions,
            self.json,
            self.csv,
            self.html,
        ]


def list_rows(session: Session, workspace: Workspace, chosen: Sequence[str] = ()) -> str:
    """Return the list of what was merged and checked, rows of the chosen ids ticked."""
    try:
        models = past.past_models(session, workspace)
    except RamStudioError as error:
        return markup.callout(str(error), "bad")
    return past_view.list_html(models, workspace.settings.is_private, chosen)


def compare(
    chosen: str, kind: str, reference: str | None, session: Session, workspace: Workspace
) -> list[Any]:
    """Return updates of ``HistoryPage.outputs`` for the ticked rows."""
    hidden = gr.update(visible=False)
    session.found = None
    ids = [part for part in (chosen or "").split(",") if part]
    # The page may draw the list anew: its ticks are part of it.
    rows = list_rows(session, workspace, ids)
    if not ids:
        said = markup.callout(words.HISTORY_NOTHING, "warn")
        return [rows, hidden, hidden, said, hidden, *[gr.skip()] * 3]
    try:
        found = past.side_by_side(ids, kind, reference, session, workspace)
        kinds = past.kinds_of(found.models)
        if found.report is None and kinds and kind not in kinds:
            kind = kinds[0]
            found = past.side_by_side(ids, kind, reference, session, workspace)
        files = past.export(found, session) if found.report is not None else []
    except RamStudioError as error:
        said = markup.callout(str(error), "bad")
        return [rows, hidden, hidden, said, hidden, *[gr.skip()] * 3]
    session.found = found.report
    names = list(found.report.models) if found.report is not None else []
    return [
        rows,
        gr.update(visible=len(kinds) > 1, value=kind),
        gr.update(visible=len(names) > 1, choices=names, value=found.base),
        past_view.side_by_side_html(found),
        gr.update(visible=bool(files)),
        *([gr.update(value=file) for file in files] or [gr.skip()] * 3),
    ]


def build() -> HistoryPage:
    """Lay the page out inside the open Blocks."""
    with gr.Column(elem_id="step-history", elem_classes="step") as column:
        gr.HTML(
            markup.step_head(words.HISTORY_HEADING, words.HISTORY_LEAD), apply_default_css=False
        )
        # Pressed by the head's button and by links, see page.js.
        opening = gr.Button(words.HISTORY, visible="hidden", elem_id="to-history")
        rows = gr.HTML("", elem_id="history-list", apply_default_css=False)
        chosen = gr.Textbox(visible=False)
        with gr.Row(elem_classes="past-form"):
            side = gr.Button(
                words.HISTORY_COMPARE, variant="primary", elem_id="history-compare", scale=0
            )
            kind = gr.Radio(
                [(words.KIND_DEMO, past.DEMO), (words.KIND_SUITES, "general")],
                value=past.DEMO,
                label=words.KIND_LABEL,
                visible=False,
                elem_id="history-kind",
            )
            reference = gr.Dropdown(
                [],
                label=words.HISTORY_REFERENCE,
                visible=False,
                filterable=False,
                elem_id="history-reference",
            )
        result = gr.HTML("", elem_id="history-result", apply_default_css=False)
        with gr.Row(elem_classes="actions", visible=False) as actions:
            in_check = gr.Button(words.HISTORY_OPEN, elem_id="history-open")
            as_csv = gr.DownloadButton(words.EXPORT_CSV, elem_id="history-csv")
            as_json = gr.DownloadButton(words.EXPORT_JSON, elem_id="history-json")
            as_html = gr.DownloadButton(words.EXPORT_HTML, elem_id="history-html")
        target = gr.Textbox(visible=False)
    return HistoryPage(
        column,
        opening,
        rows,
        chosen,
        kind,
        reference,
        side,
        result,
        actions,
        in_check,
        as_json,
        as_csv,
        as_html,
        target,
    )


def wire(page: HistoryPage, step: CheckStep, workspace: Workspace, quiet: dict[str, Any]) -> None:
    """Connect the page. step: where a past check is opened."""

    def list_past(request: gr.Request) -> str:
        return list_rows(workspace.session(request.session_hash), workspace)

    page.open.click(
        list_past, None, page.rows, js="() => { window.RAM.go('history'); return []; }", **quiet
    )

    def compare_past(
        chosen: str, kind: str, reference: str | None, request: gr.Request
    ) -> list[Any]:
        session = workspace.session(request.session_hash)
        return compare(chosen, kind, reference, session, workspace)

    gr.on(
        [page.compare.click, page.kind.input, page.reference.input],
        compare_past,
        [page.chosen, page.kind, page.reference],
        page.outputs,
        js=_CHOSEN,
        **quiet,
    )

    def open_in_check(request: gr.Request) -> list[Any]:
        session = workspace.session(request.session_hash)
        if session.found is None:
            return [*[gr.skip()] * len(check.show_report(None, session)), ""]
        session.report = session.found
        return [*check.show_report(session.report, session), "check"]

    page.in_check.click(
        open_in_check,
        None,
        [step.scores, *step.browser.shown, page.target],
        queue=False,
        **quiet,
    ).then(fn=None, inputs=page.target, js="(step) => { window.RAM.open(step); }")
