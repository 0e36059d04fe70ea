"""Retained and interference: the share of each agent's update in a merge, and what is added to it.

    own_t      = contribution of agent t to the merge: lambda_t tau_t where it alone changed an
                 element, tau_t / c where c agents did, 0 where |tau_t| <= epsilon
    retained_t     = <own_t, tau_t> / |tau_t|^2 = lambda_t E_t0 + sum_j E_tj / (j + 1)
    interference_t = |merge - own_t| / |tau_t|          (merge: as a change of the base)

with E_tj the energy share: the sum of tau_t^2 over elements that t and exactly j others changed,
divided by |tau_t|^2. retained_t is unique (E_t0) + boost ((lambda_t - 1) E_t0) + shared;
lost to averaging (sum_j E_tj - E_tj / (j + 1)) and lost to epsilon (1 - sum_j E_tj) are the rest.

A merge measures both from the stored values, and separates the method's effect from rounding:

    error          = stored change - the method's change, not yet rounded (the sum of all own parts)
    retained_t     = <own_t + error, tau_t> / |tau_t|^2, error over the elements that t changed
    rounding_t     = <error, tau_t> / |tau_t|^2                           (a part of retained_t)
    interference_t = |stored change - own_t| / |tau_t|
    by_rounding_t  = interference_t - |stored change - error - own_t| / |tau_t|

so that retained_t - rounding_t and interference_t - by_rounding_t equal the predictions, for any
output dtype. Where a method's change is not a sum of own parts (WUDI), the own part is the share
of the change along tau_t, so that retained_t = <stored change, tau_t> / |tau_t|^2.

Before the merge both follow from sums over the model at every grid point, which no setting changes.
Products of float32 are exact in float64, whose range holds all of them. The order of addition
depends on the elements alone: within 65536 elements of a tensor, these in order. Sums of tensors
are added exactly and rounded once (``exact_sums``), so they are the same for any number of threads,
block size and shard order, and for parts of a model that are counted separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ram_studio.algorithm.meters.relations import products_of
from ram_studio.algorithm.overlap import OverlapCounts, keep_sets
from ram_studio.algorithm.shapes import Float64


@dataclass(frozen=True)
class Energies:
    """Sums of products of changes over the model, at some epsilons. Only |tau| > epsilon enter.

    square: sum of tau_t**2 over elements that agent t and exactly j others changed.
    cross: the same of tau_t times the sum of the others' tau.
    meet: sum of (sum of tau)**2 over elements that exactly c agents changed, c = 0 ... agents.
    products: sum of tau_a tau_b by exact set of agents, see ``products_of``; None beyond six.

    The first point is epsilon 0, at which every change counts.
    """

    square: Float64[np.ndarray, "points agents others"]
    cross: Float64[np.ndarray, "points agents others"]
    meet: Float64[np.ndarray, "points counts"]
    products: Float64[np.ndarray, "points products"] | None = None

    @classmethod
    def of_products(cls, products: Float64[np.ndarray, "points products"], n: int) -> Energies:
        """Return the sums of n agents from those by set."""
        points = len(products)
        square, cross = np.zeros((2, points, n, n))
        meet = np.zeros((points, n + 1))
        for place, (mask, a, b) in enumerate(products_of(n)):
            value, others = products[:, place], mask.bit_count() - 1
            meet[:, others + 1] += value if a == b else 2 * value
            if a == b:
                square[:, a, others] += value
            else:
                cross[:, a, others] += value
                cross[:, b, others] += value
        return cls(square, cross, np.maximum(meet, 0.0), products)

    @property
    def n_agents(self) -> int:
        return self.square.shape[1]

    @property
    def norm2(self) -> Float64[np.ndarray, " agents"]:
        """|tau_t|^2 over all elements; 0 for an agent that changed nothing."""
        return self.square[0].sum(-1)

    @property
    def others_all(self) -> Float64[np.ndarray, " agents"]:
        """|sum of the other agents' tau|^2 / |tau_t|^2, for any epsilon; 0 where tau_t is 0."""
        rest = self.meet[0].sum() - 2 * self.cross[0].sum(-1) - self.norm2
        return self._shares(np.maximum(rest, 0.0))

    @property
    def energy(self) -> Float64[np.ndarray, "points agents others"]:
        """``square`` as shares of |tau_t|^2."""
        return self._shares(self.square)

    @property
    def cross_shares(self) -> Float64[np.ndarray, "points agents others"]:
        """``cross`` as shares of |tau_t|^2."""
        return self._shares(self.cross)

    def _shares(self, sums: np.ndarray) -> np.ndarray:
        norm2 = self.norm2 if sums.ndim == 1 else self.norm2[:, None]
        return np.divide(sums, norm2, out=np.zeros_like(sums), where=norm2 > 0)

    def keep_agents(self, keep: Sequence[int]) -> Energies:
        """Return the sums as if only these agents (indices, in this order) were merged.

        Raises: ValueError without sums by set (more than six agents).
        """
        if self.products is None:
            raise ValueError("Agents can only be dropped from analyses with sums by set.")
        n = len(keep)
        retained = keep_sets(self.products, products_of(self.n_agents), products_of(n), keep)
        return Energies.of_products(retained, n)

    def ram(self, point: int, factors: Sequence[float]) -> list[RetainedShares | None]:
        """Return each agent's retained shares in a merge of the RAM family at a grid point.

        factors: lambda by agent, on its unique elements.
        """
        n, norm2 = self.n_agents, self.norm2
        counts = np.arange(1, n + 1)
        energy = self.energy[point]
        scaled = np.square(factors) * self.square[point, :, 0]
        means = self.meet[point, 2:] / counts[1:] ** 2
        found = []
        for t in range(n):
            # In a mean of c, interference is (sum - tau_t) / c where t is one of the c, else sum /
            # c.
            own = self.square[point, t, 1:] + 2 * self.cross[point, t, 1:]
            rest = (means - own / counts[1:] ** 2).sum() + scaled.sum() - scaled[t]
            unique = float(energy[t, 0])
            shared = float((energy[t, 1:] / counts[1:]).sum())
            changed = float(energy[t].sum())
            found.append(
                RetainedShares.of(
                    norm2[t],
                    rest,
                    unique=unique,
                    boost=(factors[t] - 1.0) * unique,
                    shared=shared,
                    lost_to_averaging=changed - unique - shared,
                    lost_to_epsilon=max(0.0, 1.0 - changed),
                )
            )
        return found

    def scaled_sum(self, scale: float) -> list[RetainedShares | None]:
        """Return each agent's retained shares where the sum of all tau is multiplied by ``scale``.

        Without epsilon: every change counts, as unique where no other agent changed the element.
        """
        unique = self.energy[0, :, 0]
        others = self.others_all
        return [
            RetainedShares.of(
                norm2,
                scale**2 * others[t] * norm2,
                unique=float(unique[t]),
                boost=(scale - 1.0) * float(unique[t]),
                shared=scale * float(1.0 - unique[t]),
                lost_to_averaging=(1.0 - scale) * float(1.0 - unique[t]),
                lost_to_epsilon=0.0,
            )
            for t, norm2 in enumerate(self.norm2)
        ]


