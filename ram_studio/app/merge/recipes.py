"""An uploaded recipe, put into the forms of Tune and Merge for the agents that are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from ram_studio.algorithm.ladder import LADDER, snap
from ram_studio.algorithm.scaling import RULES
from ram_studio.app import markup, wording
from ram_studio.app.merge import controls
from ram_studio.app.session import Loaded, Session
from ram_studio.app.tune.deep_link import ALPHA_MAX, R_MAX
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.recipe import Recipe, load_recipe
from ram_studio.errors import RamStudioError

_LEFT_AS_LOADED = ("missing", "extra", "rows")


def take(path: str, session: Session) -> list[Any]:
    """Return updates of (status, method, Tune's four settings, CONTROLS, dtype, rounding, seed).

    A recipe that cannot be used changes nothing but the status.
    """
    unchanged = [gr.skip()] * (8 + len(controls.CONTROLS))
    if session.loaded is None:
        return [markup.callout(wording.NEED_LOAD, "warn"), *unchanged]
    name = printable(Path(path).name, 80)
    try:
        recipe = load_recipe(path)
    except RamStudioError as error:
        # The upload's folder is no business of the reader.
        return [markup.callout(str(error).replace(printable(path), name), "bad"), *unchanged]
    refusal = _refusal(name, recipe, session.loaded)
    if refusal:
        return [markup.callout(refusal, "bad"), *unchanged]
    point, r, alpha, notes = _tuned(recipe.settings)
    left_out = [
        field
        for field in _LEFT_AS_LOADED
        if getattr(recipe, field)
        != session.loaded.options.get(field, Recipe.model_fields[field].default)
    ]
    if recipe.tokenizer != "base":
        left_out.append("tokenizer")
    if left_out:
        notes.append(wording.RECIPE_LEFT_OUT.format(fields=", ".join(left_out)))
    said = " ".join([wording.RECIPE_LOADED.format(name=name), *notes])
    return [
        markup.callout(said, "note" if notes else "good"),
        recipe.method,
        gr.skip() if point is None else point,
        gr.skip() if r is None else r,
        gr.skip() if alpha is None else alpha,
        recipe.method if recipe.method in RULES else gr.skip(),
        *controls.values_for(recipe.method, recipe.settings),
        recipe.dtype or "",
        recipe.rounding,
        recipe.seed,
    ]


def _refusal(name: str, recipe: Recipe, loaded: Loaded) -> str:
    """Return why a recipe is not for what is loaded; empty when it is."""
    if set(recipe.agents) != set(loaded.agents):
        return wording.RECIPE_OTHER_AGENTS.format(
            name=name, theirs=", ".join(recipe.agents), ours=", ".join(loaded.agents)
        )
    if recipe.method not in controls.OFFERED:
        return wording.RECIPE_OTHER_METHOD.format(name=name, method=recipe.method)
    return ""


def _tuned(
    settings: Mapping[str, Any],
) -> tuple[int | None, float | None, float | None, list[str]]:
    """Return (ladder point, r, alpha) as the sliders can show them, and what that changes."""
    notes = []

    def note(setting: str, asked: float, used: float) -> None:
        if asked != used:
            notes.append(
                wording.RECIPE_NEAREST.format(
                    setting=setting, asked=f"{asked:g}", used=f"{used:.4g}"
                )
            )

    point = None
    if "epsilon" in settings:
        point = snap(settings["epsilon"])
        note("ε", settings["epsilon"], LADDER[point])
    found: list[float | None] = []
    for key, sign, most in (("r", "r", R_MAX), ("alpha", "α", ALPHA_MAX)):
        value = settings.get(key)
        found.append(None if value is None else min(value, most))
        if value is not None:
            note(sign, value, min(value, most))
    return point, found[0], found[1], notes
