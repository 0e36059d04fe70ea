"""Overlap of agents: weights by the exact set of agents that changed them; of many, by pair."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ram_studio.algorithm.figures.figure import FigureData, finish
from ram_studio.algorithm.figures.palette import (
    FIGURE_GRID,
    FIGURE_INK,
    agent_color,
    agent_symbol,
    overlap_color,
    percent_text,
)
from ram_studio.algorithm.meters.relations import pairs_of

MAX_PATTERNS = 12
_ROOMY_BARS = 7
_MANY = "More than six agents: weights changed by one agent alone, or by two (and perhaps others)."


def patterns(analysis: FigureData, point: int, narrow: bool = False) -> go.Figure:
    """Return bars of the largest overlap patterns above a dot grid of their agents.

    Beyond six agents sets are not counted: bars then show weights that one agent changed alone or
    that two changed, with or without others, and a note explains it.
    """
    found = _patterns(analysis, point)
    masks = sorted(found, key=lambda m: -found[m])[:MAX_PATTERNS]
    members = [[t for t in range(len(analysis.agents)) if m >> t & 1] for m in masks]
    changed = int(analysis.model.by_count[0, point, 1:].sum())
    shares = [found[m] / max(1, changed) for m in masks]
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.03, row_heights=[0.62, 0.38]
    )
    figure.add_bar(
        x=list(range(len(masks))),
        y=[found[m] for m in masks],
        marker={"color": [overlap_color(len(agents) - 1) for agents in members]},
        customdata=[
            [" + ".join(analysis.agents[t] for t in agents), percent_text(share)]
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
    _draw_members(figure, members, list(analysis.agents))
    figure.update_yaxes(nticks=4, row=1, col=1)
    figure.update_xaxes(
        showticklabels=False,
        showgrid=False,
        zeroline=False,
        range=[-0.6, max(2.6, len(masks) - 0.4)],
    )
    height = 250 + 22 * len(analysis.agents)
    if analysis.model.patterns is None:
        at = {"xref": "paper", "yref": "paper", "x": 0, "y": 1.08}
        figure.add_annotation(text=_MANY, showarrow=False, **at)
    return finish(figure, height, showlegend=False, margin={"l": 8, "r": 12, "t": 34, "b": 8})


def _patterns(analysis: FigureData, point: int) -> dict[int, int]:
    """Return counts of weights, above 0, by the bit mask of the agents that changed them."""
    n = len(analysis.agents)
    if analysis.model.patterns is not None:
        counts = analysis.model.patterns[0, point]
        found = {mask: int(counts[mask]) for mask in range(1, len(counts))}
    else:
        found = {1 << t: int(analysis.model.shared[0, point, t, 0]) for t in range(n)}
        if analysis.relations is not None:
            both = analysis.grouped_relations("model").pair_counts[0, point, :, 0]
            pairs = zip(pairs_of(n), both, strict=True)
            found |= {1 << a | 1 << b: int(count) for (a, b), count in pairs}
    return {mask: count for mask, count in found.items() if count > 0}


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
    """Return a bar's share, short enough to fit above it."""
    if narrow and share < 0.02:
        return ""
    return f"{100 * share:.0f} %" if bars > _ROOMY_BARS and share >= 0.01 else percent_text(share)
