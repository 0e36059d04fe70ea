"""A job: long work in a thread, watched by a generator and stopped from any thread.

Gradio's generator only polls; the work checks its CancelToken between chunks, so Stop takes effect
within one chunk. A job first waits in ``public.job_queue``. Some seconds after its page was closed
it is stopped (``public.session_reaper``); a reloaded page shows it again.

A panel with a job has ``JobControls``, connects them with ``connect``, and its handler is one
``watch``: it checks that models are loaded, the session is free and the form is valid; then come
start, progress, stop and outcome, each as updates keyed by component.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, cast

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.numbers import duration_text
from ram_studio.app.public.job_queue import Effort, QueuePosition
from ram_studio.app.public.machine import lower_priority
from ram_studio.app.public.user import hide_paths, own_copy_hint
from ram_studio.app.session.session import OTHER_MODELS, LoadedModels, Session
from ram_studio.app.session.workspace import Workspace
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError, SettingsError

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")
Report = Callable[[Any], None]
Work = Callable[[Report, CancelToken], Result]
Updates = dict[Any, Any]
"""Updates keyed by component, the return value of handlers."""

POLL_SECONDS = 0.15

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Options of every event of the page."""

LIGHT: dict[str, Any] = {**QUIET, "queue": False}
"""Options of events without a queue."""

HEAVY: dict[str, Any] = {**QUIET, "concurrency_id": "heavy", "concurrency_limit": None}
"""Options of events with a job, which wait in ``public.job_queue``, not in Gradio's queue."""

STOPPED = "Stopped."
LOADED = "loaded"
"""Reason of a stop: the user loaded other models."""
BUSY = "You already have a job running. Stop it or wait until it ends."
NEED_LOAD = "No models loaded yet. Open the playground or your own models in Load."
NEED_MODELS = (
    "Only an analysis is loaded. Merging, checks and the microscope need the models "
    "themselves: load them in Load under “Your own models”."
)
NEED_WEIGHTS = (
    "This set ships without weights, and they are not on the Hub yet. Train them in a clone of RAM "
    "Studio with “python -m training.real_set.train” (hours on two cores). Then name its folders "
    "in Load under “Your own models”."
)
_WAITING = "Queued"
_OUT_OF_TIME = "Stopped: the job took longer than this server allows."


def missing_text(loaded: LoadedModels | None) -> str:
    """Return a sentence on what is missing for work on models; "" where they are loaded."""
    if loaded is None:
        return NEED_LOAD
    if not loaded.is_analysis_only:
        return ""
    return NEED_MODELS if loaded.set_name is None else NEED_WEIGHTS


def check_weights(loaded: LoadedModels) -> LoadedModels:
    """Return the loaded models.

    Raises: SettingsError where only an analysis is loaded, with what to do.
    """
    if message := missing_text(loaded):
        raise SettingsError(message)
    return loaded


def costing(work: Work[Result], effort: Effort) -> Work[Result]:
    """Return work with its expected effort, for the queue."""
    work.effort = effort  # type: ignore[attr-defined]
    return work


class JobDisplay(NamedTuple):
    """A panel's display of its job, so that a reloaded page can continue it."""

    controls: JobControls
    show_progress: Callable[[Any], str | Updates]
    finish: Callable[[Any], Updates]
    explain: Callable[[RamStudioError, Job[Any]], str] | None
    poll_seconds: float = POLL_SECONDS


