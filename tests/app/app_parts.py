"""Parts of the app by themselves: a panel without the page, a clock that stands still."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import gradio as gr
import orjson
import pytest

from ram_studio.app.session.shared import PageContext, TuneComponent
from ram_studio.app.session.workspace import Workspace

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


def load_modules(page: Any) -> None:
    """Load the app's modules and nothing of Gradio into a page, anew."""
    page.goto(MODULES)
    page.reload()
    page.evaluate("() => import('./page.js').then(() => RAM.need()).then(() => true)")


def run(page: Any, function: str, *arguments: Any) -> Any:
    """Return what a function of JavaScript returns in a page; NaN and infinity arrive as null."""
    # As text: Playwright describes a nested value number by number, for seconds.
    text = orjson.dumps(arguments).decode()
    return page.evaluate(f"(text) => ({function})(...JSON.parse(text))", text)
