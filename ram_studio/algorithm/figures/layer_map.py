"""Layer by module: where one agent changed weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ram_studio.algorithm.figures.figure import FAMILY, FigureData, finish
from ram_studio.algorithm.figures.palette import FIGURE_INK, agent_color, shades

_MOST_TICKS = 14
_ROW = 17
"""Height of a module in pixels."""


def layer_map(
    analysis: FigureData, point: int, agent: str, *, is_log: bool = False, narrow: bool = False
) -> go.Figure:
    """Return the share of weights that an agent changed, by layer and module.

    On its own scale, from 0 to its largest share; is_log: logarithmic, from its smallest share.
    narrow: for a phone, with the color scale below.
    """
    frame = analysis.to_frame("tensor", point)
    layers, modules = analysis.group_labels("layer"), analysis.group_labels("module")
    sums = frame[frame["agent"] == agent].groupby(["module", "layer"])[["active", "total"]].sum()
    # Missing where a layer has no such module.
    places = [(module, layer) for module in modules for layer in layers]
    counts = sums.reindex(places).to_numpy(dtype=float)
    whole = np.where(counts[:, 1] > 0, counts[:, 1], np.nan)
    values = (100 * counts[:, 0] / whole).reshape(len(modules), len(layers))
    shown = values
    bar: dict[str, Any] = {"ticksuffix": " %", "outlinewidth": 0, "nticks": 6, "thickness": 12}
    if narrow:
        bar |= {"orientation": "h", "y": -0.12, "yanchor": "top", "nticks": 4}
    if is_log:
        # A share of 0 has no logarithm: it is left out, like a missing module.
        shown = np.log10(np.where(values > 0, values, np.nan))
        found = shown[np.isfinite(shown)]
        low, high = (np.floor(found.min()), np.ceil(found.max())) if found.size else (0, 1)
        ticks = np.arange(low, max(high, low + 1) + 1)
        bar |= {"tickvals": ticks.tolist(), "ticktext": [f"{10**t:g}" for t in ticks]}
        limits = {"zmin": low, "zmax": max(high, low + 1)}
    else:
        limits = {"zmin": 0, "zmax": float(np.nanmax(values, initial=0.0)) or 1}
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            customdata=values,
            x=["emb" if layer == "embedding" else layer for layer in layers],
            y=[_short(module, narrow) for module in modules],
            colorscale=shades(agent_color(analysis.agents.index(agent))),
            colorbar=bar,
            xgap=1,
            ygap=1,
            hoverongaps=False,
            hovertemplate="%{y}, layer %{x}: %{customdata:.3g} % changed<extra></extra>",
            **limits,
        )
    )
    most = _MOST_TICKS // 2 if narrow else _MOST_TICKS
    figure.update_xaxes(type="category", showgrid=False, ticks="", tickangle=0, nticks=most)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return finish(
        figure,
        (150 if narrow else 80) + _ROW * len(modules),
        margin={"l": 8, "r": 12, "t": 12, "b": 34},
        font={"color": FIGURE_INK, "size": 10 if narrow else 12, "family": FAMILY},
    )


def _short(module: str, narrow: bool) -> str:
    """Return a module's name without repeated parts; narrow: as short as possible."""
    if not narrow:
        return module.replace("post_attention_", "post_attn_")
    return module.replace("post_attention_", "post_").replace("layernorm", "norm")
