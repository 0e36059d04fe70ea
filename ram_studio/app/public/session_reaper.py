"""The session reaper: a thread that ends abandoned jobs and sessions.

Twice a second it stops jobs whose user left (closed tab, dropped connection, a request without a
listener) and jobs over the time limit. It removes idle sessions and keeps disk usage below its
watermark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from ram_studio.app.public.heartbeat import Heartbeats
from ram_studio.app.public.job_queue import QueuedJob

_LOG = logging.getLogger(__name__)

TICK_SECONDS = 0.5
LEAVE_SECONDS = 4.0
"""Seconds after which the job of a closed page ends, unless the page is reloading."""


def is_abandoned(job: QueuedJob, heartbeats: Heartbeats, now: float) -> bool:
    """Return whether a job has been without a waiting client for too long."""
    # A client without any stream gets time to open one.
    last = job.entered
    for client in job.clients:
        since = heartbeats.closed_since(client)
        if since is None:
            return False
        last = max(last, since)
    return now - last > LEAVE_SECONDS


class SessionReaper:
    """The thread. jobs: of all sessions, running or queued.

    Args:
        most_seconds: longest run of a job. chores: (interval in seconds, function).
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[QueuedJob]],
        heartbeats: Heartbeats,
        *,
        most_seconds: float,
        chores: Iterable[tuple[float, Callable[[], object]]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._heartbeats = jobs, heartbeats
        self._most_seconds, self._clock = most_seconds, clock
        self._chores = list(chores)
        self._due = [every + clock() for every, _ in self._chores]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ram-studio-reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()

    def tick(self) -> None:
        """Run one round."""
        now = self._clock()
        for job in self._jobs():
            if is_abandoned(job, self._heartbeats, now):
                job.stop("left")
            elif job.began is not None and now - job.began > self._most_seconds:
                job.stop("time")
        for number, (every, work) in enumerate(self._chores):
            if now >= self._due[number]:
                self._due[number] = now + every
                work()

    def _run(self) -> None:
        while not self._end.wait(TICK_SECONDS):
            try:
                self.tick()
            # A fault in one round (such as a full disk) must not end all later ones.
            except Exception:
                _LOG.exception("The session reaper failed.")
