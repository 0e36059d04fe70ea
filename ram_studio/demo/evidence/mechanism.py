"""Overshoot and dilution, measured: what happens to skills as either region is scaled.

Skills are asked of the experiment preset "mechanism". A record keeps two curves that begin at RAM:

    overshoot    shared region times 1 ... N, unique ones whole    (the sum multiplies it so)
    dilution     unique regions times 1 ... 1/N, the shared whole  (the average divides them so)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.demo.rivals import rounded
from ram_studio.evals.experiment.presets import RAM_ALONE, experiment_recipes
from ram_studio.evals.experiment.run import compare_methods

CURVES = {"overshoot": "shared_scale", "dilution": "unique_scale"}
"""Name of a curve -> the setting of `two-regions` that varies along it."""


def mechanism(base: Path, agents: Mapping[str, Path], *, seed: int, limit: int) -> dict[str, Any]:
    """Return {"n", "overshoot", "dilution"}: points with "scale", scores and "average".

    Args:
        base, agents: folders.
        seed: of the held-out prompts; limit: how many a domain.
    """
    recipe = Recipe(base=str(base), agents={n: str(path) for n, path in agents.items()})
    rows = experiment_recipes("mechanism", recipe)
    table = compare_methods(
        rows, reference=RAM_ALONE, sources=False, limit=limit, seed=seed, device="cpu"
    )
    curves: dict[str, list[dict[str, float]]] = {name: [] for name in CURVES}
    for label, result in table.report.models.items():
        settings = rows[label].settings
        for name, varied in CURVES.items():
            if varied in settings or label == RAM_ALONE:
                curves[name].append({"scale": settings.get(varied, 1.0), **rounded(result)})
    return {"n": limit, **curves}
