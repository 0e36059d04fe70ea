"""The page: head, stepper, the four steps and History; each connects its own events.

The browser decides which step is shown (page.js); the server never locks one that was reached.
"""

from __future__ import annotations

import gradio as gr

from ram_studio.app import shell
from ram_studio.app.api import endpoints
from ram_studio.app.boxes import html
from ram_studio.app.check.panel import CheckPanel
from ram_studio.app.history.panel import HistoryPanel
from ram_studio.app.landing.preview import NAME
from ram_studio.app.load.panel import LoadPanel
from ram_studio.app.merge.panel import MergePanel
from ram_studio.app.public.quiet_blocks import QuietBlocks
from ram_studio.app.public.user import offers_sign_in
from ram_studio.app.session.shared import PageContext
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.tune.panel import TunePanel

_STEPS = ("load", "tune", "merge", "check")


def _stepper() -> dict[str, gr.Button]:
    steps = {}
    with gr.Row(elem_id="stepper"):
        for name in _STEPS:
            steps[name] = gr.Button(
                name.capitalize(), elem_id=f"to-{name}", interactive=name == "load"
            )
            steps[name].click(fn=None, js=f"() => {{ window.RAM.go('{name}'); }}")
    return steps


def build_page(workspace: Workspace) -> gr.Blocks:
    """Return the app."""
    with QuietBlocks(title=NAME, analytics_enabled=False, delete_cache=(600, 3600)) as app:
        with gr.Row(elem_id="top"):
            html(shell.head_html(), elem_id="ram-head")
            if offers_sign_in():
                gr.LoginButton(size="sm", elem_id="sign-in")
            shared = PageContext(workspace, _stepper())
        # Before the panels' events, whose handlers could otherwise claim the endpoints' names.
        endpoints.build(workspace)
        for panel in (LoadPanel, TunePanel, MergePanel, CheckPanel, HistoryPanel):
            panel(shared)
        shared.connect()
    app.queue(max_size=200, default_concurrency_limit=8, api_open=False)
    # Gradio polls for events a thousand times a second, and for their progress a hundred times: 8 %
    # of a core. Now an event waits 10 ms longer on average, which users do not notice.
    app._queue.sleep_when_free = 0.02
    app._queue.progress_update_sleep_when_free = 0.1
    app.is_public = workspace.settings.is_public
    app.ram_workspace = workspace
    return app
