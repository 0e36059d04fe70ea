"""The rows of an experiment as a table: sorted by numbers in the page, shown as text."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradio as gr

from ram_studio.app.numbers import setting_text, value_text
from ram_studio.evals.experiment.result import STATUS_TEXTS, ExperimentResult, Row
from ram_studio.evals.report.score import DomainScore

_STYLES = {
    "best": "font-weight: 650; text-decoration: underline; text-underline-offset: 3px",
    "better": "font-weight: 600; color: var(--ram-good)",
    "worse": "font-weight: 600; color: var(--ram-bad)",
}
CHANCE = "chance level"


class Cell(NamedTuple):
    """A value to sort by, its text, and its highlight (a key of _STYLES)."""

    value: Any
    text: str
    tone: str = ""


class Grid(NamedTuple):
    """A table of cells, all rows of one length."""

    heads: list[str]
    rows: list[list[Cell]]

    def value(self) -> dict[str, Any]:
        """Return the value for ``gr.Dataframe``."""
        return {
            "headers": self.heads,
            "data": [[cell.value for cell in row] for row in self.rows],
            "metadata": {
                "display_value": [[cell.text for cell in row] for row in self.rows],
                "styling": [[_STYLES.get(cell.tone, "") for cell in row] for row in self.rows],
            },
        }


def experiment_grid(result: ExperimentResult) -> Grid:
    """Return every row, a sweep's best first: scores, outcome, lambdas, time and settings."""
    beside = [name for name in result.domains if name not in result.skills]
    scores = {d: [r.domains[d].score for r in result.rows if d in r.domains] for d in result.skills}
    # If all are equal, none is the best.
    best = {d: max(values) for d, values in scores.items() if len(set(values)) > 1}
    lines = []
    for row in result.ranked:
        is_winner = row.label == result.winner
        factors = " ".join(f"{v:.3f}" for v in row.factors.values() if v is not None)
        seconds = row.merge_seconds
        lines.append(
            [
                Cell(row.label, row.label, "best" if is_winner else ""),
                *(_score_cell(row.domains.get(d), best.get(d)) for d in result.skills),
                _score_cell(row.average, row.average.score if is_winner else None),
                _outcome(row, result),
                *(_score_cell(row.domains.get(d)) for d in beside),
                _plain(factors or "–"),
                Cell(seconds or 0.0, "–" if seconds is None else f"{seconds:.2f} s"),
                _plain(settings_text(row)),
            ]
        )
    if levels := result.chance_levels:
        known = {d: _chance_cell(levels.get(d)) for d in result.domains}
        line = [_plain(CHANCE), *(known[d] for d in result.skills), Cell(-1, "–"), Cell("2", "–")]
        lines.append([*line, *(known[d] for d in beside), _plain("–"), Cell(0.0, "–"), _plain("")])
    outcome = f"Against {result.reference}" if result.reference else "Outcome"
    heads = ["Model", *result.skills, "Average", outcome, *beside, "λ", "Merged in", "Settings"]
    return Grid(heads, lines)


def _plain(text: str) -> Cell:
    """Return a cell that is sorted by its text."""
    return Cell(text, text)


def _score_cell(score: DomainScore | None, best: float | None = None) -> Cell:
    if score is None or not score.n:
        return Cell(-1, "–")
    low, high = score.ci95
    text = f"{100 * score.score:.1f} % · {100 * low:.0f}–{100 * high:.0f}"
    return Cell(score.score, text, "best" if score.score == best else "")


def _chance_cell(level: float | None) -> Cell:
    return Cell(-1, "–") if level is None else Cell(level, f"{100 * level:.1f} %")


def _outcome(row: Row, result: ExperimentResult) -> Cell:
    """Return a row's outcome: against a comparison's reference, or in a sweep."""
    if row.label == result.reference:
        return Cell("1", "reference")
    if row.versus is not None:
        return Cell(f"{row.versus.p_adjusted:.6f}", row.versus.cell, row.versus.outcome)
    if not result.is_sweep and row.status == "finished":
        return Cell("2", "–")
    status, tone = STATUS_TEXTS[row.status], "worse" if row.is_out else ""
    if row.label == result.winner:
        status, tone = "best", "better"
    hints = [row.note or row.same_as or ""]
    if row.loss is not None and row.is_out:
        hints = [f"+{row.loss.wins} −{row.loss.losses} of {row.loss.items}"]
    if row.is_start:
        hints.append("starting point")
    text = " · ".join([status, *(hint for hint in hints if hint)])
    return Cell(text, text, tone)


def settings_text(row: Row) -> str:
    """Return a merge's settings in one line; a missing scale is 1/N."""
    shown = []
    for name, value in row.settings.items():
        if value is None:
            text = f"1/{len(row.merged_agents)}" if name == "scale" and row.merged_agents else "–"
        else:
            text = value_text(name, value)
        shown.append(f"{setting_text(name)} {text}")
    for agent, weight in row.weights.items():
        ends = weight if isinstance(weight, (list, tuple)) else [weight]
        shown.append(f"{agent} × {' to '.join(f'{w:g}' for w in ends)}")
    return " · ".join(shown)


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
