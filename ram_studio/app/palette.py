"""The page's colors as Gradio's theme and plotly's figures have them; the table is colors.py."""

from __future__ import annotations

import gradio as gr

from ram_studio.evals.report.colors import OVERLAP

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
"""Agent colors of plotly's figures: between the page's two, since both backgrounds are used."""

PLOTLY_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "x", "star", "pentagon", "hexagon")
"""The same markers in figures."""

# Shipped with Gradio, with Greek, superscripts and tabular digits; its SemiBold is a subset.
_PLEX = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
_FONT = [_PLEX, "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]

FIGURE_INK = "#7c8796"
"""Text and axes of figures: mid-gray, since a figure cannot know the page's theme (app.css then
gives figures in the page the page's own ink)."""

FIGURE_GRID = "rgba(127, 138, 153, 0.28)"


def agent_color(index: int) -> str:
    """Return the figure color of agent ``index`` (0-based, wraps after eight)."""
    return AGENTS_FIGURE[index % len(AGENTS_FIGURE)]


def shades(color: str) -> list[tuple[float, str]]:
    """Return a color scale from a breath of a color (#rrggbb) to all of it, on either page."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return [(0.0, f"rgba({red},{green},{blue},0.08)"), (1.0, f"rgba({red},{green},{blue},1)")]


def agent_symbol(index: int) -> str:
    """Return the plotly marker symbol of agent ``index``."""
    return PLOTLY_SYMBOLS[index % len(PLOTLY_SYMBOLS)]


def overlap_color(others: int) -> str:
    """Return the color of "shared with this many others" (0: the agent alone)."""
    return OVERLAP[min(others, len(OVERLAP) - 1)]


_THEME = {
    "page": "body_background_fill",
    "panel": "background_fill_primary block_background_fill input_background_fill "
    "button_secondary_background_fill",
    "sunken": "background_fill_secondary button_secondary_background_fill_hover "
    "checkbox_label_background_fill_selected",
    "ink": "body_text_color block_title_text_color button_secondary_text_color",
    "muted": "body_text_color_subdued block_label_text_color block_info_text_color "
    "input_placeholder_color",
    "line": "border_color_primary block_border_color input_border_color table_border_color "
    "button_secondary_border_color",
    "accent": "slider_color button_primary_background_fill button_primary_background_fill_hover "
    "button_primary_border_color button_primary_border_color_hover input_border_color_focus "
    "input_border_color_hover checkbox_border_color_focus checkbox_border_color_hover "
    "loader_color checkbox_background_color_selected "
    "checkbox_border_color_selected link_text_color",
    "accent-ink": "button_primary_text_color",
}
"""Where Gradio's theme uses which color."""


def build_theme() -> gr.themes.Base:
    """Return the theme; colors are CSS variables, so light and dark need no second copy."""
    theme = gr.themes.Default(
        primary_hue="slate",
        neutral_hue="slate",
        font=_FONT,
        font_mono=_MONO,
        radius_size=gr.themes.sizes.radius_md,
    )
    values = {
        f"{name}{side}": f"var(--ram-{color})"
        for color, names in _THEME.items()
        for name in names.split()
        for side in ("", "_dark")
        if hasattr(theme, f"{name}{side}")
    }
    return theme.set(
        button_border_width="1px",
        button_large_text_weight="700",
        block_shadow="none",
        checkbox_label_background_fill="transparent",
        checkbox_label_background_fill_dark="transparent",
        **values,
    )
