"""Whose heavy job runs next, where several visitors share a few cores.

Jobs stand in one line. The one expected to be shortest goes first, but every second of waiting
counts like a second less of work, so that nobody waits for ever. One lane is kept for short jobs: a
merge of half a second never stands behind a check of half a minute. Nobody has two jobs running:
no session and, where strangers come, no address.

How long a job takes is learned from those before it: seconds per unit of its kind. A job is made of
*parts* that have names; work that was done under a name is not done again (its answers are stored),
so jobs that share a part run one after the other, and the second one is expected to be short.
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

SHORT_SECONDS = 3.0
"""Jobs expected to take at most this long may use the lane that is kept for them."""

OVERDUE_SECONDS = 10.0
"""A short job that takes longer than this was none: another short one may run beside it."""

_PER_SESSION = 2
MOST_LANES = 4
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
"""Seconds per unit until a kind was measured here: bytes, answers of small and of other models."""


class LineFullError(RamStudioError):
    """A visitor asks for more heavy jobs at once than there is room for."""


@dataclass(frozen=True)
class Effort:
    """What a job will cost.

    kind: of USUAL_RATES; its rate is learned. parts: size of each named part, in the kind's unit.
    A part with an empty name is never known from before.
    """

    kind: str = "seconds"
    parts: Mapping[str, float] = field(default_factory=lambda: {"": 30.0})

    @property
    def names(self) -> set[str]:
        """The parts that are kept once done."""
        return {name for name in self.parts if name}


class Running(Protocol):
    """A job, as far as sessions, the line and its keeper know it (see jobs.Job)."""

    clients: set[str]
    entered: float

    @property
    def began(self) -> float | None:
        """When it began to run; None while it stands in line."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""

    @property
    def latest(self) -> Any:
        """Its place in the line, then the latest progress event of its work."""

    def stop(self, why: str = "") -> None:
        """Ask it to stop."""


class Place(NamedTuple):
    """Where a job stands: 1 is next; ``seconds`` until it probably starts."""

    number: int
    seconds: float


@dataclass(eq=False)
class Turn:
    """One job's place in the line, then its lane. ``leave`` it in any case. job: whose it is."""

    lanes: Lanes
    effort: Effort
    session: str
    address: str
    asked: float
    number: int
    job: Running | None = None
    began: float | None = None
    is_long: bool = False
    granted: threading.Event = field(default_factory=threading.Event)

    def wait(self, cancel: CancelToken, poll_seconds: float = 0.1) -> None:
        """Return when it is this job's turn.

        Raises: Stopped when the job is cancelled before.
        """
        while not self.granted.wait(poll_seconds):
            cancel.raise_if_cancelled()
        if cancel.is_cancelled:
            raise Stopped("Left the line.")

    def leave(self, *, finished: bool = False) -> None:
        """Leave the line or the lane. finished: the work was done to its end, all parts of it."""
        self.lanes.leave(self, finished=finished)


