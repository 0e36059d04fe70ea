"""Parts of the app by themselves: a panel without the page, a clock that stands still."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import orjson
import pytest

# Gradio reads its own sources to write stubs of types beside them: half of its import.
with mock.patch.object(inspect, "getfile", side_effect=OSError):
    import gradio as gr


from ram_studio.app.session.shared import PageContext, TuneComponent
from ram_studio.app.session.workspace import Workspace
from ram_studio.resources import asset_path

# Models to ask, which the tests of evaluations make, too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "evals"))

Panel = TypeVar("Panel")


def built(make: Callable[[PageContext], Panel], workspace: Workspace) -> Panel:
    """Return ``make(shared)`` laid out and wired, with Tune's settings to share."""
    loops: list[asyncio.AbstractEventLoop] = []
    new_loop = asyncio.new_event_loop

    def stored_loop() -> asyncio.AbstractEventLoop:
        loops.append(new_loop())
        return loops[-1]

    # Gradio makes some loops for its locks and never closes them.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", stored_loop)
        with gr.Blocks():
            shared = PageContext(workspace, {})
            shared.tuning = TuneComponent(gr.Textbox())
            panel = make(shared)
            shared.connect()
    asyncio.set_event_loop(None)
    for loop in loops:
        loop.close()
    return panel


def root_of(component: Any) -> gr.Blocks:
    """Return the page that a component stands in."""
    while component.parent is not None:
        component = component.parent
    return component


def tuned(shared: PageContext, **settings: Any) -> dict[Any, Any]:
    """Return Tune's settings keyed by their component, as a handler reads them."""
    return {shared.tuning.value: json.dumps(settings)}


class Clock:
    """A clock that a test moves. now: what it shows, seconds from any beginning."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


MODULES = "http://modules.test/"
"""Where a test serves the app's modules from assets/."""
_PAGE = """<html><meta name=viewport content="width=device-width">
<link rel=stylesheet href=canvas.css>"""


def open_modules(page: Any) -> None:
    """Open a page with the app's modules and nothing of Gradio, served from assets/."""
    page.route(
        f"{MODULES}**/*.*s",
        lambda route: route.fulfill(path=asset_path(route.request.url.removeprefix(MODULES))),
    )
    page.route(MODULES, lambda route: route.fulfill(content_type="text/html", body=_PAGE))
    load_modules(page)


def load_modules(page: Any) -> None:
    """Load the app's modules into such a page, anew."""
    page.goto(MODULES)
    page.reload()
    page.evaluate("() => import('./page.js').then(() => RAM.need()).then(() => true)")


def run(page: Any, function: str, *arguments: Any) -> Any:
    """Return what a function of JavaScript returns in a page; NaN and infinity arrive as null."""
    # As text: Playwright describes a nested value number by number, for seconds.
    text = orjson.dumps(arguments).decode()
    return page.evaluate(f"(text) => ({function})(...JSON.parse(text))", text)
