"""Own and shared factors of previews against merges of the shipped agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.engine.in_memory import ResidentMerge
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path
from training.shipped.analyses import ANALYSIS_FILE, SETS
from training.shipped.skill_tables import TABLE_FILE, distinct_points
from training.shipped.table_factors import has_formula

AGENTS = ("coding", "tool", "memory")
RAM = [("ram", {}), ("ram+s", {"r": 0.5}), ("ram+m", {"r": 0.3, "alpha": 2.0})]
RAM += [("ram+", {"r": r, "alpha": cap}) for r, cap in product((0.1, 1.0), (2.0, 10.0))]
SCALES = (1 / 3, 1.0)


class Merges:
    """Merges of a shipped set in float32, and their factors by plain NumPy."""

    def __init__(self, name: str) -> None:
        paths = {agent: asset_path(name, agent) for agent in AGENTS}
        base = asset_path("independent", "base")
        self.analysis = load_analysis(asset_path(name, ANALYSIS_FILE))
        self.resident = ResidentMerge(base, paths, relations=True, device="cpu", threads=1)
        self.names = [tensor.name for tensor in self.resident.report.counted]
        self.start = self.flat(load_file(Path(base) / "model.safetensors"))
        agents = [load_file(Path(path) / "model.safetensors") for path in paths.values()]
        self.tau = np.stack([self.flat(agent) for agent in agents]) - self.start

    def flat(self, tensors) -> np.ndarray:
        return np.concatenate([tensors[name].float().flatten().numpy() for name in self.names])

    def factors(self, method: str, settings: dict) -> list[list[float]]:
        """Return each agent's own and shared factor."""
        merged = self.resident.merge(method, settings, dtype="float32").tensors
        change = (self.flat(merged) - self.start).astype(np.float64)
        moved = np.abs(self.tau) > np.float32(1e-5)
        found = []
        for t, tau in enumerate(self.tau.astype(np.float64)):
            others = np.delete(moved, t, axis=0).any(axis=0)
            parts = (moved[t] & ~others, moved[t] & others)
            found.append([tau[p] @ change[p] / (tau[p] @ tau[p]) for p in parts])
        return found


@pytest.fixture(scope="module")
def merges_of() -> Callable[[str], Merges]:
    return cache(Merges)


@pytest.fixture
def merges(merges_of) -> Merges:
    return merges_of("shared-style")


def check_at(merges: Merges, point: int) -> None:
    for method, settings in RAM:
        found = merges.factors(method, {"epsilon": EPSILON_GRID[point], **settings})
        told = merges.analysis.preview(point, method, **settings)["agents"]
        for agent, expected in zip(told.values(), found, strict=True):
            factors = [agent["factors"]["own"], agent["factors"]["shared"]]
            assert factors == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("point", [0, DEFAULT_INDEX, 45])
def test_previews_tell_the_factors_of_ram_merges(merges, point):
    check_at(merges, point)


@pytest.mark.slow
def test_previews_tell_the_factors_at_every_epsilon(merges):
    for point in distinct_points(merges.analysis):
        check_at(merges, point)


@pytest.mark.parametrize("scale", SCALES)
def test_previews_tell_the_factors_of_every_scale(merges, scale):
    found = merges.factors("task-arithmetic", {"scale": scale})
    told = scale * merges.analysis.part_factors.sum
    np.testing.assert_allclose(told, found, atol=1e-4)
    average = merges.analysis.preview()["methods"]["average"].values()
    if scale != 1:
        assert [a["factors"]["own"] for a in average] == pytest.approx(told[:, 0].tolist())


@pytest.mark.parametrize("name", SETS)
def test_rows_without_a_formula_have_measured_factors(name, merges_of):
    rows = load_table(asset_path(name, TABLE_FILE))["rows"]
    assert all((row["factors"] is None) == has_formula(row) for row in rows)
    measured = [row for row in rows if row["factors"] is not None]
    assert {row["method"] for row in measured} >= {"ties", "dare-ta", "dare-ties", "iso-c", "wudi"}
    made = merges_of(name)
    for row in (measured[0], measured[-1]):
        expected = np.array(made.factors(row["method"], row["settings"]))
        for column, part in enumerate(("own", "shared")):
            assert row["factors"][part] == pytest.approx(expected[:, column].tolist(), rel=1e-4)
