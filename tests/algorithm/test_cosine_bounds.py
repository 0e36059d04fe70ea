"""Floor and ceiling of cosines: against real shuffles, and plain loops over elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_zoo import write_folder

from ram_studio.algorithm.meters.cosine_bounds import cosine_bounds
from ram_studio.algorithm.meters.relation_preview import relation_preview
from ram_studio.engine.analyze import analyze

LAYERS = {"model.layers.0.mlp.up_proj.weight": 3000, "model.layers.1.mlp.up_proj.weight": 500}


@pytest.fixture(scope="module")
def updates() -> dict[str, dict[str, np.ndarray]]:
    """Sparse updates by agent and tensor, in float32; the second layer moves further."""
    rng = np.random.default_rng(7)
    return {
        agent: {
            name: (rng.normal(size=n) * (rng.random(n) < 0.4) * (1 + 4 * i)).astype(np.float32)
            for i, (name, n) in enumerate(LAYERS.items())
        }
        for agent in ("coding", "tool", "memory")
    }


def analysis_of(updates: dict[str, dict[str, np.ndarray]], folder: Path):
    bases = {name: torch.zeros(n) for name, n in LAYERS.items()}
    base = write_folder(folder / "base", bases)
    agents = {
        agent: write_folder(folder / agent, {n: torch.from_numpy(t) for n, t in own.items()})
        for agent, own in updates.items()
    }
    return analyze(base, agents, device="cpu", threads=1)


def test_floor_holds_shuffles_and_ceiling_is_that_of_a_loop(updates, tmp_path):
    found = analysis_of(updates, tmp_path)
    pair = relation_preview(found, 0)["pairs"]["coding+tool"]
    a, b = (updates[agent] for agent in ("coding", "tool"))
    norm = np.sqrt(sum((a[n] ** 2).sum() for n in a) * sum((b[n] ** 2).sum() for n in b))
    rng = np.random.default_rng(0)
    shuffled = [sum(float(a[n] @ rng.permutation(b[n])) for n in a) / norm for _ in range(2000)]
    inside = np.mean(np.abs(shuffled) <= pair["cosine_floor"])
    assert 0.93 < inside < 0.97
    assert np.std(shuffled) == pytest.approx(pair["cosine_floor"] / 1.96, rel=0.06)
    of_a = of_b = dot = 0.0
    for name in a:
        for x, y in zip(a[name].tolist(), b[name].tolist(), strict=True):
            if x and y:
                of_a, of_b, dot = of_a + x * x, of_b + y * y, dot + x * y
    assert pair["cosine_ceiling"] == pytest.approx(np.sqrt(of_a * of_b) / norm, rel=1e-6)
    assert pair["cosine"] == pytest.approx(dot / norm, abs=1e-6)
    bounds = cosine_bounds(found)
    assert min(bounds.floors) / 3 < bounds.mean_floor < max(bounds.floors)
    assert min(bounds.ceilings) <= bounds.mean_ceiling <= max(bounds.ceilings)


def test_alike_agents_reach_the_ceiling_unchanged_ones_have_none(updates, tmp_path):
    still = {name: np.zeros(n, np.float32) for name, n in LAYERS.items()}
    own = {"coding": updates["coding"], "again": updates["coding"], "still": still}
    analysis = analysis_of(own, tmp_path)
    found = relation_preview(analysis, 0)["pairs"]
    assert found["coding+again"]["cosine"] == pytest.approx(found["coding+again"]["cosine_ceiling"])
    assert found["coding+again"]["cosine_ceiling"] == pytest.approx(1.0)
    keys = ("cosine", "cosine_floor", "cosine_ceiling")
    assert [found["coding+still"][key] for key in keys] == [None] * 3
    assert cosine_bounds(analysis.select(["coding"])) is None
