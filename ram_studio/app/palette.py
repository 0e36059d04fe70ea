"""The page's colors in Gradio's theme; the table is colors.py."""

from __future__ import annotations

import gradio as gr

# Shipped with Gradio, with Greek, superscripts and tabular digits; its SemiBold is a subset.
_PLEX = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
_FONT = [_PLEX, "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]

_THEME = {
    "page": "body_background_fill",
    "panel": "background_fill_primary block_background_fill input_background_fill "
    "button_secondary_background_fill button_cancel_background_fill",
    "sunken": "background_fill_secondary button_secondary_background_fill_hover "
    "checkbox_label_background_fill_selected button_cancel_background_fill_hover",
    "bad": "button_cancel_text_color button_cancel_text_color_hover button_cancel_border_color "
    "button_cancel_border_color_hover",
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
"""The variables of Gradio's theme by color."""


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