class Job(Generic[Result]):
    """A session's work that runs in its own thread, when the queue starts it.

    Args:
        work: called with a function that takes progress events (only the latest counts) and a
            CancelToken.

    Attributes:
        clients: those that wait for it (Gradio's session hashes, the tab's key). display: in a
            page.
        is_end_shown: whether a page has shown its outcome. why: reason of the stop, "" by the user,
            LOADED by loading other models.
        entered: time of queueing (time.monotonic).

    Raises: QueueFullError when this user has enough jobs, or the queue is full.
    """

    def __init__(self, session: Session, work: Work[Result]) -> None:
        self.cancel = CancelToken()
        self.clients = {session.client, session.key}
        self.display: JobDisplay | None = None
        self.is_end_shown = False
        self.why = ""
        self._work = work
        # On a shared server errors contain no path of this machine, and pages have priority.
        self._is_public = session.is_public
        self._token = session.token
        self._latest: Any = None
        self._done = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        effort = getattr(work, "effort", Effort())
        self._ticket = session.job_queue.enter(effort, session.key, session.address)
        self.entered = self._ticket.queued_at
        self._ticket.job = session.job = self
        threading.Thread(target=self._run, name="ram-studio-job", daemon=True).start()

    def _report(self, event: Any) -> None:
        self._latest = event

    def _run(self) -> None:
        try:
            if self._is_public:
                lower_priority()
            self._ticket.wait(self.cancel)
            with acting_as(self._token):
                self._result = self._work(self._report, self.cancel)
        # Raised where the result is requested, in another thread.
        except BaseException as error:
            self._error = error
        finally:
            self._ticket.leave(finished=self._error is None and not self.cancel.is_cancelled)
            self._token = None
            self._done.set()

    def stop(self, why: str = "") -> None:
        """Request a stop at the next opportunity, or leave the queue; does not wait."""
        if not self.cancel.is_cancelled:
            self.why = why
        self.cancel.cancel()

    @property
    def began(self) -> float | None:
        """Time at which it began to run; None while it is queued."""
        return self._ticket.began

    @property
    def latest(self) -> Any:
        """Its queue position, later the latest progress event of the work."""
        return self._ticket.queue.position(self._ticket) or self._latest

    @property
    def is_done(self) -> bool:
        """Whether the work has ended, for any reason."""
        return self._done.is_set()

    def updates(self, poll_seconds: float = POLL_SECONDS) -> Iterator[Any]:
        """Yield each new event or QueuePosition until the work's end."""
        seen: Any = None
        while not self._done.wait(poll_seconds):
            latest = self.latest
            if latest is not seen and not (isinstance(latest, QueuePosition) and latest == seen):
                seen = latest
                yield seen

    def note_departure(self) -> None:
        """Record that a waiting client left: the job is stopped, unless a SessionReaper does that.

        Waits for its end, so that it cannot continue unnoticed.
        """
        if not self._done.is_set() and not self._ticket.queue.is_supervised:
            self.stop()
            self._done.wait(10)

    def outcome(self) -> tuple[Result | None, RamStudioError | None]:
        """Return (result, None), or (None, the error). Call after ``updates`` ended.

        A bug in the work is logged and returned as a plain sentence: the page stays usable, and
        other users see no traceback.
        """
        if self.why == LOADED:
            return None, RamStudioError(OTHER_MODELS)
        if self._error is None:
            return self._result, None
        if self.why == "time":
            return None, RamStudioError(f"{_OUT_OF_TIME} {own_copy_hint()}")
        if isinstance(self._error, RamStudioError):
            if self._is_public:
                return None, type(self._error)(hide_paths(str(self._error)))
            return None, self._error
        _LOG.error("A job failed unexpectedly.", exc_info=self._error)
        return None, RamStudioError(
            f"Unexpected error ({type(self._error).__name__}); the log has the "
            "details. No unfinished file was left behind."
        )

    def result(self) -> Result:
        """Return the work's result. Call after ``updates`` ended.

        Raises: RamStudioError as in ``outcome``; any other exception of the work.
        """
        result, error = self.outcome()
        if self._error is not None and error is not None:
            raise error if isinstance(self._error, RamStudioError) else self._error
        return cast("Result", result)


class JobControls(NamedTuple):
    """Controls of every panel with a job: start button, Stop, and a status line."""

    start: gr.Button
    stop: gr.Button
    status: gr.HTML


def stop_button(elem_id: str) -> gr.Button:
    """Lay out a Stop button, hidden until its job runs."""
    return gr.Button("Stop", variant="stop", visible=False, elem_id=elem_id)


