"""The canvas: what is kept of each agent, the verdict, measured rows; in the page's modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from app_parts import run

pytestmark = pytest.mark.browser

LADDER = [0.0, 0.01, 0.05, 0.1, 0.4, 1.0, 9.0]
RAM = ("ram", "ram+", "ram+s")


def sums(tau: np.ndarray) -> dict[str, Any]:
    """Return a profile of task vectors (agents, elements), every number by its definition."""
    agents, total = tau.shape
    norm2 = (tau**2).sum(1)
    everything = tau.sum(0)
    profile: dict[str, Any] = {
        "agents": [f"agent{t}" for t in range(agents)],
        "ladder": LADDER,
        "total": total,
        "norm2": norm2.tolist(),
        "others_all": [
            float(((everything - own) ** 2).sum() / n) for own, n in zip(tau, norm2, strict=True)
        ],
        "dtypes": {"base": "BF16"},
        **{key: [] for key in ("overlap", "energy", "cross", "meet")},
    }
    for epsilon in LADDER:
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
            const { tone, lead, pieces } = verdictOf(profile, result, null);
            return { agents: result.agents, hasKept: result.hasKept, tone,
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
        method, epsilon, found = case["method"], LADDER[case["point"]], answer["agents"]
        parts = own_parts(tau, epsilon, method, [a["lambda"] or 1 for a in found])
        for t, agent in enumerate(found):
            norm = np.linalg.norm(tau[t])
            kept = float(parts[t] @ tau[t] / norm**2)
            rest = float(np.linalg.norm(parts.sum(0) - parts[t]) / norm)
            assert agent["kept"]["sum"] == pytest.approx(kept, abs=1e-12)
            assert agent["others"] == pytest.approx(rest, abs=1e-7)
            # With what the others bring along where they moved the same elements.
            met = np.where(own_active(tau, epsilon, method)[t], parts.sum(0), 0)
            along = float(met @ tau[t] / norm**2) - kept
            assert agent["along"] == pytest.approx(along, abs=1e-12)
            pieces = {k: v for k, v in agent["kept"].items() if k != "sum"}
            assert min(pieces.values()) >= -1e-12
            # Everything of the update is somewhere: kept without the boost, or lost.
            assert sum(pieces.values()) - pieces["boost"] == pytest.approx(1, abs=1e-12)


def test_what_ties_keeps_is_as_it_was_measured(page) -> None:
    profile = sums(large(0.2))
    assert not outcome(page, profile, method="ties")["hasKept"]
    part = {"unique": 0.6, "boost": -0.2, "shared": 0.1, "averaged_away": 0.05}
    found = {**part, "below_epsilon": 0.25, "kept": 0.5, "all_else": 3.0}
    profile["ties"] = [found, {**found, "boost": 0.2, "kept": 0.9}]
    first, second = outcome(page, profile, method="ties")["agents"]
    assert (first["kept"]["sum"], first["others"], first["along"]) == (0.5, 3.0, None)
    for agent in (first, second):
        pieces = {k: v for k, v in agent["kept"].items() if k != "sum"}
        assert min(pieces.values()) >= 0
        lost = sum(v for k, v in pieces.items() if k.startswith("lost"))
        assert sum(pieces.values()) - lost == pytest.approx(agent["kept"]["sum"])


def test_without_sums_nothing_is_said_to_be_kept_and_no_change_is_no_reason_to_warn(page) -> None:
    profile = sums(np.array([[1.0, 0.0, 0.2], [0.0, 1.0, 0.2]]))
    del profile["energy"]
    found = outcome(page, profile)
    assert not found["hasKept"]
    assert [a["kept"] for a in found["agents"]] == [None, None]
    assert "67 % of all changed weights are unique" not in found["text"]
    assert "unique to one agent" in found["text"]
    profile = sums(np.array([[0.2] * 40, [1e-30] * 40]))
    for key in ("energy", "cross"):
        for at in profile[key]:
            at[1] = [0.0, 0.0]
    profile["norm2"][1] = 0.0
    found = outcome(page, profile)
    assert found["agents"][1]["kept"]["sum"] == 1
    assert found["tone"] == "good"


def large(size: float, agents: int = 2, n: int = 40) -> np.ndarray:
    """Return agents that each changed n elements of their own by ``size``."""
    return np.kron(np.eye(agents), np.full(n, size))


def beside(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=1)


SHARED = np.full((2, 40), 0.3)
"""Elements that both changed alike."""

FEW_SHARED = beside(large(0.2), np.array([[0.2] * 400, [0.2] * 400]))

STORED = {"as_base_dtype_overlap": [[[40, 0], [1, 0]]] * len(LADDER)}


def _one_step(profile: dict) -> dict:
    # Every change one step of bfloat16: a small lambda rounds back to one.
    curve = {"cells": [[1.0, 1.0, 0.0]], "loose": 0.0, "spread": 0.0, "noise": 0.0}
    each = {"points": [0] * len(LADDER), "curves": [curve]}
    return {"dtypes": ["BF16"], "precision": [8], "agents": [[each]] * len(profile["agents"])}


@pytest.mark.parametrize(
    ("tau", "settings", "more", "tone", "said"),
    [
        (large(0.2), {"point": 6}, {}, "bad", "Nothing counts as changed at this ε"),
        # 2 of 80 weights are left and all of them unique: not "100 % unique, full strength".
        (beside(large(0.2), large(0.5, n=1)), {"point": 4}, {}, "bad", "at most 14 % of any"),
        (
            beside(large(0.2, n=1), SHARED),
            {"r": 1.0, "alpha": 10.0},
            {},
            "bad",
            "λ 11 for agent0 is far outside what the paper tried (at most 1.4).",
        ),
        (
            np.array([[0.5] * 40 + [0] * 40, [0] * 40 + [0.2] * 30 + [0.3] * 10]) * 0.9,
            {"point": 4},
            {},
            "warn",
            "Little is left of agent1 at this ε",
        ),
        (
            beside(large(5.0, agents=3) * [[1], [0], [1]], np.full((3, 40), 0.3)),
            {},
            {},
            "warn",
            "Little is left of agent1 after averaging what is shared: 33 % of the update",
        ),
        (large(0.2), {"method": "task-arithmetic-mean"}, {}, "warn", "divides every change by 2"),
        (large(0.2), {"method": "task-arithmetic-sum"}, {}, "good", "keeps every update whole"),
        (
            SHARED,
            {"method": "task-arithmetic-sum"},
            {},
            "warn",
            "the sum applies what they have in common 2 times",
        ),
        # Most weights are unique, but hardly any of the change is.
        (
            beside(large(0.06, n=400), np.array([[5.0] * 40, [5.0, -5.0] * 20])),
            {},
            {},
            "warn",
            "(by size) is unique: RAM is averaging in effect",
        ),
        # Averaging loses nothing of what agents have in common.
        (
            beside(large(0.06, n=400), np.array([[5.0] * 40, [4.0] * 40])),
            {},
            {},
            "good",
            "The agents moved alike (mean cosine 1.00)",
        ),
        (large(0.2), {}, STORED, "warn", "What agent1 changed is storage, not training"),
        (
            beside(large(0.2), SHARED[:, :20]),
            {},
            {"rounding": _one_step},
            "warn",
            "Rounding to nearest in bfloat16 takes part of λ: agent0 1.000 instead of",
        ),
        (
            beside(large(0.2), np.array([[0.2] * 8, [0.1] * 8])),
            {},
            {},
            "good",
            "Every update is kept to at least",
        ),
        (large(0.2, agents=1), {}, {}, "good", "Only one agent: the merge is that agent"),
    ],
)
def test_the_verdict_says_the_worst_first(page, tau, settings, more, tone, said) -> None:
    profile = sums(tau)
    profile.update({k: v(profile) if callable(v) else v for k, v in more.items()})
    found = outcome(page, profile, **settings)
    assert said in found["text"]
    assert found["tone"] == tone
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
        said = {"11111110": "first 4 of 4: all hold.", "00001111": "first 0 of 4."}.get(right, "")
        assert f"Measured: {said}" in found["text"]
    # Above what both share in alpha nothing changes; another lambda is another merge.
    found = nearest(page, profile, r=0.31)
    assert not found["isExact"]
    assert "nearest measured setting" in found["text"]
    assert "Measured" not in found["text"]
    assert nearest(page, profile, method="ties") is None
