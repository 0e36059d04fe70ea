"""Figures of towers and experts: where agents changed weights in models of several parts."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ram_studio.algorithm.figures.figure import FigureData, finish
from ram_studio.algorithm.figures.palette import agent_color, overlap_color, shades
from ram_studio.algorithm.naming import ROUTER, SHARED_EXPERT, STACK

_FIRST = (ROUTER, SHARED_EXPERT, STACK)
_ROW, _HEAD, _TITLE = 11, 44, 26
"""Height of a layer, of a map's margins, and of the title between two maps, in pixels."""


def towers(analysis: FigureData, point: int, narrow: bool = False) -> go.Figure | None:
    """Return the share that each agent changed of the language model and of every tower.

    None for a model that has no towers.
    """
    labels = analysis.group_labels("tower")
    if len(labels) < 2:
        return None
    frame = analysis.to_frame("tower", point)
    figure = go.Figure()
    for t, agent in enumerate(analysis.agents):
        own = frame[frame["agent"] == agent].set_index("tower").loc[list(labels)]
        shared = np.where(own["active"] > 0, own["shared"] / own["active"].clip(lower=1), 0)
        figure.add_bar(
            x=list(labels),
            y=100 * own["density"],
            name=agent,
            marker={"color": agent_color(t)},
            customdata=100 * shared,
            hovertemplate=f"{agent}, %{{x}}: %{{y:.3g}} % changed, %{{customdata:.0f}} % of it by "
            "others too<extra></extra>",
        )
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero")
    return finish(figure, 220 if narrow else 260)


def experts(analysis: FigureData, point: int, narrow: bool = False) -> go.Figure | None:
    """Return maps of routers and experts by layer: shares that each agent, or several, changed.

    None for a model without experts.
    """
    frame = analysis.to_frame("expert", point) if analysis.group_labels("expert") else None
    if frame is None:
        return None
    frame[["layer", "part"]] = frame["expert"].str.rsplit("/", n=1, expand=True)
    layers = list(dict.fromkeys(frame["layer"]))
    parts = sorted(set(frame["part"]), key=_order)
    titles = [f"{agent}: changed" for agent in analysis.agents]
    if len(analysis.agents) > 1:
        titles.append("changed by several, of all changed weights")
    height = len(titles) * (_HEAD + _ROW * max(4, len(layers)))
    space = _TITLE / height
    figure = make_subplots(
        len(titles), 1, shared_xaxes=True, vertical_spacing=space, subplot_titles=titles
    )
    frame["share"] = 100 * frame["density"]
    # Missing where a layer has no such part.
    tables = frame.pivot(index="layer", columns=["agent", "part"], values="share").reindex(layers)
    maps = [
        tables.reindex(columns=[(agent, part) for part in parts]).to_numpy(dtype=float)
        for agent in analysis.agents
    ]
    top = max((float(np.nanmax(values, initial=0.0)) for values in maps), default=0.0) or 1.0
    if len(analysis.agents) > 1:
        maps.append(_overlap(analysis, point, layers, parts))
    for row, (title, values) in enumerate(zip(titles, maps, strict=True), start=1):
        is_own = row <= len(analysis.agents)
        heat = go.Heatmap(
            z=values,
            x=parts,
            y=layers,
            zmin=0,
            zmax=top if is_own else 100,
            colorscale=shades(agent_color(row - 1) if is_own else overlap_color(1)),
            colorbar={
                "ticksuffix": " %",
                "thickness": 12,
                "outlinewidth": 0,
                "len": 1 / len(maps),
                "y": 1 - (row - 0.5) / len(maps),
                "nticks": 4,
            },
            hoverongaps=False,
            hovertemplate=f"{title}: layer %{{y}}, %{{x}}: %{{z:.3g}} %<extra></extra>",
        )
        figure.add_trace(heat, row, 1)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, nticks=6)
    figure.update_xaxes(type="category", showgrid=False, nticks=6 if narrow else 16, tickangle=0)
    figure.update_annotations(font_size=12)
    return finish(figure, height, margin={"l": 8, "r": 12, "t": 28, "b": 34})


def _order(part: str) -> tuple[int, int]:
    return (_FIRST.index(part), 0) if part in _FIRST else (len(_FIRST), int(part))


def _overlap(analysis: FigureData, point: int, layers: list[str], parts: list[str]) -> np.ndarray:
    """Return the share of changed weights that several agents changed, in %; NaN without any."""
    counts = analysis.grouped("expert").by_count[:, point]
    changed = counts[:, 1:].sum(1)
    shares = np.where(changed > 0, 100 * counts[:, 2:].sum(1) / np.maximum(1, changed), np.nan)
    table = np.full((len(layers), len(parts)), np.nan)
    for label, share in zip(analysis.group_labels("expert"), shares, strict=True):
        layer, part = label.rsplit("/", 1)
        table[layers.index(layer), parts.index(part)] = share
    return table
