"""Parts of a set's record beyond scores: measurements of the merges' mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON
from ram_studio.evals.answering.load import load_model
from ram_studio.evals.experiment.presets import RAM_ALONE, experiment_recipes
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.experiment.space import with_method
from ram_studio.evals.suites.demo.tasks import MAX_NEW_TOKENS, judge, make
from ram_studio.evals.suites.suite import SuiteSettings
from training.shipped.reinforce import generate
from training.shipped.rivals import recipe_of, rounded

CURVES = {"overshoot": "shared_scale", "dilution": "unique_scale"}
"""Name of a curve of `mechanism` -> the setting of `two-regions` that varies along it."""

FROM_COMMON = {
    "sum from the common checkpoint": ("task-arithmetic", {"scale": 1.0}),
    "RAM+ from the common checkpoint": ("ram+", {}),
}

SIZES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
"""Numbers of changes left in an agent; numbers above its own are left out."""

DRAWS = 2
"""Number of random draws of the same size."""


def mechanism(base: Path, agents: Mapping[str, Path], *, seed: int, limit: int) -> dict[str, Any]:
    """Return {"n", "overshoot", "dilution"}: points with "scale", scores and "average".

    The effect on skills of scaling either region, by the experiment preset "mechanism": two curves
    that begin at RAM.

        overshoot    shared region times 1 ... N, unique ones whole    (the sum multiplies it so)
        dilution     unique regions times 1 ... 1/N, the shared whole  (the average divides them so)

    Args:
        base, agents: folders.
        seed: of the held-out questions; limit: how many a domain.
    """
    rows = experiment_recipes("mechanism", recipe_of(base, agents))
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


def from_common(
    common: Path, agents: Mapping[str, Path], *, seed: int, limit: int
) -> dict[str, Any]:
    """Return scores of the agents' common checkpoint, and of merges from there.

    Task vectors from that checkpoint contain only the skills, so that the plain sum from there no
    longer applies the shared style once for each agent.

    Args:
        common, agents: folders.
        seed: of the held-out questions; limit: how many a domain.
    """
    recipe = recipe_of(common, agents)
    table = compare_methods(
        {name: with_method(recipe, *method) for name, method in FROM_COMMON.items()},
        limit=limit,
        seed=seed,
        device="cpu",
    )
    return {
        "common checkpoint" if name == "base" else name: rounded(result)
        for name, result in table.report.models.items()
        if name not in agents
    }


def few_weights(
    base: Path,
    agents: Mapping[str, tuple[Path, str]],
    *,
    seed: int,
    limit: int,
    sizes: Sequence[int] = SIZES,
) -> dict[str, Any]:
    """Return {"n", "agents"}: by agent "domain", "base", "whole", "changed" and "rows".

    How few weights carry a skill: an agent cut to its k largest changes, or to k random ones.

        base + tau_t where |tau_t| is among the k largest        ("largest")
        base + tau_t at k of the elements that t changed, drawn   ("random", the control)

    If the random ones did as well, the size of a change would not show its importance. A row has
    "k", the score "largest", and the scores "random", one per draw.

    Args:
        base: folder; agents: name -> folder and the domain it learned, in which it is scored.
        seed: of the held-out questions and, with the draw's number, of the draws; limit: prompts.
        sizes: numbers of weights.
    """
    import torch

    model, tokenizer = load_model(base, "cpu")
    start = _flat(model)
    questions = make(SuiteSettings(len, limit, seed))
    found: dict[str, Any] = {}

    def score(vector: Any, domain: str) -> float:
        """Return the share of the domain's questions that the model with these weights solves."""
        torch.nn.utils.vector_to_parameters(vector.bfloat16().to(vector), model.parameters())
        asked = [question for question in questions if question.domain == domain]
        texts = generate(model, tokenizer, [q.prompt for q in asked], max_new_tokens=MAX_NEW_TOKENS)
        right = [judge(q, text).is_correct for q, text in zip(asked, texts, strict=True)]
        return round(sum(right) / len(right), 4)

    for name, (folder, domain) in agents.items():
        end = _flat(load_model(folder, "cpu")[0])
        moved = (end - start).abs()
        changed = (moved > DEFAULT_EPSILON).nonzero().flatten()
        # Among equal changes the first: a stable order gives the same weights everywhere.
        by_size = changed[torch.argsort(moved[changed], descending=True, stable=True)]
        orders = [by_size] + [
            changed[
                torch.randperm(len(changed), generator=torch.Generator().manual_seed(seed + draw))
            ]
            for draw in range(DRAWS)
        ]
        rows = []
        for k in (size for size in sizes if size < len(changed)):
            cut = [start.index_copy(0, kept, end[kept]) for kept in (o[:k] for o in orders)]
            largest, *random = (score(vector, domain) for vector in cut)
            rows.append({"k": k, "largest": largest, "random": random})
        found[name] = {
            "domain": domain,
            "base": score(start, domain),
            "whole": score(end, domain),
            "changed": len(changed),
            "rows": rows,
        }
    return {"n": limit, "agents": found}


def _flat(model: Any) -> Any:
    """Return all weights of a model as one float32 vector; tied embeddings occur once."""
    import torch

    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().float()
