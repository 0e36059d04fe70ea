"""The class report for the teacher: each question in both rounds, and the discussion's effect.

Only counts and averages: no answer can be traced to a student.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from ram_studio.app.room.questions import Question
from ram_studio.app.room.rooms import ROUNDS, Room, Votes
from ram_studio.evals.report.export import harmless_cell


def question_text(question: Question) -> str:
    """Return a question as plain text."""
    return "".join(p if isinstance(p, str) else "".join(p) for p in question.ask)


def round_of(question: Question, values: Sequence[float]) -> dict[str, Any]:
    """Return the results of one round: numbers of answers and of right ones, and a summary.

    The summary is the count of each choice; on a line the median guess and the mean distance.
    """
    low, high = question.right_range()
    right = sum(low <= value <= high for value in values)
    tally: dict[str, Any] = {"answers": len(values), "right": right}
    if question.line is not None:
        truth = question.truth.value
        tally["median"] = median(values) if values else None
        tally["mean_error"] = sum(abs(v - truth) for v in values) / len(values) if values else None
    else:
        counts = Counter(values)
        tally["by_choice"] = [counts[place] for place in range(len(question.choices or ()))]
    return tally


def rounds_of(question: Question, votes: Votes) -> dict[str, dict[str, Any]]:
    """Return both rounds, with anonymous answers, sorted so that the order reveals nothing."""
    own = {name: sorted(votes.of(name).values()) for name in ROUNDS}
    return {n: {**round_of(question, values), "values": values} for n, values in own.items()}


def gain_of(question: Question, votes: Votes) -> dict[str, Any]:
    """Return the changes among the students who answered in both rounds.

    gain: Hake's normalized gain, (right after - right before) / (both - right before). None where
    no student answered twice, or all were right before.
    """
    both = votes.first.keys() & votes.second.keys()
    low, high = question.right_range()
    before = sum(low <= votes.first[one] <= high for one in both)
    after = sum(low <= votes.second[one] <= high for one in both)
    gain = (after - before) / (len(both) - before) if before < len(both) else None
    return {"both": len(both), "before": before, "after": after, "gain": gain}


def results(room: Room) -> dict[str, Any]:
    """Return the class's results by question, including unanswered ones."""
    entries = [
        {
            "title": question.title,
            "question": question_text(question),
            "choices": question.choices,
            "line": question.line.model_dump() if question.line else None,
            "measured": question.truth.text,
            "truth": question.truth.model_dump(),
            **rounds_of(question, votes),
            **gain_of(question, votes),
        }
        for question, votes in zip(room.questions, room.votes, strict=True)
    ]
    return {
        "code": room.code,
        "students": len(room.last_seen),
        "is_rehearsal": room.is_rehearsal,
        "questions": entries,
    }


def _plain(value: Any) -> Any:
    """Return a cell that no spreadsheet reads as a formula."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return harmless_cell(str(value))


def csv_text(results: dict[str, Any]) -> str:
    """Return ``results`` as CSV: a row for each question and round."""
    rows = [
        {
            "question": one["title"],
            "text": one["question"],
            "measured": one["measured"],
            "round": name,
            "answers": one[name]["answers"],
            "right": one[name]["right"],
            "median": one[name].get("median"),
            "mean_error": one[name].get("mean_error"),
            "answered_both": one["both"],
            "right_before": one["before"],
            "right_after": one["after"],
            "gain": one["gain"],
        }
        for one in results["questions"]
        for name in ROUNDS
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(map(_plain, row.values()) for row in rows)
    return out.getvalue()