def watch(
    session: Session,
    controls: JobControls,
    prepare: Callable[[], Work[Result]],
    show_progress: Callable[[Any], str | Updates],
    finish: Callable[[Result], Updates],
    *,
    needs_loaded: bool = True,
    explain: Callable[[RamStudioError, Job[Result]], str] | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[Updates]:
    """Run a panel's job, yielding updates keyed by component.

    Args:
        prepare: reads the form and returns the work; raises RamStudioError to refuse.
        show_progress: the status (HTML), or updates, for an event, for None before the first one,
            at most every poll_seconds; unchanged HTML is not sent again.
        finish: stores the result in the session and returns updates; raises RamStudioError to
            refuse it.
        explain: the status (HTML) of a job without a result; by default the error's message.
    """
    refusal = (missing_text(session.loaded) if needs_loaded else "") or (
        BUSY if session.is_busy else ""
    )
    if refusal:
        yield {controls.status: templates.callout(refusal, "warn")}
        return
    try:
        job = Job(session, prepare())
    except RamStudioError as error:
        yield {controls.status: templates.callout(str(error), "bad")}
        return
    job.display = JobDisplay(controls, show_progress, finish, explain, poll_seconds)
    yield from _show(job, job.display)


def _show(job: Job[Any], display: JobDisplay) -> Iterator[Updates]:
    controls, show_progress, finish, explain, poll_seconds = display
    sent: Updates = {}

    def changes(output: str | Updates) -> Updates:
        updates = {controls.status: output} if isinstance(output, str) else output
        new = {c: v for c, v in updates.items() if not isinstance(v, str) or v != sent.get(c)}
        sent.update(new)
        return new

    # The buttons only when they change: a button redrawn under the pointer loses its click.
    buttons = {controls.start: gr.update(interactive=False), controls.stop: gr.update(visible=True)}
    try:
        yield {**buttons, **changes(show_progress(None))}
        for event in job.updates(poll_seconds):
            if job.why == LOADED:  # its result belongs to other models
                continue
            if news := changes(
                queue_html(event) if isinstance(event, QueuePosition) else show_progress(event)
            ):
                yield news
    finally:
        job.note_departure()
    job.is_end_shown = True
    idle = {controls.start: gr.update(interactive=True), controls.stop: gr.update(visible=False)}
    result, problem = job.outcome()
    if problem is not None:
        message = explain(problem, job) if explain else templates.failure(problem, STOPPED)
        yield {**idle, controls.status: message}
        return
    try:
        yield {**idle, controls.status: "", **finish(result)}
    except RamStudioError as error:
        yield {**idle, controls.status: templates.callout(str(error), "bad")}


def queue_html(position: QueuePosition) -> str:
    """Return a job's position in the queue, for its status."""
    wait = f"about {duration_text(position.seconds)}" if position.seconds >= 1 else "a moment"
    return templates.progress(None, f"Queued: position {position.number}", f"starts in {wait}")


def resume_button_id(session: Session) -> str:
    """Return the element id of the panel whose job a reloaded page has to show; "" for none.

    The page then counts as waiting for it.
    """
    job = session.job
    if not isinstance(job, Job) or job.display is None or job.is_end_shown:
        return ""
    job.clients.add(session.client)
    return f"resume-{job.display.controls.start.elem_id}"


def connect(
    controls: JobControls,
    workspace: Workspace,
    run: Callable[[dict[Any, Any], Session], Iterator[Updates]],
    inputs: Any,
    outputs: Iterable[Any],
) -> Any:
    """Connect a panel's start and stop buttons; return the event, for a ``.then``.

    run: (data of the inputs, session) -> a ``watch``. outputs: updated components besides the
    controls.
    """

    def start(data: dict[Any, Any], request: gr.Request) -> Iterator[Updates]:
        yield from run(data, workspace.session_of(request))

    def stop(request: gr.Request) -> None:
        job = workspace.session(request.session_hash).job
        if job is not None:
            job.stop()

    def resume(request: gr.Request) -> Iterator[Updates]:
        session = workspace.session_of(request)
        job = session.job
        if isinstance(job, Job) and job.display is not None and job.display.controls is controls:
            job.clients.add(session.client)
            if folds:
                yield {fold: gr.update(open=True) for fold in folds}
            yield from _show(job, job.display)
        else:
            yield {controls.status: ""}

    # A reloaded page has them folded.
    folds = [box for box in _around(controls.start) if isinstance(box, gr.Accordion)]
    # The browser shows it until the job's first update, which may take time.
    waiting = f"() => {json.dumps(templates.progress(None, _WAITING))}"
    controls.start.click(fn=None, js=waiting, outputs=controls.status)
    controls.stop.click(stop, None, None, **LIGHT)
    every = list(dict.fromkeys([*controls, *outputs]))
    # Clicked by a reloaded page, see page.js.
    again = gr.Button(visible="hidden", elem_id=f"resume-{controls.start.elem_id}")
    again.click(resume, None, [*every, *folds], **HEAVY)
    return controls.start.click(start, inputs, every, **HEAVY)


def _around(component: Any) -> Iterator[Any]:
    """Yield what a component lies in, the innermost first."""
    while (component := component.parent) is not None:
        yield component
