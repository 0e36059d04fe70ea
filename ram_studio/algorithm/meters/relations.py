"""How the agents' changes relate: magnitudes, signs, cancellation, direction.

Statistics beyond the paper's counts, at every point of the epsilon grid, per tensor. An element
is changed by agent t at epsilon when |tau_t| > epsilon; it is shared when several agents changed
it. Only changed task vectors enter; tau at or below epsilon count as 0.

Sums are float64. |tau| is rounded to a multiple of 2**-38 before it is added, so that sums up to
32768 per tensor are exact and the same in any order; beyond, and for dot products, the last digits
may depend on the order. It is the same for any number of threads and size of blocks: elements
within a group of 65536, groups in file order (dot products of a group are added in the vector
width of the processor). Ratios of the whole model or a layer add the tensors' sums without
rounding in between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ram_studio.algorithm.overlap import (
    MAX_PATTERN_AGENTS,
    OverlapCounts,
    keep_sets,
    sum_groups,
)
from ram_studio.algorithm.scaling import overlap_unique_ratio
from ram_studio.algorithm.shapes import Float64, Int64, Real

EXPONENTS = 256
"""Exponent fields of float32; rounding statistics are grouped by that of the agent's element."""

HALF_STEPS = 128
"""Largest update counted exactly, in halves of the agent's last place (64 whole places)."""

PAIR_ROWS = 4
"""Rows of a pair: both changed, with opposite signs, their |tau|, how much of it cancels."""

QUANTUM = 2.0**-38
"""|tau| is rounded to a multiple of this (4e-12) before it is added to a sum.

Sums below 2**53 of them (32768) are then exact, so they are the same in every order of summation.
"""


def pairs_of(n_agents: int) -> list[tuple[int, int]]:
    """Return the pairs of agents in the order of all statistics."""
    return list(itertools.combinations(range(n_agents), 2))


def members_of(n_agents: int) -> list[tuple[int, int]]:
    """Return (bit mask, agent) for each agent of each set of agents, in the order of sums."""
    return [(m, t) for m in range(1, 1 << n_agents) for t in range(n_agents) if m >> t & 1]


def products_of(n_agents: int) -> list[tuple[int, int, int]]:
    """Return (bit mask, a, b) for agents a <= b of each set of agents, in the order of sums."""
    return [(m, a, b) for m, a in members_of(n_agents) for b in range(a, n_agents) if m >> b & 1]


class RowLayout:
    """Rows of each statistic in the kernels' table, consecutive ones.

    has_sets: whether |tau| is summed by set of agents (up to six).
    magnitudes: |tau| by set and agent (row mask * agents + agent), or without sets by agent:
    alone, shared. conflicts: one row, elements whose signs differ.
    cancelled: one per agent, |tau| against the sum. pairs: PAIR_ROWS per pair.
    products: of tau_a tau_b, see ``products_of``; without sets tau_t**2,
    then tau_t times the other changes, both by agent and number of others, and the square of the
    sum by number of agents. factors: of own and shared parts, 3 agents + 1 by agent and part, see
    ``part_factors``: times each agent's share of the mean, times what each changed alone, and at
    epsilon 0 only times each agent's tau, and squared. sums: products and factors. loose: |tau| and
    tau**2 of updates not counted in steps, by agent, nearness to an edge and binade.
    """

    def __init__(self, n_agents: int) -> None:
        n = self.n_agents = n_agents
        self.has_sets = n <= MAX_PATTERN_AGENTS
        self.magnitudes = slice(0, n << n if self.has_sets else 2 * n)
        self.conflicts = self.magnitudes.stop
        self.cancelled = _next(self.conflicts + 1, n)
        self.pairs = _next(self.cancelled.stop, PAIR_ROWS * len(pairs_of(n)))
        products = len(products_of(n)) if self.has_sets else 2 * n * n + n
        self.products = _next(self.pairs.stop, products)
        self.factors = _next(self.products.stop, 2 * n * (3 * n + 1))
        self.sums = slice(self.products.start, self.factors.stop)
        self.loose = _next(self.factors.stop, 4 * EXPONENTS * n)


