"""Random base and agents whose elements meet in every way: alone, together, cancelling, equal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from engine_zoo import EMBEDDING, HEAD, Zoo

AGENTS = ("coding", "tool", "memory")


def random_elements(
    seed: int, n: int, n_agents: int = 3, bfloat16: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 base (n,) and agents (agents, n); on the bfloat16 grid if asked."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0, 0.02, n)
    base[rng.random(n) < 0.05] = 0.0
    if bfloat16:
        base = on_grid(base)
    step = np.maximum(np.abs(base) * 2.0**-8, 1e-7)
    agents = np.repeat(base[None], n_agents, axis=0)
    for t in range(n_agents):
        changed = rng.random(n) < (0.15, 0.5, 0.8)[t % 3]
        size = step * rng.choice([1, 2, 4, 0.3], n) if bfloat16 else rng.normal(0, 1e-4, n)
        agents[t] += np.where(changed, rng.choice([-1, 1], n) * size, 0)
    # Some elements cancel exactly, and some agents agree exactly.
    if n_agents > 1:
        twins = rng.random(n) < 0.1
        agents[1, twins] = (2 * base - agents[0])[twins]
        equal = rng.random(n) < 0.05
        agents[-1, equal] = agents[0, equal]
    if bfloat16:
        return on_grid(base).astype(np.float32), on_grid(agents).astype(np.float32)
    return base.astype(np.float32), agents.astype(np.float32)


def on_grid(values: np.ndarray) -> np.ndarray:
    """Return values rounded to bfloat16, as float64."""
    return torch.from_numpy(values).bfloat16().double().numpy()


SHAPES = {
    "model.embed_tokens.weight": (13, 8),
    "model.layers.0.mlp.up_proj.weight": (24, 8),
    "model.layers.0.self_attn.q_proj.bias": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.1.mlp.down_proj.weight": (8, 24),
    "model.norm.weight": (8,),
}


def write_zoo(
    folder: Path,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.bfloat16,
    tied_twice: bool = False,
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    agents: tuple[str, ...] = AGENTS,
) -> Zoo:
    """Write a small zoo.

    tied_twice: the head is stored a second time, beside the embedding it is tied to.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    base, changed = random_elements(seed, sum(sizes), len(agents), dtype == torch.bfloat16)
    stored = {}
    for name, elements in zip(("base", *agents), (base, *changed), strict=True):
        pieces = torch.from_numpy(elements).to(dtype).split(sizes)
        own = {n: x.reshape(s) for (n, s), x in zip(shapes.items(), pieces, strict=True)}
        if tied_twice:
            own[HEAD] = own[EMBEDDING].clone()
        stored[name] = own
    return Zoo.write(folder, stored.pop("base"), stored, list(shapes), tied=True)
