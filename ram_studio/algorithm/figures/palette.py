"""Colors, markers and percentages of plotly's figures."""

from __future__ import annotations

AGENTS_FIGURE = (
    "#c42fae",
    "#2c8a78",
    "#e8481a",
    "#a66af0",
    "#3597a5",
    "#9a6238",
    "#7f8759",
    "#6f52c4",
)
"""Agent colors of plotly's figures, between the page's light and dark ones: they suit both."""

PLOTLY_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "x", "star", "pentagon", "hexagon")
"""Markers of the agents in figures."""

OVERLAP = ("#2a5bd7", "#d9981a", "#b87c10", "#97650b", "#7a5006", "#5f3e04", "#472e02", "#332000")
"""By number of other agents (0, 1, 2, ...): blue for unique, amber for shared."""

FIGURE_INK = "#7c8796"
"""Text and axes of figures: mid-gray, since a figure cannot know the page's theme (app.css then
gives figures the page's text color)."""

FIGURE_GRID = "rgba(127, 138, 153, 0.28)"


def agent_color(index: int) -> str:
    """Return the figure color of agent ``index`` (0-based, wraps after eight)."""
    return AGENTS_FIGURE[index % len(AGENTS_FIGURE)]


def shades(color: str) -> list[tuple[float, str]]:
    """Return a color scale from faint to full color (#rrggbb), for light and dark pages."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return [(0.0, f"rgba({red},{green},{blue},0.08)"), (1.0, f"rgba({red},{green},{blue},1)")]


def agent_symbol(index: int) -> str:
    """Return the plotly marker symbol of agent ``index``."""
    return PLOTLY_SYMBOLS[index % len(PLOTLY_SYMBOLS)]


def overlap_color(others: int) -> str:
    """Return the color of "shared with this many others" (0: the agent alone)."""
    return OVERLAP[min(others, len(OVERLAP) - 1)]


def percent_text(share: float) -> str:
    """Return a share in percent; tiny shares are not rounded to 0 %."""
    value = 100 * share
    if value == 0:
        return "0 %"
    return "< 0.01 %" if value < 0.01 else f"{value:.2f} %" if value < 1 else f"{value:.1f} %"