def _next(start: int, rows: int) -> slice:
    return slice(start, start + rows)


@dataclass(frozen=True)
class Relations:
    """Statistics of groups of elements (tensors, layers or the model) at some epsilons.

    magnitude: sum of |tau_t| over elements that agent t changed alone [0] and with others [1].
    by_set: the same by set of agents, see members_of; None for more than six agents.
    pair_counts: elements both changed, and of these with opposite signs.
    pair_sums: over elements both changed, |tau_a| + |tau_b|, and of this what cancels between the
        two: |tau_a| + |tau_b| - |tau_a + tau_b|.
    conflicts: shared elements at which two of the agents that changed them differ in sign.
    cancelled: over shared elements, the |tau_t| that points against the sum of the changed tau;
        where that sum is exactly 0, half of |tau_t|. Twice the sum over all agents is therefore
        the total loss: the sum over shared elements of (sum |tau| - |sum tau|).
    dots: tau_a . tau_b over all elements, for any epsilon; squared norms on the diagonal.

    conflicts and cancelled are None where agents were left out and more than two remain: the stored
    sums do not determine them.
    """

    magnitude: Float64[np.ndarray, "groups points agents 2"]
    by_set: Float64[np.ndarray, "groups points members"] | None
    pair_counts: Int64[np.ndarray, "groups points pairs 2"]
    pair_sums: Float64[np.ndarray, "groups points pairs 2"]
    conflicts: Int64[np.ndarray, "groups points"] | None
    cancelled: Float64[np.ndarray, "groups points agents"] | None
    dots: Float64[np.ndarray, "groups agents agents"]

    @property
    def n_agents(self) -> int:
        return self.magnitude.shape[2]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of agents, in the order of sums."""
        return pairs_of(self.n_agents)

    def grouped(self, groups: Sequence[Sequence[int]]) -> Relations:
        """Return the statistics summed over each list of group indices."""
        found: dict[str, Any] = {
            name: None if values is None else sum_groups(values, groups)
            for name, values in vars(self).items()
        }
        return Relations(**found)

    def keep_agents(self, keep: Sequence[int]) -> Relations:
        """Return the statistics as if only these agents (indices, in this order) were merged.

        Raises: ValueError without sums by set (more than six agents).
        """
        if self.by_set is None:
            raise ValueError("Agents can only be dropped from analyses with sums by set.")
        n = len(keep)
        by_set = keep_sets(self.by_set, members_of(self.n_agents), members_of(n), keep)
        old_pairs = {pair: place for place, pair in enumerate(pairs_of(self.n_agents))}
        chosen = [old_pairs[min(p), max(p)] for p in itertools.combinations(keep, 2)]
        counts, sums = self.pair_counts[:, :, chosen], self.pair_sums[:, :, chosen]
        conflicts: np.ndarray | None = None
        cancelled: np.ndarray | None = None
        if n == self.n_agents:
            conflicts = self.conflicts
            cancelled = None if self.cancelled is None else self.cancelled[:, :, list(keep)]
        elif n == 2:
            # Of a pair only the smaller of two opposite changes is against the sum, or half of
            # each where they are equal: whether it was a's or b's is not stored.
            conflicts = counts[:, :, 0, 1]
        elif n == 1:
            conflicts = np.zeros(counts.shape[:2], dtype=np.int64)
            cancelled = np.zeros((*counts.shape[:2], 1))
        return replace(
            self,
            magnitude=magnitude_of_sets(by_set, n),
            by_set=by_set,
            pair_counts=counts,
            pair_sums=sums,
            conflicts=conflicts,
            cancelled=cancelled,
            dots=self.dots[np.ix_(range(len(self.dots)), list(keep), list(keep))],
        )

    @cached_property
    def cosines(self) -> Float64[np.ndarray, "groups agents agents"]:
        """Cosine between task vectors; NaN where one of the two is all zero."""
        norms = np.sqrt(np.einsum("gaa->ga", self.dots))
        scale = norms[:, :, None] * norms[:, None, :]
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = np.clip(np.where(scale > 0, self.dots / scale, np.nan), -1.0, 1.0)
        for t in range(self.n_agents):
            cosines[:, t, t] = np.where(norms[:, t] > 0, 1.0, np.nan)
        return cosines


def magnitude_of_sets(
    by_set: Float64[np.ndarray, "groups points members"], n_agents: int
) -> Float64[np.ndarray, "groups points agents 2"]:
    """Return each agent's sums of |tau| alone and shared from those by set."""
    out = np.zeros((*by_set.shape[:2], n_agents, 2))
    for place, (mask, agent) in enumerate(members_of(n_agents)):
        out[:, :, agent, int(mask.bit_count() > 1)] += by_set[:, :, place]
    return out


