"""One long piece of work in a thread, watched from a generator and stopped from anywhere.

The generator that Gradio runs only polls; the work itself asks its CancelToken between pieces. So
Stop acts within one piece, and a closed page (which closes the generator) stops the work as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")
Report = Callable[[Any], None]
POLL_SECONDS = 0.15


class Job(Generic[Result]):
    """Work that runs in its own thread.

    work: called with a function that takes progress events (kept: the latest) and a CancelToken.
    """

    def __init__(self, work: Callable[[Report, CancelToken], Result]) -> None:
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

    def updates(self, poll_seconds: float = POLL_SECONDS) -> Iterator[Any]:
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
