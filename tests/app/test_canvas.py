"""The canvas: what is kept of each agent, the verdict, measured rows; in the page's modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from app_parts import run

pytestmark = pytest.mark.browser

EPSILON_GRID = [0.0, 0.01, 0.05, 0.1, 0.4, 1.0, 9.0]
RAM = ("ram", "ram+", "ram+s")


def sums(tau: np.ndarray) -> dict[str, Any]:
    """Return a profile of task vectors (agents, elements), every number by its definition."""
    agents, total = tau.shape
    norm2 = (tau**2).sum(1)
    everything = tau.sum(0)
    profile: dict[str, Any] = {
        "agents": [f"agent{t}" for t in range(agents)],
        "epsilon_grid": EPSILON_GRID,
        "total": total,
        "norm2": norm2.tolist(),
        "others_all": [
            float(((everything - own) ** 2).sum() / n) for own, n in zip(tau, norm2, strict=True)
        ],
        "dtypes": {"base": "BF16"},
        **{key: [] for key in ("overlap", "energy", "cross", "meet")},
    }
    for epsilon in EPSILON_GRID:
        active = np.abs(tau) > epsilon
        count, moved = active.sum(0), np.where(active, tau, 0)
        # Where an agent changed what j others did too, by agent and j.
        where = active[:, None] & (count == np.arange(1, agents + 1)[:, None])
        own, size = tau[:, None] * where, norm2[:, None]
        rest = (moved.sum(0) - moved)[:, None]
        profile["overlap"].append(where.sum(-1).tolist())
        profile["energy"].append(((own**2).sum(-1) / size).tolist())
        profile["cross"].append(((own * rest).sum(-1) / size).tolist())
        met = [(moved.sum(0)[count == j] ** 2).sum() for j in range(agents + 1)]
        profile["meet"].append([float(m) for m in met])
    return profile


def own_parts(tau: np.ndarray, epsilon: float, method: str, lambdas: list[float]) -> np.ndarray:
    """Return each agent's part of the merge, an array like tau; the merge is their sum."""
    agents = len(tau)
    if method == "task-arithmetic-mean":
        return tau / agents
    if method == "task-arithmetic-sum":
        return tau
    active = np.abs(tau) > epsilon
    count = active.sum(0)
    alone = np.array(lambdas)[:, None]
    return np.where(active, tau * np.where(count == 1, alone, 1 / np.maximum(1, count)), 0)


def own_active(tau: np.ndarray, epsilon: float, method: str) -> np.ndarray:
    """Return where each agent's changes count: everywhere for methods without an epsilon."""
    return np.abs(tau) > (epsilon if method in RAM else 0)


CHOSEN = {"point": 2, "r": 0.3, "alpha": 1.5, "method": "ram+"}


def outcomes(page, profile: dict, *changes: dict) -> list[dict]:
    return run(
        page,
        """async (profile, every) => {
          const { outcomeOf } = await import('./canvas/outcome.js');
          const { verdictOf } = await import('./canvas/verdict.js');
          return every.map((settings) => {
            const result = outcomeOf(profile, settings);
            const { key, tone, lead, pieces } = verdictOf(profile, result, null);
            return { agents: result.agents, hasRetained: result.hasRetained, key, tone,
                     text: lead + pieces.map(([text]) => text).join("") };
          });
        }""",
        profile,
        [{**CHOSEN, **change} for change in changes],
    )


def outcome(page, profile: dict, **settings: Any) -> dict:
    return outcomes(page, profile, settings)[0]


@pytest.mark.parametrize("agents", [1, 2, 5])
def test_kept_and_all_else_are_those_of_the_merge_itself(page, agents: int) -> None:
    rng = np.random.default_rng(agents)
    tau = rng.standard_t(2, (agents, 400)) * 0.1 * (rng.random((agents, 400)) < 0.5)
    profile = sums(tau)
    methods = (*RAM, "task-arithmetic-mean", "task-arithmetic-sum")
    cases = [{"method": method, "point": point} for method in methods for point in range(5)]
    for case, answer in zip(cases, outcomes(page, profile, *cases), strict=True):
        method, epsilon, found = case["method"], EPSILON_GRID[case["point"]], answer["agents"]
        parts = own_parts(tau, epsilon, method, [a["lambda"] or 1 for a in found])
        for t, agent in enumerate(found):
            norm = np.linalg.norm(tau[t])
            retained = float(parts[t] @ tau[t] / norm**2)
            rest = float(np.linalg.norm(parts.sum(0) - parts[t]) / norm)
            assert agent["retained"]["sum"] == pytest.approx(retained, abs=1e-12)
            assert agent["others"] == pytest.approx(rest, abs=1e-7)
            # With what the others bring along where they moved the same elements.
            met = np.where(own_active(tau, epsilon, method)[t], parts.sum(0), 0)
            along = float(met @ tau[t] / norm**2) - retained
            assert agent["along"] == pytest.approx(along, abs=1e-12)
            pieces = {k: v for k, v in agent["retained"].items() if k != "sum"}
            assert min(pieces.values()) >= -1e-12
            # Everything of the update is somewhere: kept without the boost, or lost.
            assert sum(pieces.values()) - pieces["boost"] == pytest.approx(1, abs=1e-12)


