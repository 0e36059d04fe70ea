"""What endpoints do with what they are given: sessions, checked values, and errors in words."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import gradio as gr

from ram_studio.app.jobs import Result, Work, begin
from ram_studio.app.load.examples import load_example
from ram_studio.app.session import Loaded, Session
from ram_studio.app.workspace import Workspace
from ram_studio.errors import RamStudioError, SettingsError

EXAMPLES = {"example": "1", "house": "house", "independent": "independent", "dense": "dense"}
_POLL_SECONDS = 0.1


def worded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint whose errors come as Gradio shows them: our own text, no traceback."""

    @functools.wraps(endpoint)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return await endpoint(*arguments, **named)
        except RamStudioError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return call


def number(name: str, value: Any) -> float:
    """Return an argument as a number.

    Raises: SettingsError for what is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{name} is {str(value)[:80]!r}; it must be a number.") from None


def between(name: str, value: Any, low: float, high: float) -> float:
    """Return an argument as a number from low to high.

    Raises: SettingsError for any other.
    """
    found = number(name, value)
    if not low <= found <= high:
        raise SettingsError(f"{name} is {value}; it must be from {low} to {high}.")
    return found


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise SettingsError for a name that is none of the known ones."""
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise SettingsError(f"There is no {kind} {unknown[:80]!r}; there are {', '.join(known)}.")


async def finish(work: Work[Result], session: Session) -> Result:
    """Do the work when it is its turn and wait for it; a cancelled request stops it."""
    job = begin(session, work)
    try:
        while not job.is_done:
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        job.stop()
    return job.result()


class Client:
    """What endpoints have of whoever calls: a session, and what is loaded in it."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._settings = workspace.settings

    def _session(self, request: gr.Request) -> Session:
        return self._workspace.session_of(request, "api-")

    def _loaded(self, analysis: str, session: Session) -> Loaded:
        if analysis in EXAMPLES:
            loaded = load_example(EXAMPLES[analysis])
            if session.loaded is not loaded:
                session.load(loaded)
            return loaded
        if session.loaded is None or analysis != session.loaded.title:
            raise SettingsError(
                f"There is no analysis {analysis[:80]!r}; use {', '.join(EXAMPLES)}, or "
                "what /analyze returned to this client last."
            )
        return session.loaded
