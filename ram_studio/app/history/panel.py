"""History: past merges and checks; chosen ones are compared, downloaded, or opened in Check."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from ram_studio.app.asking.limits import SUITE
from ram_studio.app.asking.suites import title_of
from ram_studio.app.boxes import choice, html, unchecked
from ram_studio.app.history import view, work
from ram_studio.app.session.jobs import LIGHT, Updates
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import PageContext, open_after
from ram_studio.app.templates import callout, step_head
from ram_studio.errors import RamStudioError
from ram_studio.evals.report.export import FORMATS

# The browser holds the ticked rows: it writes their ids into the first input.
_CHOSEN = (
    "(_, ...rest) => [[...document.querySelectorAll('#history-list input:checked')]"
    ".map((box) => box.value).join(','), ...rest]"
)


class HistoryPanel:
    """The page."""

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        with gr.Column(elem_id="step-history", elem_classes="step"):
            self._lay_out()
        shared.when_built(self._wire)

    def _lay_out(self) -> None:
        lead = "Past merges and checks. Choose two or more to compare them."
        html(step_head("History", lead))
        # Clicked by the header's button and by links, see page.js.
        self._open = gr.Button("History", visible="hidden", elem_id="to-history")
        self.rows = html(elem_id="history-list")
        self._chosen = gr.Textbox(visible=False)
        with gr.Row(elem_classes="past-form"):
            self._compare = gr.Button(
                "Compare", variant="primary", elem_id="history-compare", scale=0
            )
            self.kind = gr.Radio(
                [(title_of(SUITE), SUITE), ("General suites", work.GENERAL)],
                value=SUITE,
                label="Benchmark",
                visible=False,
                elem_id="history-kind",
            )
            shape = {"visible": False, "elem_id": "history-reference"}
            self.reference = unchecked(choice("Compared with", [], None, **shape))
        self._ask = gr.Button(
            "Run this check for all of them", visible=False, elem_id="history-ask"
        )
        self.result = html(elem_id="history-result")
        with gr.Row(elem_classes="actions", visible=False) as self.actions:
            self._in_check = gr.Button("Read the answers in Check", elem_id="history-open")
            self._files = [
                gr.DownloadButton(f"Download {ending[1:].upper()}", elem_id=f"history-{ending[1:]}")
                for ending in FORMATS
            ]
        self._target = gr.Textbox(visible=False)

    def _wire(self) -> None:
        handler = self.shared.with_session
        opens = "() => { window.RAM.go('history'); return []; }"
        self._open.click(handler(self.list_rows), None, self.rows, js=opens, **LIGHT)
        gr.on(
            [self._compare.click, self.kind.input, self.reference.input],
            handler(self.side_by_side),
            [self._chosen, self.kind, self.reference],
            [
                *(self.rows, self.kind, self.reference, self.result, self._ask),
                *(self.actions, *self._files),
            ],
            js=_CHOSEN,
            **LIGHT,
        )
        shown = [*self.shared.checked.components, self._target]
        opened = self._in_check.click(handler(self._open_in_check), None, shown, **LIGHT)
        open_after(opened, self._target)
        form, filled = self.shared.asking.components, handler(self._fill_in_check)
        self._ask.click(filled, [self._chosen, self.kind], form, js=_CHOSEN, **LIGHT).success(
            fn=None,
            js="() => { window.RAM.open('check'); document.getElementById('evaluate').click(); }",
        )

    def list_rows(self, session: Session, chosen: Sequence[str] = ()) -> str:
        """Return past merges and checks as HTML, with the chosen rows ticked."""
        try:
            models = work.past_models(session, self.shared.workspace)
        except RamStudioError as error:
            return callout(str(error), "bad")
        return view.list_html(models, self.shared.settings.is_private, chosen)

    def side_by_side(
        self, chosen: str, kind: str, reference: str | None, session: Session
    ) -> Updates:
        """Return updates that show rows side by side; chosen: their ids, joined by commas."""
        workspace = self.shared.workspace
        session.found = None
        ids = _ids(chosen)
        hidden = gr.update(visible=False)
        # The page may redraw the list, so its ticks are part of it.
        rows = {self.rows: self.list_rows(session, ids)}
        parts = (self.kind, self.reference, self.actions, self._ask)
        nothing = {**rows, **dict.fromkeys(parts, hidden)}
        if not ids:
            message = callout("Nothing is chosen. Tick one or more rows.", "warn")
            return {**nothing, self.result: message}
        try:
            found = work.side_by_side(ids, kind, reference, session, workspace)
            files = work.export(found, session) if found.result is not None else []
        except RamStudioError as error:
            return {**nothing, self.result: callout(str(error), "bad")}
        session.found = found.result.report if found.result is not None else None
        names = list(found.result.models) if found.result is not None else []
        return {
            **rows,
            self.kind: gr.update(visible=len(found.kinds) > 1, value=found.kind),
            self.reference: gr.update(visible=len(names) > 1, choices=names, value=found.base),
            self.result: view.side_by_side_html(found),
            # Offered where a check would add scores, and can run here.
            self._ask: gr.update(
                visible=bool(found.left_out) and bool(work.names_in_check(found.models, session))
            ),
            self.actions: gr.update(visible=bool(files)),
            **{box: gr.update(value=file) for box, file in zip(self._files, files, strict=False)},
        }

    def _fill_in_check(self, chosen: str, kind: str, session: Session) -> Updates:
        found = work.side_by_side(_ids(chosen), kind, None, session, self.shared.workspace)
        names = work.names_in_check(found.models, session)
        return self.shared.asking.fill(names, list(found.left_out), session)

    def _open_in_check(self, session: Session) -> Updates:
        if session.found is None:
            return {self._target: ""}
        session.report = session.found
        return {**self.shared.checked.updates(session), self._target: "check"}


def _ids(chosen: str | None) -> list[str]:
    return [part for part in (chosen or "").split(",") if part]
