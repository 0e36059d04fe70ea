"""Components that several panels share."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gradio as gr

from ram_studio.checkpoints.write.sidecars import OUTPUT_DTYPES

Component = TypeVar("Component", bound=gr.components.Component)


def unchecked(component: Component) -> Component:
    """Make a component accept any value of a page; its handlers check the value.

    For choices and ranges that change with the loaded models. Gradio compares a value with the ones
    it sent to this page last, which may be newer than the value; and it remembers them for a few
    pages only, and the initial ones for all others. In both cases it would refuse a value that the
    page shows.
    """
    return _taking(component, lambda self, payload: payload)


def _taking(component: Component, preprocess: Callable[[Any, Any], Any]) -> Component:
    """Compute a component's value from a page's payload by ``preprocess(component, payload)``."""
    kind = type(component)
    # A subclass, as an update creates the component again. Without Gradio's metaclass, which writes
    # a file of types for each class.
    own = {"preprocess": preprocess, "__module__": kind.__module__}
    component.__class__ = ABCMeta.__new__(type(kind), kind.__name__, (kind,), own)
    return component


def html(value: str | None = "", **options: Any) -> gr.HTML:
    """Lay out HTML without Gradio's own style for its contents."""
    return gr.HTML(value, apply_default_css=False, **options)


def mount_point(call: str, elem_id: str, template: str = "<div></div>") -> gr.HTML:
    """Lay out a template that the browser draws into; it has no placeholder for a value.

    call: to a member of window.RAM, after the page's modules are loaded.
    """
    start = f"window.RAM_READY.then((RAM) => RAM.{call})"
    return html(None, html_template=template, js_on_load=start, elem_id=elem_id)


def slider(label: str, ends: tuple[float, float], value: float, step: float, **options: Any) -> Any:
    """Lay out a slider without Gradio's reset button.

    Its handlers get the nearest valid value: while a user types 120, 1 and 12 are sent.
    """

    def nearest(box: Any, payload: float | None) -> float:
        least: float = box.minimum
        return min(max(least, least if payload is None else payload), box.maximum)

    box = gr.Slider(*ends, value=value, step=step, label=label, buttons=[], **options)
    return _taking(box, nearest)


def number_box(value: float | None, label: str, **options: Any) -> gr.Number:
    """Lay out a box for a number. Its handlers refuse numbers out of range, with a message.

    Gradio would refuse them without naming the box, and leave a job's status unchanged.
    """

    def rounded(box: Any, payload: float | None) -> float | None:
        return None if payload is None else box.round_to_precision(payload, box.precision)

    return _taking(gr.Number(value, label=label, **options), rounded)


def choice(label: str, choices: Sequence[Any], value: Any, **options: Any) -> gr.Dropdown:
    """Lay out a short drop-down list without search."""
    return gr.Dropdown(choices, value=value, label=label, filterable=False, **options)


def kind_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a setting's JSON schema that has its type and limits.

    An optional setting has that first in "anyOf".
    """
    found: Mapping[str, Any] = schema.get("anyOf", [schema])[0]
    return found


def limits_of(schema: Mapping[str, Any]) -> tuple[float, float]:
    """Return the least and the largest value of a JSON schema; exclusive limits count as limits."""
    kind = kind_of(schema)
    low = kind.get("minimum", kind.get("exclusiveMinimum", float("-inf")))
    return low, kind.get("maximum", kind.get("exclusiveMaximum", float("inf")))


def setting_box(
    schema: Mapping[str, Any],
    label: str,
    *,
    choices: Mapping[str, str] | None = None,
    placeholder: str | None = None,
    most: float | None = None,
    **options: Any,
) -> Any:
    """Lay out the box of a setting from its JSON schema: a choice, a slider, a number or a tick.

    Args:
        schema: with "step" a slider; see ``kind_of``.
        choices: names of an enum's values; placeholder: what an empty box means.
        most: the app's largest value, where it is less than the schema's.
    """
    kind, default = kind_of(schema), schema.get("default")
    options = {"min_width": 200, **options}
    if "enum" in kind:
        named = [((choices or {}).get(value, str(value)), value) for value in kind["enum"]]
        return choice(label, named, default, **options)
    if kind["type"] == "boolean":
        return gr.Checkbox(bool(default), label=label, **options)
    low, high = limits_of(schema)
    high = high if most is None else min(most, high)
    if "step" in schema:
        least = low if "minimum" in kind else schema["step"]
        return slider(label, (least, high), float(default or 0), schema["step"], **options)
    return number_box(
        default,
        label,
        precision=0 if kind["type"] == "integer" else None,
        minimum=low,
        maximum=high,
        placeholder=placeholder if "anyOf" in schema else None,
        **options,
    )


def dtype_box(elem_id: str, notes: dict[str, str] | None = None, **options: Any) -> gr.Dropdown:
    """Lay out the choice of the stored format; "" is the base's. notes: shown after a name."""
    names = [(f"{name}{(notes or {}).get(name, '')}", name) for name in OUTPUT_DTYPES]
    return choice("Stored as", [("As the base", ""), *names], "", elem_id=elem_id, **options)


def rounding_box(elem_id: str, **options: Any) -> gr.Radio:
    """Lay out the choice of rounding to the stored format."""
    ways = [("To nearest", "nearest"), ("Stochastic (seeded)", "stochastic")]
    return gr.Radio(
        ways, value="nearest", label="Rounding", min_width=220, elem_id=elem_id, **options
    )
