"""A recipe: everything that determines a merge, as one YAML file, validated once.

    base: Qwen/Qwen2.5-7B-Instruct
    agents:
      coding: Gen-Verse/ReasonFlux-Coder-7B
      memory: ./models/memory-agent
    method: ram+
    settings: {epsilon: 1e-5, r: 0.1, alpha: 2.0}
    weights: {memory: 0.7}

Values of single tensors (weights over layers, filters) are in ``filters``, and resolved only by
``choices``. A recipe made or loaded here has an existing method and all of its settings, checked by
the method's own model.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)

from ram_studio.algorithm.methods import METHODS, NAMED, get_method, make_settings
from ram_studio.checkpoints.fit.compatibility import (
    ExtraPolicy,
    FitKeywords,
    MissingPolicy,
    NamesPolicy,
    RowsPolicy,
)
from ram_studio.checkpoints.read.describe import BASE_NAME, printable
from ram_studio.checkpoints.record.filters import (
    Density,
    Filter,
    Settings,
    TensorChoice,
    Weight,
    choose,
)
from ram_studio.checkpoints.record.strict_yaml import dump_yaml, parse_yaml
from ram_studio.checkpoints.virtual.expert_adapters import Packing
from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import SettingsError, did_you_mean, raise_as

MAX_RECIPE_BYTES = 64_000

# Pattern names join agents with "+" and lists of agents with ",": neither may be in a name.
_AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_agent_name(name: str) -> str:
    """Return `name` if it is valid for an agent.

    Raises: ValueError when it is not 1 to 64 of A-Z a-z 0-9 . _ - (starting with a letter or a
    digit), or is "base".
    """
    if not _AGENT_NAME.fullmatch(name):
        raise ValueError(
            f"agent name {printable(name, 60)!r}: expected 1 to 64 letters, digits, dots, dashes "
            "or underscores, starting with a letter or a digit"
        )
    if name == BASE_NAME:
        raise ValueError('agent name "base": this name is reserved for the base model')
    return name


AgentName = Annotated[str, AfterValidator(check_agent_name)]
Packings = Annotated[
    Annotated[Packing, Tag("all")] | Annotated[dict[AgentName, Packing], Tag("agents")],
    Discriminator(lambda given: "agents" if isinstance(given, dict) else "all"),
]
"""One for all agents, or by agent."""
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4096)]


MethodName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9+-]{0,40}$"),
    AfterValidator(lambda name: NAMED.get(name, name)),
]


class Recipe(BaseModel):
    """One merge.

    Attributes:
        base: folder or Hub id `owner/name[@revision]`.
        agents: sources by name, in the order of all results.
        method: a method's name; a soup is stored as linear.
        settings: the method's own settings (epsilon, r, alpha, scope, shared, ... for RAM).
        weights: factors on agents' tau, 1 where left out; a list runs over layers.
        densities: of agents, instead of the method's density (or 1 - drop_rate of DARE).
        filters: other values for some tensors; the first that matches a tensor applies.
        dtype: of the merged tensors; None takes the base's.
        rounding: how float32 results are rounded to it.
        seed: of everything random, 0 to 2**64 - 1.
        missing, extra, rows, names, experts_packing: policies for agents that do not fit, see
            `check_compatibility`; experts_packing also by agent.
        other_base: whether to merge agents whose elements nearly all differ from the base.
        tokenizer: "base", or the agent whose tokenizer is copied.
        stop_tokens: tokens that end an answer: the base's, or the agents' too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    base: Source
    agents: Annotated[dict[AgentName, Source], Field(min_length=1)]
    method: MethodName = "ram+"
    settings: Settings = Field(default_factory=dict)
    weights: dict[AgentName, Weight] = Field(default_factory=dict)
    densities: dict[AgentName, Density] = Field(default_factory=dict)
    filters: Annotated[tuple[Filter, ...], Field(max_length=100)] = ()
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: Annotated[int, Field(ge=0, lt=2**64, strict=True)] = 0
    missing: MissingPolicy = "error"
    extra: ExtraPolicy = "error"
    rows: RowsPolicy = "exact"
    names: NamesPolicy = "exact"
    experts_packing: Packings = "ask"
    other_base: Literal["refuse", "accept"] = "refuse"
    tokenizer: str = BASE_NAME
    stop_tokens: Literal["base", "union"] = "base"

    @property
    def fit(self) -> FitKeywords:
        return {key: getattr(self, key) for key in FitKeywords.__annotations__}  # type: ignore[return-value]

    @property
    def every_settings(self) -> list[dict[str, Any]]:
        """The method's settings: the recipe's, then those of each filter."""
        return [self.settings, *({**self.settings, **own.settings} for own in self.filters)]

    @model_validator(mode="after")
    def _tokenizer_is_one_of_us(self) -> Recipe:
        if self.tokenizer != BASE_NAME and self.tokenizer not in self.agents:
            raise ValueError(
                f"tokenizer is {printable(self.tokenizer, 60)!r}; expected {BASE_NAME!r} or the "
                "name of an agent"
            )
        return self

    @model_validator(mode="after")
    def _weighted_are_agents(self) -> Recipe:
        places = [("weights", [*self.weights]), ("densities", [*self.densities])]
        if isinstance(self.experts_packing, dict):
            places.append(("experts_packing", [*self.experts_packing]))
        for i, own in enumerate(self.filters, start=1):
            places.append((f"filter {i}", [*own.weights, *own.densities]))
            if own.keep not in (None, BASE_NAME):
                places.append((f"filter {i}, keep", [own.keep or ""]))
        for where, given in places:
            if unknown := [name for name in given if name not in self.agents]:
                raise ValueError(
                    f"{where}: no agent is named {printable(unknown[0], 60)!r}; the agents are "
                    f"{', '.join(self.agents)}"
                )
        return self

    def choices(self, names: Sequence[str]) -> list[TensorChoice] | None:
        """Return the values for each tensor of a model; None for a recipe with settings only.

        Args: names: of all merged tensors, a tied head by its embedding's.

        Raises: SettingsError for a filter that matches no tensor.
        """
        if not (self.weights or self.densities or self.filters):
            return None
        return choose(names, tuple(self.agents), self.filters, self.weights, self.densities)


