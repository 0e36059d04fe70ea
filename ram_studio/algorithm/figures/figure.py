"""Theme and data interface that all figures share.

Only attributes that plotly.js 3 has (Gradio's bundle); transparent, so that the page's theme shows
through; no drag zoom, so that a finger can scroll past them on a phone.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import plotly.graph_objects as go

from ram_studio.algorithm.figures.palette import FIGURE_GRID, FIGURE_INK

FAMILY = "system-ui, sans-serif"


@runtime_checkable
class FigureData(Protocol):
    """The part of ``ram_studio.algorithm.analysis.Analysis`` that figures use."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents."""

    @property
    def relations(self) -> Any:
        """Magnitudes, signs and dot products, None where they were not collected."""

    @property
    def model(self) -> Any:
        """Counts of the whole model."""

    def group_labels(self, by: str) -> tuple[str, ...]:
        """Return the labels of a grouping."""

    def grouped(self, by: str) -> Any:
        """Return the counts of a grouping."""

    def grouped_relations(self, by: str) -> Any:
        """Return the relations of a grouping."""

    def to_frame(self, by: str = ..., point: int = ...) -> Any:
        """Return a row for each group and agent."""


def finish(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Return the figure in the shared theme; layout: its own settings."""
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
