"""mergekit's parameters: numbers, lists over the layers, and either by a part of a tensor's name.

A parameter is looked up in the model, then in the slice, then in the whole configuration; in a
list of conditions, the first whose filter is in the tensor's name applies. Here conditions become
filters of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import SettingsError

FINAL = "\0"
"""The condition for tensors after the layers: final norm and head."""

Number = float | list[float]
"""A number, or a list over the layers."""


@dataclass(frozen=True)
class ModelEntry:
    """One model of the list: its name, and its own parameters before the common ones."""

    source: str
    levels: tuple[Mapping[str, Any], ...]

    def get(self, name: str, where: str | None = None) -> Any:
        """Return a parameter in tensors with ``where`` in their names, None where it has none."""
        for level in self.levels:
            found = _evaluate(level.get(name), where)
            if found is not None:
                return found
        return None

    def number(self, name: str, default: Any = None, where: str | None = None) -> Number:
        """Return a parameter as a number or a list of them.

        Raises: SettingsError for anything else, or nothing.
        """
        value = self.get(name, where)
        value = default if value is None else value
        if isinstance(value, list) and value:
            return [_float(name, one) for one in value]
        if value is None:
            raise SettingsError(f"{name} is missing; mergekit requires it.")
        return _float(name, value)


@dataclass
class Configuration:
    """Models and parameters for the import of every method.

    base: its model; entries: the others, in order; base_entry: the base where the list has it;
    common: parameters of all; warnings: sentences, extended by the import.
    """

    base: str
    entries: list[ModelEntry]
    base_entry: ModelEntry | None
    common: ModelEntry
    warnings: list[str] = field(default_factory=list)

    def wheres(self) -> list[str]:
        """Return the texts of all conditions, each once, in order."""
        found: dict[str, None] = {}
        for entry in (*self.entries, *([self.base_entry] if self.base_entry else [])):
            for level in entry.levels:
                for value in level.values():
                    found |= dict.fromkeys(texts(value))
        return list(found)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a switch of the whole configuration.

        Raises: SettingsError for anything but true or false.
        """
        value = self.common.get(name)
        if value not in (None, True, False):  # 1.0 and 0.0 are equal to them, as mergekit writes
            raise SettingsError(f"{name} is {printable(value, 40)!r}; expected true or false.")
        return default if value is None else bool(value)

    def scalar(self, name: str, default: float | None = None, where: str | None = None) -> float:
        """Return a number that is the same for all models and layers.

        Raises: SettingsError.
        """
        every = [entry.number(name, default, where) for entry in self.entries]
        if any(isinstance(one, list) for one in every) or any(one != every[0] for one in every):
            raise SettingsError(
                f"{name} differs from model to model or layer to layer; RAM Studio takes one value."
            )
        assert not isinstance(every[0], list), "lists were refused above"
        return every[0]

    def numbers(
        self, name: str, default: float | None = None, where: str | None = None
    ) -> list[Number]:
        """Return a number of each model."""
        return [entry.number(name, default, where) for entry in self.entries]


def are_equal(values: Sequence[Number]) -> bool:
    """Return whether all are the same number."""
    return not isinstance(values[0], list) and all(value == values[0] for value in values)


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"{name} is {printable(value, 40)!r}; expected a number.") from None


def _conditions(value: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield the conditions of a parameter: a part of a name (None: any), and the value there."""
    values = value if isinstance(value, list) else [value]
    if not any(isinstance(one, dict) for one in values):
        return
    for one in values:
        if not isinstance(one, dict) or "value" not in one or not one.keys() <= {"value", "filter"}:
            raise SettingsError(
                f"{printable(one, 80)} is among conditions; expected value, and filter or none."
            )
        text = one.get("filter")
        if text is not None and not isinstance(text, str):
            raise SettingsError(f"filter is {printable(text, 40)!r}; expected a part of a name.")
        yield text, one["value"]


def texts(value: Any) -> Iterator[str]:
    """Yield the parts of names that a parameter has conditions for."""
    yield from (where for where, _ in _conditions(value) if where not in (None, "*"))


def is_number(value: Any) -> bool:
    """Return whether a value is a number, not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _evaluate(value: Any, where: str | None) -> Any:
    has_condition = False
    for text, own in _conditions(value):
        has_condition = True
        if text in (None, "*") or (where is not None and text is not None and text in where):
            return own
    return None if has_condition else value


def mapping(value: Any, what: str = "parameters") -> dict[str, Any]:
    """Return parameters as a dict; what: their name in messages.

    Raises: SettingsError for anything else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{what} is {printable(value, 80)!r}; expected names and values.")
    return value
