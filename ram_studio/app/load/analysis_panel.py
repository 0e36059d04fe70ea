"""Open an analysis that was made elsewhere, without models, for Tune only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.boxes import html
from ram_studio.app.session.jobs import LIGHT, LOADED, NEED_MODELS, Updates
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.shared import PageContext, open_after
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.hub.analyses import open_analysis, read_foreign
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.errors import RamStudioError, SettingsError


def build(shared: PageContext) -> None:
    """Lay out a box for a path or Hub id, and an upload."""
    is_private = shared.settings.is_private
    where = "file or Hub id" if is_private else "Hub id"
    kind = "An analysis" if is_private else "A compact analysis"
    with gr.Row(elem_classes="actions"):
        source = gr.Textbox(
            label=f"{kind} without models · {where}",
            max_lines=1,
            max_length=4096,
            elem_id="analysis-source",
        )
        button = gr.Button("Open the analysis", elem_id="open-analysis", scale=0, min_width=160)
        upload = gr.UploadButton(
            "Upload one", file_types=[".safetensors"], elem_id="upload-analysis", size="sm", scale=0
        )
    status = html(elem_id="analysis-status")
    shared.clear_on_load(status)
    target = gr.Textbox(visible=False)

    def opener(read: Callable[[str, Settings], LoadedModels]) -> Callable[..., Updates]:
        def load(given: str, session: Session) -> Updates:
            try:
                with acting_as(session.token):
                    loaded = read(given, shared.settings)
            except RamStudioError as error:
                return {status: templates.callout(str(error), "bad"), target: ""}
            if session.job is not None:
                session.job.stop(LOADED)
            session.load(loaded)
            shared.workspace.free_memory()
            message = templates.callout(f"{loaded.title} is open in Tune. {NEED_MODELS}", "warn")
            return {**shared.loaded.updates(session), status: message, target: "tune"}

        return shared.with_session(load)

    def wire() -> None:
        outputs = [status, target, *shared.loaded.components]
        for events, read, given in (
            ([button.click, source.submit], analysis_at, source),
            ([upload.upload], uploaded_analysis, upload),
        ):
            open_after(gr.on(events, opener(read), given, outputs, **LIGHT), target)

    shared.when_built(wire)


def analysis_at(text: str, settings: Settings) -> LoadedModels:
    """Return the loaded models of an analysis that a user named.

    Raises: SettingsError with what to enter; AnalysisError, HubError, CheckpointError.
    """
    source = text.strip()
    if not source:
        raise SettingsError(
            "Name an analysis: a file that `ram-studio analyze` wrote, or a Hub id."
        )
    if settings.is_public and split_hub_id(source) is None:
        raise SettingsError(
            f"{source[:120]!r} is not a Hub id (owner/name). This public app opens no files here; "
            "upload a compact analysis instead."
        )
    return _as_loaded(Path(source).name, open_analysis(source, only_compact=settings.is_public))


def uploaded_analysis(path: str, settings: Settings) -> LoadedModels:
    """Return the loaded models of an uploaded analysis; errors do not name the upload's folder.

    Raises: AnalysisError.
    """
    file = Path(path)
    try:
        return _as_loaded(file.name, read_foreign(file, only_compact=settings.is_public))
    except RamStudioError as error:
        raise SettingsError(str(error).replace(str(file), file.name)) from error


def _as_loaded(title: str, analysis: Any) -> LoadedModels:
    sources = {name: analysis.sources.get(name, "") for name in ("base", *analysis.agents)}
    base = sources.pop("base")
    return LoadedModels(title[:80], None, base, sources, analysis, is_analysis_only=True)