def group_ratios(
    sums: Real[np.ndarray, "tensors agents 2"], groups: Sequence[Sequence[int]]
) -> Float64[np.ndarray, "groups agents"]:
    """Return shared / unique of each agent over each group, from sums of both by tensor.

    Of counts that is rho (Eq. 2), of sums of |tau| rho_m: every element weighted by how far it
    moved. The paper names the isotropic assumption - every changed element counts the same - as its
    second limitation; rho_m and the rule ``ram+m`` that uses it are ours, not the paper's. Sums are
    rounded once; edge cases: see ``scaling.overlap_unique_ratio``.
    """
    n = sums.shape[1]
    ratios = [
        overlap_unique_ratio(math.fsum(shared), math.fsum(unique))
        for columns in (sums[list(g)].reshape(len(g), 2 * n).T.tolist() for g in groups)
        for unique, shared in zip(columns[::2], columns[1::2], strict=True)
    ]
    return np.array(ratios, dtype=np.float64).reshape(len(groups), n)


def build_relations(
    table: Float64[np.ndarray, "tensors points rows"],
    dots: Float64[np.ndarray, "tensors agents agents"],
    counts: OverlapCounts,
) -> Relations:
    """Return the statistics from the kernels' rows (all but the loose ones) at each point.

    The kernels add up differences, which may leave a rounding error where the sum is 0; the exact
    counts show where.
    """
    layout = RowLayout(counts.n_agents)
    magnitude, by_set = build_magnitude(table, counts)
    conflicts = table[:, :, layout.conflicts].astype(np.int64)
    cancelled = np.where(
        conflicts[..., None] > 0, np.maximum(table[:, :, layout.cancelled], 0.0), 0.0
    )
    n_pairs = len(pairs_of(layout.n_agents))
    pairs = table[:, :, layout.pairs].reshape(*table.shape[:2], n_pairs, PAIR_ROWS)
    upper = np.triu(dots)
    return Relations(
        magnitude=magnitude,
        by_set=by_set,
        pair_counts=pairs[..., :2].astype(np.int64),
        pair_sums=np.ascontiguousarray(pairs[..., 2:]),
        conflicts=conflicts,
        cancelled=cancelled,
        dots=upper + np.triu(dots, 1).swapaxes(1, 2),
    )


def build_magnitude(
    table: Float64[np.ndarray, "tensors points rows"], counts: OverlapCounts
) -> tuple[
    Float64[np.ndarray, "tensors points agents 2"],
    Float64[np.ndarray, "tensors points members"] | None,
]:
    """Return ``Relations.magnitude`` and ``Relations.by_set`` from the kernels' rows."""
    layout = RowLayout(counts.n_agents)
    n = layout.n_agents
    rows = table[:, :, layout.magnitudes]
    if counts.patterns is not None:
        members = members_of(n)
        by_set = rows[:, :, [mask * n + t for mask, t in members]]
        occupied = counts.patterns[:, :, [mask for mask, _ in members]] > 0
        by_set = np.where(occupied, np.maximum(by_set, 0.0), 0.0)
        return magnitude_of_sets(by_set, n), by_set
    shared = counts.shared
    occupied = np.stack([shared[..., 0] > 0, shared[..., 1:].sum(-1) > 0], axis=-1)
    magnitude = rows.reshape(*rows.shape[:2], n, 2)
    return np.where(occupied, np.maximum(magnitude, 0.0), 0.0), None
