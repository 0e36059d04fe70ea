"""Gradio's look, taken from palette.py: system fonts (nothing is fetched), quiet surfaces."""

from __future__ import annotations

import gradio as gr

FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]


def build_theme() -> gr.themes.Base:
    """Return the theme; colours are CSS variables, so light and dark need no second copy."""
    theme = gr.themes.Default(
        primary_hue="blue",
        neutral_hue="slate",
        font=FONT,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_md,
    )
    both = {
        "body_background_fill": "var(--ram-page)",
        "background_fill_primary": "var(--ram-panel)",
        "background_fill_secondary": "var(--ram-sunken)",
        "block_background_fill": "var(--ram-panel)",
        "body_text_color": "var(--ram-ink)",
        "body_text_color_subdued": "var(--ram-muted)",
        "border_color_primary": "var(--ram-line)",
        "block_border_color": "var(--ram-line)",
        "block_label_text_color": "var(--ram-muted)",
        "block_title_text_color": "var(--ram-ink)",
        "block_info_text_color": "var(--ram-muted)",
        "input_background_fill": "var(--ram-panel)",
        "input_border_color": "var(--ram-line)",
        "input_placeholder_color": "var(--ram-muted)",
        "slider_color": "var(--ram-accent)",
        "button_primary_background_fill": "var(--ram-accent)",
        "button_primary_background_fill_hover": "var(--ram-accent)",
        "button_primary_text_color": "var(--ram-accent-ink)",
        "button_primary_border_color": "var(--ram-accent)",
        "button_secondary_background_fill": "var(--ram-panel)",
        "button_secondary_background_fill_hover": "var(--ram-sunken)",
        "button_secondary_text_color": "var(--ram-ink)",
        "button_secondary_border_color": "var(--ram-line)",
        "checkbox_background_color_selected": "var(--ram-accent)",
        "checkbox_border_color_selected": "var(--ram-accent)",
        "checkbox_label_background_fill": "transparent",
        "checkbox_label_background_fill_selected": "var(--ram-sunken)",
        "table_border_color": "var(--ram-line)",
        "link_text_color": "var(--ram-accent)",
    }
    values = {**both, **{f"{name}_dark": value for name, value in both.items()}}
    known = {name: value for name, value in values.items() if hasattr(theme, name)}
    return theme.set(
        button_border_width="1px",
        button_large_text_weight="600",
        block_shadow="none",
        **known,
    )
