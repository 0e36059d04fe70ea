"""A sweep's scores against one of its settings, drawn with plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from ram_studio.algorithm.methods import METHODS
from ram_studio.app.details.figure import finish
from ram_studio.app.numbers import epsilon_text, setting_text
from ram_studio.app.palette import FIGURE_INK, agent_color, agent_symbol
from ram_studio.evals.experiment.table import SweepRow, SweepState
from ram_studio.evals.report.score import Average

BY_SETTING = "setting"
_HEIGHT = 380
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
    return [*varied, BY_SETTING]


def axis_label(name: str) -> str:
    """Return an axis's name for people."""
    if name == BY_SETTING:
        return "Setting"
    return setting_text(name)


def sweep_figure(state: SweepState, axis: str) -> go.Figure:
    """Return score with 95 % interval against one axis; settings that are out are gray.

    Settings without an answer, or without this parameter, are not drawn; those that are the same
    merge as another are, with its score.
    """
    axes = axes_of(state)
    axis = axis if axis in axes else axes[0]
    rows = [r for r in state.rows if r.n and (axis == BY_SETTING or axis in r.values)]
    if axis != BY_SETTING:
        rows.sort(key=lambda row: row.values[axis])
    methods = list(dict.fromkeys(row.method for row in state.rows))
    places = _places(rows, axis, methods)
    drawn = go.Figure()
    for index, method in enumerate(methods):
        own = [row for row in rows if row.method == method]
        color = agent_color(index)
        # A line only where nothing else varies: else its ups and downs would mean nothing.
        if axis != BY_SETTING and len(axes) == 2 and len(own) > 1:
            drawn.add_scatter(
                x=[places[row.label] for row in own],
                y=[100 * row.score.score for row in own],
                mode="lines",
                line={"color": color, "width": 1},
                opacity=0.5,
                hoverinfo="skip",
                showlegend=False,
            )
        kept = [row for row in own if not row.is_out]
        _add_points(drawn, kept, places, METHODS[method].title, color, agent_symbol(index))
    out = [row for row in rows if row.is_out]
    _add_points(drawn, out, places, "Clearly worse", FIGURE_INK, "x-thin-open", 0.55)
    if state.best in rows:
        _add_best(drawn, state, places, methods)
    start = next((row for row in state.rows if row.is_start and row.n), None)
    if start is not None:
        drawn.add_hline(
            y=100 * start.score.score,
            line={"dash": "dot", "width": 1, "color": FIGURE_INK},
            annotation={"text": "where it started", "font": {"size": 11}},
            annotation_position="bottom right",
        )
    return _finished(drawn, axis)


def _add_points(
    drawn: go.Figure,
    rows: Sequence[SweepRow],
    places: Mapping[str, Any],
    name: str,
    color: str,
    symbol: str,
    opacity: float = 1.0,
) -> None:
    if not rows:
        return
    drawn.add_scatter(
        x=[places[row.label] for row in rows],
        y=[100 * row.score.score for row in rows],
        error_y=_bars([row.score for row in rows]),
        mode="markers",
        name=name,
        opacity=opacity,
        marker={"color": color, "symbol": symbol, "size": 9, "line": {"width": 1.5}},
        # Plotly reads labels as HTML.
        customdata=[[escape(row.label), row.correct, row.n] for row in rows],
        hovertemplate="%{customdata[0]}: %{customdata[1]} of %{customdata[2]}, %{y:.1f} %"
        "<extra></extra>",
    )


def _add_best(
    drawn: go.Figure, state: SweepState, places: Mapping[str, Any], methods: Sequence[str]
) -> None:
    """Add a ring around the winner and, where it was re-checked, its held-out score."""
    best = state.best
    assert best is not None, "callers have one"
    color = agent_color(methods.index(best.method))
    drawn.add_scatter(
        x=[places[best.label]],
        y=[100 * best.score.score],
        mode="markers",
        name="Best",
        marker={"symbol": "circle-open", "size": 20, "line": {"width": 2}, "color": color},
        hoverinfo="skip",
    )
    if state.recheck is None:
        return
    score = state.recheck.winner
    drawn.add_scatter(
        x=[places[best.label]],
        y=[100 * score.score],
        error_y=_bars([score]),
        mode="markers",
        name="Best, on held-out questions",
        marker={"symbol": "diamond-open", "size": 12, "color": FIGURE_INK, "line": {"width": 2}},
        hovertemplate=f"{score.correct} of {score.n}, %{{y:.1f}} %<extra></extra>",
    )


def _places(rows: Sequence[SweepRow], axis: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return each setting's x; methods stand a little apart, so that none hides another."""
    if axis == BY_SETTING:
        return {row.label: row.label for row in rows}
    if axis == "epsilon":
        return {row.label: epsilon_text(row.values[axis]) for row in rows}
    values = [row.values[axis] for row in rows]
    step = _APART * (max(values) - min(values)) if values else 0.0
    middle = (len(methods) - 1) / 2
    return {
        row.label: row.values[axis] + step * (methods.index(row.method) - middle) for row in rows
    }


def _bars(scores: Sequence[Average]) -> dict[str, Any]:
    ends = [(score.score, *score.ci95) for score in scores]
    return {
        "type": "data",
        "symmetric": False,
        "array": [100 * (high - score) for score, _, high in ends],
        "arrayminus": [100 * (score - low) for score, low, _ in ends],
        "thickness": 1,
        "width": 3,
    }


def _finished(drawn: go.Figure, axis: str) -> go.Figure:
    finish(drawn, _HEIGHT, margin={"l": 8, "r": 12, "t": 48, "b": 8}, showlegend=True)
    drawn.update_xaxes(title=axis_label(axis), zeroline=False)
    if axis in ("epsilon", BY_SETTING):
        drawn.update_xaxes(type="category", showticklabels=axis == "epsilon")
    return drawn.update_yaxes(title="Right answers", ticksuffix=" %", zeroline=False)
