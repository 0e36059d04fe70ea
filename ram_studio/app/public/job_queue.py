"""The job queue: the order of heavy jobs, where several users share a few cores.

The job expected to be shortest runs first, but every second of waiting counts like a second less of
work, so that no job starves. One slot is reserved for light jobs: a merge of half a second never
waits for a check of half a minute. A session runs one job at a time, and so does an address on a
shared server.

The duration of a job is estimated from earlier ones: seconds per unit of its kind. A job consists
of named *parts*; finished work with a name is not repeated (its answers are stored), so jobs that
share a part run one after the other, and the second one is expected to be short.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError, Stopped

LIGHT_SECONDS = 3.0
"""Jobs expected to take at most this long are light: they may use the slot reserved for them."""

OVERDUE_SECONDS = 10.0
"""A light job that takes longer than this counts as heavy: another light one may run beside it."""

_PER_SESSION = 2
MOST_HEAVY = 4
_MOST_KNOWN = 10_000
_LEARNING = 0.5
_LEAST_SECONDS = 0.05

USUAL_RATES: Mapping[str, float] = {
    "merge": 1 / 150e6,
    "analyze": 1 / 150e6,
    "answers": 0.02,
    "slow answers": 1.0,
    "seconds": 1.0,
}
"""Initial seconds per unit of each kind: bytes, answers of small and of other models."""


class QueueFullError(RamStudioError):
    """A user requests more heavy jobs than the limit allows."""


@dataclass(frozen=True)
class Effort:
    """The expected work of a job.

    kind: of USUAL_RATES; its rate is updated. parts: size of each named part, in the kind's unit. A
    part with an empty name never counts as done before.
    """

    kind: str = "seconds"
    parts: Mapping[str, float] = field(default_factory=lambda: {"": 30.0})

    @property
    def names(self) -> set[str]:
        """The parts that are stored once done."""
        return {name for name in self.parts if name}


class QueuedJob(Protocol):
    """The interface of a job for sessions, the queue and the reaper (see jobs.Job)."""

    clients: set[str]
    entered: float

    @property
    def began(self) -> float | None:
        """Time at which it began to run; None while it is queued."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended, for any reason."""

    @property
    def latest(self) -> Any:
        """Its queue position, later the latest progress event of its work."""

    def stop(self, why: str = "") -> None:
        """Ask it to stop."""


class QueuePosition(NamedTuple):
    """1 is next; ``seconds``: estimated time until the job starts."""

    number: int
    seconds: float


@dataclass(eq=False)
class Ticket:
    """A job's ticket: in the queue, then in a slot. Always ``leave`` it. job: its job."""

    queue: JobQueue
    effort: Effort
    session: str
    address: str
    queued_at: float
    number: int
    job: QueuedJob | None = None
    began: float | None = None
    is_heavy: bool = False
    granted: threading.Event = field(default_factory=threading.Event)

    def wait(self, cancel: CancelToken, poll_seconds: float = 0.1) -> None:
        """Wait until this job may run.

        Raises: Stopped when the job is cancelled before.
        """
        while not self.granted.wait(poll_seconds):
            cancel.raise_if_cancelled()
        if cancel.is_cancelled:
            raise Stopped("Left the queue.")

    def leave(self, *, finished: bool = False) -> None:
        """Leave the queue or the slot. finished: all parts of the work were done."""
        self.queue.leave(self, finished=finished)


