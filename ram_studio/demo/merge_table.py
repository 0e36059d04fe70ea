"""A plain merge table for the example's record: every formula in a few lines of float32 torch.

It is a reference, written from the published equations on one flat vector per agent, and knows
nothing of the merge engine, so the two can be checked against each other.

Notation: tau_t = theta_t - theta_base, m_t = |tau_t| > epsilon, c = sum over t of m_t.
"""

import math
from collections.abc import Sequence
from typing import Any

EPSILON = 1e-5
RAM_PLUS_R, RAM_PLUS_ALPHA = 0.1, 2.0
TIES_DENSITY = 0.2


def flatten(model: Any) -> Any:
    """Return all weights of a model as one float32 vector; tied embeddings occur once."""
    import torch

    return torch.cat([value.detach().float().flatten() for value in model.parameters()])


def load_into(model: Any, vector: Any) -> None:
    """Round `vector` to bfloat16 and put it into the model's parameters, in place."""
    import torch

    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            piece = vector[start : start + parameter.numel()].view_as(parameter)
            parameter.copy_(piece.to(torch.bfloat16))
            start += parameter.numel()


def overlap_numbers(base: Any, agents: Sequence[Any], epsilon: float = EPSILON) -> list[dict]:
    """Return per agent density, unique share of its changed elements, rho and lambda of RAM+.

    rho = shared / unique (infinite without a unique element, 0 when nothing changed);
    lambda = 1 + r * clip(rho, 0, alpha).
    """
    masks = [(agent - base).abs() > epsilon for agent in agents]
    count = sum(mask.int() for mask in masks)
    numbers = []
    for mask in masks:
        changed = int(mask.sum())
        unique = int((mask & (count == 1)).sum())
        shared = changed - unique
        rho = shared / unique if unique else (math.inf if shared else 0.0)
        numbers.append(
            {
                "density": changed / mask.numel(),
                "changed": changed,
                "unique": unique,
                "unique_share": unique / changed if changed else 0.0,
                "rho": rho if math.isfinite(rho) else None,
                "lambda": 1.0 + RAM_PLUS_R * min(rho, RAM_PLUS_ALPHA),
            }
        )
    return numbers


def merged_vectors(base: Any, agents: Sequence[Any]) -> dict[str, Any]:
    """Return the merged weights of every method of the table, float32 and not yet rounded."""
    taus = [agent - base for agent in agents]
    total = sum(taus)
    scales = [numbers["lambda"] for numbers in overlap_numbers(base, agents)]
    return {
        "task-arithmetic 1/N": base + total / len(taus),
        "task-arithmetic 1": base + total,
        "ties 0.2 / 1": base + _ties(taus),
        "ram": base + _ram(taus, [1.0] * len(taus)),
        "ram+": base + _ram(taus, scales),
    }


def _ram(taus: Sequence[Any], scales: Sequence[float]) -> Any:
    """Mean of the active agents where c >= 2; lambda_t * tau_t where agent t is alone; else 0."""
    import torch

    masks = [tau.abs() > EPSILON for tau in taus]
    count = sum(mask.int() for mask in masks)
    merged = sum(tau * mask for tau, mask in zip(taus, masks, strict=True)) / count.clamp(min=1)
    for tau, mask, scale in zip(taus, masks, scales, strict=True):
        merged = torch.where(mask & (count == 1), scale * tau, merged)
    return merged


def _ties(taus: Sequence[Any]) -> Any:
    """Trim each tau to its largest 20 %, elect a sign by total mass, average those who agree."""
    import torch

    trimmed = []
    for tau in taus:
        kept = max(1, int(tau.numel() * TIES_DENSITY))
        threshold = tau.abs().kthvalue(tau.numel() - kept + 1).values
        trimmed.append(torch.where((tau.abs() >= threshold) & (tau != 0), tau, 0.0))
    sign = torch.sign(sum(trimmed))
    agreeing = [(torch.sign(tau) == sign) & (tau != 0) for tau in trimmed]
    votes = sum(mask.int() for mask in agreeing).clamp(min=1)
    return sum(tau * mask for tau, mask in zip(trimmed, agreeing, strict=True)) / votes
