"""mergekit's YAML from recipes, where mergekit can express the same merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ram_studio.algorithm.methods import make_settings
from ram_studio.checkpoints.read.describe import BASE_NAME
from ram_studio.checkpoints.record.filters import GROUPS
from ram_studio.checkpoints.record.mergekit.importing import TIES_DIFFER
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.record.strict_yaml import dump_yaml
from ram_studio.errors import SettingsError

_WEIGHTED = ("linear", "slerp", "task-arithmetic", "ties", "dare-ta", "dare-ties")
_UNKNOWN = ("missing", "extra", "rows", "names", "experts_packing", "stop_tokens")
"""Fields of a recipe without a counterpart in mergekit's YAML."""


def export_mergekit(recipe: Recipe) -> tuple[str, list[str]]:
    """Return mergekit's YAML for a recipe, and sentences on differences.

    Raises: SettingsError for recipes that mergekit cannot express.
    """
    settings = make_settings(recipe.method, recipe.settings).model_dump()
    warnings: list[str] = []
    method, shared, own = _export_method(recipe, settings, warnings)
    if recipe.dtype is None:
        warnings.append("The base's dtype is not known here: mergekit will write float32.")
    if recipe.rounding == "stochastic":
        warnings.append("mergekit rounds to nearest; stochastic rounding is lost.")
    fields = Recipe.model_fields
    if lost := [name for name in _UNKNOWN if getattr(recipe, name) != fields[name].default]:
        warnings.append(f"mergekit has no counterpart of {', '.join(lost)}: left out.")
    models = [
        {"model": source, **({"parameters": own[name]} if own.get(name) else {})}
        for name, source in recipe.agents.items()
    ]
    if method in ("slerp", "linear"):  # mergekit adds the base itself, but without a weight
        weight = {"parameters": {"weight": settings["base_weight"]}} if method == "linear" else {}
        models.insert(0, {"model": recipe.base, **weight})
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


_Exported = tuple[str, dict[str, Any], dict[str, dict[str, Any]]]


def _export_method(recipe: Recipe, s: dict[str, Any], warnings: list[str]) -> _Exported:
    """Return mergekit's method, its shared parameters and those of each model."""
    method = recipe.method
    if method not in _WEIGHTED and (recipe.weights or recipe.filters):
        raise SettingsError(
            f"mergekit's counterpart of {method} takes no weights and no filters. Take them out of "
            f"the recipe, or choose one of {', '.join(_WEIGHTED)}."
        )
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
    if method == "model-stock":
        return "model_stock", {}, {}
    if method == "sce":
        if s["scale"] != 1:
            raise SettingsError("mergekit's sce has no scale; it must be 1.")
        return "sce", {"select_topk": s["select"]}, {}
    if method == "slerp":
        own = _of_agents(recipe, "weights", "t", s["t"])
        return "slerp", next(iter(own.values())), {}
    if method == "linear":
        if s["decay"] != 1:
            raise SettingsError("mergekit has no decay; give the weights themselves.")
        return "linear", {"normalize": s["normalize"]}, _of_agents(recipe, "weights", "weight", 1.0)
    if method == "task-arithmetic":
        own, scale = _of_agents(recipe, "weights", "weight", 1.0), _scale(recipe, s)
        factor = {"lambda": scale} if scale != 1 else {}
        return "task_arithmetic", {"normalize": s["normalize"], **factor}, own
    if method == "ties":
        warnings.append(TIES_DIFFER)
        shared = {"normalize": s["normalize"], "rescale": False, "lambda": s["scale"]}
        own = _of_agents(recipe, "weights", "weight", 1.0)
        densities = _of_agents(recipe, "densities", "density", s["density"])
        return "ties", shared, _join_parameters(own, densities)
    if method not in ("dare-ta", "dare-ties"):
        raise SettingsError(f"mergekit has no counterpart of {method}.")
    return _dare(recipe, s, warnings)


def _scale(recipe: Recipe, s: dict[str, Any]) -> float:
    """Return a sum's factor; for its default see ``task_arithmetic.scale_of``."""
    if s["scale"] is not None:
        return float(s["scale"])
    return 1.0 if s["normalize"] else 1.0 / len(recipe.agents)


def _dare(recipe: Recipe, s: dict[str, Any], warnings: list[str]) -> _Exported:
    density, method = 1.0 - s["drop_rate"], recipe.method
    if recipe.densities or any(own.densities for own in recipe.filters):
        raise SettingsError(
            "densities differ by agent; mergekit divides what DARE leaves by another number."
        )
    densities = {name: {"density": density} for name in recipe.agents}
    warnings.append("mergekit draws other elements to drop, from a seed of its own.")
    shared = {"normalize": s["normalize"], "rescale": False, "lambda": _scale(recipe, s) / density}
    own = _of_agents(recipe, "weights", "weight", 1.0)
    if method == "dare-ta":
        return "dare_linear", shared, _join_parameters(own, densities)
    if s["density"] != 1:
        raise SettingsError("mergekit's dare_ties does not trim by magnitude; density must be 1.")
    warnings[:] = [w for w in warnings if "threshold" not in w]
    return "dare_ties", shared, _join_parameters(own, densities)


def _join_parameters(*parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {k: v for own in parts for k, v in own[name].items()} for name in parts[0]}


def _of_agents(recipe: Recipe, field: str, name: str, factor: float) -> dict[str, dict[str, Any]]:
    """Return each agent's parameter of a name, by the recipe and its filters.

    field: of the recipe; factor: multiplies weights, or is the density of an agent without one.

    Raises: SettingsError for filters that mergekit cannot express.
    """

    usual, by = (factor, 1.0) if field == "densities" else (1.0, factor)

    def scale_values(value: Any) -> Any:
        return [by * one for one in value] if isinstance(value, tuple) else by * value

    found = {}
    for agent in recipe.agents:
        default = getattr(recipe, field).get(agent, usual)
        conditions = []
        for i, own in enumerate(recipe.filters, start=1):
            text = own.match[0].strip("*") if len(own.match) == 1 else ""
            is_part = own.match == (f"*{text}*",) and not set(text) & set("*?[") and text
            can_keep = own.keep == BASE_NAME and recipe.method != "linear"
            if not is_part or text in GROUPS or own.layers or own.settings:
                raise SettingsError(
                    f"Filter {i} ({own.title}) cannot be written for mergekit: it takes weights "
                    "and densities by a part of a tensor's name, as *mlp*."
                )
            if own.keep is not None and not can_keep:
                raise SettingsError(f"Filter {i}: mergekit cannot keep {own.keep} in some tensors.")
            value = getattr(own, field).get(agent, default)
            is_base = own.keep is not None and field == "weights"
            conditions.append({"filter": text, "value": 0.0 if is_base else scale_values(value)})
        every = (
            [*conditions, {"value": scale_values(default)}] if conditions else scale_values(default)
        )
        found[agent] = {name: every}
    return found
