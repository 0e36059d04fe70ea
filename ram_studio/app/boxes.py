"""Components that several panels lay out alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

DTYPES = ("bfloat16", "float16", "float32")


def html(value: str | None = "", **options: Any) -> gr.HTML:
    """Lay out HTML as it is, without Gradio's own style for its contents."""
    return gr.HTML(value, apply_default_css=False, **options)


def slider(label: str, ends: tuple[float, float], value: float, step: float, **options: Any) -> Any:
    """Lay out a slider without Gradio's reset button."""
    return gr.Slider(*ends, value=value, step=step, label=label, buttons=[], **options)


def choice(label: str, choices: Sequence[Any], value: Any, **options: Any) -> gr.Dropdown:
    """Lay out a short list to choose from, without search in it."""
    return gr.Dropdown(choices, value=value, label=label, filterable=False, **options)


def dtype_box(elem_id: str, notes: dict[str, str] | None = None, **options: Any) -> gr.Dropdown:
    """Lay out the choice of the stored format; "" is the base's. notes: said after a name."""
    names = [(f"{name}{(notes or {}).get(name, '')}", name) for name in DTYPES]
    return choice("Stored as", [("As the base", ""), *names], "", elem_id=elem_id, **options)


def rounding_box(elem_id: str, **options: Any) -> gr.Radio:
    """Lay out the choice of how results are rounded to the stored format."""
    ways = [("To nearest", "nearest"), ("Stochastic (seeded)", "stochastic")]
    return gr.Radio(
        ways, value="nearest", label="Rounding", min_width=220, elem_id=elem_id, **options
    )
