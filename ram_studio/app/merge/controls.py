"""Controls of the methods' own settings, drawn from each method's settings model.

Two methods share a control where their setting is the same in name, default, range and help.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.algorithm.methods import METHODS
from ram_studio.app.boxes import kind_of, limits_of, setting_box
from ram_studio.app.session.jobs import Updates
from ram_studio.evals.report.skill_table import TUNED

_LABELS = {
    "scale": "Scale · factor on the changes",
    "density": "Density · share of changes retained",
    "drop_rate": "Drop rate · share of changes dropped",
    "scope": "Counted in",
    "shared": "Shared changes",
    "others": "Other tensors",
}
"""Labels of settings whose name is not clear enough."""

_CHOICES = {
    "scope": {"global": "Whole model", "layer": "Layer by layer", "tensor": "Tensor by tensor"},
    "shared": {"mean": "Mean (paper)", "ties": "Mean of the agreeing sign"},
    "solver": {"adam": "Adam (as published)", "closed": "Closed form"},
    "others": {
        "mean": "Mean of the changes",
        "sum": "Sum of the changes",
        "base": "As in the base",
    },
}
_LEFT_OUT = {"scale": "1/N"}
"""Placeholders of empty boxes."""

_NEEDS_FILES = ("fisher",)
"""Methods that need further files, which only the command line accepts."""

OFFERED = tuple(
    name for name, m in METHODS.items() if not m.is_experiment and name not in _NEEDS_FILES
)


@dataclass(frozen=True)
class Control:
    """One control: the setting, its JSON schema, and the methods it belongs to."""

    name: str
    schema: Mapping[str, Any]
    methods: tuple[str, ...]

    def build(self, *, visible: bool) -> gr.components.Component:
        """Lay the control out inside the open Blocks."""
        box: gr.components.Component = setting_box(
            self.schema,
            _LABELS.get(self.name, self.name.replace("_", " ").capitalize()),
            choices=_CHOICES.get(self.name),
            placeholder=_LEFT_OUT.get(self.name),
            info=self.help,
            visible=visible,
            elem_id=self.name.replace("_", "-"),
        )
        return box

    @property
    def help(self) -> str:
        """Return the setting's help, with its range where it has one."""
        text = self.schema.get("description", "").replace("tau", "changes")
        kind = kind_of(self.schema)
        if "enum" in kind or kind["type"] == "boolean":
            return text
        low, high = limits_of(self.schema)
        start = f"More than {low:g}" if "exclusiveMinimum" in kind else f"From {low:g}"
        end = f"less than {high:g}" if "exclusiveMaximum" in kind else f"{high:g}"
        return f"{text} {start} to {end}.".replace("-", "−")


def _controls() -> tuple[Control, ...]:
    methods: dict[tuple[str, str], list[str]] = {}
    for method in OFFERED:
        schema = METHODS[method].settings.model_json_schema()["properties"]
        for name, described in schema.items():
            if name not in TUNED:
                methods.setdefault((name, json.dumps(described)), []).append(method)
    return tuple(
        Control(name, json.loads(described), tuple(own))
        for (name, described), own in methods.items()
    )


CONTROLS = _controls()


def tuned_by(method: str) -> tuple[str, ...]:
    """Return a method's settings that are set in Tune."""
    return tuple(name for name in TUNED if name in METHODS[method].settings.model_fields)


def tuned_settings(method: str, tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's settings among Tune's, by name."""
    return {name: tuned[name] for name in tuned_by(method) if name in tuned}


def build_controls(method: str) -> list[gr.components.Component]:
    """Lay out all of CONTROLS, in order; those of a method are visible."""
    return [control.build(visible=method in control.methods) for control in CONTROLS]


def show_controls(
    method: str, built: Sequence[Any], settings: Mapping[str, Any] | None = None
) -> Updates:
    """Return updates that show the controls of a method, with these settings if given."""
    updates: Updates = {}
    for control, component in zip(CONTROLS, built, strict=True):
        is_own = method in control.methods
        value = {} if settings is None or not is_own else {"value": settings.get(control.name)}
        updates[component] = gr.update(visible=is_own, **value)
    return updates


def own_settings(method: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return a method's own settings among the values of CONTROLS; empty ones are left out."""
    return {
        control.name: value
        for control, value in zip(CONTROLS, values, strict=True)
        if method in control.methods and value is not None
    }
