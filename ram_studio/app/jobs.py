"""One long piece of work in a thread, watched from a generator and stopped from anywhere.

The generator that Gradio runs only polls; the work itself asks its CancelToken between pieces. So
Stop acts within one piece, and a closed page (which closes the generator) stops the work as well.

A panel with a job has ``JobControls``, connects them with ``connect``, and its handler is one
``watch``: is anything loaded, is the session free, does the form hold; then start, progress, stop
and outcome, each as updates keyed by component.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.session import Session
from ram_studio.app.workspace import Workspace
from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")
Report = Callable[[Any], None]
Work = Callable[[Report, CancelToken], Result]
Updates = dict[Any, Any]
"""Updates keyed by component, as handlers return them."""

POLL_SECONDS = 0.15

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Options of every event of the page."""

HEAVY: dict[str, Any] = {**QUIET, "concurrency_id": "heavy", "concurrency_limit": 1}
"""Options of events with a job: one at a time for all visitors."""

STOP = "Stop"
STOPPED = "Stopped."
BUSY = "Another job of this session is running. Stop it, or wait until it is done."
NEED_LOAD = "Nothing is loaded yet. Go back to Load and use the example or your own models."
_WAITING = "Waiting for its turn"


class Job(Generic[Result]):
    """Work that runs in its own thread.

    work: called with a function that takes progress events (kept: the latest) and a CancelToken.
    """

    def __init__(self, work: Work[Result]) -> None:
        self.cancel = CancelToken()
        self._work = work
        self._latest: Any = None
        self._done = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ram-studio-job", daemon=True)

    def _report(self, event: Any) -> None:
        self._latest = event

    def _run(self) -> None:
        try:
            self._result = self._work(self._report, self.cancel)
        # Handed to whoever asks for the result, on another thread.
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def start(self) -> None:
        """Start the work in its thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the work to stop at its next opportunity; returns at once."""
        self.cancel.cancel()

    @property
    def is_done(self) -> bool:
        """Whether the work has ended, one way or another."""
        return self._done.is_set()

    def updates(self, poll_seconds: float = POLL_SECONDS) -> Generator[Any, None, None]:
        """Start the work and yield each new progress event until it has ended.

        Closing the iterator early stops the work and waits for it, so that it cannot go on unseen.
        """
        self.start()
        seen = None
        try:
            while not self._done.wait(poll_seconds):
                if self._latest is not seen:
                    seen = self._latest
                    yield seen
        finally:
            if not self._done.is_set():
                self.stop()
                self._done.wait(10)

    def outcome(self) -> tuple[Result | None, RamStudioError | None]:
        """Return (result, None), or (None, why there is none). Call after ``updates`` ended.

        A bug in the work is logged and comes back as a plain sentence: the page stays usable, and
        strangers see no traceback.
        """
        if self._error is None:
            return self._result, None
        if isinstance(self._error, RamStudioError):
            return None, self._error
        _LOG.error("A job failed unexpectedly.", exc_info=self._error)
        return None, RamStudioError(
            f"Something unexpected went wrong ({type(self._error).__name__}); the log has the "
            "details. Nothing half-finished was kept."
        )

    def result(self) -> Result:
        """Return what the work returned, or raise what it raised. Call after ``updates`` ended."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


@dataclass(frozen=True)
class JobControls:
    """What every panel with a job has: the button that starts it, Stop, and a line of status."""

    start: gr.Button
    stop: gr.Button
    status: gr.HTML

    @property
    def all(self) -> list[Any]:
        """The components that ``watch`` updates."""
        return [self.start, self.stop, self.status]


def stop_button(elem_id: str, label: str = STOP) -> gr.Button:
    """Lay out a Stop button, hidden until its job runs."""
    return gr.Button(label, variant="stop", visible=False, elem_id=elem_id)


def watch(
    session: Session,
    controls: JobControls,
    prepare: Callable[[], Work[Result]],
    tell: Callable[[Any], Updates],
    finish: Callable[[Result], Updates],
    *,
    needs_loaded: bool = True,
    explain: Callable[[RamStudioError, Job[Result]], str] | None = None,
) -> Iterator[Updates]:
    """Run a panel's job, yielding updates keyed by component as it goes.

    Args:
        prepare: reads the form and returns the work; raises RamStudioError to refuse.
        tell: updates for a progress event, for None before the first one.
        finish: updates for the result, after it was put into the session. Raises RamStudioError
            when it cannot be shown.
        explain: the status (HTML) of a job without a result; by default the error's own words.
    """
    if needs_loaded and session.loaded is None:
        yield {controls.status: templates.callout(NEED_LOAD, "warn")}
        return
    if session.is_busy:
        yield {controls.status: templates.callout(BUSY, "warn")}
        return
    try:
        job = Job(prepare())
    except RamStudioError as error:
        yield {controls.status: templates.callout(str(error), "bad")}
        return
    session.job = job
    # The buttons only when they change: one that is drawn anew under the pointer misses its click.
    buttons = {controls.start: gr.update(interactive=False), controls.stop: gr.update(visible=True)}
    yield {**buttons, **tell(None)}
    with closing(job.updates()) as events:
        for event in events:
            yield tell(event)
    idle = {controls.start: gr.update(interactive=True), controls.stop: gr.update(visible=False)}
    result, problem = job.outcome()
    if problem is not None:
        said = explain(problem, job) if explain else templates.failure(problem, STOPPED)
        yield {**idle, controls.status: said}
        return
    try:
        yield {**idle, controls.status: "", **finish(cast(Result, result))}
    except RamStudioError as error:
        yield {**idle, controls.status: templates.callout(str(error), "bad")}


def connect(
    controls: JobControls,
    workspace: Workspace,
    run: Callable[..., Iterator[Updates]],
    inputs: Any,
    outputs: Iterable[Any],
) -> Any:
    """Connect a panel's start and stop buttons; return the event, for a ``.then``.

    run: the handler, whose body is a ``watch``. outputs: what it updates besides the controls.
    """

    def stop(request: gr.Request) -> None:
        job = workspace.session(request.session_hash).job
        if job is not None:
            job.stop()

    # Shown at once by the browser, until the job's first word: heavy work is done one at a time.
    waiting = f"() => {json.dumps(templates.progress(None, _WAITING))}"
    controls.start.click(fn=None, js=waiting, outputs=controls.status)
    controls.stop.click(stop, None, None, queue=False, **QUIET)
    every = list(dict.fromkeys([*controls.all, *outputs]))
    return controls.start.click(run, inputs, every, **HEAVY)