_OF_THE_WHOLE = ("files", "examples")
"""Settings that determine what is read besides the model, so no filter can set them."""


def _check_filters(recipe: Recipe) -> None:
    """Check weights, densities and filters by the recipe's method.

    Raises: SettingsError.
    """
    method = get_method(recipe.method)
    of_agents: list[Recipe | Filter] = [recipe, *recipe.filters]
    if any(own.weights for own in of_agents) and not method.takes_weights:
        raise SettingsError(f"{recipe.method} takes no weights; leave them out.")
    has_density = {"density", "drop_rate"} & set(method.settings.model_fields)
    if any(own.densities for own in of_agents) and not has_density:
        raise SettingsError(f"{recipe.method} has no density; leave densities out.")
    for i, own in enumerate(recipe.filters, start=1):
        if fixed := [key for key in own.settings if key in _OF_THE_WHOLE]:
            raise SettingsError(
                f"Filter {i} sets {fixed[0]}, which no filter can set; set it in the recipe."
            )
        make_settings(recipe.method, recipe.every_settings[i])


def make_recipe(values: Mapping[str, Any], *, where: str = "recipe") -> Recipe:
    """Return the validated recipe of these values, its settings completed by the method's defaults.

    where: the start of messages (a file name).

    Raises: SettingsError, one line with the field or setting and its allowed values.
    """
    try:
        recipe = Recipe.model_validate(dict(values))
        settings = make_settings(recipe.method, recipe.settings).model_dump(mode="json")
        _check_filters(recipe)
    except ValidationError as error:
        problem = describe_validation(error, Recipe)
        method = values.get("method", "ram+")
        if isinstance(method, str) and method not in METHODS:  # else reported last
            close = did_you_mean(method, METHODS)
            problem = f"no method is named {printable(method, 60)!r}{close}; {problem}"
        raise SettingsError(f"{where}: {problem.removesuffix('.')}.") from error
    except SettingsError as error:
        raise SettingsError(f"{where}: {printable(error, 600)}") from error
    return recipe.model_copy(update={"settings": settings})


