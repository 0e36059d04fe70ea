"""Recipes of merges: made from what is loaded, written as YAML, and taken from an upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import OWN
from ram_studio.app.load.sources import public_name
from ram_studio.app.merge.controls import OFFERED
from ram_studio.app.session.deep_link import ALPHA_MAX, R_MAX
from ram_studio.app.session.jobs import NEED_LOAD
from ram_studio.app.session.session import Loaded
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.fit.compatibility import FitKeywords
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.provenance import read_recipe
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe, recipe_yaml
from ram_studio.errors import RamStudioError, SettingsError

_LEFT_AS_LOADED = tuple(FitKeywords.__annotations__)


def recipe_from(
    loaded: Loaded,
    method: str,
    settings: Mapping[str, Any],
    *,
    dtype: str | None = None,
    rounding: str = "nearest",
    seed: float = 0,
    other_base: bool = False,
    weights: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """Return the validated recipe of a merge of what is loaded.

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
    """Return a recipe as YAML; on a shared server it names no path of this machine."""
    agents = {name: public_name(source, settings) for name, source in recipe.agents.items()}
    named = {"base": public_name(recipe.base, settings), "agents": agents}
    return recipe_yaml(recipe.model_copy(update=named))


@dataclass
class Taken:
    """An uploaded recipe, for the forms.

    name: of its file. point, r, alpha: as the sliders can show them, or None.
    """

    name: str
    recipe: Recipe
    point: int | None = None
    r: float | None = None
    alpha: float | None = None
    notes: list[str] = field(default_factory=list)


def take(path: str, loaded: Loaded | None) -> Taken:
    """Return an uploaded recipe for the agents that are loaded, with notes on what differs.

    Raises: SettingsError when it cannot be used here; its upload folder is not named.
    """
    if loaded is None:
        raise SettingsError(NEED_LOAD)
    name = printable(Path(path).name, 80)
    try:
        recipe = read_recipe(path)
    except RamStudioError as error:
        # The upload's folder is no business of the reader.
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
    taken = _on_sliders(name, recipe)
    left_out = [
        key
        for key in _LEFT_AS_LOADED
        if getattr(recipe, key) != loaded.options.get(key, Recipe.model_fields[key].default)
    ]
    left_out += [key for key in ("tokenizer", "stop_tokens") if getattr(recipe, key) != "base"]
    if own := [key for key in ("densities", "filters") if getattr(recipe, key)]:
        taken.notes.append(f"Not applied: {', '.join(own)}. Use them from the command line.")
    if left_out:
        taken.notes.append(f"Not applied: {', '.join(left_out)} (set in Load).")
    return taken


def _on_sliders(name: str, recipe: Recipe) -> Taken:
    """Return what Tune's sliders can show of a recipe, and what that changes."""
    taken = Taken(name, recipe)

    def note(setting: str, asked: float, used: float) -> None:
        if asked != used:
            taken.notes.append(
                f"{setting} {asked:g} is not on the slider; the nearest, {used:.4g}, is set."
            )

    own = recipe.settings
    if "epsilon" in own:
        taken.point = snap(own["epsilon"])
        note("ε", own["epsilon"], EPSILON_GRID[taken.point])
    for key, sign, most in (("r", "r", R_MAX), ("alpha", "α", ALPHA_MAX)):
        if own.get(key) is not None:
            used = min(own[key], most)
            setattr(taken, key, used)
            note(sign, own[key], used)
    return taken
