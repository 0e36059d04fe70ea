"""Push a finished merge to the Hub: as the app's owner, on a Space as the signed-in user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.boxes import html
from ram_studio.app.numbers import size_text
from ram_studio.app.public.user import may_push
from ram_studio.app.session.jobs import Updates, Work, connect, watch
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import PageContext
from ram_studio.checkpoints.hub.push import YES_PUBLIC, PushProgress, PushResult, push
from ram_studio.errors import HubError, RamStudioError

_SIGN_IN = templates.callout(
    "To push to your account, sign in with Hugging Face at the top of the page. RAM Studio can "
    "then create repositories there and write only to them."
)
_PUBLIC = "Public: everyone can read it"


def build(shared: PageContext) -> None:
    """Lay out the name and the button; none on a shared server without sign-in."""
    if shared.settings.is_public and not may_push():
        return
    with gr.Accordion("Push to the Hub", open=False, elem_id="push-box"):
        if shared.settings.is_public:
            html(_SIGN_IN)
        name = gr.Textbox(label="owner/name", max_lines=1, max_length=200, elem_id="push-name")
        public = gr.Checkbox(label=_PUBLIC, value=False, elem_id="push-public")
        ids = {"start": "push", "stop": "stop-push", "status": "pushed"}
        job = shared.job_controls("Push the latest merge", **ids)

    def run(data: dict[Any, Any], session: Session) -> Iterator[Updates]:
        def prepare() -> Work[PushResult]:
            if not session.merges:
                raise HubError("There is no merge yet; merge first.")
            folder = list(session.merges.values())[-1].folder
            repository, is_public = (data[name] or "").strip(), bool(data[public])
            return lambda report, cancel: push(
                folder, repository, public=is_public, on_progress=report, cancel=cancel
            )

        def explain(error: RamStudioError, job: Any) -> str:
            text = templates.failure(error, "Stopped. Files already uploaded are not sent again.")
            return text.replace(YES_PUBLIC, f"tick “{_PUBLIC}”")

        yield from watch(
            session,
            job,
            prepare,
            _progress_html,
            lambda pushed: {job.status: _pushed_html(pushed)},
            needs_loaded=False,
            explain=explain,
        )

    shared.when_built(lambda: connect(job, shared.workspace, run, {name, public}, []))


def _progress_html(event: PushProgress | None) -> str:
    if event is None:
        return templates.progress(None, "Asking the Hub")
    of_all = f"{size_text(event.done_bytes)} of {size_text(event.total_bytes)}"
    return templates.progress(
        event.done_bytes / max(1, event.total_bytes), f"Pushed {event.file}", of_all
    )


def _pushed_html(pushed: PushResult) -> str:
    who = "public" if pushed.is_public else "private"
    was = "Already there" if pushed.was_there else "Pushed"
    return templates.callout(f"{was}: {pushed.url} ({who}).", "good")
