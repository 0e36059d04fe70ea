"""mergekit's models and slices; only slices that do not move layers can be imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ram_studio.algorithm.grouping import at_depth
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.mergekit.parameters import (
    FINAL,
    ModelEntry,
    is_number,
    mapping,
    texts,
)
from ram_studio.errors import SettingsError

_ORDER = "RAM Studio leaves every layer at its place"
_MOST_LAYERS = 1000
"""Limit of layers: the length of a recipe's list of weights."""


def reference(value: Any, base: str | None = None) -> str:
    """Return a model's name for RAM Studio; mergekit writes it as text or as a mapping.

    base: the model that a LoRA may be added to; such an agent is the adapter alone.

    Raises: SettingsError.
    """
    lora, given = None, value
    if isinstance(value, dict) and isinstance(value.get("model"), (dict, str)):
        given, lora = value["model"], value.get("lora")
    name, added = _path(given), None if lora is None else _path(lora)
    if name is None or (lora is not None and added is None):
        raise SettingsError(f"a model is {printable(value, 80)!r}; expected its name.")
    if added is None:
        name, _, added = name.partition("+")
    if not added:
        return name
    if name != base or "+" in added:
        raise SettingsError(
            f"model {printable(name, 80)} adds the LoRA {printable(added, 80)}; RAM Studio takes "
            "only agents that are adapters of base_model. Merge it in first."
        )
    return added


def _path(value: Any) -> str | None:
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        revision = value.get("revision")
        return f"{value['path']}@{revision}" if isinstance(revision, str) else value["path"]
    return value if isinstance(value, str) and value.strip() else None


def unwrap_module(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration without `modules`, whose only module ("default") is the whole model.

    Raises: SettingsError for several modules.
    """
    modules = config.get("modules")
    if not modules:
        return config
    if not isinstance(modules, dict) or len(modules) != 1:
        raise SettingsError("`modules` has several; write the merge of one with `models` instead.")
    only = mapping(next(iter(modules.values())), "a module")
    own = {**mapping(config.get("parameters")), **mapping(only.get("parameters"))}
    return {**config, **only, "modules": None, "parameters": own}


def whole_models(config: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the list of models, and their common parameters.

    ``slices`` must follow each other from layer 0 on, with the same models: parameters that differ
    between them become a list over all layers.

    Raises: SettingsError for anything else.
    """
    slices = config.get("slices")
    if not slices:
        entries = config.get("models") or []
        if not isinstance(entries, list):
            raise SettingsError(f"models is {printable(entries, 80)!r}; expected a list.")
        return entries, {}
    if not isinstance(slices, list):
        raise SettingsError(f"slices is {printable(slices, 80)!r}; expected a list.")
    parts: list[_Part] = []
    for part in slices:
        sources = _sources(part)
        ranges = [_range(source) for source in sources]
        if any(one != ranges[0] for one in ranges):
            raise SettingsError(
                f"slices takes layers {list(ranges[0])} of one model with others of another; "
                f"{_ORDER}."
            )
        _check_next(ranges[0][0], parts[-1].stop if parts else 0)
        parts.append(_Part(*ranges[0], sources, mapping(part.get("parameters"))))
    if len(parts) == 1:
        return parts[0].sources, parts[0].parameters
    return _join_slices(parts, mapping(config.get("parameters")))


class _Part(NamedTuple):
    """A slice of several models: first layer, end (exclusive), sources and parameters."""

    first: int
    stop: int
    sources: list[dict[str, Any]]
    parameters: dict[str, Any]


def _join_slices(
    parts: Sequence[_Part], shared: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return slices as one list of models, whose parameters run over all layers."""
    names = [str(source.get("model")) for source in parts[0].sources]
    if len(set(names)) < len(names):
        raise SettingsError("a slice has a model twice; give it once, with one weight.")
    for part in parts:
        if sorted(str(source.get("model")) for source in part.sources) != sorted(names):
            raise SettingsError(
                f"the slice from layer {part.first} on has other models than the first; give every "
                "slice the same, with weight 0 where one should not count."
            )
    entries = []
    for source, name in zip(parts[0].sources, names, strict=True):
        levels = [
            next(
                (mapping(own.get("parameters")), part.parameters, shared)
                for own in part.sources
                if str(own.get("model")) == name
            )
            for part in parts
        ]
        keys = dict.fromkeys(key for every in levels for level in every for key in level)
        own = {
            key: _over_layers(key, parts, [ModelEntry(name, level) for level in levels])
            for key in keys
        }
        entries.append({"model": source.get("model"), "parameters": own})
    first = parts[0].parameters
    return entries, {k: first[k] for k in first if all(k in p.parameters for p in parts)}


def _over_layers(key: str, parts: Sequence[_Part], entries: Sequence[ModelEntry]) -> Any:
    """Return one model's parameter over all layers: a value, a list, or conditions with them.

    After the layers it is the first number of the last slice.
    """
    wheres = dict.fromkeys(
        where for entry in entries for level in entry.levels for where in texts(level.get(key))
    )

    def value_at(where: str | None) -> Any:
        values: list[Any] = []
        for part, entry in zip(parts, entries, strict=True):
            value, n = entry.get(key, where), part.stop - part.first
            if isinstance(value, list) and value and all(is_number(one) for one in value):
                depths = [i / (n - 1) if n > 1 else 1.0 for i in range(n)]
                values += [at_depth(value, depth) for depth in depths]
            else:
                values += [value] * n
        if all(value == values[0] for value in values):
            return values[0]
        if not all(is_number(value) for value in values):
            raise SettingsError(f"{key} is not a number in some slices; give it in all of them.")
        return values

    conditions = [{"filter": where, "value": value_at(where)} for where in wheres]
    others, final = value_at(None), entries[-1].get(key)
    final = final[0] if isinstance(final, list) and final else final
    if isinstance(others, list) and final != others[0]:
        conditions.append({"filter": FINAL, "value": final})
    if not conditions:
        return others
    return [*conditions, *([] if others is None else [{"value": others}])]


def layer_runs(config: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return the model of each run of layers: model, first layer, and end (exclusive).

    Raises: SettingsError where layers are repeated, left out, moved or scaled.
    """
    slices = config.get("slices")
    if not isinstance(slices, list) or not slices:
        raise SettingsError("passthrough needs slices.")
    runs: list[tuple[str, int, int]] = []
    for part in slices:
        sources = _sources(part)
        if len(sources) != 1:
            raise SettingsError("passthrough takes one model in every slice.")
        if part.get("parameters") or sources[0].get("parameters") or config.get("parameters"):
            raise SettingsError("passthrough with parameters scales tensors; RAM Studio does not.")
        first, stop = _range(sources[0])
        _check_next(first, runs[-1][2] if runs else 0)
        runs.append((reference(sources[0].get("model")), first, stop))
    return runs


def _check_next(first: int, expected: int) -> None:
    if first != expected:
        raise SettingsError(
            f"a slice begins at layer {first}, where {expected} comes next: layers would be "
            f"repeated, left out or moved. {_ORDER}."
        )


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
        if 0 <= first < stop <= _MOST_LAYERS:
            return first, stop
    raise SettingsError(
        f"layer_range is {printable(value, 40)!r}; expected first and end, at most {_MOST_LAYERS}."
    )
