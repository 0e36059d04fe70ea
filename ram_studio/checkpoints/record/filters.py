"""Filters of a recipe: the tensors that they match, and the weights of each tensor's agents.

    weights: {coding: 0.7, memory: [0.2, 0.8]}
    filters:
      - match: router
        keep: base
      - match: ["*.mlp.*", "*.self_attn.*"]
        layers: [0, 7]
        weights: {memory: 0.5}
        settings: {r: 0}

The first filter that matches a tensor applies. A list of numbers runs over the layers: the first
number is for the first layer, the last for the last, those between at equal distances, with linear
interpolation (mergekit's gradients). Tensors of no layer (embeddings, towers, the final
norm, the head) have the first number, as in mergekit.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    model_validator,
)

from ram_studio.algorithm import naming
from ram_studio.algorithm.grouping import at_depth, depths_of
from ram_studio.checkpoints.read.describe import printable, quoted, shown_list
from ram_studio.errors import SettingsError

REGEX = "re:"
_NOT_ASCII = re.compile(r"[^\0-\x7f]|\\[uUN]")
"""In a regex: a character outside ASCII, or one spelled by its number or name."""

REGEX_SECONDS = 10
"""Time limit of all regexes of a recipe; 61 of them on 47,000 names take one second."""
_SEARCH = """
import json, re, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
except (ImportError, OSError, ValueError):
    pass  # Windows and some macOS have no such limit
names, patterns = json.load(sys.stdin)
print(flush=True)
for pattern in patterns:
    search = re.compile(pattern).search
    print(json.dumps([name for name in names if search(name)]), flush=True)
