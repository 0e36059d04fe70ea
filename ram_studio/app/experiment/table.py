"""Results as tables: sorted by their numbers in the page, read as text there and in reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gradio as gr

from ram_studio.app.numbers import epsilon_text, setting_text
from ram_studio.evals.experiment.table import SweepRow, SweepState

Table = Mapping[str, Any]
"""What ``MethodTable.to_dict`` returns."""

_STYLES = {
    "best": "font-weight: 650; text-decoration: underline; text-underline-offset: 3px",
    "better": "font-weight: 600; color: var(--ram-good)",
    "worse": "font-weight: 600; color: var(--ram-bad)",
}
_OUTCOMES = {
    "waiting": "waiting",
    "running": "being asked",
    "open": "in the race",
    "kept": "no significant difference",
    "behind": "clearly worse",
    "dropped": "dropped",
    "same": "same merge",
    "unfinished": "not finished",
    "failed": "failed",
}


FLOOR = "chance level"


class Cell(NamedTuple):
    """A value to sort by, how it reads, and what it stands out as (a key of _STYLES)."""

    value: Any
    text: str
    tone: str = ""


class Grid(NamedTuple):
    """A table of cells, all rows of one length."""

    heads: list[str]
    rows: list[list[Cell]]

    def value(self) -> dict[str, Any]:
        """Return it as ``gr.Dataframe`` takes it."""
        return {
            "headers": self.heads,
            "data": [[cell.value for cell in row] for row in self.rows],
            "metadata": {
                "display_value": [[cell.text for cell in row] for row in self.rows],
                "styling": [[_STYLES.get(cell.tone, "") for cell in row] for row in self.rows],
            },
        }


def plain(text: Any) -> Cell:
    """Return a cell that is sorted as it reads."""
    return Cell(str(text), str(text))


def score_cell(score: Mapping[str, Any], tone: str = "") -> Cell:
    """Return a cell of a score as ``DomainScore.to_dict`` has it, with its interval."""
    if not score["n"]:
        return Cell(-1, "–")
    low, high = score["ci95"]
    text = f"{100 * score['score']:.1f} % · {100 * low:.0f}–{100 * high:.0f}"
    return Cell(score["score"], text, tone)


def settings_text(row: Mapping[str, Any]) -> str:
    """Return a merge's settings in one line; a scale that was left out is 1/N."""
    shown = []
    for name, value in (row["settings"] or {}).items():
        if value is None:
            count = len(row["merged_agents"] or ())
            text = f"1/{count}" if name == "scale" and count else "–"
        elif name == "epsilon":
            text = epsilon_text(value)
        else:
            text = f"{value:g}" if isinstance(value, (int, float)) else str(value)
        shown.append(f"{setting_text(name)} {text}")
    return " · ".join(shown)


def merge_rows(table: Table) -> list[Mapping[str, Any]]:
    """Return the rows that are merges, in order; their place, from 1, is their number."""
    return [row for row in table["rows"] if row["kind"] == "merge"]


def method_grid(table: Table) -> Grid:
    """Return a comparison's scores, row by row, and what each is against the reference."""
    rows = table["rows"]
    domains_of = list(rows[0]["domains"]) if rows else []
    skills = [d for d in domains_of if d in table["skills"]]
    beside = [d for d in domains_of if d not in skills]
    best = {d: max(row["domains"][d]["score"] or 0.0 for row in rows) for d in skills}
    top = max((row["average"] or 0.0 for row in rows), default=0.0)
    numbers = {row["row"]: i for i, row in enumerate(merge_rows(table), 1)}
    cells = []
    for row in rows:
        domains, average, seconds = row["domains"], row["average"], row["merge_seconds"]
        number = numbers.get(row["row"])
        line = [Cell(number or 0, "" if number is None else str(number)), plain(row["row"])]
        for d in skills:
            is_best = domains[d]["n"] and domains[d]["score"] == best[d]
            line.append(score_cell(domains[d], "best" if is_best else ""))
        known = "–" if average is None else f"{100 * average:.1f} %"
        line.append(Cell(average or 0.0, known, "best" if average == top else ""))
        line.append(_against(row, table["reference"]))
        line += [score_cell(domains[d]) for d in beside]
        line.append(Cell(seconds or 0.0, "–" if seconds is None else f"{seconds:.2f} s"))
        line.append(plain(settings_text(row)))
        cells.append(line)
    if floors := table["floors"]:
        line = [Cell(0, ""), plain(FLOOR), *(_floor_cell(floors.get(d)) for d in skills)]
        line += [Cell(-1, "–"), Cell(2.0, "–"), *(_floor_cell(floors.get(d)) for d in beside)]
        cells.append([*line, Cell(0.0, "–"), plain("")])
    against = f"Against {table['reference']}"
    heads = ["#", "Model", *skills, "Average", against, *beside, "Merged in", "Settings"]
    return Grid(heads, cells)


def _floor_cell(floor: float | None) -> Cell:
    return Cell(-1, "–") if floor is None else Cell(floor, f"{100 * floor:.1f} %")


def _against(row: Mapping[str, Any], reference: str) -> Cell:
    if row["row"] == reference:
        return Cell(1.0, "reference")
    found = row["versus"]
    if found is None:
        return Cell(2.0, "–")
    p = found["p_adjusted"]
    shown = "< 0.001" if p < 0.001 else f"{p:.3f}"
    text = f"{found['outcome']} · +{found['wins']} −{found['losses']}, p {shown}"
    return Cell(p, text, found["outcome"] if found["outcome"] in _STYLES else "")


def sweep_grid(state: SweepState) -> Grid:
    """Return every setting of a sweep, the best first."""
    domains = list(dict.fromkeys(name for row in state.rows for name in row.domains))
    rows = []
    for row in state.ranked:
        tone = "best" if row.label == state.winner else ""
        factors = " ".join(f"{v:.3f}" for v in row.factors.values() if v is not None)
        rows.append(
            [
                Cell(row.label, row.label, tone),
                score_cell(row.score.to_dict(), tone),
                *(
                    score_cell(row.domains[d].to_dict()) if d in row.domains else Cell(-1, "–")
                    for d in domains
                ),
                plain(factors or "–"),
                _outcome(row, state.winner),
            ]
        )
    if state.floors:
        floors = [_floor_cell(state.floors.get(d)) for d in domains]
        rows.append([plain(FLOOR), Cell(-1, "–"), *floors, plain("–"), plain("–")])
    return Grid(["Setting", "Average", *domains, "λ", "Outcome"], rows)


def _outcome(row: SweepRow, winner: str | None) -> Cell:
    said, tone = _OUTCOMES[row.status], "worse" if row.is_out else ""
    if row.label == winner:
        said, tone = "best", "better"
    hints = [row.note or row.same_as or ""]
    if row.loss is not None and row.is_out:
        hints = [f"+{row.loss.wins} −{row.loss.losses} of {row.loss.items}"]
    if row.is_start:
        hints.append("where it started")
    text = " · ".join([said, *(hint for hint in hints if hint)])
    return Cell(text, text, tone)


def result_table(elem_id: str) -> gr.Dataframe:
    """Lay out the table of a result, hidden until there is one; its columns sort on a click."""
    return gr.Dataframe(
        visible=False,
        interactive=False,
        show_label=False,
        max_height=620,
        pinned_columns=1,
        elem_id=elem_id,
        elem_classes="results",
    )
