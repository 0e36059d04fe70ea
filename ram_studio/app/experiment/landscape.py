"""A sweep's landscape: scores over two axes, or SLIM's surrogate over shares of three agents."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from ram_studio.algorithm.figures.figure import finish
from ram_studio.algorithm.figures.palette import FIGURE_GRID, FIGURE_INK, agent_color, shades
from ram_studio.app.numbers import epsilon_text, setting_text
from ram_studio.evals.experiment.result import ExperimentResult, Row
from ram_studio.evals.experiment.search import Surrogate, lattice

SCALE = shades(agent_color(0))
_BAR: dict[str, Any] = {"title": "Right, %", "thickness": 12, "outlinewidth": 0}
_STEPS = 36
_HEIGHT = 420


def numbers_of(result: ExperimentResult) -> list[str]:
    """Return the axes of a sweep with varied numbers, those with the most values first."""
    seen: dict[str, set[Any]] = {}
    for row in result.rows:
        for name, value in row.values.items():
            if isinstance(value, (int, float)):
                seen.setdefault(name, set()).add(value)
    varied = [name for name, values in seen.items() if len(values) > 1]
    return sorted(varied, key=lambda name: -len(seen[name]))


def has_landscape(result: ExperimentResult) -> bool:
    """Return whether two axes or more were varied."""
    return result.is_sweep and len(numbers_of(result)) > 1


def landscape_figure(result: ExperimentResult) -> go.Figure:
    """Return scores by color; with more than two axes, labels show the others."""
    surrogate = result.surrogate
    rows = [row for row in result.rows if row.n and row.kind == "merge"]
    if surrogate is not None and len(surrogate.agents) == 3:
        return _simplex(surrogate, rows, result)
    across, up = numbers_of(result)[:2]
    drawn = go.Figure()
    drawn.add_scatter(
        x=[_axis_value(across, row.values.get(across)) for row in rows],
        y=[_axis_value(up, row.values.get(up)) for row in rows],
        mode="markers",
        showlegend=False,
        marker=_marker([100 * row.average.score for row in rows], 17),
        **_hover(rows),
    )
    for name, symbol, row in _marked_rows(result):
        drawn.add_scatter(
            x=[_axis_value(across, row.values.get(across))],
            y=[_axis_value(up, row.values.get(up))],
            **_ring(name, symbol),
        )
    finish(drawn, _HEIGHT, margin={"l": 8, "r": 12, "t": 48, "b": 8}, showlegend=True)
    drawn.update_xaxes(title=_title(across), type="category" if across == "epsilon" else None)
    return drawn.update_yaxes(title=_title(up), type="category" if up == "epsilon" else None)


def _simplex(surrogate: Surrogate, rows: Sequence[Row], result: ExperimentResult) -> go.Figure:
    """Return the surrogate's predictions for all shares, with the measured scores on top."""
    shares = list(lattice(3, _STEPS))
    predicted = [100 * surrogate.predict(x) for x in shares]
    measured = [(row, x) for row in rows if (x := surrogate.shares_of(row.weights)) is not None]
    every = [*predicted, *(100 * row.average.score for row, _ in measured)]
    ends = {"cmin": min(every), "cmax": max(every)}
    drawn = go.Figure()
    drawn.add_scatterternary(
        **_corners(shares),
        mode="markers",
        name="Predicted",
        showlegend=False,
        marker={
            **_marker(predicted, 9),
            **ends,
            "symbol": "hexagon",
            "opacity": 0.75,
            "line": None,
            "showscale": False,
        },
        hovertemplate="predicted %{marker.color:.1f} %<extra></extra>",
    )
    drawn.add_scatterternary(
        **_corners([x for _, x in measured]),
        mode="markers",
        name="Measured",
        cliponaxis=False,
        marker={
            **_marker([100 * r.average.score for r, _ in measured], 17),
            **ends,
            "colorbar": {**_BAR, "orientation": "h", "y": -0.2, "len": 0.8},
        },
        **_hover([row for row, _ in measured]),
    )
    for name, symbol, row in _marked_rows(result):
        if (x := surrogate.shares_of(row.weights)) is not None:
            drawn.add_scatterternary(**_corners([x]), cliponaxis=False, **_ring(name, symbol))
    finish(drawn, _HEIGHT, margin={"l": 30, "r": 30, "t": 48, "b": 60}, showlegend=True)
    corner = {"gridcolor": FIGURE_GRID, "linecolor": FIGURE_GRID, "showticklabels": False}
    axes = zip(("aaxis", "baxis", "caxis"), map(escape, surrogate.agents), strict=True)
    drawn.update_layout(
        ternary={"bgcolor": "rgba(0,0,0,0)", **{a: {**corner, "title": name} for a, name in axes}}
    )
    return drawn


def _corners(shares: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return {side: [x[i] for x in shares] for i, side in enumerate("abc")}


def _marker(scores: list[float], size: int) -> dict[str, Any]:
    line = {"width": 1, "color": FIGURE_INK}
    return {"color": scores, "colorscale": SCALE, "size": size, "colorbar": _BAR, "line": line}


def _hover(rows: Sequence[Row]) -> dict[str, Any]:
    # Plotly parses labels as HTML.
    hover_data = [[escape(row.label), row.correct, row.n] for row in rows]
    text = "%{customdata[0]}: %{customdata[1]} of %{customdata[2]}, %{marker.color:.1f} %"
    return {"customdata": hover_data, "hovertemplate": f"{text}<extra></extra>"}


def _marked_rows(result: ExperimentResult) -> list[tuple[str, str, Row]]:
    start = next((row for row in result.rows if row.is_start and row.n), None)
    best = result.best
    found = [] if best is None or not best.n else [("Best", "circle-open", best)]
    return found if start is None else [*found, ("Start", "square-open", start)]


def _ring(name: str, symbol: str) -> dict[str, Any]:
    size = 26 if symbol == "circle-open" else 22
    return {
        "mode": "markers",
        "name": name,
        "hoverinfo": "skip",
        "marker": {"symbol": symbol, "size": size, "color": FIGURE_INK, "line": {"width": 2}},
    }


def _title(name: str) -> str:
    return escape(setting_text(name))


def _axis_value(name: str, value: Any) -> Any:
    return epsilon_text(value) if name == "epsilon" and value is not None else value
