"""A recipe: everything that decides a merge, as one YAML file, validated once.

    base: Qwen/Qwen2.5-7B-Instruct
    agents:
      coding: Gen-Verse/ReasonFlux-Coder-7B
      memory: ./models/memory-agent
    method: ram+
    settings: {epsilon: 1e-5, r: 0.1, alpha: 2.0}

A recipe made or loaded here names a method that exists and holds all of its settings, checked by
the method's own model.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ram_studio.algorithm.methods import make_settings
from ram_studio.checkpoints.fit.compatibility import (
    ExtraPolicy,
    FitKeywords,
    MissingPolicy,
    RowsPolicy,
)
from ram_studio.checkpoints.read.describe import BASE_NAME, printable
from ram_studio.checkpoints.record.strict_yaml import dump_yaml, parse_yaml
from ram_studio.errors import SettingsError, did_you_mean, told_as

MAX_RECIPE_BYTES = 64_000

# Pattern names join agents with "+" and lists of agents with ",": neither may be in a name.
_AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_agent_name(name: str) -> str:
    """Return `name` if an agent may be called that.

    Raises: ValueError when it is not 1 to 64 of A-Z a-z 0-9 . _ - (starting with a letter or a
    digit), or is "base".
    """
    if not _AGENT_NAME.fullmatch(name):
        raise ValueError(
            f"agent name {printable(name, 60)!r}: expected 1 to 64 letters, digits, dots, dashes "
            "or underscores, starting with a letter or a digit"
        )
    if name == BASE_NAME:
        raise ValueError('agent name "base" is kept for the base model')
    return name


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity: the provenance could not keep it.
    for key, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{printable(key, 60)} is {value}; expected a finite number")
    return settings


AgentName = Annotated[str, AfterValidator(check_agent_name)]
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4096)]


class Recipe(BaseModel):
    """One merge.

    Attributes:
        base: folder or Hub id `owner/name[@revision]`.
        agents: sources by name, in the order that all results keep.
        method: a method's name.
        settings: the method's own settings (epsilon, r, alpha, scope, shared, ... for RAM).
        dtype: of the merged tensors; None takes the base's.
        rounding: how float32 results are rounded to it.
        seed: of everything random, 0 to 2**64 - 1.
        missing, extra, rows: what to do where an agent does not fit, see `check_compatibility`.
        other_base: whether to merge agents of which nearly all elements differ from the base.
        tokenizer: "base", or the agent whose tokenizer is copied.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    base: Source
    agents: Annotated[dict[AgentName, Source], Field(min_length=1)]
    method: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9+-]{0,40}$")] = "ram+"
    settings: Annotated[dict[str, Any], AfterValidator(_check_settings)] = Field(
        default_factory=dict
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: Annotated[int, Field(ge=0, lt=2**64, strict=True)] = 0
    missing: MissingPolicy = "error"
    extra: ExtraPolicy = "error"
    rows: RowsPolicy = "exact"
    other_base: Literal["refuse", "accept"] = "refuse"
    tokenizer: str = BASE_NAME

    @property
    def fit(self) -> FitKeywords:
        return {"missing": self.missing, "extra": self.extra, "rows": self.rows}

    @model_validator(mode="after")
    def _tokenizer_is_one_of_us(self) -> Recipe:
        if self.tokenizer != BASE_NAME and self.tokenizer not in self.agents:
            raise ValueError(
                f"tokenizer is {printable(self.tokenizer, 60)!r}; expected {BASE_NAME!r} or the "
                "name of an agent"
            )
        return self


def make_recipe(values: Mapping[str, Any], *, where: str = "recipe") -> Recipe:
    """Return the validated recipe of these values, its settings completed by the method's defaults.

    where: the start of messages (a file name).

    Raises: SettingsError, one line that names the field or setting and what is allowed.
    """
    try:
        recipe = Recipe.model_validate(dict(values))
        settings = make_settings(recipe.method, recipe.settings).model_dump(mode="json")
    except ValidationError as error:
        raise SettingsError(f"{where}: {describe_validation(error, Recipe)}") from error
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
    """Return a pydantic error as one line: the first three fields, and how many there are more.

    model: what was validated; the message for a field that it lacks then names those it has.
    """
    lines = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = "there is no such field"
            if model is not None and len(problem["loc"]) == 1:
                known = list(model.model_fields)
                message += f"{did_you_mean(field, known)} (there are {', '.join(known)})"
        elif problem["type"] == "missing":
            message = "is required"
        lines.append(f"{printable(field, 80)}: {printable(message, 300)}" if field else message)
    shown = "; ".join(lines[:3])
    return shown if len(lines) <= 3 else f"{shown}; and {len(lines) - 3} more"


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe file; settings that it does not give are at their defaults.

    A source that is a path (`./x`, `../x`, `x/y`) to something beside the recipe becomes that
    place, absolute, so that the recipe means the same in every working directory; any other stays
    as written.

    Raises: SettingsError, one line that names the file and the field (or the YAML line).
    """
    path = Path(path)
    where = printable(path)
    with told_as(SettingsError, f"{where} cannot be read"), open(path, "rb") as file:
        data = file.read(MAX_RECIPE_BYTES + 1)
    if len(data) > MAX_RECIPE_BYTES:
        raise SettingsError(f"{where} is larger than {MAX_RECIPE_BYTES} bytes; not a recipe.")
    values = parse_yaml(data, where)
    for field in ("base", "agents"):
        if field in values:
            values[field] = _beside(values[field], path.parent)
    return make_recipe(values, where=where)


def _beside(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: _beside(source, folder) for name, source in value.items()}
    # A bare name is left to whoever reads it: only what has a slash is written as a path.
    if isinstance(value, str) and "/" in value and "\0" not in value:
        with contextlib.suppress(OSError):  # a name too long for a path is none
            if not os.path.isabs(value) and (folder / value).exists():
                return os.path.abspath(folder / value)
    return value


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML text that `load_recipe` reads back to an equal recipe.

    Fields at their default are written too: a recipe keeps its meaning when defaults change.
    """
    values = {k: v for k, v in recipe.model_dump(mode="json").items() if v is not None}
    return dump_yaml(values)


def dump_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe to a YAML file.

    Raises: SettingsError when the file cannot be written.
    """
    with told_as(SettingsError, f"{printable(path)} cannot be written"):
        Path(path).write_text(recipe_yaml(recipe), encoding="utf-8")
