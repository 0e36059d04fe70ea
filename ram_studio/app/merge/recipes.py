"""Recipes of merges: for the loaded models, as YAML, and from an upload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import OWN
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.load.sources import public_name
from ram_studio.app.merge.controls import OFFERED
from ram_studio.app.numbers import setting_text
from ram_studio.app.session.jobs import NEED_LOAD
from ram_studio.app.session.session import LoadedModels
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.fit.compatibility import FitKeywords
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.provenance import read_recipe
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe, recipe_yaml
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.report.canvas_page import RANGES

_LEFT_AS_LOADED = tuple(FitKeywords.__annotations__)


def recipe_from(
    loaded: LoadedModels,
    method: str,
    settings: Mapping[str, Any],
    *,
    dtype: str | None = None,
    rounding: str = "nearest",
    seed: float = 0,
    other_base: bool = False,
    weights: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """Return the validated recipe of a merge of the loaded models.

    weights: as in a recipe.

    Raises: SettingsError that names the field.
    """
    try:
        whole = int(seed)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"The seed is {seed!r}; it must be a whole number.") from None
    values = {
        "base": loaded.base,
        "agents": dict(loaded.agents),
        "method": method,
        "settings": dict(settings),
        "dtype": dtype or None,
        "rounding": rounding,
        "seed": whole,
        "other_base": "accept" if other_base else "refuse",
        "weights": dict(weights),
        **loaded.options,
    }
    if method in OWN:
        raise SettingsError(
            f"The method {method!r} is your own; only the command line and Python run it."
        )
    return make_recipe(values, where="The merge")


def recipe_text(recipe: Recipe, settings: Settings) -> str:
    """Return a recipe as YAML; on a shared server without paths of this machine."""
    agents = {name: public_name(source, settings) for name, source in recipe.agents.items()}
    named = {"base": public_name(recipe.base, settings), "agents": agents}
    return recipe_yaml(recipe.model_copy(update=named))


class UploadedRecipe(NamedTuple):
    """An uploaded recipe, for the forms.

    name: of its file. tuned: its settings for Tune, see ``TuneComponent.update``.
    """

    name: str
    recipe: Recipe
    tuned: Mapping[str, Any]
    notes: list[str]


def read_upload(path: str, loaded: LoadedModels | None) -> UploadedRecipe:
    """Return an uploaded recipe for the loaded agents, with notes on differences.

    Raises: SettingsError when it cannot be used here, without the upload's folder.
    """
    if loaded is None:
        raise SettingsError(NEED_LOAD)
    name = printable(Path(path).name, 80)
    try:
        recipe = read_recipe(path)
    except RamStudioError as error:
        # The upload's folder is not shown to users.
        raise SettingsError(str(error).replace(printable(path), name)) from error
    if set(recipe.agents) != set(loaded.agents):
        theirs, ours = ", ".join(recipe.agents), ", ".join(loaded.agents)
        raise SettingsError(
            f"{name} merges {theirs}; loaded here: {ours}. Load agents with those names."
        )
    if recipe.method not in OFFERED:
        raise SettingsError(
            f"{name} uses the method {recipe.method}, which needs more files; run it from "
            "the command line."
        )
    tuned, notes = _for_tune(recipe)
    left_out = [
        key
        for key in _LEFT_AS_LOADED
        if getattr(recipe, key) != loaded.options.get(key, Recipe.model_fields[key].default)
    ]
    left_out += [key for key in ("tokenizer", "stop_tokens") if getattr(recipe, key) != "base"]
    if own := [key for key in ("densities", "filters") if getattr(recipe, key)]:
        notes.append(f"Not applied: {', '.join(own)}. Use them from the command line.")
    if left_out:
        notes.append(f"Not applied: {', '.join(left_out)} (set in Load).")
    return UploadedRecipe(name, recipe, tuned, notes)


def _for_tune(recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe's settings for Tune, by name, and a note on each number it cannot show."""
    own, used = recipe.settings, dict[str, float]()
    tuned: dict[str, Any] = {"weights": recipe.model_dump()["weights"]}
    if recipe.method in RULES:
        tuned["method"] = recipe.method
    if "epsilon" in own:
        tuned["point"] = snap(own["epsilon"])
        used["epsilon"] = EPSILON_GRID[tuned["point"]]
    for name in ("r", "alpha"):
        if own.get(name) is not None:
            tuned[name] = used[name] = min(own[name], RANGES[name])
    return tuned, [
        f"{setting_text(name)} {own[name]:g} is not on the slider; the nearest, {value:.4g}, is "
        "set."
        for name, value in used.items()
        if value != own[name]
    ]
