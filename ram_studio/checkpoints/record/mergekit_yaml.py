"""Recipes from mergekit's YAML, for the methods that both programs have.

What mergekit's keys mean was read off version 0.1.5. Only recipes that mean the same merge on both
sides pass; where they differ in more than rounding or randomness the error says in what, and what a
reader would not expect comes as a warning.

    mergekit            RAM Studio
    ram                 ram
    ramplus_tl          ram+ with scope tensor; its alpha is 0.2 unless given, the paper's is 2.0
    task_arithmetic     task-arithmetic, scale = lambda * weight (lambda / N where it normalizes)
    ties                ties with scope tensor, scale = lambda (it normalizes unless told not to)
    dare_linear         dare-ta, drop_rate = 1 - density
    dare_ties           dare-ties without trimming, only where it normalizes (by default it does
                        not: it then adds the agreeing task vectors up, which is no TIES mean)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ram_studio.checkpoints.read.describe import BASE_NAME, printable
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.checkpoints.record.strict_yaml import parse_yaml
from ram_studio.errors import SettingsError

DTYPES = ("bfloat16", "float16", "float32")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "task_arithmetic": {"normalize": False},
    "ties": {"normalize": True, "rescale": False},
    "dare_linear": {"normalize": False, "rescale": True},
    "dare_ties": {"normalize": False, "rescale": True},
    "ram": {},
    "ramplus_tl": {},
}


@dataclass(frozen=True)
class ImportedRecipe:
    """A recipe read from mergekit's YAML, and sentences on what differs."""

    recipe: Recipe
    warnings: tuple[str, ...]


def import_mergekit(text: str, *, where: str = "mergekit YAML") -> ImportedRecipe:
    """Return the recipe that a mergekit configuration describes.

    text: the YAML; where: the start of messages (a file name).

    Raises: SettingsError, one line, for anything that RAM Studio cannot do the same way.
    """
    config = parse_yaml(text.encode(), where)
    try:
        return _import(config)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _import(config: dict[str, Any]) -> ImportedRecipe:
    for field in ("slices", "modules", "tokenizer"):
        if config.get(field):
            raise SettingsError(
                f"`{field}` is given; only whole models merged as they are can be imported. "
                "Write it with `models` and `tokenizer_source`."
            )
    method = config.get("merge_method")
    if method not in _DEFAULTS:
        raise SettingsError(
            f"merge_method is {printable(method, 40)!r}; can be imported: {', '.join(_DEFAULTS)}."
        )
    base = config.get("base_model")
    if not isinstance(base, str):
        raise SettingsError(f"base_model is {printable(base, 80)!r}; expected one model.")
    warnings: list[str] = []
    agents, parameters = _models(config, base, method)
    settings = _CONVERTERS[method](parameters, len(agents), warnings)
    values = {
        "base": base,
        "agents": agents,
        "method": _OURS[method],
        "settings": settings,
        "dtype": _dtype(config, warnings),
        "tokenizer": _tokenizer(config, base, agents, warnings),
    }

    return ImportedRecipe(make_recipe(values), tuple(warnings))


