"""Analyses with random counts, for tests that need no checkpoints."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
from ram_studio.algorithm.overlap import OverlapCounts


def make_analysis(n_agents: int, *, seed: int = 0, layers: int = 3) -> Analysis:
    """Return an analysis with random counts falling with epsilon; agent 0 is never alone if > 1."""
    rng = np.random.default_rng(seed)
    names = ["model.embed_tokens.weight"]
    for layer in range(layers):
        names += [f"model.layers.{layer}.{m}.weight" for m in ("self_attn.q_proj", "mlp.up_proj")]
    tensors, patterns, shared = [], [], []
    sets = 1 << n_agents
    for name in names:
        numel = int(rng.integers(500, 3000))
        agents = rng.random((n_agents, numel)) < rng.uniform(0.05, 0.6, (n_agents, 1))
        if n_agents > 1:
            agents[0] &= agents[1]
        leaves = np.where(agents, rng.integers(0, len(EPSILON_GRID), agents.shape), -1)
        counts = np.zeros((len(EPSILON_GRID), sets), dtype=np.int64)
        others = np.zeros((len(EPSILON_GRID), n_agents, n_agents), dtype=np.int64)
        for k in range(len(EPSILON_GRID)):
            active = leaves >= k
            counts[k] = np.bincount((active << np.arange(n_agents)[:, None]).sum(0), minlength=sets)
            together = active.sum(0)
            for t in range(n_agents):
                others[k, t] = np.bincount(together[active[t]] - 1, minlength=n_agents)
        tensors.append(TensorEntry(name, numel))
        patterns.append(counts)
        shared.append(others)
    sizes = np.array([t.numel for t in tensors])
    magnitudes = np.zeros((n_agents, BIN_COUNT), dtype=np.int64)
    magnitudes[:, 1000:1400] = rng.integers(0, 50, (n_agents, 400))
    return Analysis(
        agents=tuple(f"agent{t}" for t in range(n_agents)),
        tensors=tuple(tensors),
        counts=OverlapCounts(
            sizes, np.stack(patterns) if n_agents <= 6 else None, np.stack(shared)
        ),
        magnitudes=magnitudes,
        dtypes={"base": "BF16"},
    )
