"""A sweep as a chart (score against a parameter) and as HTML (what was found, every setting)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from ram_studio.algorithm.methods import METHODS
from ram_studio.app import markup, wording
from ram_studio.app.experiment import sweep_wording
from ram_studio.app.markup import epsilon_text
from ram_studio.app.palette import FIGURE_GRID, FIGURE_INK, agent_color, agent_symbol
from ram_studio.evals.experiment.table import SweepRow, SweepState
from ram_studio.evals.report.tables import DomainScore

_HEIGHT = 380
_BY_SETTING = "setting"
# Share of the axis between two methods of the same value.
_APART = 0.012


def axes_of(state: SweepState) -> list[str]:
    """Return what the chart can have on its x axis: numbers that vary, then the setting itself."""
    seen: dict[str, set[Any]] = {}
    for row in state.rows:
        for name, value in row.values.items():
            if isinstance(value, (int, float)):
                seen.setdefault(name, set()).add(value)
    varied = [name for name, values in seen.items() if len(values) > 1]
    return [*varied, _BY_SETTING]


def axis_label(name: str) -> str:
    """Return an axis's name for people."""
    if name == _BY_SETTING:
        return sweep_wording.PICK
    return wording.SETTING_SIGNS.get(name, name.replace("_", " "))


def figure(state: SweepState, axis: str) -> go.Figure:
    """Return score with 95 % interval against one axis; settings that are out are grey.

    Settings without an answer, or without this parameter, are not drawn; those that are the same
    merge as another are, with its score.
    """
    axis = axis if axis in axes_of(state) else axes_of(state)[0]
    rows = [r for r in state.rows if r.n and (axis == _BY_SETTING or axis in r.values)]
    if axis != _BY_SETTING:
        rows.sort(key=lambda row: row.values[axis])
    methods = list(dict.fromkeys(row.method for row in state.rows))
    varied = [name for name in axes_of(state) if name != _BY_SETTING]
    is_line = axis != _BY_SETTING and len(varied) == 1
    drawn = go.Figure()
    places = _places(rows, axis, methods)
    for index, method in enumerate(methods):
        own = [row for row in rows if row.method == method]
        if is_line and len(own) > 1:
            drawn.add_scatter(
                x=[places[row.label] for row in own],
                y=[_percent(row.score.score) for row in own],
                mode="lines",
                line={"color": agent_color(index), "width": 1},
                opacity=0.5,
                hoverinfo="skip",
                showlegend=False,
            )
        kept = [row for row in own if not row.is_out]
        if kept:
            _points(
                drawn, kept, places, METHODS[method].title, agent_color(index), agent_symbol(index)
            )
    out = [row for row in rows if row.is_out]
    if out:
        _points(drawn, out, places, sweep_wording.OUT_SERIES, FIGURE_INK, "x-thin-open", 0.55)
    best = state.best
    if best is not None and best in rows:
        drawn.add_scatter(
            x=[places[best.label]],
            y=[_percent(best.score.score)],
            mode="markers",
            name=sweep_wording.CHOSEN_SERIES,
            marker={
                "symbol": "circle-open",
                "size": 20,
                "line": {"width": 2},
                "color": agent_color(methods.index(best.method)),
            },
            hoverinfo="skip",
        )
        if state.recheck is not None:
            _held_out(drawn, places[best.label], state.recheck.winner)
    start = next((row for row in state.rows if row.is_start and row.n), None)
    if start is not None:
        drawn.add_hline(
            y=_percent(start.score.score),
            line={"dash": "dot", "width": 1, "color": FIGURE_INK},
            annotation={"text": sweep_wording.START_LINE, "font": {"size": 11}},
            annotation_position="bottom right",
        )
    return _finish(drawn, axis)


def _points(
    drawn: go.Figure,
    rows: Sequence[SweepRow],
    places: Mapping[str, Any],
    name: str,
    color: str,
    symbol: str,
    opacity: float = 1.0,
) -> None:
    drawn.add_scatter(
        x=[places[row.label] for row in rows],
        y=[_percent(row.score.score) for row in rows],
        error_y=_bars([row.score for row in rows]),
        mode="markers",
        name=name,
        opacity=opacity,
        marker={"color": color, "symbol": symbol, "size": 9, "line": {"width": 1.5}},
        customdata=[[escape(row.label), row.correct, row.n] for row in rows],
        hovertemplate="%{customdata[0]}: %{customdata[1]} of %{customdata[2]}, %{y:.1f} %"
        "<extra></extra>",
    )