class Lanes:
    """The line of heavy jobs of one app, and the lanes they run in. Safe from any thread.

    Args:
        long_lanes: jobs of any length that run at once; a lane for short ones comes on top.
        per_address: most jobs of one address in line or running, of which half run; 0 is no limit.
        most_waiting: longest line.
        hint: what a refused visitor can do instead, a sentence.

    Attributes:
        is_kept: whether a Keeper ends the jobs that nobody waits for.
    """

    def __init__(
        self,
        long_lanes: int | None = None,
        *,
        per_address: int = 0,
        most_waiting: int = 100,
        hint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.long_lanes = long_lanes or min(MOST_LANES, max(1, (os.cpu_count() or 1) // 2))
        self._per_address, self._most_waiting = per_address, most_waiting
        self._hint, self._clock = hint, clock
        self.is_kept = False
        self._lock = threading.Lock()
        self._waiting: list[Turn] = []
        self._running: list[Turn] = []
        self._rates = dict(USUAL_RATES)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._numbers = itertools.count()

    def enter(self, effort: Effort, session: str = "", address: str = "") -> Turn:
        """Return a new place in the line.

        Raises: LineFullError when this visitor has enough jobs, or the line is full.
        """
        with self._lock:
            every = [*self._waiting, *self._running]
            # Without an address (a test, a call from this machine) only the session counts.
            for limit, mine, who in (
                (_PER_SESSION, [t for t in every if t.session == session], "you"),
                (
                    self._per_address if address else 0,
                    [t for t in every if t.address == address],
                    "your address",
                ),
            ):
                if limit and len(mine) >= limit:
                    raise LineFullError(
                        f"{len(mine)} jobs of {who} are running or in line here, which is the "
                        f"most. Wait for one of them or stop it. {self._hint}".strip()
                    )
            if len(self._waiting) >= self._most_waiting:
                raise LineFullError(
                    f"{len(self._waiting)} jobs are in line here, which is the most. Try again in "
                    f"a few minutes. {self._hint}".strip()
                )
            turn = Turn(self, effort, session, address, self._clock(), next(self._numbers))
            self._waiting.append(turn)
            self._grant()
            return turn

    def leave(self, turn: Turn, *, finished: bool = False) -> None:
        """Take a job out of the line or its lane; harmless when it has left already."""
        with self._lock:
            if turn in self._running:
                self._running.remove(turn)
                if finished:
                    self._learn(turn)
            elif turn in self._waiting:
                self._waiting.remove(turn)
            self._grant()

    def place(self, turn: Turn) -> Place | None:
        """Return where a job stands and when it probably starts; None when it is not in line."""
        with self._lock:
            if turn not in self._waiting:
                return None
            now = self._clock()
            left = {t: max(0.5, self._seconds(t) - (now - (t.began or now))) for t in self._running}
            ends = [*left.values(), *[0.0] * max(0, self.long_lanes + 1 - len(left))]
            heapq.heapify(ends)
            line = sorted(self._waiting, key=self._order)
            for ahead in line[: line.index(turn)]:
                heapq.heapreplace(ends, ends[0] + self._seconds(ahead))
            behind = [seconds for other, seconds in left.items() if self._excludes(other, turn)]
            return Place(line.index(turn) + 1, max([ends[0], *behind]))

    def jobs(self) -> list[Running]:
        """Return the jobs that run or wait."""
        with self._lock:
            return [turn.job for turn in (*self._running, *self._waiting) if turn.job is not None]

    @property
    def counts(self) -> tuple[int, int]:
        """How many jobs run, and how many wait."""
        with self._lock:
            return len(self._running), len(self._waiting)

    # ------------------------------------------------------------------ under the lock

    def _seconds(self, turn: Turn) -> float:
        rate = self._rates.get(turn.effort.kind, 1.0)
        sizes = turn.effort.parts.items()
        return _LEAST_SECONDS + rate * sum(size for name, size in sizes if name not in self._known)

    def _order(self, turn: Turn) -> tuple[float, int]:
        return self._seconds(turn) - (self._clock() - turn.asked), turn.number

    def _grant(self) -> None:
        for turn in sorted(self._waiting, key=self._order):
            if self._may_run(turn):
                self._waiting.remove(turn)
                turn.began = self._clock()
                turn.is_long = self._seconds(turn) > SHORT_SECONDS
                self._running.append(turn)
                turn.granted.set()

    @staticmethod
    def _excludes(one: Turn, other: Turn) -> bool:
        """Say whether two jobs must not run at once: of one session, or with a common part."""
        return one.session == other.session or bool(one.effort.names & other.effort.names)

    def _may_run(self, turn: Turn) -> bool:
        if any(self._excludes(other, turn) for other in self._running):
            return False
        if self._per_address and turn.address:
            mine = sum(other.address == turn.address for other in self._running)
            if mine >= max(1, self._per_address // 2):
                return False
        long = sum(other.is_long for other in self._running)
        if long < self.long_lanes and len(self._running) <= self.long_lanes:
            return True
        if self._seconds(turn) > SHORT_SECONDS:
            return False
        now = self._clock()
        quick = [t for t in self._running if not t.is_long]
        overdue = [t for t in quick if now - (t.began or now) > OVERDUE_SECONDS]
        return len(quick) - len(overdue) < 1 and len(self._running) < 2 * (self.long_lanes + 1)

    def _learn(self, turn: Turn) -> None:
        assert turn.began is not None, "only a job that ran can be learned from"
        kind = turn.effort.kind
        size = sum(s for name, s in turn.effort.parts.items() if name not in self._known)
        if size > 0 and kind != "seconds":
            rate = (self._clock() - turn.began) / size
            known = self._rates.get(kind, rate)
            self._rates[kind] = known + _LEARNING * (rate - known)
        for name in turn.effort.names:
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
