"""Arguments of endpoints: sessions, checked values, and readable errors.

One event loop serves the pages of all users, so an endpoint only waits in it: checks, session and
answer are computed in threads.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import gradio as gr
from starlette.concurrency import run_in_threadpool

from ram_studio.app.boxes import kind_of
from ram_studio.app.session.jobs import Job, Result, Work, check_weights
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.sets import TITLES, load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.settings import described_fields

_POLL_SECONDS = 0.1
_MAX_NAMES = 100
"""Most models, rows, suites or settings in one argument."""
_MAX_ERROR_CHARS = 1000


def with_error_messages(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint that raises errors as `gr.Error`: our own text, no traceback."""

    @functools.wraps(endpoint)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return await endpoint(*arguments, **named)
        except RamStudioError as error:
            # An error quotes its input, which may be long.
            message = printable(error, _MAX_ERROR_CHARS)
            raise gr.Error(message, print_exception=False) from error

    # The bound method's signature: the copied one includes `self`.
    call.__signature__ = inspect.signature(endpoint)  # type: ignore[attr-defined]
    return call


def number(name: str, value: Any) -> float:
    """Return an argument as a number.

    Raises: SettingsError for anything else.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"{name} is {str(value)[:80]!r}; it must be a number.") from None


def between(name: str, value: Any, low: float, high: float) -> float:
    """Return an argument as a number from low to high.

    Raises: SettingsError for any other.
    """
    found = number(name, value)
    if not low <= found <= high:
        raise SettingsError(f"{name} is {found:g}; it must be from {low} to {high}.")
    return found


def whole_between(name: str, value: Any, low: int, high: int) -> int:
    """Return an argument as a whole number from low to high.

    Raises: SettingsError for any other.
    """
    found = between(name, value, low, high)
    if found != int(found):
        raise SettingsError(f"{name} is {found:g}; it must be a whole number.")
    return int(found)


def yes_or_no(name: str, value: Any) -> bool:
    """Return an argument that is true or false.

    Raises: SettingsError for anything else: "no" would count as yes.
    """
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {str(value)[:80]!r}; it must be true or false.")
    return value


def name_list(what: str, values: Any) -> list[str]:
    """Return an argument that is a list of names.

    Raises: SettingsError for anything else, or a list with more than _MAX_NAMES names.
    """
    if not isinstance(values, list) or len(values) > _MAX_NAMES:
        raise SettingsError(f"{what} must be a list of up to {_MAX_NAMES} names.")
    return [str(value) for value in values]


def object_of(what: str, value: Any) -> dict[str, Any]:
    """Return an argument that is an object; None is an empty one.

    Raises: SettingsError for anything else, or an object with more than _MAX_NAMES names.
    """
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_NAMES:
        raise SettingsError(f"{what} must be an object with up to {_MAX_NAMES} names.")
    return value


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise SettingsError for a name that is not one of the known ones."""
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise SettingsError(f"There is no {kind} {unknown[:80]!r}; use {', '.join(known)}.")


SETTINGS = (
    *("suites", "lengths", "mode", "chunk_tokens", "memory_tokens", "max_tokens", "think_tokens"),
    *("temperature", "top_p", "samples", "paraphrases", "data", "difficulty", "ci_width", "seed"),
)
"""Fields of `EvalSettings` that requests may set; the app sets the others."""

_TYPES = {"integer": int, "number": float, "array": list, "string": str}


def with_settings(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint that takes SETTINGS, described by their model, and gets them as a dict.

    They replace its parameter ``eval_settings``, and in its docstring the line ``{settings}``.
    """

    @functools.wraps(endpoint)
    async def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        eval_settings = {name: bound.arguments.pop(name) for name in SETTINGS}
        return await endpoint(**bound.arguments, eval_settings=eval_settings)

    own = inspect.signature(endpoint, eval_str=True)
    parameters = [one for one in own.parameters.values() if one.name != "eval_settings"]
    fields = described_fields(SETTINGS)
    for name, schema in fields.items():
        kind: Any = _TYPES.get(kind_of(schema).get("type", ""), str)
        default = schema.get("default")
        annotation = kind | None if default is None else kind
        shape = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, shape, default=default, annotation=annotation))
    signature = own.replace(parameters=parameters)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        one.name: one.annotation for one in parameters if one.annotation is not one.empty
    }
    call.__annotations__["return"] = own.return_annotation
    lines = (f"{name}: {schema['description']}" for name, schema in fields.items())
    call.__doc__ = (endpoint.__doc__ or "").replace("{settings}", "\n            ".join(lines))
    return call


class Client:
    """Base class of endpoints: the caller's session, and its loaded models."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._settings = workspace.settings

    async def _in_session(self, request: gr.Request, act: Callable[[Session], Result]) -> Result:
        """Return the result of ``act`` for the caller's session, run in a thread."""
        return await run_in_threadpool(lambda: act(self._workspace.session_of(request, "api-")))

    async def _finish(
        self,
        request: gr.Request,
        prepare: Callable[[Session], Work[Result]],
        describe_result: Callable[[Session, Result], dict],
    ) -> dict:
        """Run a caller's work when it reaches the front of the queue; a cancelled request stops it.

        prepare: checks the arguments; describe_result: result -> answer.
        """
        session, work = await self._in_session(request, lambda own: (own, prepare(own)))
        job = Job(session, work)
        try:
            while not job.is_done:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            job.stop()
        return await run_in_threadpool(lambda: describe_result(session, job.result()))

    def _find_loaded(self, analysis: str, session: Session) -> LoadedModels:
        """Return a shipped set, or this client's analyzed models, by name."""
        # A caller may send any JSON.
        analysis = str(analysis)
        if session.loaded is not None and analysis == session.loaded.title:
            return session.loaded
        if analysis in TITLES:
            return load_set(analysis)
        raise SettingsError(
            f"There is no analysis {analysis[:80]!r}; use {', '.join(TITLES)}, or "
            "what /analyze returned to this client last."
        )

    def _find_models(self, analysis: str, session: Session) -> LoadedModels:
        """Return the result of ``_find_loaded``, loaded, for work that needs the weights."""
        loaded = check_weights(self._find_loaded(analysis, session))
        if session.loaded is not loaded:
            session.load(loaded)
        return loaded
