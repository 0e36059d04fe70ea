"""Own and shared factors: how many times each part of an agent's update reaches a merge.

Every update is cut in two, once and for all at epsilon 1e-5 (``REFERENCE``): weights that only this
agent changed (its own part), and weights that others changed too (its shared part). Then

    factor = <merge, tau_t> / |tau_t|^2,    both over the elements of the part

with the merge as a change of the base. At another epsilon, RAM's merge of an element is the mean
of the w_s tau_s of those that changed it, or lambda_s w_s tau_s where only s did, so that

    factor = sum_s w_s (a_s + lambda_s b_s)

with a_s and b_s known at every point of the epsilon grid: the contribution of s to means, and
alone. The plain sum has one factor per part, multiplied by its scale (average: 1/N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON, DEFAULT_INDEX, float32_threshold
from ram_studio.algorithm.shapes import Float32, Float64

REFERENCE = DEFAULT_INDEX
"""Grid index of the epsilon that cuts updates in two."""


@dataclass(frozen=True)
class PartFactors:
    """Sums of each agent's tau times merges, over its own [0] and its shared part [1].

    mean: of tau_t times tau_s / c where s is one of c that changed an element, alone: times tau_s
        where only s did, at some epsilons.
    total: of tau_t times tau_s, for any epsilon.
    energy: of tau_t squared; 0 where the part is empty.
    """

    mean: Float64[np.ndarray, "points agents 2 agents"]
    alone: Float64[np.ndarray, "points agents 2 agents"]
    total: Float64[np.ndarray, "agents 2 agents"]
    energy: Float64[np.ndarray, "agents 2"]

    @classmethod
    def of_rows(cls, rows: Float64[np.ndarray, "points rows"], n_agents: int) -> PartFactors:
        """Return the sums from the kernels' rows (``RowLayout.factors``) of the whole model."""
        n = n_agents
        table = rows.reshape(len(rows), n, 2, 3 * n + 1)
        own = (table[..., :n], table[..., n : 2 * n], table[0, ..., 2 * n : -1], table[0, ..., -1])
        return cls(*(part.copy() for part in own))

    @property
    def parts(self) -> Float64[np.ndarray, "points agents 2 1+agents"]:
        """The numbers sum_s a_s, b_1, b_2, ... of each part, see the module; NaN where empty."""
        rows = np.concatenate([self.mean.sum(-1, keepdims=True), self.alone], axis=-1)
        return _divide(rows, self.energy[..., None])

    @property
    def sum(self) -> Float64[np.ndarray, "agents 2"]:
        """The plain sum's factors; NaN where a part is empty."""
        return _divide(self.total.sum(-1), self.energy)

    def keep_agents(self, keep: Sequence[int]) -> PartFactors | None:
        """Return the sums in another order of agents; None when one is left out.

        An agent's own part grows when others leave; by how much is not known.
        """
        pick = list(keep)
        if len(pick) != len(self.energy):
            return None
        mean, alone = (rows[:, pick][..., pick] for rows in (self.mean, self.alone))
        return PartFactors(mean, alone, self.total[pick][..., pick], self.energy[pick])

    def of_ram(
        self, point: int, lambdas: Sequence[float], weights: Sequence[float] | None = None
    ) -> Float64[np.ndarray, "agents 2"]:
        """Return the factors of a merge of the RAM family at a grid point.

        lambdas: by agent, on its unique elements; weights: by agent, 1 when left out.
        """
        shared = np.ones(len(lambdas)) if weights is None else np.asarray(weights, dtype=np.float64)
        unique = shared * np.asarray(lambdas, dtype=np.float64)
        return _divide(self.mean[point] @ shared + self.alone[point] @ unique, self.energy)


def _divide(sums: np.ndarray, energy: np.ndarray) -> np.ndarray:
    return np.divide(sums, energy, out=np.full(sums.shape, np.nan), where=energy > 0)


def factors_dict(factors: Sequence[float] | np.ndarray | None) -> dict[str, float | None]:
    """Return an agent's own and shared factor for JSON, None where undefined."""
    own, shared = (np.nan, np.nan) if factors is None else map(float, factors)
    return {"own": None if np.isnan(own) else own, "shared": None if np.isnan(shared) else shared}


def part_sums(
    tau: Float32[np.ndarray, "agents n"], change: Float32[np.ndarray, " n"]
) -> Float64[np.ndarray, "agents 2 2"]:
    """Return the sums of tau_t times a merge's change, and of tau_t squared, over each part.

    For merges that no formula gives: sums of blocks add up, ``measured_factors`` divides them.
    """
    is_active = np.abs(tau) > float32_threshold(DEFAULT_EPSILON)
    is_alone = is_active.sum(0) == 1
    wide, merged = tau.astype(np.float64), change.astype(np.float64)
    parts = [is_active & is_alone, is_active & ~is_alone]
    sums = [[(wide * merged * p).sum(-1), (wide * wide * p).sum(-1)] for p in parts]
    return np.moveaxis(np.array(sums), -1, 0)


def measured_factors(sums: Float64[np.ndarray, "agents 2 2"]) -> dict[str, list[Any]]:
    """Return {"own", "shared"}: factors by agent from ``part_sums``, None where a part is empty."""
    named = [
        factors_dict([m / e if e > 0 else np.nan for m, e in agent]) for agent in sums.tolist()
    ]
    return {key: [own[key] for own in named] for key in ("own", "shared")}
