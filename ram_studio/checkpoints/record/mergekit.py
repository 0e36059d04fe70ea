"""Recipes from and to mergekit's YAML, for the methods that both programs have.

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

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ram_studio.algorithm.methods import make_settings
from ram_studio.checkpoints.read.describe import BASE_NAME, printable
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.checkpoints.record.strict_yaml import dump_yaml, parse_yaml
from ram_studio.checkpoints.write.sidecars import OUTPUT_DTYPES
from ram_studio.errors import SettingsError, did_you_mean

_TIES_DIFFER = (
    "Equal magnitudes at the threshold are all kept here, some of them in mergekit; where task "
    "vectors cancel exactly the base stays here, mergekit takes the positive ones. Among agents in "
    "bfloat16, whose changes have few different sizes, a tenth of all elements can differ."
)


@dataclass(frozen=True)
class _Counterpart:
    """Our method for one of mergekit's: its name, mergekit's defaults, parameters -> settings.

    settings takes the parameters, the number of agents, and a list to add warnings to.
    """

    name: str
    settings: Callable[[Mapping[str, Any], int, list[str]], dict[str, Any]]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def import_mergekit(text: str, *, where: str = "mergekit YAML") -> tuple[Recipe, list[str]]:
    """Return the recipe that a mergekit configuration describes, and sentences on what differs.

    text: the YAML; where: the start of messages (a file name).

    Raises: SettingsError, one line, for anything that RAM Studio cannot do the same way.
    """
    config = parse_yaml(text.encode(), where)
    try:
        return _import(config)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _import(config: dict[str, Any]) -> tuple[Recipe, list[str]]:
    for key in ("slices", "modules", "tokenizer"):
        if config.get(key):
            raise SettingsError(
                f"`{key}` is given; only whole models merged as they are can be imported. "
                "Write it with `models` and `tokenizer_source`."
            )
    method = config.get("merge_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise SettingsError(
            f"merge_method is {printable(method, 40)!r}; can be imported: {', '.join(_METHODS)}"
            f"{did_you_mean(method, _METHODS)}."
        )
    ours = _METHODS[method]
    base = config.get("base_model")
    if not isinstance(base, str):
        raise SettingsError(f"base_model is {printable(base, 80)!r}; expected one model.")
    warnings: list[str] = []
    agents, parameters = _models(config, base, ours.defaults)
    values = {
        "base": base,
        "agents": agents,
        "method": ours.name,
        "settings": ours.settings(parameters, len(agents), warnings),
        "dtype": _dtype(config, warnings),
        "tokenizer": _tokenizer(config, base, agents, warnings),
    }
    return make_recipe(values), warnings


def _models(
    config: Mapping[str, Any], base: str, defaults: Mapping[str, Any]
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
        found.append({**defaults, **shared, **own})
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
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(n for n in names if n != BASE_NAME and n not in taken)


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


def _from_ties(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    if p["rescale"]:
        raise SettingsError("ties with rescale has no counterpart here; set rescale: false.")
    if "density" not in p:
        warnings.append("density is not given: mergekit then trims nothing (TIES uses 0.2).")
    warnings.append(_TIES_DIFFER)
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


def _from_dare_ties(p: Mapping[str, Any], agents: int, warnings: list[str]) -> dict[str, Any]:
    warnings.append("mergekit's dare_ties does not trim by magnitude: density 1 here.")
    return {**_dropping(p, _elected_scale(p, "dare_ties"), warnings), "density": 1.0}


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


_DARE = {"normalize": False, "rescale": True}
_METHODS = {
    "task_arithmetic": _Counterpart(
        "task-arithmetic", lambda p, n, warnings: {"scale": _scale(p, n)}, {"normalize": False}
    ),
    "ties": _Counterpart("ties", _from_ties, {"normalize": True, "rescale": False}),
    "dare_linear": _Counterpart(
        "dare-ta", lambda p, n, warnings: _dropping(p, _scale(p, n), warnings), _DARE
    ),
    "dare_ties": _Counterpart("dare-ties", _from_dare_ties, _DARE),
    "ram": _Counterpart("ram", lambda p, n, warnings: {"epsilon": _number(p, "epsilon", 1e-5)}),
    "ramplus_tl": _Counterpart("ram+", _from_ramplus_tl),
}


def _dtype(config: Mapping[str, Any], warnings: list[str]) -> str | None:
    computed, stored = config.get("dtype"), config.get("out_dtype")
    for name, value in (("dtype", computed), ("out_dtype", stored)):
        if value not in (None, *OUTPUT_DTYPES):
            raise SettingsError(
                f"{name} is {printable(value, 40)!r}; it must be one of {', '.join(OUTPUT_DTYPES)}."
            )
    if computed != "float32":
        warnings.append(
            f"mergekit computes in {computed or 'the dtype the models are stored in'}, which "
            "rounds task vectors and sums; RAM Studio computes with at least twice the output's "
            "digits and rounds once."
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


def export_mergekit(recipe: Recipe) -> tuple[str, list[str]]:
    """Return mergekit's YAML for a recipe, and sentences on what differs.

    Raises: SettingsError for what mergekit cannot do.
    """
    settings = make_settings(recipe.method, recipe.settings).model_dump()
    warnings: list[str] = []
    method, shared, own = _exported(recipe.method, settings, len(recipe.agents), warnings)
    if recipe.dtype is None:
        warnings.append("The base's dtype is not known here: mergekit will write float32.")
    if recipe.rounding == "stochastic":
        warnings.append("mergekit rounds to nearest; stochastic rounding is lost.")
    if (recipe.missing, recipe.extra, recipe.rows) != ("error", "error", "exact"):
        warnings.append("missing, extra and rows have no counterpart and are left out.")
    models = [
        {"model": source, **({"parameters": own} if own else {})}
        for source in recipe.agents.values()
    ]
    chosen = recipe.tokenizer
    config = {
        "merge_method": method,
        "base_model": recipe.base,
        "models": models,
        **({"parameters": shared} if shared else {}),
        "dtype": "float32",
        **({"out_dtype": recipe.dtype} if recipe.dtype else {}),
        "tokenizer_source": "base" if chosen == BASE_NAME else recipe.agents[chosen],
    }
    return dump_yaml(config), warnings


def _exported(
    method: str, s: dict[str, Any], agents: int, warnings: list[str]
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return mergekit's method, its shared parameters and those of each model."""
    if method in ("ram", "ram+") and s["shared"] != "mean":
        raise SettingsError("mergekit averages the shared region; shared must be mean.")
    if s.get("scope") in ("global", "layer"):
        what = "rho" if method == "ram+" else "the threshold of trimming"
        warnings.append(
            f"mergekit looks for {what} in each tensor; this recipe's scope is {s['scope']}, so "
            "the results will differ."
        )
    if method == "ram":
        return "ram", {"epsilon": s["epsilon"]}, {}
    if method == "ram+":
        return "ramplus_tl", {k: s[k] for k in ("r", "alpha", "epsilon")}, {}
    if method == "task-arithmetic":
        scale = 1.0 / agents if s["scale"] is None else s["scale"]
        return "task_arithmetic", {"normalize": False}, {"weight": scale}
    if method == "ties":
        warnings.append(_TIES_DIFFER)
        shared = {"normalize": True, "rescale": False, "lambda": s["scale"]}
        return "ties", shared, {"weight": 1.0, "density": s["density"]}
    if method not in ("dare-ta", "dare-ties"):
        raise SettingsError(f"mergekit has no counterpart of {method}.")
    kept = 1.0 - s["drop_rate"]
    warnings.append("mergekit draws other elements to drop, from a seed of its own.")
    if method == "dare-ta":
        scale = 1.0 / agents if s["scale"] is None else s["scale"]
        own = {"weight": scale / kept, "density": kept}
        return "dare_linear", {"normalize": False, "rescale": False}, own
    if s["density"] != 1:
        raise SettingsError("mergekit's dare_ties does not trim by magnitude; density must be 1.")
    warnings[:] = [w for w in warnings if "threshold" not in w]
    shared = {"normalize": True, "rescale": False, "lambda": s["scale"] / kept}
    return "dare_ties", shared, {"weight": 1.0, "density": kept}
