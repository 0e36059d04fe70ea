"""Missing data sets: their folder, or a download from the Hub on the user's own machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gradio as gr

from ram_studio.app.asking import limits
from ram_studio.app.asking.suites import title_of
from ram_studio.app.boxes import choice, unchecked
from ram_studio.app.session.jobs import LIGHT, Updates, Work, connect, watch
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.templates import callout, progress
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.suites import ALL_SUITES


class DataSets:
    """The folded panel, not on shared servers; laid out by Check, used by all three panels.

    Args:
        offer: updates for a session whose data sets have changed; shown: the updated components.
    """

    def __init__(
        self, shared: PageContext, offer: Callable[[Session], Updates], shown: list[Any]
    ) -> None:
        self._shared, self._offer = shared, offer
        with gr.Accordion("Published data sets", open=False, elem_id="data-sets") as fold:
            self.folder = gr.Textbox(
                label="Folder of data files, such as gsm8k.jsonl (empty: the Hub's cache)",
                elem_id="data-folder",
            )
            self.pick = unchecked(choice("Missing data sets", [], None, elem_id="data-pick"))
            ids = {"start": "data-fetch", "stop": "stop-data-fetch", "status": "data-status"}
            self.controls = shared.job_controls("Download it from the Hub", **ids)
        outputs = [self.pick, self.controls.status, *shown]
        fold.expand(shared.with_session(self._missing), None, self.pick, **LIGHT)
        given = shared.with_session(self.set_folder)
        gr.on([self.folder.blur, self.folder.submit], given, self.folder, outputs, **LIGHT)
        updated = [self.folder, self.pick, *shown]
        connect(self.controls, shared.workspace, self.run, {self.pick}, updated)

    def _missing(self, session: Session) -> Updates:
        absent = [n for n in limits.absent_here(session.data) if ALL_SUITES[n].fetch is not None]
        choices = [(title_of(name), name) for name in absent]
        return {self.pick: gr.update(choices=choices, value=absent[0] if absent else None)}

    def set_folder(self, folder: str | None, session: Session) -> Updates:
        """Set the folder of data sets; empty means the Hub's cache."""
        folder = (folder or "").strip()
        try:
            self._refuse_others()
            limits.read_settings({"suites": [limits.SUITE], "data": folder}, self._shared.settings)
        except RamStudioError as error:
            return {self.controls.status: callout(str(error), "bad")}
        if folder == session.data:
            return {self.controls.status: ""}
        session.data = folder
        return {self.controls.status: "", **self._missing(session), **self._offer(session)}

    def _refuse_others(self) -> None:
        if self._shared.settings.is_public:
            raise SettingsError("This is a shared server; it downloads no data sets.")

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Download the chosen data set, yielding updates."""
        name = str(data[self.pick] or "")

        def prepare() -> Work[object]:
            self._refuse_others()
            fetch = ALL_SUITES[name].fetch if name in ALL_SUITES else None
            if fetch is None:
                raise SettingsError("No data set is chosen. Choose a missing one.")
            return lambda report, cancel: fetch()

        def finish(_: object) -> Updates:
            message = callout(f"{title_of(name)} was downloaded.", "good")
            # The download is in the Hub's cache, which a folder would hide.
            session.data = ""
            own = {self.folder: "", self.controls.status: message}
            return {**own, **self._missing(session), **self._offer(session)}

        yield from watch(
            session,
            self.controls,
            prepare,
            lambda event: progress(None, f"Fetching {title_of(name)}"),
            finish,
            needs_loaded=False,
        )
