"""The figures of Look by layer and module: pure functions from a sketch to a plotly figure."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ram_studio.algorithm.sketch import Sketch
from ram_studio.app.look.figure import agent_style, finish, rounded_active, shares_of
from ram_studio.app.palette import overlap_color

_SIDE_BY_SIDE_LAYERS = 12
_SIDE_BY_SIDE_AGENTS = 4


def _tick(layer: str) -> str:
    return "emb" if layer == "embedding" else layer


def _layer_axes(figure: go.Figure, **values: object) -> None:
    figure.update_xaxes(type="category", tickangle=0, nticks=14)
    figure.update_yaxes(ticksuffix=" %", nticks=5, **values)


def _layers(sketch: Sketch) -> tuple[list[str], list[str]]:
    """Return the layers as they stand below an axis, and in words."""
    labels = sketch.group_labels("layer")
    return [_tick(x) for x in labels], [f"layer {x}" if x.isdigit() else x for x in labels]


def layer_density(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return, per layer, the share of its elements that each agent changed.

    Dotted, where dtypes differ: with the agents rounded to the base's dtype.
    """
    counts = sketch.grouped("layer")
    ticks, names = _layers(sketch)
    numel = np.maximum(1, counts.numel)[:, None]
    rounded = rounded_active(sketch, "layer", point)
    figure = go.Figure()
    for t, agent in enumerate(sketch.agents):
        common = {"x": ticks, "customdata": names}
        if rounded is not None:
            figure.add_scatter(
                name=f"{agent}, rounded to the base's format",
                showlegend=False,
                y=100 * (rounded / numel)[:, t],
                mode="lines",
                line=agent_style(t, 8, dash="dot")["line"],
                hovertemplate=f"{agent} rounded, %{{customdata}}: %{{y:.2f}} %<extra></extra>",
                **common,
            )
        figure.add_scatter(
            name=agent,
            y=100 * (counts.active[:, point] / numel)[:, t],
            mode="lines+markers",
            hovertemplate=f"{agent}, %{{customdata}}: %{{y:.2f}} %<extra></extra>",
            **agent_style(t, 8),
            **common,
        )
    _layer_axes(figure, rangemode="tozero")
    return finish(figure, 300)


def layer_overlap(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return, per layer, how many agents changed its changed elements (1, 2, ... agents)."""
    ticks, names = _layers(sketch)
    changed = sketch.grouped("layer").by_count[:, point, 1:]
    shares = shares_of(changed)
    figure = go.Figure()
    for c in range(changed.shape[1]):
        name = f"{c + 1} agent{'s' * (c > 0)}"
        figure.add_bar(
            name=name,
            x=ticks,
            y=100 * shares[:, c],
            marker={"color": overlap_color(c)},
            customdata=list(zip(names, changed[:, c].tolist(), strict=True)),
            hovertemplate=f"%{{customdata[0]}}, {name}: %{{y:.1f}} % (%{{customdata[1]:,}})"
            "<extra></extra>",
        )
    _layer_axes(figure, range=[0, 100])
    return finish(figure, 300, barmode="stack", legend_traceorder="normal")


def heatmap(sketch: Sketch, point: int, narrow: bool = False) -> go.Figure:
    """Return one layer-by-module map of density per agent, all on one colour scale."""
    frame = sketch.to_frame("tensor", point)
    sums = frame.pivot_table(
        index=["agent", "module"], columns="layer", values=["active", "total"], aggfunc="sum"
    )
    # Missing where a layer has no such module.
    shares = sums["active"] / sums["total"].where(sums["total"] > 0)
    layers, modules = sketch.group_labels("layer"), sketch.group_labels("module")
    n = len(sketch.agents)
    # Few layers fit side by side; many, or a phone, need the whole width.
    is_wide = narrow or len(layers) > _SIDE_BY_SIDE_LAYERS or n > _SIDE_BY_SIDE_AGENTS
    rows, cols = (n, 1) if is_wide else (1, n)
    height = 92 + (n if is_wide else 1) * (17 * len(modules) + 44)
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
            z=100 * shares.loc[name].reindex(index=modules, columns=layers).to_numpy(),
            x=[_tick(label) for label in layers],
            y=[_short(m) for m in modules],
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            hoverongaps=False,
            hovertemplate=f"{name}, %{{y}}, layer %{{x}}: %{{z:.2f}} %<extra></extra>",
            row=t + 1 if is_wide else 1,
            col=1 if is_wide else t + 1,
        )
    figure.update_xaxes(type="category", showgrid=False, ticks="", tickangle=0)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_annotations(font={"size": 13})
    return finish(
        figure,
        height,
        # Where a layer has no such module: neither zero nor missing colour.
        plot_bgcolor="rgba(127, 138, 153, 0.16)",
        coloraxis=_scale(100 * float(np.nanmax(shares.to_numpy(), initial=0.0))),
        margin={"l": 8, "r": 12, "t": 26, "b": 64},
    )


def _short(module: str) -> str:
    return module.replace("post_attention_", "post_attn_").replace("layernorm", "norm")


def _scale(top: float) -> dict[str, object]:
    """Return the colour scale of all agents, from 0 to the largest share in percent."""
    bar = {"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "thickness": 12}
    bar |= {"ticksuffix": " %", "outlinewidth": 0, "nticks": 6}
    return {"colorscale": "Cividis", "cmin": 0, "cmax": top or 1, "colorbar": bar}