@dataclass(frozen=True)
class RetainedShares:
    """The parts of one agent's update that a merge retains, as shares of |tau|^2, and interference.

    retained = unique + boost + shared + rounding, and
    unique + shared + lost_to_averaging + lost_to_epsilon = 1. boost: effect of the factor on unique
    elements, negative below 1; lost_to_averaging is negative where shared elements are scaled up.
    rounding: effect of storing, of either sign, 0 before a merge was measured.
    interference: a multiple of |tau|; interference_rounding: its change by storing, of either sign,
    0 before a merge was measured.
    """

    retained: float
    unique: float
    boost: float
    shared: float
    rounding: float
    lost_to_averaging: float
    lost_to_epsilon: float
    interference: float
    interference_rounding: float = 0.0

    @classmethod
    def of(
        cls,
        norm2: float,
        rest: float,
        *,
        rounding: float = 0.0,
        stored_rest: float | None = None,
        **parts: float,
    ) -> RetainedShares | None:
        """Return the shares from their parts; None for an agent that changed nothing.

        rest: |merge - own part|^2; stored_rest: the same for the stored merge.
        """
        if not norm2 > 0:
            return None
        retained = parts["unique"] + parts["boost"] + parts["shared"] + rounding
        exact = math.sqrt(max(0.0, rest) / norm2)
        stored = exact if stored_rest is None else math.sqrt(max(0.0, stored_rest) / norm2)
        parts |= {"rounding": rounding, "interference_rounding": stored - exact}
        return cls(retained, **parts, interference=stored)


def retained_dict(found: RetainedShares | None) -> dict[str, Any]:
    """Return "retained" ("total" and its parts) and interference for JSON, None where unknown."""
    if found is None:
        return {"retained": None, "interference": None, "interference_rounding": None}
    parts = dict(vars(found))
    rest = {name: parts.pop(name) for name in ("interference", "interference_rounding")}
    return {"retained": {"total": parts.pop("retained"), **parts}, **rest}


def build_energies(rows: Float64[np.ndarray, "points products"], counts: OverlapCounts) -> Energies:
    """Return the sums over the model from the kernels' rows, added up over all tensors.

    counts: of the model or of its tensors. The kernels add up differences, which may leave a
    rounding error where the sum is 0; the exact counts show where.
    """
    n = counts.n_agents
    if counts.patterns is not None:
        products = products_of(n)
        occupied = counts.patterns.sum(0)[:, [mask for mask, _, _ in products]] > 0
        is_square = np.array([a == b for _, a, b in products])
        rows = np.where(is_square, np.maximum(rows, 0.0), rows)
        return Energies.of_products(np.where(occupied, rows, 0.0), n)
    shared = counts.shared.sum(0)
    square, cross = (rows[:, k : k + n * n].reshape(-1, n, n) for k in (0, n * n))
    meet = np.where(counts.by_count.sum(0)[:, 1:] > 0, rows[:, 2 * n * n :], 0.0)
    return Energies(
        np.where(shared > 0, np.maximum(square, 0.0), 0.0),
        np.where(shared > 0, cross, 0.0),
        np.pad(np.maximum(meet, 0.0), ((0, 0), (1, 0))),
    )
