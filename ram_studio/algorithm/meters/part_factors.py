"""Own and shared factors: how many times each part of an agent's update reaches a merge.

Every update is cut in two, once and for all at epsilon 1e-5 (``REFERENCE``): weights that only this
agent changed (its own part), and weights that others changed too (its shared part). Then

    factor = <merge, tau_t> / |tau_t|^2,    both over the elements of the part

with the merge as a change of the base. At another epsilon, RAM's merge of an element is the mean
of the agents that changed it, or lambda_s tau_s where only s did, so that

    factor = a + sum_s lambda_s b_s

with a and b_s known at every point of the epsilon grid: what the mean brings in, and what s alone
does. The plain sum has one factor, which every scale (average: 1/N) multiplies.
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

    ram: of tau_t times the mean of those that changed an element [0], and times tau_s where only s
        did [1 + s], at some epsilons.
    total: of tau_t times the sum of all agents' tau.
    energy: of tau_t squared; 0 where the part is empty.
    """

    ram: Float64[np.ndarray, "points agents 2 1+agents"]
    total: Float64[np.ndarray, "agents 2"]
    energy: Float64[np.ndarray, "agents 2"]

    @classmethod
    def of_rows(cls, rows: Float64[np.ndarray, "points rows"], n_agents: int) -> PartFactors:
        """Return the sums from the kernels' rows (``RowLayout.factors``) of the whole model."""
        table = rows.reshape(len(rows), n_agents, 2, n_agents + 3)
        ram = np.ascontiguousarray(table[..., :-2])
        return cls(ram, table[0, ..., -2].copy(), table[0, ..., -1].copy())

    @property
    def parts(self) -> Float64[np.ndarray, "points agents 2 1+agents"]:
        """The numbers a, b_s of each part, see the module; NaN where it is empty."""
        return _divided(self.ram, self.energy[..., None])

    @property
    def sum(self) -> Float64[np.ndarray, "agents 2"]:
        """The plain sum's factors; NaN where a part is empty."""
        return _divided(self.total, self.energy)

    def keep_agents(self, keep: Sequence[int]) -> PartFactors | None:
        """Return the sums in another order of agents; None when one is left out.

        What is an agent's own part grows when others leave; that is not known.
        """
        pick = list(keep)
        if len(pick) != len(self.energy):
            return None
        ram = self.ram[:, pick][..., [0, *(1 + s for s in pick)]]
        return PartFactors(ram, self.total[pick], self.energy[pick])

    def of_ram(self, point: int, lambdas: Sequence[float]) -> Float64[np.ndarray, "agents 2"]:
        """Return the factors of a merge of the RAM family at a grid point.

        lambdas: by agent, on what it alone changed.
        """
        found = self.parts[point]
        return found[..., 0] + found[..., 1:] @ np.asarray(lambdas, dtype=np.float64)


def _divided(sums: np.ndarray, energy: np.ndarray) -> np.ndarray:
    return np.divide(sums, energy, out=np.full(sums.shape, np.nan), where=energy > 0)


def factors_dict(factors: Sequence[float] | np.ndarray | None) -> dict[str, float | None]:
    """Return an agent's own and shared factor as JSON has them, None where there is none."""
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
