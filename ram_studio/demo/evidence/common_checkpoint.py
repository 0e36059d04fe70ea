"""Who owns a checkpoint that all agents came from: merging from there beside merging from the base.

In a set with a house stage every agent goes through that stage by itself. Here one goes through it,
and all three learn their skill from what it became. Their task vectors from that checkpoint are the
skills alone, so that the plain sum from there no longer applies the house style three times.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.demo.agents import HouseStage, Say, learn_house_style, save_checkpoint, train_agent
from ram_studio.demo.reinforce import ReinforceSettings
from ram_studio.evals.answering.load import load_model
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.experiment.space import with_method

FROM_COMMON = {
    "sum from the common checkpoint": ("task-arithmetic", {"scale": 1.0}),
    "RAM+ from the common checkpoint": ("ram+", {}),
}
FROM_BASE = {
    "sum from the base": ("task-arithmetic", {"scale": 1.0}),
    "RAM+ from the base": ("ram+", {}),
}


def common_checkpoint(
    base: Path,
    work: Path,
    agents: Mapping[str, ReinforceSettings],
    house: HouseStage,
    *,
    seed: int,
    prompts: int,
    limit: int,
    say: Say,
) -> dict[str, Any]:
    """Return scores of the common checkpoint, of agents that came from it and of their merges.

    Args:
        base: folder; work: where the checkpoint and the agents go.
        agents, house: how the set's own are trained.
        seed: of training; prompts: seed of the held-out prompts; limit: how many a domain.
    """
    common = work / "common"
    model, tokenizer = load_model(base, "cpu")
    learn_house_style(model, tokenizer, house, seed, say)
    common.mkdir(parents=True, exist_ok=True)
    save_checkpoint(model, base, common)
    for name, settings in agents.items():
        (work / name).mkdir(exist_ok=True)
        train_agent(common, work / name, settings, seed=seed, say=say)
    folders = {name: str(work / name) for name in agents}
    rows: dict[str, Any] = {}
    for start, methods in ((common, FROM_COMMON), (base, FROM_BASE)):
        recipe = Recipe(base=str(start), agents=folders)
        table = compare_methods(
            {name: with_method(recipe, *method) for name, method in methods.items()},
            sources=start == common,
            limit=limit,
            seed=prompts,
            device="cpu",
        )
        for name, result in table.report.models.items():
            scores = {domain: round(value.score, 4) for domain, value in result.domains.items()}
            key = "common checkpoint" if name == "base" else name
            rows[key] = {**scores, "average": round(result.average, 4)}
    return rows
