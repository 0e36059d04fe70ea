"""The figures of the Look step: pure functions from a sketch to a plotly figure.

Only attributes that plotly.js 3 has (Gradio's bundle); transparent, so that the page's theme shows
through; no drag zoom, so that a finger can scroll past them on a phone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ram_studio.algorithm.ladder import BIN_COUNT, LADDER, edge_value
from ram_studio.algorithm.sketch import Sketch
from ram_studio.app.markup import epsilon_text
from ram_studio.app.palette import FIGURE_GRID, FIGURE_INK, agent_color, agent_symbol, overlap_color

MAX_PATTERNS = 12
_ROOMY_BARS = 7
_SIDE_BY_SIDE_LAYERS = 12
_SIDE_BY_SIDE_AGENTS = 4
_FINE_PER_BAR = 128
"""Bins of |tau| drawn as one: all of an octave. Changes stored in bfloat16 are whole steps of it,
so finer bars would show the number format rather than the training."""


def _finish(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    figure.update_layout(
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor=layout.pop("plot_bgcolor", "rgba(0,0,0,0)"),
        font={"color": FIGURE_INK, "size": 12, "family": "system-ui, sans-serif"},
        margin={"l": 8, "r": 12, "t": 34, "b": 8},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "title": None},
        dragmode=False,
        hoverlabel={"font": {"family": "system-ui, sans-serif"}},
        bargap=0.28,
    )
    figure.update_layout(**layout)
    axis = {
        "gridcolor": FIGURE_GRID,
        "linecolor": FIGURE_GRID,
        "zerolinecolor": FIGURE_GRID,
        "automargin": True,
        "fixedrange": True,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def _percent(share: float) -> str:
    value = 100 * share
    if value == 0:
        return "0 %"
    return "< 0.01 %" if value < 0.01 else f"{value:.2f} %" if value < 1 else f"{value:.1f} %"


def _tick(layer: str) -> str:
    return "emb" if layer == "embedding" else layer


def _short(module: str) -> str:
    return module.replace("post_attention_", "post_attn_").replace("layernorm", "norm")


def _layer_name(label: str) -> str:
    return f"layer {label}" if label.isdigit() else label


def _agent_rows(sketch: Sketch) -> list[str]:
    # Plotly draws the first category at the bottom.
    return list(reversed(sketch.agents))


def _rounded_active(sketch: Sketch, by: str, point: int) -> np.ndarray | None:
    """Return changed elements by group and agent with agents rounded to the base's dtype.

    None when all are stored in it.
    """
    if sketch.rounded is None:
        return None
    return sketch.grouped(by, sketch.rounded).active[:, point]


def density(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return one bar per agent: changed / all elements (paper Fig. 2, left).

    Where dtypes differ a second one, hatched, with the agents rounded to the base's dtype.
    """
    total = max(1, sketch.total)
    figure = go.Figure()
    stored = sketch.model.active[0, point]
    rounded = _rounded_active(sketch, "model", point)
    kinds = [("as stored", stored, "")]
    if rounded is not None:
        kinds.append(("rounded to the base's format", rounded[0], "/"))
    for name, active, shape in kinds:
        shares = active / total
        figure.add_bar(
            name=name,
            x=100 * shares,
            y=list(sketch.agents),
            orientation="h",
            marker={
                "color": [agent_color(t) for t in range(len(shares))],
                "pattern": {"shape": shape, "fgcolor": FIGURE_INK},
                "opacity": 0.6 if shape else 1.0,
            },
            text=[_percent(s) for s in shares],
            textposition="outside",
            cliponaxis=False,
            customdata=active,
            hovertemplate=f"%{{y}}, {name}: %{{customdata:,}} weights changed<extra></extra>",
        )
    top = 100 * float(stored.max(initial=0)) / total
    figure.update_yaxes(
        categoryorder="array", categoryarray=_agent_rows(sketch), ticklabelstandoff=6
    )
    figure.update_xaxes(
        range=[0, min(100.0, top * 1.25) or 1], ticksuffix=" %", nticks=4, tickangle=0
    )
    rows = 44 if len(kinds) == 1 else 66
    return _finish(
        figure,
        70 + rows * len(sketch.agents) + 24 * (len(kinds) - 1),
        showlegend=len(kinds) > 1,
        legend_traceorder="normal",
        margin={"l": 8, "r": 60, "t": 8 if len(kinds) == 1 else 34, "b": 8},
    )


