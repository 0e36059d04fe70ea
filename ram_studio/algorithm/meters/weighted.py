"""Effect of a recipe's weights, ramps and filters on a merge of the RAM family, from tensor sums.

A weight w_t multiplies tau_t; masks, counts and rho ignore it. So the sums over one tensor that
retained, interference and factors need do not depend on weights:

    U_t = sum of tau_t^2 where only t changed an element       C_t = the same where t changed one
    M_t = sum of tau_t^2 / c where c >= 2 agents did           G_ab = sum of tau_a tau_b / c^2 there

    retained_t       = sum over tensors of (u_t U_t + w_t M_t) / |tau_t|^2,     u_t = lambda_t w_t
    interference_t^2 = sum over tensors of (sum_s u_s^2 U_s + sum_ab w_a w_b G_ab) / |tau_t|^2

with s, a and b other agents than t. Each tensor may have its own epsilon, lambda and weights. A
tensor that keeps an agent stores its tau whole: u = 1, and its shared elements count once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.algorithm.meters.part_factors import PartFactors, factors_dict
from ram_studio.algorithm.meters.relations import RowLayout, products_of
from ram_studio.algorithm.meters.retained import RetainedShares, retained_dict
from ram_studio.algorithm.overlap import sum_groups
from ram_studio.algorithm.shapes import Float, Float32, Int64
from ram_studio.errors import AnalysisError


class GroupSettings(NamedTuple):
    """How each group of elements is merged.

    points: on the epsilon grid; unique: factors on unique elements, times weights; shared: weights.
    keep: the agent whose elements are stored as they are, -1 where all are merged
    (the base is stored where unique and shared are 0).
    """

    points: Int64[np.ndarray, " groups"]
    unique: Float[np.ndarray, "groups agents"]
    shared: Float[np.ndarray, "groups agents"]
    keep: Int64[np.ndarray, " groups"]

    @classmethod
    def uniform(cls, point: int, unique: np.ndarray, shared: np.ndarray) -> GroupSettings:
        """Return groups that have one epsilon, and are all merged."""
        n = len(shared)
        return cls(np.full(n, point), unique, shared, np.full(n, -1))

    def grouped(self, groups: Sequence[Sequence[int]]) -> GroupSettings | None:
        """Return the settings of each list of groups; None where one list has different ones."""
        first = [own[0] for own in groups]
        for values in self:
            if any((values[list(own)] != values[own[0]]).any() for own in groups):
                return None
        return GroupSettings(*(values[first] for values in self))


@dataclass(frozen=True)
class WeightSums:
    """Sums over groups of elements at some epsilons, in float32; the first point is epsilon 0.

    square: U, C and M of each agent; gram: G; factors: means [0] and alone [1] of ``PartFactors``;
    total: its total.
    """

    square: Float32[np.ndarray, "groups points agents 3"]
    gram: Float32[np.ndarray, "groups points agents agents"]
    factors: Float32[np.ndarray, "groups points agents 2 2 agents"]
    total: Float32[np.ndarray, "groups agents 2 agents"]

    @classmethod
    def of_table(cls, table: Float[np.ndarray, "groups points rows"], n: int) -> WeightSums | None:
        """Return the sums from the kernels' rows; None for more agents than have sums by set."""
        layout = RowLayout(n)
        if not layout.has_sets:
            return None
        square, gram = sums_of_products(table[:, :, layout.products], n)
        rows = table[:, :, layout.factors].reshape(*table.shape[:2], n, 2, 3 * n + 1)
        factors = rows[..., : 2 * n].reshape(*rows.shape[:-1], 2, n)
        own = (square, gram, factors, rows[:, 0, ..., 2 * n : -1])
        return cls(*(part.astype(np.float32) for part in own))

    def grouped(self, groups: Sequence[Sequence[int]]) -> WeightSums:
        """Return the sums over each list of group indices."""
        return WeightSums(
            **{
                name: sum_groups(values.astype(np.float64), groups).astype(np.float32)
                for name, values in vars(self).items()
            }
        )

    def at_points(self, points: Sequence[int]) -> WeightSums:
        """Return the sums at some of the points only."""
        pick = list(points)
        return WeightSums(
            self.square[:, pick], self.gram[:, pick], self.factors[:, pick], self.total
        )

    def with_fewer_digits(self) -> WeightSums:
        """Return the sums in 12 digits instead of 24, which deflate to half: within 2**-13."""
        short = {}
        for name, values in vars(self).items():
            bits = (np.ascontiguousarray(values).view(np.uint32) + (1 << 10)) >> 11 << 11
            short[name] = bits.view(np.float32)
        return WeightSums(**short)

    def keep_agents(self, keep: Sequence[int]) -> WeightSums | None:
        """Return the sums in another order of agents; None when one is left out."""
        pick = list(keep)
        if len(pick) != self.square.shape[2]:
            return None
        return WeightSums(
            self.square[:, :, pick],
            self.gram[:, :, pick][..., pick],
            self.factors[:, :, pick][..., pick],
            self.total[:, pick][..., pick],
        )

    def part_factors(
        self, settings: GroupSettings, parts: PartFactors
    ) -> Float[np.ndarray, "agents 2"]:
        """Return each agent's own and shared factor; NaN where a part is empty.

        parts: of the whole model.
        """
        every = np.arange(len(self.factors))
        mean, alone = np.moveaxis(self.factors[every, settings.points].astype(np.float64), -2, 0)
        found = alone * settings.unique[:, None, None] + mean * settings.shared[:, None, None]
        for group in np.flatnonzero(settings.keep >= 0):
            s = settings.keep[group]
            found[group] = 0.0
            found[group, ..., s] = self.total[group, ..., s]
        sums = found.sum((0, -1))
        return np.divide(sums, parts.energy, out=np.full_like(sums, np.nan), where=parts.energy > 0)


