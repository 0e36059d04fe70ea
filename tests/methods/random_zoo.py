"""Random base and agents whose elements meet in every way: alone, together, cancelling, equal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from ram_studio.checkpoints.record.recipe import Recipe, make_recipe

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
) -> tuple[Path, dict[str, Path]]:
    """Write a small zoo and return its base folder and the agents' folders.

    tied_twice: the head is stored a second time, beside the embedding it is tied to.
    """
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    total = sum(sizes.values())
    base, changed = random_elements(seed, total, len(agents), dtype == torch.bfloat16)
    folders = {}
    for name, flat in zip(("base", *agents), (base, *changed), strict=True):
        tensors, start = {}, 0
        for tensor, shape in shapes.items():
            piece = torch.from_numpy(flat[start : start + sizes[tensor]].copy())
            tensors[tensor] = piece.to(dtype).reshape(shape)
            start += sizes[tensor]
        if tied_twice:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        folders[name] = folder / name
        folders[name].mkdir(parents=True)
        save_file(tensors, folders[name] / "model.safetensors", {"format": "pt"})
        config = {"model_type": "qwen2", "tie_word_embeddings": True}
        (folders[name] / "config.json").write_text(json.dumps(config))
    return folders.pop("base"), folders


def recipe_for(base: Path, agents: dict[str, Path], method: str = "ram+", **fields) -> Recipe:
    """Return the recipe that merges folders."""
    sources = {name: str(path) for name, path in agents.items()}
    return make_recipe({"base": str(base), "agents": sources, "method": method, **fields})


def flat(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a one-file checkpoint."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
