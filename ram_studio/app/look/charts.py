"""The figures of Look about whole models: pure functions from a sketch to a plotly figure."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ram_studio.algorithm.ladder import BIN_COUNT, LADDER, edge_value
from ram_studio.algorithm.sketch import Sketch
from ram_studio.app.look.figure import agent_style, finish, rounded_active, shares_of
from ram_studio.app.numbers import epsilon_text, percent_text
from ram_studio.app.palette import FIGURE_GRID, FIGURE_INK, agent_color, agent_symbol, overlap_color

MAX_PATTERNS = 12
_ROOMY_BARS = 7
_FINE_PER_BAR = 128
"""Bins of |tau| drawn as one: all of an octave. Changes stored in bfloat16 are whole steps of it,
so finer bars would show the number format rather than the training."""


def _agents_on_y(figure: go.Figure, sketch: Sketch) -> None:
    # Plotly draws the first category at the bottom.
    order = list(reversed(sketch.agents))
    figure.update_yaxes(categoryorder="array", categoryarray=order, ticklabelstandoff=6)


def density(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return one bar per agent: changed / all elements (paper Fig. 2, left).

    Where dtypes differ a second one, hatched, with the agents rounded to the base's dtype.
    """
    total = max(1, sketch.total)
    figure = go.Figure()
    kinds = {"as stored": sketch.model.active[0, point]}
    top = 100 * float(kinds["as stored"].max(initial=0)) / total
    rounded = rounded_active(sketch, "model", point)
    if rounded is not None:
        kinds["rounded to the base's format"] = rounded[0]
    for name, active in kinds.items():
        is_rounded = len(figure.data) > 0
        figure.add_bar(
            name=name,
            x=100 * active / total,
            y=list(sketch.agents),
            orientation="h",
            marker={
                "color": [agent_color(t) for t in range(len(active))],
                "pattern": {"shape": "/" if is_rounded else "", "fgcolor": FIGURE_INK},
                "opacity": 0.6 if is_rounded else 1.0,
            },
            text=[percent_text(share) for share in active / total],
            textposition="outside",
            cliponaxis=False,
            customdata=active,
            hovertemplate=f"%{{y}}, {name}: %{{customdata:,}} weights changed<extra></extra>",
        )
    _agents_on_y(figure, sketch)
    figure.update_xaxes(
        range=[0, min(100.0, top * 1.25) or 1], ticksuffix=" %", nticks=4, tickangle=0
    )
    is_double = len(kinds) > 1
    return finish(
        figure,
        (94 if is_double else 70) + (66 if is_double else 44) * len(sketch.agents),
        showlegend=is_double,
        legend_traceorder="normal",
        margin={"l": 8, "r": 60, "t": 34 if is_double else 8, "b": 8},
    )