def _models(
    config: Mapping[str, Any], base: str, method: str
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return agents by name, and the parameters that hold for every one of them."""
    shared = _mapping(config.get("parameters"))
    agents: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    entries = config.get("models") or []
    if not isinstance(entries, list):
        raise SettingsError(f"models is {printable(entries, 80)!r}; expected a list.")
    for entry in entries:
        source = entry.get("model") if isinstance(entry, dict) else entry
        if not isinstance(source, str):
            raise SettingsError(f"a model is {printable(source, 80)!r}; expected its name.")
        if source == base:  # mergekit lets the base stand in the list and passes it over
            continue
        if "+" in source:
            raise SettingsError(f"model {printable(source, 80)} adds a LoRA; merge it in first.")
        agents[_agent_name(source, agents)] = source
        own = _mapping(entry.get("parameters")) if isinstance(entry, dict) else {}
        found.append(_DEFAULTS[method] | shared | own)
    if not agents:
        raise SettingsError("there is no model besides the base; list at least one agent.")
    for parameters in found:
        for name, value in parameters.items():
            if isinstance(value, dict | list):
                raise SettingsError(
                    f"{name} varies over layers or tensors ({printable(value, 60)}); RAM Studio "
                    "takes one value for all."
                )
        different = [k for k in parameters if parameters[k] != found[0].get(k)]
        if different or parameters.keys() != found[0].keys():
            raise SettingsError(
                f"{(different or ['parameters'])[0]} differs from model to model; RAM Studio "
                "takes one value for all agents."
            )
    return agents, found[0]


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"parameters is {printable(value, 80)!r}; expected names and values.")
    return value


def _agent_name(source: str, taken: Mapping[str, str]) -> str:
    stem = PurePosixPath(source.partition("@")[0].rstrip("/")).name
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "agent"
    number = 2
    unique = name if name != BASE_NAME else "base-2"
    while unique in taken:
        unique = f"{name}-{number}"
        number += 1
    return unique


def _number(parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = parameters.get(name, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingsError(
            f"{name} is {printable(value, 40)!r}; expected a number."
            if value is not None
            else f"{name} is missing; mergekit requires it."
        ) from None


def _scale(parameters: Mapping[str, Any], agents: int) -> float:
    """Return what a sum of task vectors is multiplied by."""
    factor = _number(parameters, "lambda", 1.0)
    weight = _number(parameters, "weight")
    return factor / agents if parameters["normalize"] else factor * weight


def _elected_scale(parameters: Mapping[str, Any], method: str) -> float:
    """Return what the mean of the agreeing task vectors is multiplied by."""
    if not parameters["normalize"]:
        raise SettingsError(
            f"{method} with normalize false adds the agreeing task vectors up; RAM Studio takes "
            "their mean, as TIES does. Set normalize: true."
        )
    if _number(parameters, "weight") <= 0:
        raise SettingsError("weight must be above 0: it would turn the elected signs around.")
    return _number(parameters, "lambda", 1.0)


def _from_task_arithmetic(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    return {"scale": _scale(p, agents)}


def _from_ties(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    if p["rescale"]:
        raise SettingsError("ties with rescale has no counterpart here; set rescale: false.")
    if "density" not in p:
        warnings.append("density is not given: mergekit then trims nothing (TIES uses 0.2).")
    warnings.append(
        "Equal magnitudes at the threshold are all kept here, some of them in mergekit; where task "
        "vectors cancel exactly the base stays here, mergekit takes the positive ones."
    )
    scale = _elected_scale(p, "ties")
    return {"density": _number(p, "density", 1.0), "scale": scale, "scope": "tensor"}


def _dropping(p: Mapping[str, Any], scale: float, warnings: list[str]) -> dict[str, Any]:
    kept = _number(p, "density", 1.0)
    if not 0 < kept <= 1:
        raise SettingsError(f"density is {kept:g}; expected more than 0 and at most 1.")
    warnings.append("The elements dropped are drawn otherwise than mergekit draws them.")
    if p["rescale"]:
        warnings.append(
            "mergekit rescales what is left to each tensor's L1 norm, RAM Studio by "
            "1 / (1 - drop_rate), as published: the same on average."
        )
    else:
        scale *= kept  # ours always divides by the share that is kept
    return {"drop_rate": 1.0 - kept, "scale": scale}


def _from_dare_linear(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    return _dropping(p, _scale(p, agents), warnings)


def _from_dare_ties(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    warnings.append("mergekit's dare_ties does not trim by magnitude: density 1 here.")
    return {**_dropping(p, _elected_scale(p, "dare_ties"), warnings), "density": 1.0}


def _from_ram(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    return {"epsilon": _number(p, "epsilon", 1e-5)}


def _from_ramplus_tl(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    if "alpha" not in p:
        warnings.append(
            "alpha is not given: mergekit's default is 0.2, so that lambda is at most 1 + 0.2 r; "
            "the paper uses 2.0."
        )
    warnings.append("ramplus_tl counts rho in each tensor (scope tensor), the paper in the model.")
    return {
        "epsilon": _number(p, "epsilon", 1e-5),
        "r": _number(p, "r", 0.1),
        "alpha": _number(p, "alpha", 0.2),
        "scope": "tensor",
    }


_OURS = {
    "task_arithmetic": "task-arithmetic",
    "ties": "ties",
    "dare_linear": "dare-ta",
    "dare_ties": "dare-ties",
    "ram": "ram",
    "ramplus_tl": "ram+",
}
_CONVERTERS: dict[str, Callable[[Mapping[str, Any], int, list[str]], dict[str, Any]]] = {
    "task_arithmetic": _from_task_arithmetic,
    "ties": _from_ties,
    "dare_linear": _from_dare_linear,
    "dare_ties": _from_dare_ties,
    "ram": _from_ram,
    "ramplus_tl": _from_ramplus_tl,
}


def _dtype(config: Mapping[str, Any], warnings: list[str]) -> str | None:
    computed, stored = config.get("dtype"), config.get("out_dtype")
    for name, value in (("dtype", computed), ("out_dtype", stored)):
        if value not in (None, *DTYPES):
            raise SettingsError(
                f"{name} is {printable(value, 40)!r}; it must be one of {', '.join(DTYPES)}."
            )
    if computed != "float32":
        warnings.append(
            f"mergekit computes in {computed or 'the dtype the models are stored in'}, which "
            "rounds task vectors and sums; RAM Studio computes in float64 and rounds once."
        )
    return stored or computed


def _tokenizer(
    config: Mapping[str, Any], base: str, agents: Mapping[str, str], warnings: list[str]
) -> str:
    if config.get("chat_template"):
        warnings.append("chat_template is left out; the tokenizer's own is kept.")
    source = config.get("tokenizer_source")
    if source in (None, "base", base):
        return BASE_NAME
    for name, path in agents.items():
        if source == path:
            return name
    raise SettingsError(
        f"tokenizer_source is {printable(source, 80)!r}; expected base, or one of the models."
    )
