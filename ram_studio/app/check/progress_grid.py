"""Progress of an evaluation: one bar, and small bars and mosaics by model and suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from ram_studio.app.templates import progress, render
from ram_studio.checkpoints.read.describe import plural

_COLUMNS = 30
_SQUARE = 5
_KINDS = {"1": "right", "0": "wrong", "x": "unasked"}


class Cell(NamedTuple):
    """Answers received, their total, and those that were stored before."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True)
class Scoring:
    """A snapshot of an evaluation.

    cells: by (model, domain), if begun. now: the current cell. speed: recent tokens per second,
    None for none. marks: by cell a letter for each question, see `evals.asking.marks_of`.
    """

    models: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    now: tuple[str, str] | None = None
    speed: float | None = None
    marks: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Answers received."""
        return sum(cell.done for cell in self.cells.values())

    @property
    def reused(self) -> int:
        """Answers that were stored before."""
        return sum(cell.reused for cell in self.cells.values())

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains begun by any model, in order."""
        return tuple(dict.fromkeys(domain for _, domain in self.cells))

    @property
    def total(self) -> int:
        """Answers expected of all models, estimated from the first one."""
        first: dict[str, int] = {}
        for (_, domain), cell in self.cells.items():
            first.setdefault(domain, cell.total)
        return sum(first.values()) * len(self.models)


def progress_html(event: Scoring | None) -> str:
    """Return the overall bar."""
    if event is None or event.now is None:
        return progress(None, "Loading the first model")
    model, domain = event.now
    parts = [f"{event.done:,} of {event.total:,} answers"]
    if event.reused:
        parts.append(f"{event.reused:,} reused")
    if event.speed:
        parts.append(f"{event.speed:.0f} tokens/s")
    return progress(event.done / max(1, event.total), f"{model} on {domain}", " · ".join(parts))


def finished_text(last: Scoring) -> str:
    """Return a summary of a finished evaluation, from its last snapshot."""
    new = last.done - last.reused
    answers = f"{new:,} new answer{'' if new == 1 else 's'}"
    reused = f", {last.reused:,} reused" if last.reused else ""
    return f"Done: {plural(len(last.models), 'model')}, {answers}{reused}."


def grid_html(event: Scoring | None) -> str:
    """Return one small bar and mosaic per model and domain; "" before there is one.

    Separate from the bar, whose tokens per second change more often than the answers.
    """
    if event is None or event.now is None:
        return ""
    mosaics = {cell: mosaic(marks) for cell, marks in event.marks.items()}
    return render("check/progress.html.j2", event=event, mosaics=mosaics)


def mosaic(marks: str) -> dict[str, Any]:
    """Return one path for each kind of mark, a square for each question, row by row.

    Adjacent squares are one line, which dashes divide into squares, so that each update stays
    small.
    """
    paths: dict[str, str] = {}
    for top in range(0, len(marks), _COLUMNS):
        place = 0
        for mark, run in groupby(marks[top : top + _COLUMNS]):
            count = len(list(run))
            if mark in _KINDS:
                x, y = _SQUARE * place, _SQUARE * (top // _COLUMNS) + _SQUARE / 2
                paths[_KINDS[mark]] = f"{paths.get(_KINDS[mark], '')}M{x} {y}h{_SQUARE * count}"
            place += count
    rows = -(-len(marks) // _COLUMNS)
    width = _SQUARE * min(_COLUMNS, len(marks))
    return {"paths": paths, "width": width, "height": _SQUARE * rows, "right": marks.count("1")}
