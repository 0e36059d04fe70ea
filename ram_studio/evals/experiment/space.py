"""The search space of a sweep: axes, and the merges for their values.

An axis is written `r=0:0.5:6` (from, to, how many), `epsilon=1e-6:1e-4:5:log` or
`rule=ram+,ram+s` (these values). `rule` and `method` are the same axis; `ties.density=...` varies
the setting of one method only. An axis is varied for the methods that have such a setting.
`weight=0:1.5:4` varies every agent's weight by itself, `weight.coding=...` one agent's, and
`ramp.coding=...` its weights in the first and the last layer, interpolated linearly.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import METHODS, OWN, get_method, make_settings
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import SettingsError

METHOD_AXES = ("method", "rule")
WEIGHT, RAMP = "weight", "ramp"
ENDS = ("first", "last")
"""The layers of a ramp's two weights."""
MAX_WEIGHT = 100.0
MAX_VALUES = 1000
_HOW = "Write NAME=low:high:count (add :log for even ratios) or NAME=value,value"


def with_method(recipe: Recipe, method: str, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with another method and settings.

    Raises: SettingsError for settings that the method refuses.
    """
    make_settings(method, settings)
    return recipe.model_copy(update={"method": method, "settings": dict(settings)})


@dataclass(frozen=True)
class Axis:
    """A varied setting or weight.

    name: a setting, or "method"; for a weight "weight.AGENT" or "ramp.AGENT.first" (or last), and
    for the weights of all agents "weight" or "ramp". method: the only method it is varied for, None
    for all that have it. values: of a grid. low, high: ends of a range, from which a search takes
    any number; None for a list of values. is_log: equal ratios, not equal steps. agent: of a
    weight, "" for all agents; None for a setting.
    """

    name: str
    values: tuple[Any, ...]
    method: str | None = None
    low: float | None = None
    high: float | None = None
    is_log: bool = False
    agent: str | None = None

    @property
    def key(self) -> str:
        """Its name as written, e.g. "r" or "ties.density"."""
        return f"{self.method}.{self.name}" if self.method else self.name

    @property
    def is_weight(self) -> bool:
        return self.agent is not None

    def is_of(self, method: str) -> bool:
        """Whether a method has such a setting, or takes weights."""
        own = get_method(method)
        return own.takes_weights if self.is_weight else self.name in own.settings.model_fields

    @property
    def is_range(self) -> bool:
        """Whether a search may take numbers between the values."""
        return self.low is not None


def parse_axes(texts: Iterable[str] | Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the axes of `NAME=...` texts, or of a mapping from names to texts or lists of values.

    Raises: SettingsError: an invalid axis, an unknown method or setting, an axis given twice.
    """
    if isinstance(texts, Mapping):
        pairs = list(texts.items())
    else:
        pairs = []
        for text in texts:
            name, equals, rest = text.partition("=")
            if not equals:
                raise SettingsError(f"{text!r} is not an axis of a sweep. {_HOW}.")
            pairs.append((name, rest))
    axes: dict[str, Axis] = {}
    for name, rest in pairs:
        axis = _axis(name.strip(), rest)
        if axes.setdefault(axis.key, axis) is not axis:
            raise SettingsError(f"The axis {axis.key!r} is given twice; put its values together.")
    return tuple(axes.values())


def _axis(name: str, rest: Any) -> Axis:
    if name in METHOD_AXES:
        methods = tuple(dict.fromkeys(str(value).strip() for value in _parse_values(name, rest)))
        for method in methods:
            get_method(method)
        return Axis("method", methods)
    head, _, agent = name.partition(".")
    if head in (WEIGHT, RAMP):
        return _weight_axis(name, agent, rest)
    method, dot, setting = name.rpartition(".")
    owners = [get_method(method)] if dot else [*METHODS.values(), *OWN.values()]
    if not any(setting in owner.settings.model_fields for owner in owners):
        known = dict.fromkeys(n for owner in owners for n in owner.settings.model_fields)
        raise SettingsError(
            f"No method has a setting {setting!r} to sweep over"
            f"{f' (for {method})' if dot else ''}. There are method, {', '.join(known)}."
        )
    if isinstance(rest, str) and ":" in rest:
        return _range(setting, method or None, rest)
    values = tuple(dict.fromkeys(_value(name, value) for value in _parse_values(name, rest)))
    if not values or "" in values:
        raise SettingsError(f"The axis {name!r} has an empty value. {_HOW}.")
    return Axis(setting, values, method or None)


def _weight_axis(name: str, agent: str, rest: Any) -> Axis:
    """Return the axis of one agent's weight, or of every agent's."""
    if isinstance(rest, str) and ":" in rest:
        axis = replace(_range(name, None, rest), agent=agent)
    else:
        values = dict.fromkeys(_value(name, value) for value in _parse_values(name, rest))
        axis = Axis(name, tuple(values), agent=agent)
    for value in (*axis.values, axis.low or 0, axis.high or 0):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not abs(value) <= MAX_WEIGHT:
            raise SettingsError(
                f"The axis {name!r} has the weight {value!r}; expected numbers from "
                f"{-MAX_WEIGHT:g} to {MAX_WEIGHT:g}."
            )
    return axis


def _of_agents(axes: tuple[Axis, ...], agents: Iterable[str]) -> Iterable[Axis]:
    """Yield the axes; those of weights become one for each agent, and for each end of its ramp.

    Raises: SettingsError for an unknown agent, or one whose weight and ramp are both varied.
    """
    names = list(agents)
    named = [axis.agent for axis in axes if axis.is_weight]
    for axis in axes:
        if not axis.is_weight:
            yield axis
            continue
        if axis.agent and axis.agent not in names:
            raise SettingsError(
                f"There is no agent {axis.agent!r} whose weight to vary; the agents are "
                f"{', '.join(names)}."
            )
        if named.count(axis.agent) > 1:
            of = f".{axis.agent}" if axis.agent else ""
            raise SettingsError(f"Both weight{of} and ramp{of} are varied; take one of them.")
        # An agent's own axis replaces the axis for all agents.
        own = [axis.agent] if axis.agent else [name for name in names if name not in named]
        head = axis.name.partition(".")[0]
        for name in own:
            parts = [f".{end}" for end in ENDS] if head == RAMP else [""]
            for part in parts:
                yield replace(axis, name=f"{head}.{name}{part}", agent=name)


def _range(name: str, method: str | None, text: str) -> Axis:
    parts = [part.strip() for part in text.split(":")]
    is_log = parts[-1] == "log"
    parts = parts[: len(parts) - is_log]
    try:
        low, high = float(parts[0]), float(parts[1])
        count = int(parts[2]) if len(parts) > 2 else 0
        is_good = len(parts) in (2, 3) and math.isfinite(low) and math.isfinite(high)
    except (ValueError, IndexError):
        is_good, low, high, count = False, 0.0, 0.0, 0
    if not is_good:
        raise SettingsError(f"{text!r} is not a range for {name!r}. {_HOW}.")
    if not low < high or (is_log and low <= 0):
        raise SettingsError(
            f"The range of {name!r} goes from {low:g} to {high:g}; the first end must be the lower"
            f"{' and above 0' if is_log else ''}."
        )
    if len(parts) == 3 and not 2 <= count <= MAX_VALUES:
        raise SettingsError(
            f"The range of {name!r} has {count} values; expected 2 to {MAX_VALUES}."
        )
    steps = [i / (count - 1) for i in range(count)] if count else []
    found = [low * (high / low) ** s if is_log else low + (high - low) * s for s in steps]
    # Ends as written, and decimals without binary rounding errors.
    values = [low, *(float(f"{v:.12g}") for v in found[1:-1]), high] if count else []
    if name == "epsilon":
        # Thresholds are rounded to the nearest point of an analysis's epsilon grid.
        values = [EPSILON_GRID[snap(value)] for value in values]
    return Axis(name, tuple(dict.fromkeys(values)), method, low, high, is_log)


def _parse_values(name: str, given: Any) -> list[Any]:
    """Return the values of a text, a collection or a single value.

    Raises: SettingsError for more than MAX_VALUES.
    """
    if isinstance(given, str):
        values = given.split(",", MAX_VALUES)
    else:
        values = list(islice(given, MAX_VALUES + 1)) if isinstance(given, Iterable) else [given]
    if len(values) > MAX_VALUES:
        raise SettingsError(f"The axis {name!r} has too many values; expected 1 to {MAX_VALUES}.")
    return values


def _value(name: str, given: Any) -> Any:
    if isinstance(given, (list, dict)):
        raise SettingsError(f"The axis {name!r} has a value that is a list or an object. {_HOW}.")
    if not isinstance(given, str):
        return given
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(given)
    return given.strip()


@dataclass(frozen=True)
class Candidate:
    """A merge to try. values: by axis, "method" included; label: for display.

    recipe: None for the base or an agent itself, with its name as label. draw_of: label of the row
    whose further draw this is, "" for a row of its own.
    """

    label: str
    values: Mapping[str, Any]
    recipe: Recipe | None
    draw_of: str = ""


@dataclass(frozen=True)
class Space:
    """All merges that axes span around a recipe, which gives the settings that are not varied.

    Raises: SettingsError for an axis that none of the methods has.
    """

    recipe: Recipe
    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise SettingsError(f"Nothing to sweep over was given. {_HOW}.")
        object.__setattr__(self, "axes", tuple(_of_agents(self.axes, self.recipe.agents)))
        for axis in self.axes:
            if axis.name != "method" and not any(axis in self.axes_of(m) for m in self.methods):
                raise SettingsError(
                    f"None of the methods {', '.join(self.methods)} has a setting {axis.key!r} to "
                    "sweep over. Leave it out, or add a method that has it."
                )

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to try: the axis `method`, else the recipe's own."""
        chosen = (axis.values for axis in self.axes if axis.name == "method")
        return next(chosen, (self.recipe.method,))

    def axes_of(self, method: str) -> tuple[Axis, ...]:
        """Return the axes that are varied for a method; its own ones replace common ones."""
        own = {axis.name for axis in self.axes if axis.method == method}
        return tuple(
            axis
            for axis in self.axes
            if axis.name != "method"
            and axis.is_of(method)
            and (axis.method == method or (axis.method is None and axis.name not in own))
        )

    def candidate(self, method: str, values: Mapping[str, Any]) -> Candidate:
        """Return the merge of a method with these settings and weights, by axis.

        Raises: SettingsError for values that the method refuses.
        """
        settings = {key: value for key, value in values.items() if not _is_weight(key)}
        fields = get_method(method).settings.model_fields
        usual = get_method(self.recipe.method).settings().model_dump(mode="json")
        # Another method has its own defaults where the recipe leaves its method's.
        own_defaults = {
            key: value
            for key, value in self.recipe.settings.items()
            if key in fields and (method == self.recipe.method or value != usual[key])
        }
        recipe = with_method(self.recipe, method, {**own_defaults, **settings})
        takes = get_method(method).takes_weights
        weights = {**recipe.weights, **weights_of(values)} if takes else {}
        recipe = recipe.model_copy(update={"weights": weights})
        return Candidate(setting_label(method, values), {"method": method, **values}, recipe)

    def start(self) -> Candidate:
        """Return the unchanged recipe, which all results are compared with."""
        settings = make_settings(self.recipe.method, self.recipe.settings)
        is_varied = self.recipe.method in self.methods
        axes = self.axes_of(self.recipe.method) if is_varied else ()
        values = {
            axis.name: self._weight_now(axis) if axis.is_weight else getattr(settings, axis.name)
            for axis in axes
        }
        label = setting_label(self.recipe.method, values)
        return Candidate(label, {"method": self.recipe.method, **values}, self.recipe)

    def _weight_now(self, axis: Axis) -> float:
        """Return the recipe's value for an axis of weights; of a list its first or last one."""
        found = self.recipe.weights.get(str(axis.agent), 1.0)
        if isinstance(found, tuple):
            return found[-1] if axis.name.endswith(ENDS[1]) else found[0]
        return found

    def grid_size(self) -> int:
        """Return the number of settings of ``grid``, without making them.

        Raises: SettingsError for a range without a count.
        """
        for axis in self.axes:
            if not axis.values:
                raise SettingsError(
                    f"A grid needs to know how many values {axis.key!r} takes: write "
                    f"{axis.key}={axis.low:g}:{axis.high:g}:6, or search instead."
                )
        return sum(
            math.prod(len(axis.values) for axis in self.axes_of(method)) for method in self.methods
        )

    def grid(self) -> list[Candidate]:
        """Return every combination of the axes' values, method by method.

        Raises: SettingsError for a range without a count, or values that a method refuses.
        """
        self.grid_size()
        found = []
        for method in self.methods:
            axes = self.axes_of(method)
            names = [axis.name for axis in axes]
            for chosen in product(*(axis.values for axis in axes)):
                found.append(self.candidate(method, dict(zip(names, chosen, strict=True))))
        return found


def _is_weight(key: str) -> bool:
    return key.startswith((f"{WEIGHT}.", f"{RAMP}."))


def weights_of(values: Mapping[str, Any]) -> dict[str, float | tuple[float, float]]:
    """Return the weights by agent for the values of axes; for a ramp both ends."""
    found: dict[str, float | tuple[float, float]] = {}
    for key in filter(_is_weight, values):
        head, _, name = key.partition(".")
        if head == WEIGHT:
            found[name] = values[key]
        else:
            agent = name.rpartition(".")[0]
            first, last = (values[f"{RAMP}.{agent}.{end}"] for end in ENDS)
            found[agent] = first if first == last else (first, last)
    return found


def setting_label(method: str, values: Mapping[str, Any], digits: int = 4) -> str:
    """Return "ram+ (r 0.1, coding x 0.5 to 1)": the method and the varied values."""

    def text(value: Any) -> str:
        return shown_value(value, digits)

    # A scale that was left out.
    left_out = {"scale": "1/N"} if values.get("scale", 1) is None else {}
    own = {k: value for k, value in {**values, **left_out}.items() if not _is_weight(k)}
    shown = [f"{k} {text(value)}" for k, value in own.items()]
    for agent, weight in weights_of(values).items():
        ends = weight if isinstance(weight, tuple) else (weight,)
        shown.append(f"{agent} x {' to '.join(map(text, ends))}")
    return f"{method} ({', '.join(shown)})" if shown else method


def shown_value(value: Any, digits: int = 4) -> str:
    """Return a setting's value as text; digits: of a number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.{digits}g}" if is_number else str(value)
