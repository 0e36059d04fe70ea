"""The figures of an analysis by name, as the app's details and notebooks draw them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import plotly.graph_objects as go

from ram_studio.algorithm.figures.figure import FigureData
from ram_studio.algorithm.figures.layer_map import layer_map
from ram_studio.algorithm.figures.parts_charts import experts, towers
from ram_studio.algorithm.figures.patterns import patterns
from ram_studio.errors import SettingsError, did_you_mean


class Figure(NamedTuple):
    """A figure. draw: from analysis, grid point, and whether the page is narrow."""

    draw: Callable[[FigureData, int, bool], go.Figure | None]
    title: str
    note: str


FIGURES = {
    "patterns": Figure(
        patterns, "Overlap of agents", "Weights changed by exactly these agents and no others."
    ),
    "towers": Figure(
        towers, "Language model and towers", "Share of each part's weights that an agent changed."
    ),
    "experts": Figure(
        experts,
        "Routers and experts",
        "Share of the weights that each agent changed, and where several changed the same.",
    ),
}
"""In page order. ``draw`` returns None for a model without such parts."""

LAYERS = "layers"
"""Name of the map of layers and modules (of one agent)."""


def plot(analysis: FigureData, kind: str, point: int, agent: str | None) -> go.Figure:
    """Return a figure of an analysis, see ``Analysis.plot``.

    Raises: SettingsError for another name, or a figure that does not apply to the model.
    """
    known = (LAYERS, *FIGURES)
    if kind not in known:
        raise SettingsError(
            f"The figure is {kind!r}; expected {', '.join(known)}{did_you_mean(kind, known) or '.'}"
        )
    if kind == LAYERS:
        if (agent or analysis.agents[0]) not in analysis.agents:
            raise SettingsError(f"The agent is {agent!r}; expected {', '.join(analysis.agents)}.")
        return layer_map(analysis, point, agent or analysis.agents[0])
    figure = FIGURES[kind].draw(analysis, point, False)
    if figure is None:
        raise SettingsError(f"This model has no {kind}; expected patterns or {LAYERS}.")
    return figure