def _others_name(others: int) -> str:
    if others == 0:
        return "alone"
    return f"with {others} other" + ("s" if others > 1 else "")


def composition(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return one stacked bar per agent: of what it changed, alone / with 1 / with 2 ... others."""
    counts = sketch.model.shared[0, point]
    sums = counts.sum(-1, keepdims=True)
    shares = np.divide(counts, sums, out=np.zeros(counts.shape), where=sums > 0)
    figure = go.Figure()
    for others in range(counts.shape[1]):
        part = shares[:, others]
        figure.add_bar(
            name=_others_name(others),
            x=100 * part,
            y=list(sketch.agents),
            orientation="h",
            marker={"color": overlap_color(others)},
            text=[f"{100 * s:.0f} %" if s >= 0.09 else "" for s in part],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": "#ffffff" if others in (0, 3) else "#1a1a1a"},
            customdata=counts[:, others],
            hovertemplate="%{y}, "
            + _others_name(others)
            + ": %{customdata:,} weights (%{x:.2f} %)<extra></extra>",
        )
    figure.update_yaxes(
        categoryorder="array", categoryarray=_agent_rows(sketch), ticklabelstandoff=6
    )
    figure.update_xaxes(range=[0, 100], ticksuffix=" %", nticks=5)
    return _finish(
        figure, 96 + 44 * len(sketch.agents), barmode="stack", legend_traceorder="normal"
    )


def patterns(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure | None:
    """Return bars of the largest overlap patterns above a grid that says which agents they join.

    None for more than six agents, whose patterns are not counted.
    """
    if sketch.model.patterns is None:
        return None
    counts = sketch.model.patterns[0, point]
    masks = [m for m in range(1, len(counts)) if counts[m] > 0]
    masks = sorted(masks, key=lambda m: -int(counts[m]))[:MAX_PATTERNS]
    n = len(sketch.agents)
    names = [" + ".join(a for t, a in enumerate(sketch.agents) if m >> t & 1) for m in masks]
    changed = max(1, int(counts[1:].sum()))
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.03, row_heights=[0.62, 0.38]
    )
    position = list(range(len(masks)))
    figure.add_bar(
        x=position,
        y=[int(counts[m]) for m in masks],
        marker={"color": [overlap_color(m.bit_count() - 1) for m in masks]},
        customdata=[
            [name, _percent(int(counts[m]) / changed)] for name, m in zip(names, masks, strict=True)
        ],
        hovertemplate="%{customdata[0]}: %{y:,} weights, %{customdata[1]} of the changed"
        "<extra></extra>",
        text=[_bar_text(int(counts[m]) / changed, narrow, len(masks)) for m in masks],
        textposition="outside",
        textfont={"size": 9 if narrow else 11},
        constraintext="none",
        cliponaxis=False,
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=[x for x in position for _ in range(n)],
        y=[t for _ in position for t in range(n)],
        mode="markers",
        marker={"size": 9, "color": FIGURE_GRID},
        hoverinfo="skip",
        row=2,
        col=1,
    )
    for x, mask in zip(position, masks, strict=True):
        members = [t for t in range(n) if mask >> t & 1]
        figure.add_scatter(
            x=[x] * len(members),
            y=members,
            mode="lines+markers",
            line={"color": FIGURE_INK, "width": 2},
            marker={
                "size": 11,
                "color": [agent_color(t) for t in members],
                "symbol": [agent_symbol(t) for t in members],
            },
            hoverinfo="skip",
            row=2,
            col=1,
        )
    figure.update_yaxes(
        tickvals=list(range(n)),
        ticktext=list(sketch.agents),
        range=[n - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        ticklabelstandoff=6,
        row=2,
        col=1,
    )
    figure.update_yaxes(nticks=4, row=1, col=1)
    figure.update_xaxes(
        showticklabels=False,
        showgrid=False,
        zeroline=False,
        range=[-0.6, max(2.6, len(masks) - 0.4)],
    )
    return _finish(
        figure, 250 + 22 * n, showlegend=False, margin={"l": 8, "r": 12, "t": 24, "b": 8}
    )


def _bar_text(share: float, narrow: bool, bars: int) -> str:
    """Return as much of a bar's share as fits above it."""
    if narrow and share < 0.02:
        return ""
    return f"{100 * share:.0f} %" if bars > _ROOMY_BARS and share >= 0.01 else _percent(share)


def magnitude(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return the histogram of |tau| per agent (log-log), with the line of the chosen epsilon."""
    bars = BIN_COUNT // _FINE_PER_BAR
    counts = sketch.magnitudes.reshape(len(sketch.agents), bars, _FINE_PER_BAR).sum(-1)
    edges = np.array([edge_value(b * _FINE_PER_BAR) for b in range(bars)])
    centers = edges * 2**0.5
    used = np.flatnonzero(counts.sum(0))
    figure = go.Figure()
    if len(used):
        first, last = max(0, used[0] - 1), min(bars, used[-1] + 2)
        for t, name in enumerate(sketch.agents):
            figure.add_scatter(
                name=name,
                x=centers[first:last],
                y=np.where(counts[t, first:last] > 0, counts[t, first:last], np.nan),
                mode="lines+markers",
                connectgaps=False,
                line={"color": agent_color(t), "width": 2, "shape": "hvh"},
                marker={"color": agent_color(t), "symbol": agent_symbol(t), "size": 5},
                hovertemplate=name + ": %{y:,} weights moved by about %{x:.1e}<extra></extra>",
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
    figure.update_xaxes(
        type="log",
        exponentformat="power",
        dtick=2 if narrow else 1,
        title="size of the change |τ|",
        tickfont_size=11,
        tickangle=0,
    )
    figure.update_yaxes(
        type="log", exponentformat="power", dtick=1, title="weights", tickfont_size=11, tickangle=0
    )
    return _finish(figure, 320)


def layer_density(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return, per layer, the share of its elements that each agent changed.

    Dotted, where dtypes differ: with the agents rounded to the base's dtype.
    """
    counts = sketch.grouped("layer")
    labels = sketch.group_labels("layer")
    numel = np.maximum(1, counts.numel)[:, None]
    shares = counts.active[:, point] / numel
    rounded = _rounded_active(sketch, "layer", point)
    figure = go.Figure()
    for t, name in enumerate(sketch.agents):
        if rounded is not None:
            figure.add_scatter(
                name=f"{name}, rounded to the base's format",
                showlegend=False,
                x=[_tick(label) for label in labels],
                y=100 * (rounded / numel)[:, t],
                mode="lines",
                line={"color": agent_color(t), "width": 2, "dash": "dot"},
                customdata=[_layer_name(label) for label in labels],
                hovertemplate=name + " rounded, %{customdata}: %{y:.2f} %<extra></extra>",
            )
        figure.add_scatter(
            name=name,
            x=[_tick(label) for label in labels],
            y=100 * shares[:, t],
            mode="lines+markers",
            line={"color": agent_color(t), "width": 2},
            marker={"color": agent_color(t), "symbol": agent_symbol(t), "size": 8},
            customdata=[_layer_name(label) for label in labels],
            hovertemplate=name + ", %{customdata}: %{y:.2f} %<extra></extra>",
        )
    figure.update_xaxes(type="category", tickangle=0, nticks=14)
    figure.update_yaxes(rangemode="tozero", ticksuffix=" %", nticks=5)
    return _finish(figure, 300)


def layer_overlap(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return, per layer, how many agents changed its changed elements (1, 2, ... agents)."""
    counts = sketch.grouped("layer")
    labels = sketch.group_labels("layer")
    changed = counts.by_count[:, point, 1:]
    sums = changed.sum(-1, keepdims=True)
    shares = np.divide(changed, sums, out=np.zeros(changed.shape), where=sums > 0)
    figure = go.Figure()
    for c in range(changed.shape[1]):
        name = f"{c + 1} agent" + ("s" if c else "")
        figure.add_bar(
            name=name,
            x=[_tick(label) for label in labels],
            y=100 * shares[:, c],
            marker={"color": overlap_color(c)},
            customdata=[
                [_layer_name(x), int(n)] for x, n in zip(labels, changed[:, c], strict=True)
            ],
            hovertemplate="%{customdata[0]}, "
            + name
            + ": %{y:.1f} % (%{customdata[1]:,})<extra></extra>",
        )
    figure.update_xaxes(type="category", tickangle=0, nticks=14)
    figure.update_yaxes(range=[0, 100], ticksuffix=" %", nticks=5)
    return _finish(figure, 300, barmode="stack", legend_traceorder="normal")


def heatmap(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return one layer-by-module map of density per agent, all on one colour scale."""
    layers, modules = sketch.group_labels("layer"), sketch.group_labels("module")
    shape = (len(modules), len(layers))
    numel = np.zeros(shape)
    active = np.zeros((len(sketch.agents), *shape))
    for i, (m, x) in enumerate(
        zip(sketch.group_index("module"), sketch.group_index("layer"), strict=True)
    ):
        numel[m, x] += sketch.counts.numel[i]
        active[:, m, x] += sketch.counts.active[i, point]
    with np.errstate(invalid="ignore"):
        shares = np.where(numel > 0, active / np.maximum(1, numel), np.nan)
    n = len(sketch.agents)
    # Few layers fit side by side; many, or a phone, need the whole width.
    is_wide = narrow or len(layers) > _SIDE_BY_SIDE_LAYERS or n > _SIDE_BY_SIDE_AGENTS
    rows, cols = (n, 1) if is_wide else (1, n)
    row_height = 17 * len(modules)
    height = 92 + (n * (row_height + 44) if is_wide else row_height + 44)
    figure = make_subplots(
        rows=rows,
        cols=cols,
        shared_xaxes=is_wide,
        shared_yaxes=not is_wide,
        vertical_spacing=34 / height if is_wide else None,
        horizontal_spacing=0.02,
        subplot_titles=list(sketch.agents),
    )
    for t, name in enumerate(sketch.agents):
        figure.add_heatmap(
            z=100 * shares[t],
            x=[_tick(label) for label in layers],
            y=[_short(m) for m in modules],
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            hoverongaps=False,
            hovertemplate=name + ", %{y}, layer %{x}: %{z:.2f} %<extra></extra>",
            row=t + 1 if is_wide else 1,
            col=1 if is_wide else t + 1,
        )
    figure.update_xaxes(type="category", showgrid=False, ticks="", tickangle=0)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_annotations(font={"size": 13})
    top = float(np.nanmax(shares, initial=0.0))
    return _finish(
        figure,
        height,
        # Where a layer has no such module: neither zero nor missing colour.
        plot_bgcolor="rgba(127, 138, 153, 0.16)",
        coloraxis={
            "colorscale": "Cividis",
            "cmin": 0,
            "cmax": 100 * top or 1,
            "colorbar": {
                "orientation": "h",
                "y": 0,
                "yref": "container",
                "yanchor": "bottom",
                "thickness": 12,
                "ticksuffix": " %",
                "outlinewidth": 0,
                "nticks": 6,
            },
        },
        margin={"l": 8, "r": 12, "t": 26, "b": 64},
    )


FIGURES = {
    "density": density,
    "composition": composition,
    "patterns": patterns,
    "magnitude": magnitude,
    "layer_density": layer_density,
    "layer_overlap": layer_overlap,
    "heatmap": heatmap,
}
"""In the order of the step; each takes the sketch, the ladder point, and whether the page is narrow
(a phone)."""