"""
_NO_SEARCH = (
    "The process that searches by the recipe's regexes did not start{}. Free memory or processes "
    "on this machine and run again, or use * and ? instead."
)

_Number = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

GROUPS: dict[str, Callable[[str], bool]] = {
    "embeddings": lambda name: naming.layer_of(name) == naming.EMBEDDING,
    "head": lambda name: naming.layer_of(name) == naming.HEAD,
    "final": lambda name: naming.layer_of(name) in (naming.HEAD, naming.OTHER),
    "router": lambda name: naming.expert_of(name) == naming.ROUTER,
    "experts": lambda name: naming.expert_of(name) not in (None, naming.ROUTER),
    "norms": lambda name: re.search(r"norm|(^|\.)ln_", name) is not None,
    "attention": lambda name: re.search(r"attn|attention", name) is not None,
    "vision_tower": lambda name: naming.tower_of(name) == "vision",
    "audio_tower": lambda name: naming.tower_of(name) == "audio",
    "speech_tower": lambda name: naming.tower_of(name) == "speech",
}
"""Groups of tensors by kind, for all naming schemes; not all kinds of norm begin with norm."""


def _check_pattern(pattern: str) -> str:
    if pattern.startswith(REGEX):
        # Python takes milliseconds for each range of such characters; 60 kB of them, half a minute.
        if _NOT_ASCII.search(pattern):
            raise ValueError(
                f"{printable(pattern, 60)!r} is not a regex of ASCII characters; use * for others"
            )
        try:
            re.compile(pattern.removeprefix(REGEX))
        except re.error as error:
            raise ValueError(f"{printable(pattern, 60)!r} is not a regex: {error}") from error
    return pattern


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity: the provenance could not store it.
    for key, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{printable(key, 60)} is {value}; expected a finite number")
    return settings


def _plain_number_error(low: int, high: int) -> WrapValidator:
    """Return a validator with a one-sentence error for a number or a list of them."""

    def check(given: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(given)
        except ValidationError:
            raise ValueError(
                f"{printable(repr(given), 60)} is not a number from {low} to {high}, or a list of "
                f"up to {MOST_NUMBERS:,} such numbers"
            ) from None

    return WrapValidator(check)


MOST_NUMBERS = 1000
_Many = Field(min_length=1, max_length=MOST_NUMBERS)
Weight = Annotated[_Number | Annotated[tuple[_Number, ...], _Many], _plain_number_error(-100, 100)]
Density = Annotated[_Share | Annotated[tuple[_Share, ...], _Many], _plain_number_error(0, 1)]
Settings = Annotated[dict[str, Any], AfterValidator(_check_settings)]
Pattern = Annotated[
    str, StringConstraints(min_length=1, max_length=256), AfterValidator(_check_pattern)
]


class Filter(BaseModel):
    """Other values of a recipe for some tensors.

    Attributes:
        match: patterns with * and ?, names of GROUPS, or regexes after "re:"; one must match.
        layers: the first and the last matching layer, from 0.
        weights, densities: of agents; by default the recipe's.
        settings: of the method, instead of the recipe's.
        keep: "base" or an agent, whose tensors are stored as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: Annotated[tuple[Pattern, ...], Field(max_length=100)] = ()
    layers: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    weights: dict[str, Weight] = Field(default_factory=dict)
    densities: dict[str, Density] = Field(default_factory=dict)
    settings: Settings = Field(default_factory=dict)
    keep: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_pattern_is_a_list(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and isinstance(values.get("match"), str):
            return {**values, "match": (values["match"],)}
        return values

    @model_validator(mode="after")
    def _has_effect(self) -> Filter:
        if not self.match and self.layers is None:
            raise ValueError("a filter needs match, layers or both")
        if self.layers is not None and self.layers[0] > self.layers[1]:
            raise ValueError(f"layers is {list(self.layers)}; the first must not exceed the last")
        own = self.weights or self.densities or self.settings
        if self.keep is not None and own:
            raise ValueError("keep stores tensors as they are; leave out weights and settings")
        if self.keep is None and not own:
            raise ValueError("a filter needs weights, densities, settings or keep")
        return self

    def catches(self, name: str, by_regex: _ByRegex) -> bool:
        """Return whether the filter matches a tensor."""
        if self.layers is not None:
            layer = naming.layer_of(name)
            if not layer.isdigit() or not self.layers[0] <= int(layer) <= self.layers[1]:
                return False
        return not self.match or any(_matches(pattern, name, by_regex) for pattern in self.match)

    @property
    def title(self) -> str:
        """The filter in a few words, for messages."""
        parts = [", ".join(self.match)] if self.match else []
        if self.layers is not None:
            parts.append(f"layers {self.layers[0]} to {self.layers[1]}")
        return ", ".join(parts)

    @property
    def action(self) -> str:
        """The filter's values, in one line: "weights coding=0.7, r 0.3"."""
        does = [f"keep {self.keep}"] if self.keep is not None else []
        if self.weights:
            does.append(f"weights {weights_text(self.weights)}")
        if self.densities:
            does.append(f"densities {weights_text(self.densities)}")
        does += [f"{name.replace('_', ' ')} {value}" for name, value in self.settings.items()]
        return ", ".join(does)


_FILTERS = TypeAdapter(tuple[Filter, ...])


def weights_text(weights: Mapping[str, float | Sequence[float]]) -> str:
    """Return weights or densities in one line: coding=0.7, memory=0.2 0.8."""
    return ", ".join(
        f"{name}={' '.join(f'{x:g}' for x in w) if isinstance(w, Sequence) else f'{w:g}'}"
        for name, w in weights.items()
    )


def choices_text(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return a recipe's weights, densities and filters, a line each, by name where it has them.

    recipe: as stored in a provenance or the list of merges.
    """
    try:
        found = {
            **{name: weights_text(recipe.get(name) or {}) for name in ("weights", "densities")},
            "filters": "; ".join(
                f"{own.title}: {own.action}"
                for own in _FILTERS.validate_python(recipe.get("filters") or ())
            ),
        }
    except (AttributeError, TypeError, ValueError):
        return {"recipe": "cannot be read"}
    return {name: printable(text, 300) for name, text in found.items() if text}


_ByRegex = Mapping[str, Collection[str]]
"""The names that each regex matches."""


def _search(names: Sequence[str], filters: Sequence[Filter]) -> _ByRegex:
    """Return the names that the regexes of filters match.

    A regex of an untrusted recipe can backtrack without end, or fill the memory: a separate
    process searches, with limits of time and memory.

    Raises: SettingsError for a filter whose regex goes beyond them, or where no process
        starts.
    """
    patterns = [*dict.fromkeys(p for f in filters for p in f.match if p.startswith(REGEX))]
    if not patterns:
        return {}
    request = json.dumps([[*names], [pattern.removeprefix(REGEX) for pattern in patterns]])
    try:
        found = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=request.encode(),
            capture_output=True,
            timeout=REGEX_SECONDS,
        ).stdout
    except subprocess.TimeoutExpired as over:
        found = over.stdout or b""
    except OSError as error:
        raise SettingsError(_NO_SEARCH.format(f": {error}")) from error
    if not found:
        raise SettingsError(_NO_SEARCH.format(f" within {REGEX_SECONDS} s"))
    lines = found.split(b"\n")[1:-1]
    if len(lines) < len(patterns):
        late = patterns[len(lines)]
        i = next(i for i, own in enumerate(filters) if late in own.match)
        raise SettingsError(
            f"Filter {i + 1} ({printable(late, 120)}): its regex takes more than {REGEX_SECONDS} s "
            "or 0.5 GB. Use * and ? instead."
        )
    return {p: frozenset(json.loads(line)) for p, line in zip(patterns, lines, strict=True)}


def _matches(pattern: str, name: str, by_regex: _ByRegex) -> bool:
    if pattern.startswith(REGEX):
        return name in by_regex[pattern]
    if pattern in GROUPS:
        return GROUPS[pattern](name)
    return fnmatch.fnmatchcase(name, pattern)


@dataclass(frozen=True)
class TensorChoice:
    """The recipe's values for one tensor.

    filter: the index of the matching one, or None; weights, densities: by agent in the recipe's
    order, None where the recipe has none; NaN is the density of an agent without one;
    settings, keep: of that filter.
    """

    filter: int | None = None
    weights: tuple[float, ...] | None = None
    densities: tuple[float, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    keep: str | None = None


def choose(
    names: Sequence[str],
    agents: Sequence[str],
    filters: Sequence[Filter],
    weights: Mapping[str, Any],
    densities: Mapping[str, Any],
) -> list[TensorChoice]:
    """Return the recipe's values for each tensor of a model.

    Args: names: of all merged tensors; the rest: as in a recipe.

    Raises: SettingsError for a filter that matches no tensor, or whose regex takes too long.
    """
    found = _search(names, filters)
    caught = [
        next((i for i, f in enumerate(filters) if f.catches(name, found)), None) for name in names
    ]
    for i, own in enumerate(filters):
        if i not in caught:
            is_late = any(own.catches(name, found) for name in names)
            raise SettingsError(_nothing(i, own, names, is_late=is_late))
    choices = []
    for depth, at in zip(depths_of(names), caught, strict=True):
        mine = None if at is None else filters[at]

        if mine is not None and mine.keep is not None:
            choices.append(TensorChoice(at, keep=mine.keep))
            continue
        w = {**weights, **(mine.weights if mine else {})}
        d = {**densities, **(mine.densities if mine else {})}
        choices.append(
            TensorChoice(
                at,
                tuple(at_depth(w.get(a, 1.0), depth) for a in agents) if w else None,
                tuple(at_depth(d.get(a, math.nan), depth) for a in agents) if d else None,
                mine.settings if mine else {},
            )
        )
    return choices


def caught_by(
    names: Sequence[str], filters: Sequence[Filter], choices: Sequence[TensorChoice] | None
) -> list[dict[str, Any]]:
    """Return the tensors of each filter, and last all others: ``merge --dry-run --json``.

    Each has "filter" (None for all others), "does" and "tensors", names in file order.
    """
    found: dict[int | None, list[str]] = {i: [] for i in range(len(filters))}
    for name, choice in zip(names, choices or [TensorChoice()] * len(names), strict=True):
        found.setdefault(choice.filter, []).append(name)
    return [
        {
            "filter": None if i is None else filters[i].title,
            "does": {}
            if i is None
            else filters[i].model_dump(
                mode="json", exclude_defaults=True, exclude={"match", "layers"}
            ),
            "tensors": caught,
        }
        for i, caught in found.items()
    ]


def _nothing(i: int, own: Filter, names: Sequence[str], *, is_late: bool) -> str:
    """Return the error text for a filter that applies to no tensor."""
    which = f"Filter {i + 1} ({printable(own.title, 120)})"
    if is_late:
        return f"{which} has no effect: earlier filters match all its tensors. Put it first."
    pattern = max(own.match, key=len, default="")
    text = re.sub(r"[*?]", "", pattern.removeprefix(REGEX)).strip(".")
    near = [name for name in names if text and text in name]
    near = near or difflib.get_close_matches(text, names, n=3, cutoff=0.3) or list(names)
    return (
        f"{which} matches no tensor. The nearest are "
        f"{shown_list([quoted(name) for name in near[:3]])}; groups are {', '.join(GROUPS)}."
    )