def at_places(recipe: Recipe, places: Mapping[str, str]) -> Recipe:
    """Return the recipe with other sources.

    places: where the base ("base") and the agents are, by name; those left out stay.
    """
    agents = {name: places.get(name, source) for name, source in recipe.agents.items()}
    base = places.get(BASE_NAME, recipe.base)
    return recipe.model_copy(update={"base": base, "agents": agents})


def describe_validation(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return a pydantic error as one line: the first three fields, and how many more are wrong.

    model: the validated one; messages on unknown fields then list its fields.
    """
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        field = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = "unknown field"
            if model is not None and len(problem["loc"]) == 1:
                known = list(model.model_fields)
                message += f"{did_you_mean(field, known)} (fields: {', '.join(known)})"
        elif problem["type"] == "missing":
            message = "is required"
        elif problem["type"] == "too_short":
            message = "give at least one"
        elif message.startswith("Input should"):
            # In YAML's terms.
            wanted = message.replace("tuple", "list").replace("dictionary", "mapping")
            message = (
                f"{wanted.removeprefix('Input ')}, not {printable(repr(problem['input']), 60)}"
            )
        lines.append(f"{printable(field, 80)}: {printable(message, 300)}" if field else message)
    shown = "; ".join(lines[:3])
    return shown if len(lines) <= 3 else f"{shown}; and {len(lines) - 3} more"


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe file; missing settings are at their defaults.

    A source that is a path (`./x`, `../x`, `x/y`) relative to the recipe becomes absolute, so that
    the recipe means the same in every working directory; any other stays as written.

    Raises: SettingsError, one line that names the file and the field (or the YAML line).
    """
    path = Path(os.path.expanduser(path))
    where = printable(path)
    if path.is_dir():
        raise SettingsError(
            f"{where} is a folder; give a recipe's file, or the ram_studio.json of a merge."
        )
    with raise_as(SettingsError, f"{where} cannot be read"), open(path, "rb") as file:
        data = file.read(MAX_RECIPE_BYTES + 1)
    if len(data) > MAX_RECIPE_BYTES:
        raise SettingsError(
            f"{where} is larger than {MAX_RECIPE_BYTES} bytes, the most a recipe may take; give a "
            "recipe's file."
        )
    values = parse_yaml(data, where)
    for field in ("base", "agents"):
        if field in values:
            values[field] = _beside(values[field], path.parent)
    return make_recipe(values, where=where)


def _beside(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: _beside(source, folder) for name, source in value.items()}
    # A bare name is not resolved: only a text with a slash is a path.
    if isinstance(value, str) and "/" in value and "\0" not in value:
        with contextlib.suppress(OSError):  # a name too long is not a path
            if not os.path.isabs(value) and (folder / value).exists():
                return os.path.abspath(folder / value)
    return value


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML text that `load_recipe` reads back to an equal recipe.

    Fields at their default are written too: a recipe keeps its meaning when defaults change. Only
    empty fields are left out.
    """
    values = recipe.model_dump(mode="json")
    values["filters"] = [
        own.model_dump(mode="json", exclude_defaults=True) for own in recipe.filters
    ]
    optional = ("weights", "densities", "filters")
    return dump_yaml(
        {k: v for k, v in values.items() if v is not None and (v or k not in optional)}
    )


def dump_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe to a YAML file, atomically.

    Raises: SettingsError when the file cannot be written.
    """
    with raise_as(SettingsError, f"{printable(path)} cannot be written"):
        write_whole(path, recipe_yaml(recipe).encode())
