"""Recipes to mergekit's YAML: the other way round from `mergekit_yaml`, with the same table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ram_studio.algorithm.methods import make_settings
from ram_studio.checkpoints.read.describe import BASE_NAME
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.record.strict_yaml import dump_yaml
from ram_studio.errors import SettingsError


@dataclass(frozen=True)
class ExportedRecipe:
    """mergekit's YAML for a recipe, and sentences on what differs."""

    text: str
    warnings: tuple[str, ...]


def export_mergekit(recipe: Recipe, *, base_dtype: str | None = None) -> ExportedRecipe:
    """Return mergekit's YAML for a recipe.

    base_dtype: the base's dtype, for recipes that leave the output's to it.

    Raises: SettingsError for what mergekit cannot do.
    """
    settings = make_settings(recipe.method, recipe.settings).model_dump()
    warnings: list[str] = []
    method, shared, own = _exported(recipe.method, settings, len(recipe.agents), warnings)
    stored = recipe.dtype or base_dtype
    if stored is None:
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
        **({"out_dtype": stored} if stored else {}),
        "tokenizer_source": "base" if chosen == BASE_NAME else recipe.agents[chosen],
    }

    return ExportedRecipe(dump_yaml(config), tuple(warnings))


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