class JobQueue:
    """The heavy jobs of one app, and the slots they run in. Thread-safe.

    Args:
        heavy_slots: number of concurrent jobs of any length, besides a slot for light ones.
        per_address: most jobs of one address, queued or running; half of them may run; 0: no limit.
        most_waiting: most queued jobs.
        hint: a sentence with an alternative for refused users.

    Attributes:
        is_supervised: whether a SessionReaper ends jobs without a waiting client.
    """

    def __init__(
        self,
        heavy_slots: int | None = None,
        *,
        per_address: int = 0,
        most_waiting: int = 100,
        hint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.heavy_slots = heavy_slots or min(MOST_HEAVY, max(1, (os.cpu_count() or 1) // 2))
        self._per_address, self._most_waiting = per_address, most_waiting
        self._hint, self._clock = hint, clock
        self.is_supervised = False
        self._lock = threading.Lock()
        self._waiting: list[Ticket] = []
        self._running: list[Ticket] = []
        self._rates = dict(USUAL_RATES)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._numbers = itertools.count()

    def enter(self, effort: Effort, session: str = "", address: str = "") -> Ticket:
        """Return a new ticket.

        Raises: QueueFullError when this user has enough jobs, or the queue is full.
        """
        with self._lock:
            every = [*self._waiting, *self._running]
            # Without an address (a test, a call from this machine) only the session counts.
            for limit, mine, who in (
                (_PER_SESSION, [t for t in every if t.session == session], "You already have"),
                (
                    self._per_address if address else 0,
                    [t for t in every if t.address == address],
                    "Your address already has",
                ),
            ):
                if limit and len(mine) >= limit:
                    raise QueueFullError(
                        f"{who} {len(mine)} jobs running or queued (the limit). "
                        f"Wait for one of them or stop it. {self._hint}".strip()
                    )
            if len(self._waiting) >= self._most_waiting:
                raise QueueFullError(
                    f"{len(self._waiting)} jobs are queued (the limit). Try again in a few "
                    f"minutes. {self._hint}".strip()
                )
            ticket = Ticket(self, effort, session, address, self._clock(), next(self._numbers))
            self._waiting.append(ticket)
            self._grant()
            return ticket

    def leave(self, ticket: Ticket, *, finished: bool = False) -> None:
        """Remove a job from the queue or its slot; no effect if it has already left."""
        with self._lock:
            if ticket in self._running:
                self._running.remove(ticket)
                if finished:
                    self._learn(ticket)
            elif ticket in self._waiting:
                self._waiting.remove(ticket)
            self._grant()

    def position(self, ticket: Ticket) -> QueuePosition | None:
        """Return a job's position and estimated start; None when it is not queued."""
        with self._lock:
            if ticket not in self._waiting:
                return None
            now = self._clock()
            left = {t: max(0.5, self._seconds(t) - self._run_for(t, now)) for t in self._running}
            ends = [*left.values(), *[0.0] * max(0, self.heavy_slots + 1 - len(left))]
            heapq.heapify(ends)
            queued = sorted(self._waiting, key=self._order)
            for ahead in queued[: queued.index(ticket)]:
                heapq.heapreplace(ends, ends[0] + self._seconds(ahead))
            behind = [seconds for other, seconds in left.items() if self._excludes(other, ticket)]
            return QueuePosition(queued.index(ticket) + 1, max([ends[0], *behind]))

    def jobs(self) -> list[QueuedJob]:
        """Return the running and queued jobs."""
        with self._lock:
            return [t.job for t in (*self._running, *self._waiting) if t.job is not None]

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of running and queued jobs."""
        with self._lock:
            return len(self._running), len(self._waiting)

    # ------------------------------------------------------------------ under the lock

    def _seconds(self, ticket: Ticket) -> float:
        rate = self._rates.get(ticket.effort.kind, 1.0)
        sizes = ticket.effort.parts.items()
        return _LEAST_SECONDS + rate * sum(size for name, size in sizes if name not in self._known)

    @staticmethod
    def _run_for(ticket: Ticket, now: float) -> float:
        return 0.0 if ticket.began is None else now - ticket.began

    def _order(self, ticket: Ticket) -> tuple[float, int]:
        return self._seconds(ticket) - (self._clock() - ticket.queued_at), ticket.number

    def _grant(self) -> None:
        for ticket in sorted(self._waiting, key=self._order):
            if self._may_run(ticket):
                self._waiting.remove(ticket)
                ticket.began = self._clock()
                ticket.is_heavy = self._seconds(ticket) > LIGHT_SECONDS
                self._running.append(ticket)
                ticket.granted.set()

    @staticmethod
    def _excludes(one: Ticket, other: Ticket) -> bool:
        """Return whether two jobs must not run together: same session, or a common part."""
        return one.session == other.session or bool(one.effort.names & other.effort.names)

    def _may_run(self, ticket: Ticket) -> bool:
        if any(self._excludes(other, ticket) for other in self._running):
            return False
        if self._per_address and ticket.address:
            mine = sum(other.address == ticket.address for other in self._running)
            if mine >= max(1, self._per_address // 2):
                return False
        long = sum(other.is_heavy for other in self._running)
        if long < self.heavy_slots and len(self._running) <= self.heavy_slots:
            return True
        if self._seconds(ticket) > LIGHT_SECONDS:
            return False
        now = self._clock()
        quick = [t for t in self._running if not t.is_heavy]
        overdue = [t for t in quick if self._run_for(t, now) > OVERDUE_SECONDS]
        return len(quick) - len(overdue) < 1 and len(self._running) < 2 * (self.heavy_slots + 1)

    def _learn(self, ticket: Ticket) -> None:
        assert ticket.began is not None, "only jobs that ran update the rate"
        kind = ticket.effort.kind
        size = sum(s for name, s in ticket.effort.parts.items() if name not in self._known)
        if size > 0 and kind != "seconds":
            rate = (self._clock() - ticket.began) / size
            known = self._rates.get(kind, rate)
            self._rates[kind] = known + _LEARNING * (rate - known)
        for name in ticket.effort.names:
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
