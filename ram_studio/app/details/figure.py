"""What figures have in common.

Only attributes that plotly.js 3 has (Gradio's bundle); transparent, so that the page's theme shows
through; no drag zoom, so that a finger can scroll past them on a phone.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from ram_studio.app.palette import FIGURE_GRID, FIGURE_INK

FAMILY = "system-ui, sans-serif"


def finish(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Return the figure with the look that all have; layout: what is its own."""
    common = {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": FIGURE_INK, "size": 12, "family": FAMILY},
        "margin": {"l": 8, "r": 12, "t": 34, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "title": None},
        "dragmode": False,
        "hoverlabel": {"font": {"family": FAMILY}},
        "bargap": 0.28,
    }
    axis = {
        "gridcolor": FIGURE_GRID,
        "linecolor": FIGURE_GRID,
        "zerolinecolor": FIGURE_GRID,
        "automargin": True,
        "fixedrange": True,
    }
    figure.update_layout({**common, **layout})
    return figure.update_xaxes(axis).update_yaxes(axis)
