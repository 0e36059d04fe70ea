"""Scores of an experiment against a setting, or against the time to merge, drawn with plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from ram_studio.algorithm.figures.figure import finish
from ram_studio.algorithm.figures.palette import FIGURE_INK, agent_color, agent_symbol
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.experiment.landscape import has_landscape, landscape_figure, numbers_of
from ram_studio.app.numbers import epsilon_text, setting_text
from ram_studio.evals.experiment.result import ExperimentResult, Row
from ram_studio.evals.report.score import Average

BY_SETTING = "setting"
BY_SECONDS = "merge_seconds"
LANDSCAPE = "landscape"
_HEIGHT = 380
# Share of the axis between two methods with the same value.
_APART = 0.012
# Start of the logarithmic axis, in seconds to merge.
_FASTEST = 0.001


def axes_of(result: ExperimentResult) -> list[str]:
    """Return the possible x axes of the chart, the setting itself last.

    For a sweep the varied numbers and, for several, the landscape, which is first after SLIM; for a
    comparison the seconds to merge.
    """
    if not result.is_sweep:
        return [BY_SECONDS, BY_SETTING]
    varied = numbers_of(result)
    both = [LANDSCAPE] if has_landscape(result) else []
    if result.surrogate is not None:
        return [*both, *varied, BY_SETTING]
    return [*varied, *both, BY_SETTING]


def axis_label(name: str) -> str:
    """Return an axis's display name."""
    names = {
        BY_SETTING: "Setting",
        BY_SECONDS: "Seconds to merge (logarithmic)",
        LANDSCAPE: "Landscape",
    }
    return names.get(name) or setting_text(name)


def experiment_figure(result: ExperimentResult, axis: str) -> go.Figure:
    """Return score with 95 % interval against one axis; dropped settings are gray.

    Merges without an answer, or without this parameter, are not drawn; duplicates of another merge
    are drawn with its score.
    """
    axes = axes_of(result)
    axis = axis if axis in axes else axes[0]
    if axis == LANDSCAPE:
        return landscape_figure(result)
    rows = [r for r in result.rows if r.kind == "merge" and r.n and _value(r, axis) is not None]
    if axis not in (BY_SETTING, BY_SECONDS):
        rows.sort(key=lambda row: row.values[axis])
    # Grouped by method in a sweep, separate in a comparison; Plotly parses names as HTML.
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = METHODS[row.method].title if result.is_sweep else escape(row.label)
        groups.setdefault(name, []).append(row)
    places = _places(rows, axis)
    drawn = go.Figure()
    for index, (group, own) in enumerate(groups.items()):
        color, symbol = agent_color(index), agent_symbol(index + index // 8)
        # A line only where nothing else varies: otherwise its shape would have no meaning.
        if axis not in (BY_SETTING, BY_SECONDS) and len(axes) == 2 and len(own) > 1:
            drawn.add_scatter(
                x=[places[row.label] for row in own],
                y=[100 * row.average.score for row in own],
                mode="lines",
                line={"color": color, "width": 1},
                opacity=0.5,
                hoverinfo="skip",
                showlegend=False,
            )
        _add_points(drawn, [row for row in own if not row.is_out], places, group, color, symbol)
    out = [row for row in rows if row.is_out]
    _add_points(drawn, out, places, "Clearly worse", FIGURE_INK, "x-thin-open", 0.55)
    chosen = result.winner if result.is_sweep else result.reference
    best = next((row for row in rows if row.label == chosen), None)
    if best is not None:
        _add_ring(drawn, result, best, places[best.label])
    start = next((row for row in result.rows if row.is_start and row.n), None)
    if start is not None:
        drawn.add_hline(
            y=100 * start.average.score,
            line={"dash": "dot", "width": 1, "color": FIGURE_INK},
            annotation={"text": "starting point", "font": {"size": 11}},
            annotation_position="bottom right",
        )
    return _finish_figure(drawn, axis)


def _value(row: Row, axis: str) -> Any:
    own = {BY_SETTING: row.label, BY_SECONDS: row.merge_seconds}
    return own[axis] if axis in own else row.values.get(axis)


def _add_points(
    drawn: go.Figure,
    rows: Sequence[Row],
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
        y=[100 * row.average.score for row in rows],
        error_y=_bars([row.average for row in rows]),
        mode="markers",
        name=name,
        opacity=opacity,
        marker={"color": color, "symbol": symbol, "size": 9, "line": {"width": 1.5}},
        # Plotly parses labels as HTML.
        customdata=[[escape(row.label), row.correct, row.n] for row in rows],
        hovertemplate="%{customdata[0]}: %{customdata[1]} of %{customdata[2]}, %{y:.1f} %"
        "<extra></extra>",
    )


def _add_ring(drawn: go.Figure, result: ExperimentResult, row: Row, place: Any) -> None:
    """Add a ring around the winner or the reference and, where re-checked, its held-out score."""
    drawn.add_scatter(
        x=[place],
        y=[100 * row.average.score],
        mode="markers",
        name="Best" if result.is_sweep else "Reference",
        marker={"symbol": "circle-open", "size": 20, "line": {"width": 2}, "color": FIGURE_INK},
        hoverinfo="skip",
    )
    if result.recheck is None:
        return
    score = result.recheck.winner
    drawn.add_scatter(
        x=[place],
        y=[100 * score.score],
        error_y=_bars([score]),
        mode="markers",
        name="Best, on held-out questions",
        marker={"symbol": "diamond-open", "size": 12, "color": FIGURE_INK, "line": {"width": 2}},
        hovertemplate=f"{score.correct} of {score.n}, %{{y:.1f}} %<extra></extra>",
    )


def _places(rows: Sequence[Row], axis: str) -> dict[str, Any]:
    """Return each row's x; methods are slightly offset, so that none hides another."""
    if axis == "epsilon":
        return {row.label: epsilon_text(row.values[axis]) for row in rows}
    if axis == BY_SECONDS:
        return {row.label: max(_FASTEST, row.merge_seconds or 0.0) for row in rows}
    if axis == BY_SETTING:
        return {row.label: row.label for row in rows}
    order = list(dict.fromkeys(row.method for row in rows))
    values = [row.values[axis] for row in rows]
    step = _APART * (max(values) - min(values)) if values else 0.0
    middle = (len(order) - 1) / 2
    return {row.label: row.values[axis] + step * (order.index(row.method) - middle) for row in rows}


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


def _finish_figure(drawn: go.Figure, axis: str) -> go.Figure:
    finish(drawn, _HEIGHT, margin={"l": 8, "r": 12, "t": 48, "b": 8}, showlegend=True)
    drawn.update_xaxes(title=axis_label(axis), zeroline=False)
    if axis in ("epsilon", BY_SETTING):
        drawn.update_xaxes(type="category", showticklabels=axis == "epsilon")
    if axis == BY_SECONDS:
        # Plotly omits the power of ten in all labels that are not powers.
        ticks = [m * 10.0**power for power in range(-3, 5) for m in (1, 2, 5)]
        drawn.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return drawn.update_yaxes(title="Right answers", ticksuffix=" %", zeroline=False)
