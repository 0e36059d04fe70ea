"""Rooms of a live classroom: a state machine, and the collection of open rooms.

    lobby -> ask -> first -> talk -> second -> reveal -> ask (next question) ... -> done

Independent of HTTP; clock and random numbers are passed in. Everything is in memory: no names, no
addresses in a room, nothing on the disk. Only one thread calls it, the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from cachetools import LRUCache

from ram_studio.app.room.questions import MAX_QUESTIONS, NewRoom, Question, RoomError

Phase = Literal["lobby", "ask", "first", "talk", "second", "reveal", "done"]
ROUNDS = ("first", "second")
"""The phases in which students vote."""

_NEXT: dict[Phase, Phase] = {
    "lobby": "ask",
    "ask": "first",
    "first": "talk",
    "talk": "second",
    "second": "reveal",
}

LETTERS = "BCDFGHJKMNPQRSTVWXZ"
"""Letters of codes: no vowels, so that they form no words, and no L or Y, which are ambiguous."""
CODE_LENGTH = 6
"""47 million codes: a hundred guesses a second find a room in its two hours with 1.5 % chance."""

LIFE_SECONDS = 2 * 3600.0
PRESENT_SECONDS = 12.0
"""Students poll every two seconds; a locked phone does not, and then does not count as present."""

MAX_ROOMS = 40
MAX_ROOMS_PER_ADDRESS = 6
MAX_STUDENTS = 150
MAX_KNOWN = 4 * MAX_STUDENTS
"""Most students of a room, present or not; then the one away longest is removed, with votes."""
IDLE_SECONDS = 600.0
"""A room without teacher and students for this long may be replaced by a new one."""
PER_MINUTE = {"open": 10, "join": 300, "vote": 40, "link": 10}
"""Requests a minute: of an address that opens or joins rooms; and of a student who votes or hands
in a link. A whole school often shares one address, so wrong codes are not counted: a user with many
wrong codes would lock out the others."""


@dataclass
class Votes:
    """The answers to one question in two rounds, by student."""

    first: dict[str, float] = field(default_factory=dict)
    second: dict[str, float] = field(default_factory=dict)

    def of(self, round_name: str) -> dict[str, float]:
        """Return a round's answers."""
        return self.first if round_name == "first" else self.second


@dataclass
class Room:
    """One room.

    asked_at: time of the last request by its teacher or a student. ends_at: end of the discussion.
    last_seen: time of each student's last request. links: handed in.
    """

    code: str
    token: str
    questions: list[Question]
    opened_at: float
    asked_at: float = 0.0
    talk_seconds: int = 90
    is_rehearsal: bool = False
    phase: Phase = "lobby"
    place: int = 0
    ends_at: float | None = None
    last_seen: dict[str, float] = field(default_factory=dict)
    votes: list[Votes] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    shown: str | None = None

    def __post_init__(self) -> None:
        self.votes = self.votes or [Votes() for _ in self.questions]

    @property
    def question(self) -> Question:
        """The current question."""
        return self.questions[self.place]

    def may_lead(self, token: str) -> bool:
        """Whether a token is the teacher's; compared in constant time."""
        return secrets.compare_digest(token.encode(), self.token.encode())

    def knows(self, key: str) -> bool:
        """Whether a key is a student's, or the teacher's token."""
        return key in self.last_seen or self.may_lead(key)

    def present(self, now: float) -> int:
        """Return the number of present students."""
        return sum(now - at <= PRESENT_SECONDS for at in self.last_seen.values())

    # ------------------------------------------------------------ students

    def join(self, student: str, now: float) -> None:
        """Let a student in. Raises: RoomError when the room is full of present students.

        A student who left keeps their votes and may come back: `note`.
        """
        if self.present(now) >= MAX_STUDENTS:
            raise RoomError(f"The room is full: it takes {MAX_STUDENTS} students.", 429)
        if len(self.last_seen) >= MAX_KNOWN:
            longest_away = min(self.last_seen, key=self.last_seen.__getitem__)
            del self.last_seen[longest_away]
            self.links.pop(longest_away, None)
            for votes in self.votes:
                votes.first.pop(longest_away, None)
                votes.second.pop(longest_away, None)
        self.last_seen[student] = now

    def note(self, student: str, now: float) -> None:
        """Record a student's request. Raises: RoomError for one who never joined."""
        if student not in self.last_seen:
            raise RoomError("You are not in this room yet. Join it with its code.", 403)
        self.last_seen[student] = now

    def vote(self, student: str, place: object, round_name: object, value: object) -> None:
        """Store an answer, which replaces the student's earlier one of this round.

        student: already recorded by `note`. Raises: RoomError for a closed round, or an invalid
        answer.
        """
        if self.phase not in ROUNDS or (round_name, place) != (self.phase, self.place):
            raise RoomError("This vote is closed. Follow the question on the screen.", 409)
        if not self.question.takes(value):
            raise RoomError(f"{value!r:.40} is not an answer to this question.")
        self.votes[self.place].of(self.phase)[student] = float(value)

    def hand_in(self, student: str, link: str) -> None:
        """Store a link to the canvas of a student (recorded by `note`), for the teacher to show.

        Raises: RoomError before the reveal.
        """
        if self.phase != "reveal":
            raise RoomError("Canvases are collected after the reveal.", 409)
        self.links[student] = link

    # ------------------------------------------------------------ the teacher

    def go_on(self, now: float) -> None:
        """Advance to the next phase. Raises: RoomError after the last."""
        if self.phase == "done":
            raise RoomError("The lesson is over.", 409)
        if self.phase != "reveal":
            self._enter(_NEXT[self.phase], now)
        elif self.place + 1 < len(self.questions):
            self.go_to(self.place + 1)
        else:
            self._enter("done", now)

    def reveal(self, now: float) -> None:
        """Skip to the reveal. Raises: RoomError without a question."""
        if self.phase in ("lobby", "done"):
            raise RoomError("There is no question to reveal.", 409)
        self._enter("reveal", now)

    def reset(self) -> None:
        """Delete the answers to this question, and ask it again."""
        if self.phase in ("lobby", "done"):
            raise RoomError("There is no question to reset.", 409)
        self.votes[self.place] = Votes()
        self.go_to(self.place)

    def go_to(self, place: object) -> None:
        """Go to a question: to its reveal if it was answered, else to its start.

        Raises: RoomError where there is no such question.
        """
        if isinstance(place, bool) or not isinstance(place, int):
            raise RoomError("Give the number of a question.")
        if not 0 <= place < len(self.questions):
            raise RoomError(f"There is no question {place + 1}; there are {len(self.questions)}.")
        self.place = place
        self._enter("reveal" if self.votes[place].first else "ask", 0.0)

    def ask(self, question: Question) -> None:
        """Ask one more question now: it is inserted after the current one.

        Raises: RoomError when there are too many.
        """
        if len(self.questions) >= MAX_QUESTIONS:
            raise RoomError(f"A room asks at most {MAX_QUESTIONS} questions.", 409)
        at = self.place if self.phase == "lobby" else self.place + 1
        self.questions.insert(at, question)
        self.votes.insert(at, Votes())
        self.go_to(at)

    def show(self, link: str | None) -> None:
        """Show a handed-in canvas on the screen, or remove it (None).

        Raises: RoomError for any other.
        """
        if link is not None and link not in self.links.values():
            raise RoomError("No student handed in this canvas.", 409)
        self.shown = link

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.ends_at = now + self.talk_seconds if phase == "talk" else None
        self.links, self.shown = {}, None


