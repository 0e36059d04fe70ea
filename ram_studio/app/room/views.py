"""The JSON data of a room's three views.

Before the reveal a student sees no answers of others, no count and no measured value; the screen
shows the number of answers; only the teacher sees answers as they arrive.
"""

from __future__ import annotations

from typing import Any

from ram_studio.app.room.report import rounds_of
from ram_studio.app.room.rooms import ROUNDS, Room

_ASKING_PHASES = ("ask", "first", "talk", "second", "reveal")


def _common(room: Room) -> dict[str, Any]:
    """Return the common part of all views."""
    is_asked, is_revealed = room.phase in _ASKING_PHASES, room.phase == "reveal"
    return {
        "code": room.code,
        "phase": room.phase,
        "place": room.place,
        "questions": len(room.questions),
        "question": room.question.before() if is_asked else None,
        "ends_at": room.ends_at,
        "is_rehearsal": room.is_rehearsal,
        "shown": room.shown,
        "result": {**room.question.after(), "rounds": _rounds(room)} if is_revealed else None,
    }


def _rounds(room: Room) -> dict[str, dict[str, Any]]:
    return rounds_of(room.question, room.votes[room.place])


def student_view(room: Room, student: str) -> dict[str, Any]:
    """Return a student's view: the question and their own answers."""
    votes = room.votes[room.place]
    return {
        **_common(room),
        "mine": {name: votes.of(name).get(student) for name in ROUNDS},
        "link": room.links.get(student),
    }


def screen_view(room: Room, now: float) -> dict[str, Any]:
    """Return the projector's view: the question, and numbers of present students and answers."""
    votes = room.votes[room.place]
    counts = {name: len(votes.of(name)) for name in ROUNDS}
    return {**_common(room), "counts": counts, "present": room.present(now)}


def teacher_view(room: Room, now: float) -> dict[str, Any]:
    """Return the teacher's view: everything except the students' ids."""
    is_asked = room.phase in _ASKING_PHASES
    return {
        **screen_view(room, now),
        "joined": len(room.last_seen),
        "rounds": _rounds(room) if is_asked else None,
        "expected": {**room.question.after(), "note": room.question.note} if is_asked else None,
        "plan": [
            {"title": q.title, "answers": len(v.first)}
            for q, v in zip(room.questions, room.votes, strict=True)
        ],
        "links": list(dict.fromkeys(room.links.values())),
    }
