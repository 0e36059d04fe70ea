"""How few weights carry a skill: an agent cut to its k largest changes, or to k random ones.

    base + tau_t where |tau_t| is among the k largest        ("largest")
    base + tau_t at k of the elements that t changed, drawn   ("random", the control)

If the random ones did as well, how far a weight moved would tell nothing of what it is for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.demo.merge_table import EPSILON, flatten, load_into
from ram_studio.evals.answering.decode import generate
from ram_studio.evals.answering.load import load_model
from ram_studio.evals.suites.demo.suite import MAX_NEW_TOKENS, judge, make
from ram_studio.evals.suites.suite import SuiteSettings

SIZES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
"""Numbers of weights that are kept; those above what an agent changed are left out."""

DRAWS = 2
"""How often as many random ones are drawn."""


def few_weights(
    base: Path,
    agents: Mapping[str, tuple[Path, str]],
    *,
    seed: int,
    limit: int,
    sizes: Sequence[int] = SIZES,
) -> dict[str, Any]:
    """Return {"n", "agents"}: by agent "domain", "base", "whole", "changed" and "rows".

    A row has "k", the score "largest", and the scores "random", one a draw.

    Args:
        base: folder; agents: name -> folder and the domain it learned, in which it is scored.
        seed: of the held-out prompts and, with the draw's number, of the draws; limit: prompts.
        sizes: numbers of weights.
    """
    import torch

    model, tokenizer = load_model(base, "cpu")
    start = flatten(model)
    questions = make(SuiteSettings(len, limit, seed))
    found: dict[str, Any] = {}

    def score(vector: Any, domain: str) -> float:
        """Return the share of the domain's questions that the model answers right with these."""
        load_into(model, vector)
        asked = [question for question in questions if question.domain == domain]
        texts = generate(model, tokenizer, [q.prompt for q in asked], max_new_tokens=MAX_NEW_TOKENS)
        right = [judge(q, text).is_correct for q, text in zip(asked, texts, strict=True)]
        return round(sum(right) / len(right), 4)

    for name, (folder, domain) in agents.items():
        end = flatten(load_model(folder, "cpu")[0])
        moved = (end - start).abs()
        changed = (moved > EPSILON).nonzero().flatten()
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
            cut = [_with(start, end, order[:k]) for order in orders]
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


def _with(start: Any, end: Any, places: Any) -> Any:
    """Return the base with the agent's weights in some places."""
    vector = start.clone()
    vector[places] = end[places]
    return vector