def composition(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return one stacked bar per agent: of what it changed, alone / with 1 / with 2 ... others."""
    counts = sketch.model.shared[0, point]
    shares = shares_of(counts)
    figure = go.Figure()
    for others in range(counts.shape[1]):
        name = f"with {others} other{'s' * (others > 1)}" if others else "alone"
        figure.add_bar(
            name=name,
            x=100 * shares[:, others],
            y=list(sketch.agents),
            orientation="h",
            marker={"color": overlap_color(others)},
            text=[f"{100 * s:.0f} %" if s >= 0.09 else "" for s in shares[:, others]],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": "#ffffff" if others in (0, 3) else "#1a1a1a"},
            customdata=counts[:, others],
            hovertemplate=f"%{{y}}, {name}: %{{customdata:,}} weights (%{{x:.2f}} %)"
            "<extra></extra>",
        )
    _agents_on_y(figure, sketch)
    figure.update_xaxes(range=[0, 100], ticksuffix=" %", nticks=5)
    height = 96 + 44 * len(sketch.agents)
    return finish(figure, height, barmode="stack", legend_traceorder="normal")


def patterns(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure | None:
    """Return bars of the largest overlap patterns above a grid that says which agents they join.

    None for more than six agents, whose patterns are not counted.
    """
    if sketch.model.patterns is None:
        return None
    counts = sketch.model.patterns[0, point]
    masks = [m for m in range(1, len(counts)) if counts[m] > 0]
    masks = sorted(masks, key=lambda m: -int(counts[m]))[:MAX_PATTERNS]
    members = [[t for t in range(len(sketch.agents)) if m >> t & 1] for m in masks]
    shares = [int(counts[m]) / max(1, int(counts[1:].sum())) for m in masks]
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.03, row_heights=[0.62, 0.38]
    )
    figure.add_bar(
        x=list(range(len(masks))),
        y=[int(counts[m]) for m in masks],
        marker={"color": [overlap_color(len(agents) - 1) for agents in members]},
        customdata=[
            [" + ".join(sketch.agents[t] for t in agents), percent_text(share)]
            for agents, share in zip(members, shares, strict=True)
        ],
        hovertemplate="%{customdata[0]}: %{y:,} weights, %{customdata[1]} of the changed"
        "<extra></extra>",
        text=[_bar_text(share, narrow, len(masks)) for share in shares],
        textposition="outside",
        textfont={"size": 9 if narrow else 11},
        constraintext="none",
        cliponaxis=False,
        row=1,
        col=1,
    )
    _draw_members(figure, members, list(sketch.agents))
    figure.update_yaxes(nticks=4, row=1, col=1)
    figure.update_xaxes(
        showticklabels=False,
        showgrid=False,
        zeroline=False,
        range=[-0.6, max(2.6, len(masks) - 0.4)],
    )
    height = 250 + 22 * len(sketch.agents)
    return finish(figure, height, showlegend=False, margin={"l": 8, "r": 12, "t": 24, "b": 8})


def _draw_members(figure: go.Figure, members: list[list[int]], agents: list[str]) -> None:
    """Draw below each bar a column of dots, those of its agents marked and joined."""
    rows = list(range(len(agents)))
    figure.add_scatter(
        x=[x for x in range(len(members)) for _ in rows],
        y=rows * len(members),
        mode="markers",
        marker={"size": 9, "color": FIGURE_GRID},
        hoverinfo="skip",
        row=2,
        col=1,
    )
    for x, joined in enumerate(members):
        figure.add_scatter(
            x=[x] * len(joined),
            y=joined,
            mode="lines+markers",
            line={"color": FIGURE_INK, "width": 2},
            marker={
                "size": 11,
                "color": [agent_color(t) for t in joined],
                "symbol": [agent_symbol(t) for t in joined],
            },
            hoverinfo="skip",
            row=2,
            col=1,
        )
    figure.update_yaxes(
        tickvals=rows,
        ticktext=agents,
        range=[len(agents) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        ticklabelstandoff=6,
        row=2,
        col=1,
    )


def _bar_text(share: float, narrow: bool, bars: int) -> str:
    """Return as much of a bar's share as fits above it."""
    if narrow and share < 0.02:
        return ""
    return f"{100 * share:.0f} %" if bars > _ROOMY_BARS and share >= 0.01 else percent_text(share)


def magnitude(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return the histogram of |tau| per agent (log-log), with the line of the chosen epsilon."""
    bars = BIN_COUNT // _FINE_PER_BAR
    counts = sketch.magnitudes.reshape(len(sketch.agents), bars, _FINE_PER_BAR).sum(-1)
    centers = np.array([edge_value(b * _FINE_PER_BAR) for b in range(bars)]) * 2**0.5
    used = np.flatnonzero(counts.sum(0))
    figure = go.Figure()
    if len(used):
        shown = slice(max(0, used[0] - 1), used[-1] + 2)
        for t, name in enumerate(sketch.agents):
            figure.add_scatter(
                name=name,
                x=centers[shown],
                y=np.where(counts[t, shown] > 0, counts[t, shown], np.nan),
                mode="lines+markers",
                connectgaps=False,
                **agent_style(t, 5, shape="hvh"),
                hovertemplate=f"{name}: %{{y:,}} weights moved by about %{{x:.1e}}<extra></extra>",
            )
    epsilon = LADDER[point]
    if epsilon > 0:
        figure.add_vline(x=epsilon, line={"color": FIGURE_INK, "width": 2, "dash": "dash"})
        figure.add_annotation(
            x=np.log10(epsilon),
            y=0,
            yref="paper",
            text=f"ε = {epsilon_text(epsilon)}",
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            xshift=5,
        )
    log = {"type": "log", "exponentformat": "power", "tickfont_size": 11, "tickangle": 0}
    figure.update_xaxes(**log, dtick=2 if narrow else 1, title="size of the change |τ|")
    figure.update_yaxes(**log, dtick=1, title="weights")
    return finish(figure, 320)