def test_what_ties_keeps_is_as_it_was_measured(page) -> None:
    profile = sums(large(0.2))
    assert not outcome(page, profile, method="ties")["hasRetained"]
    part = {"unique": 0.6, "boost": -0.2, "shared": 0.1, "lost_to_averaging": 0.05}
    found = {**part, "lost_to_epsilon": 0.25, "retained": 0.5, "interference": 3.0}
    profile["ties"] = [found, {**found, "boost": 0.2, "retained": 0.9}]
    first, second = outcome(page, profile, method="ties")["agents"]
    assert (first["retained"]["sum"], first["others"], first["along"]) == (0.5, 3.0, None)
    for agent in (first, second):
        pieces = {k: v for k, v in agent["retained"].items() if k != "sum"}
        assert min(pieces.values()) >= 0
        lost = sum(v for k, v in pieces.items() if k.startswith("lost"))
        assert sum(pieces.values()) - lost == pytest.approx(agent["retained"]["sum"])


def large(size: float, agents: int = 2, n: int = 40) -> np.ndarray:
    """Return agents that each changed n elements of their own by ``size``."""
    return np.kron(np.eye(agents), np.full(n, size))


def beside(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=1)


SHARED = np.full((2, 40), 0.3)
"""Elements that both changed alike."""


@pytest.mark.parametrize(
    ("tau", "method", "key", "tone", "said"),
    [
        (large(0.2), "task-arithmetic-mean", "average", "warn", "divides every change by 2"),
        (large(0.2), "task-arithmetic-sum", "sum", "good", "keeps every update whole"),
        (SHARED, "task-arithmetic-sum", "sum-common", "warn", "they have in common 2 times"),
    ],
)
def test_verdict_of_average_and_sum(page, tau, method, key, tone, said) -> None:
    found = outcome(page, sums(tau), method=method)
    assert said in found["text"]
    assert (found["key"], found["tone"]) == (key, tone)
    assert "What it can do is not measured yet." in found["text"]


# ---------------------------------------------------------------------------- measured rows


def measured(profile: dict) -> dict:
    """Return a table of three settings, two skills of four prompts each."""

    def row(kind: str, method: str, right: str, point: int | None = None, **own: float) -> dict:
        told = {"kind": kind, "method": method, "settings": own, "k": point}
        return {**told, "right": right, "answers": [0] * 8}

    return {
        "n": 4,
        "domains": ["first", "second"],
        "prompts": ["?"] * 8,
        "gold": ["!"] * 8,
        "answers": [["!"]] * 8,
        "rows": [
            row("source", "base", "00001111"),
            row("source", "agent0", "11111111"),
            row("source", "agent1", "00001111"),
            row("merge", "ram+", "11111110", 1, r=0.3, alpha=1.5),
            row("merge", "ram", "00001111", 4),
            row("merge", "task-arithmetic", "10101010", scale=0.5),
            # Not what the canvas shows under these names.
            row("merge", "task-arithmetic", "11111111", scale=0.7),
            row("merge", "ties", "11111111", density=0.5, scale=1.0),
            row("merge", "dare-ta", "11111111", drop_rate=0.1),
        ],
    }


def nearest(page, profile: dict, **settings: Any) -> dict | None:
    return run(
        page,
        """async (profile, settings) => {
          const { outcomeOf } = await import('./canvas/outcome.js');
          const { nearestRow, skillsOf } = await import('./canvas/table.js');
          const { verdictOf } = await import('./canvas/verdict.js');
          const table = profile.skills;
          profile.skills = skillsOf(table, profile);
          const result = outcomeOf(profile, settings);
          const near = nearestRow(profile, result);
          const text = verdictOf(profile, result, near).pieces.map(([text]) => text).join("");
          return near && { right: near.row.right, isExact: near.isExact, text };
        }""",
        profile,
        {**CHOSEN, **settings},
    )


def test_only_the_same_weights_count_as_measured(page) -> None:
    profile = sums(beside(large(0.2), SHARED, np.array([[0.06] * 5, [0.0] * 5])))
    profile["skills"] = measured(profile)
    for right, settings in (
        # Points 0 to 2 count the same weights: they are the same merge.
        *(("11111110", {"point": point}) for point in (0, 1, 2)),
        # Nothing counts as changed: the merge is the base.
        ("00001111", {"point": 6}),
        ("10101010", {"method": "task-arithmetic-mean", "point": 5}),
    ):
        found = nearest(page, profile, **settings)
        assert (found["right"], found["isExact"]) == (right, True)
        # A skill falls where its interval ends below the specialist's score.
        said = {
            "11111110": "first 4 of 4; none shown to be worse than its agent.",
            "00001111": "first 0 of 4.",
        }.get(right, "")
        assert f"Measured: {said}" in found["text"]
    # Above what both share in alpha nothing changes; another lambda is another merge.
    found = nearest(page, profile, r=0.31)
    assert not found["isExact"]
    assert "nearest measured setting" in found["text"]
    assert "Measured" not in found["text"]
    assert nearest(page, profile, method="ties") is None
