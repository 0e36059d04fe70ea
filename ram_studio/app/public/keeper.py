"""A thread that ends what nobody waits for, whether or not anyone calls.

It looks twice a second: a job whose visitor left (closed tab, dropped connection, a request that
was never listened to) is stopped, one that runs longer than a visitor may have is stopped too;
sessions that were idle for long go, and the disk is kept below its watermark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from ram_studio.app.public.lanes import Running
from ram_studio.app.public.presence import Presence

_LOG = logging.getLogger(__name__)

TICK_SECONDS = 0.5
LEAVE_SECONDS = 4.0
"""A page that was closed has this long until it says that it is coming back; then its job ends."""


def is_left(job: Running, presence: Presence, now: float) -> bool:
    """Say whether nobody waits for a job any more, and for long enough that nobody comes back."""
    gone = [presence.gone_since(client) for client in job.clients]
    if any(since is None for since in gone):
        return False
    # Who never had a stream is given the time to open one.
    return now - max([job.entered, *(since or 0.0 for since in gone)]) > LEAVE_SECONDS


class Keeper:
    """The thread. jobs: of all sessions, running or in line.

    Args:
        most_seconds: longest run of a job. chores: (seconds between, what to do).
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[Running]],
        presence: Presence,
        *,
        most_seconds: float,
        chores: Iterable[tuple[float, Callable[[], object]]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._presence = jobs, presence
        self._most_seconds, self._clock = most_seconds, clock
        self._chores = list(chores)
        self._due = [every + clock() for every, _ in self._chores]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ram-studio-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()

    def tick(self) -> None:
        """Look once."""
        now = self._clock()
        for job in self._jobs():
            if is_left(job, self._presence, now):
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
            # A fault in one look (a disk that is full, say) must not end all later ones.
            except Exception:
                _LOG.exception("Looking after the sessions failed.")
