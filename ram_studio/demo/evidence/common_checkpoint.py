"""Who owns a checkpoint that all agents came from: merging from there beside merging from the base.

Task vectors from that checkpoint are the skills alone, so that the plain sum from there no longer
applies the house style once for each agent.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.demo.rivals import rounded
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.experiment.space import with_method

FROM_COMMON = {
    "sum from the common checkpoint": ("task-arithmetic", {"scale": 1.0}),
    "RAM+ from the common checkpoint": ("ram+", {}),
}


def from_common(
    common: Path, agents: Mapping[str, Path], *, prompts: int, limit: int
) -> dict[str, Any]:
    """Return scores of the common checkpoint and of merges from there.

    Args:
        common, agents: folders.
        prompts: seed of the held-out prompts; limit: how many a domain.
    """
    recipe = Recipe(base=str(common), agents={name: str(path) for name, path in agents.items()})
    table = compare_methods(
        {name: with_method(recipe, *method) for name, method in FROM_COMMON.items()},
        limit=limit,
        seed=prompts,
        device="cpu",
    )
    return {
        "common checkpoint" if name == "base" else name: rounded(result)
        for name, result in table.report.models.items()
        if name not in agents
    }
