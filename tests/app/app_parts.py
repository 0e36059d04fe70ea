"""Parts of the app by themselves: a panel without the page, a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import gradio as gr
import orjson
import pytest

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app.session.shared import Shared, Tuning
from ram_studio.app.session.workspace import Workspace

Panel = TypeVar("Panel")
TUNE = (DEFAULT_INDEX, 0.1, 2.0, "ram+")


def built(make: Callable[[Shared], Panel], workspace: Workspace) -> Panel:
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
            tuning = Tuning(
                gr.Slider(0, len(EPSILON_GRID) - 1, step=1),
                gr.Slider(0, 5),
                gr.Slider(0, 10),
                gr.Radio(["ram", "ram+", "ram+s", "ram+m"]),
            )
            shared = Shared(workspace, {})
            shared.tuning = tuning
            panel = make(shared)
            shared.connect()
    asyncio.set_event_loop(None)
    for loop in loops:
        loop.close()
    return panel


def tuned(shared: Shared, values: tuple[float, ...] = TUNE) -> dict[Any, Any]:
    """Return Tune's values keyed by component, as a handler reads them."""
    return dict(zip(shared.tuning, (*values, *TUNE[len(values) :]), strict=True))


class Clock:
    """A clock that a test moves. now: what it shows, seconds from any beginning."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def run(page: Any, function: str, *arguments: Any) -> Any:
    """Return what a function of JavaScript returns in a page; NaN and infinity arrive as null."""
    # As text: Playwright describes a nested value number by number, for seconds.
    text = orjson.dumps(arguments).decode()
    return page.evaluate(f"(text) => ({function})(...JSON.parse(text))", text)