class Rooms:
    """All open rooms. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._rooms: dict[str, Room] = {}
        self._openers: dict[str, str] = {}
        self._spent: LRUCache[tuple[str, str, int], int] = LRUCache(4096)

    def __len__(self) -> int:
        return len(self._rooms)

    def spend(self, kind: str, who: str) -> None:
        """Count a request of an address or student. Raises: RoomError above its limit a minute."""
        key = (kind, who, int(self.clock() // 60))
        if self._spent.get(key, 0) >= PER_MINUTE[kind]:
            raise RoomError("Too many requests. Wait a minute, then try again.", 429)
        self._spent[key] = self._spent.get(key, 0) + 1

    def open(self, new: NewRoom, address: str) -> Room:
        """Open a room for a teacher. Raises: RoomError when there are too many."""
        self.spend("open", address)
        self.sweep()
        self._make_place({address}, MAX_ROOMS_PER_ADDRESS)
        self._make_place({*self._openers.values()}, MAX_ROOMS)
        while (code := _new_code()) in self._rooms:
            pass
        room = Room(
            code=code,
            token=secrets.token_urlsafe(24),
            questions=list(new.questions),
            opened_at=self.clock(),
            asked_at=self.clock(),
            talk_seconds=new.talk_seconds,
            is_rehearsal=new.is_rehearsal,
        )
        self._rooms[code], self._openers[code] = room, address
        return room

    def _make_place(self, openers: Collection[str], most: int) -> None:
        """Make space for one more room of these addresses; an unused one may be ended."""
        own = [room for room in self._rooms.values() if self._openers[room.code] in openers]
        if len(own) < most:
            return
        oldest = min(own, key=lambda room: room.asked_at)
        if self.clock() - oldest.asked_at < IDLE_SECONDS:
            raise RoomError(f"{most} rooms are open, the limit. End one, or try again later.", 429)
        self.end(oldest)

    def find(self, code: str, key: str = "") -> Room:
        """Return a room by its code, in any case. Raises: RoomError where there is none.

        key: a student's id or the teacher's token, which shows that the room is in use.
        """
        self.sweep()
        room = self._rooms.get(code.upper())
        if room is None:
            raise RoomError("There is no room with this code. It may have ended.", 404)
        if room.knows(key):
            room.asked_at = self.clock()
        return room

    def lead(self, code: str, token: str) -> Room:
        """Return a room for its teacher. Raises: RoomError for any other token."""
        room = self.find(code, token)
        if not room.may_lead(token):
            raise RoomError("This is not the room's teacher link.", 403)
        return room

    def join(self, code: str, address: str) -> str:
        """Let a student into a room; return their random id.

        Raises: RoomError when there is no such room, or it is full.
        """
        room = self.find(code)
        self.spend("join", f"{room.code} {address}")
        student = secrets.token_urlsafe(12)
        room.join(student, self.clock())
        return student

    def end(self, room: Room) -> None:
        """Forget a room."""
        self._rooms.pop(room.code, None)
        self._openers.pop(room.code, None)

    def sweep(self) -> None:
        """Forget rooms that are over."""
        now = self.clock()
        for room in [r for r in self._rooms.values() if now - r.opened_at >= LIFE_SECONDS]:
            self.end(room)


def _new_code() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))