def sums_of_products(
    products: Float[np.ndarray, "groups points products"], n: int
) -> tuple[
    Float[np.ndarray, "groups points agents 3"], Float[np.ndarray, "groups points agents agents"]
]:
    """Return ``WeightSums.square`` and ``gram`` from sums by set of agents."""
    square = np.zeros((*products.shape[:2], n, 3))
    gram = np.zeros((*products.shape[:2], n, n))
    for place, (mask, a, b) in enumerate(products_of(n)):
        value, c = products[..., place], mask.bit_count()
        if a == b:
            value = np.maximum(value, 0.0)
            square[..., a, 1] += value
            square[..., a, 0 if c == 1 else 2] += value / c
        if c > 1:
            gram[..., a, b] += value / c**2
            if a != b:
                gram[..., b, a] += value / c**2
    return square, gram


def retained_of(
    square: np.ndarray, gram: np.ndarray, settings: GroupSettings
) -> list[RetainedShares | None]:
    """Return each agent's retained shares, see the module; arrays as in ``WeightSums``."""
    every = np.arange(len(square))
    wide = square[every, settings.points].astype(np.float64)
    alone, changed, mean = wide[..., 0], wide[..., 1], wide[..., 2]
    gram = gram[every, settings.points].astype(np.float64)
    whole = square[:, 0, :, 1].astype(np.float64)  # at epsilon 0
    unique, shared = settings.unique.copy(), settings.shared.copy()
    is_chosen = settings.keep >= 0
    unique[is_chosen], shared[is_chosen] = 0.0, 0.0
    brought = unique * alone, shared * mean
    pairs = gram * shared[:, :, None] * shared[:, None, :]
    found: list[RetainedShares | None] = []
    for t, norm2 in enumerate(whole.sum(0)):
        if not norm2 > 0:
            found.append(None)
            continue
        of_others = np.arange(square.shape[2]) != t
        rest = np.square(unique)[:, of_others] * alone[:, of_others]
        total = rest.sum() + pairs[:, of_others][:, :, of_others].sum()
        mine = settings.keep == t
        total += whole[is_chosen & ~mine, settings.keep[is_chosen & ~mine]].sum()
        own = alone[:, t].sum() / norm2
        share = (brought[1][:, t].sum() + (changed - alone)[mine, t].sum()) / norm2
        boosted = (brought[0][:, t].sum() + alone[mine, t].sum()) / norm2
        every_change = changed[:, t].sum() / norm2
        found.append(
            RetainedShares.of(
                norm2,
                total,
                unique=own,
                boost=boosted - own,
                shared=share,
                lost_to_averaging=every_change - own - share,
                lost_to_epsilon=max(0.0, 1.0 - every_change),
            )
        )
    return found


def describe_retained(
    agents: Sequence[str],
    retained: Sequence[RetainedShares | None],
    factors: Float[np.ndarray, "agents 2"] | None,
) -> dict[str, dict[str, Any]]:
    """Return each agent's retained shares and factors, for previews."""
    known = [None] * len(retained) if factors is None else list(factors)
    own = zip(agents, retained, known, strict=True)
    return {name: retained_dict(r) | {"factors": factors_dict(f)} for name, r, f in own}


Groups = Callable[[str], Sequence[Sequence[int]]]
"""The tensors of each group that a grouping makes, by its name."""


def resolve_compact(
    by_layer: WeightSums, by_module: WeightSums | None, settings: GroupSettings, groups: Groups
) -> tuple[WeightSums, GroupSettings]:
    """Return the sums of a compact analysis that suit the settings, and the settings by group.

    Raises: AnalysisError where tensors of one group have different settings.
    """
    if (of_layers := settings.grouped(groups("layer"))) is not None:
        return by_layer, of_layers
    found = settings.grouped(groups("place"))
    if found is None or by_module is None or (found.points != DEFAULT_INDEX).any():
        raise AnalysisError(
            "A compact analysis supports filters of whole modules at epsilon 1e-5 only; use the "
            "whole analysis."
        )
    return by_module, found._replace(points=np.ones_like(found.points))