def _held_out(drawn: go.Figure, place: Any, score: DomainScore) -> None:
    drawn.add_scatter(
        x=[place],
        y=[_percent(score.score)],
        error_y=_bars([score]),
        mode="markers",
        name=sweep_wording.HELD_SERIES,
        marker={"symbol": "diamond-open", "size": 12, "color": FIGURE_INK, "line": {"width": 2}},
        hovertemplate=f"{score.correct} of {score.n}, %{{y:.1f}} %<extra></extra>",
    )


def _places(rows: Sequence[SweepRow], axis: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return each setting's x; methods stand a little apart, so that none hides another."""
    if axis == _BY_SETTING:
        return {row.label: row.label for row in rows}
    if axis == "epsilon":
        return {row.label: epsilon_text(row.values[axis]) for row in rows}
    values = [row.values[axis] for row in rows]
    step = _APART * (max(values) - min(values)) if values else 0.0
    middle = (len(methods) - 1) / 2
    return {
        row.label: row.values[axis] + step * (methods.index(row.method) - middle) for row in rows
    }


def _percent(score: float) -> float:
    return 100 * score


def _bars(scores: Sequence[DomainScore]) -> dict[str, Any]:
    ends = [score.ci95 for score in scores]
    return {
        "type": "data",
        "symmetric": False,
        "array": [100 * (high - s.score) for s, (_, high) in zip(scores, ends, strict=True)],
        "arrayminus": [100 * (s.score - low) for s, (low, _) in zip(scores, ends, strict=True)],
        "thickness": 1,
        "width": 3,
    }


def _finish(drawn: go.Figure, axis: str) -> go.Figure:
    drawn.update_layout(
        height=_HEIGHT,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": FIGURE_INK, "size": 12, "family": "system-ui, sans-serif"},
        margin={"l": 8, "r": 12, "t": 48, "b": 8},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "title": None},
        dragmode=False,
        showlegend=True,
    )
    grid = {"gridcolor": FIGURE_GRID, "zeroline": False, "automargin": True, "fixedrange": True}
    drawn.update_xaxes(title=axis_label(axis), **grid)
    if axis in ("epsilon", _BY_SETTING):
        drawn.update_xaxes(type="category", showticklabels=axis == "epsilon")
    drawn.update_yaxes(title=sweep_wording.SCORE_AXIS, ticksuffix=" %", **grid)
    return drawn


def found_html(state: SweepState) -> str:
    """Return what was found in sentences, and a table of all settings, the best first."""
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in state.statements())
    domains = list(dict.fromkeys(name for row in state.rows for name in row.domains))
    name, score, factors, outcome = sweep_wording.COLUMNS
    rows = [_cells(row, state, domains) for row in ordered(state)]
    note = sweep_wording.NOTE.format(level=state.level)
    return (
        f'<div class="stack"><div class="statement"><ul>{lines}</ul></div>'
        f'<section class="box">'
        f"{markup.table((name, score, *domains, factors, outcome), rows, css='scores')}"
        f'<p class="fine">{escape(note)}</p></section></div>'
    )


def ordered(state: SweepState) -> list[SweepRow]:
    """Return the rows: the winner, then by score, those that are out at the end."""
    return sorted(
        state.rows,
        key=lambda row: (row.label != state.winner, row.is_out, -row.correct / max(1, row.n)),
    )


def _cells(row: SweepRow, state: SweepState, domains: Sequence[str]) -> tuple[str, ...]:
    low, high = row.score.ci95
    score = (
        f'<td class="score"><b>{100 * row.score.score:.1f} %</b>'
        f'<span class="ci">{100 * low:.0f}–{100 * high:.0f}, n {row.n}</span></td>'
        if row.n
        else "<td>–</td>"
    )
    parts = [
        markup.cell(f"{100 * row.domains[d].score:.0f} %" if d in row.domains else "–")
        for d in domains
    ]
    factors = " ".join(f"{v:.3f}" for v in row.factors.values() if v is not None)
    said = sweep_wording.OUTCOMES[row.status]
    tone = "worse" if row.is_out else "same"
    if row.label == state.winner:
        said, tone = sweep_wording.CHOSEN_SERIES.lower(), "better"
    hint = row.note or (f"{row.same_as}" if row.same_as else "")
    if row.loss is not None and row.is_out:
        hint = f"+{row.loss.wins} −{row.loss.losses} of {row.loss.items}"
    if row.is_start:
        hint = f"{hint} {sweep_wording.START_LINE}".strip()
    outcome = (
        f'<td><span class="key {tone}">{escape(said)}</span>'
        f'<span class="ci">{escape(hint)}</span></td>'
    )
    return (escape(row.label), score, *parts, markup.cell(factors or "–"), outcome)
