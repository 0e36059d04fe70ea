"""mergekit's models and slices: only those that leave every layer at its place can be imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.mergekit.parameters import mapping
from ram_studio.errors import SettingsError

_ORDER = "RAM Studio leaves every layer at its place"


def whole_models(config: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the list of models, and parameters that hold for all of them.

    Of ``slices`` one is taken, from layer 0 on and of the same layers of every model.

    Raises: SettingsError for anything else.
    """
    slices = config.get("slices")
    if not slices:
        entries = config.get("models") or []
        if not isinstance(entries, list):
            raise SettingsError(f"models is {printable(entries, 80)!r}; expected a list.")
        return entries, {}
    if not isinstance(slices, list) or len(slices) != 1 or not isinstance(slices[0], dict):
        raise SettingsError(
            "slices has several parts, each with its own gradients; write the merge with `models`, "
            "and what differs by layer as a list over the layers."
        )
    sources = _sources(slices[0])
    ranges = [_range(source) for source in sources]
    if any(one != ranges[0] for one in ranges) or ranges[0][0] != 0:
        raise SettingsError(
            f"slices takes layers {list(ranges[0])} of one model with others of another; {_ORDER}."
        )
    return sources, mapping(slices[0].get("parameters"))


def kept_layers(config: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return which model each run of layers comes from: model, first layer, and the one behind.

    Raises: SettingsError where layers are repeated, left out, moved or scaled.
    """
    slices = config.get("slices")
    if not isinstance(slices, list) or not slices:
        raise SettingsError("passthrough needs slices.")
    runs: list[tuple[str, int, int]] = []
    for part in slices:
        sources = _sources(part)
        if len(sources) != 1 or not isinstance(sources[0].get("model"), str):
            raise SettingsError("passthrough takes one model in every slice.")
        if part.get("parameters") or sources[0].get("parameters") or config.get("parameters"):
            raise SettingsError("passthrough with parameters scales tensors; RAM Studio does not.")
        first, stop = _range(sources[0])
        expected = runs[-1][2] if runs else 0
        if first != expected:
            raise SettingsError(
                f"a slice begins at layer {first}, where {expected} comes next: layers would be "
                f"repeated, left out or moved. {_ORDER}."
            )
        runs.append((sources[0]["model"], first, stop))
    return runs


def _sources(part: Any) -> list[dict[str, Any]]:
    sources = part.get("sources") if isinstance(part, dict) else None
    if not isinstance(sources, list) or not all(isinstance(one, dict) for one in sources):
        raise SettingsError(f"a slice is {printable(part, 80)!r}; expected sources with models.")
    if not sources:
        raise SettingsError("a slice has no sources.")
    return sources


def _range(source: Mapping[str, Any]) -> tuple[int, int]:
    value = source.get("layer_range")
    if isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) for n in value):
        first, stop = value
        if 0 <= first < stop:
            return first, stop
    raise SettingsError(f"layer_range is {printable(value, 40)!r}; expected first and end.")
