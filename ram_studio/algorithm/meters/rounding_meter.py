"""The rounding meter: the effective lambda in an output dtype, predicted before the merge.

A merge measures it afterwards: the effective factor of agent t is

    sum (stored - base) tau / sum tau**2    over the elements that only agent t changed.

Before, with y = base + tau the agent's own element, the merge will store the neighbor of
y + (lambda - 1) tau. Where y is on the output's grid, whose spacing is g around y, and the result
stays in y's binade, that is exactly y + g rint((lambda - 1) tau / g). The stored multiple of tau

    stored(delta, lambda) = 1 + rint((lambda - 1) delta) / delta,    delta = |tau| / g,

follows from a histogram of delta alone. The analysis pass counts updates of up to 64 last places
exactly, by the binade of y, so that delta is known for every output dtype.
Everything else ("loose": larger updates, results that may leave the binade, agents stored more
finely than the output) is estimated as lambda, with the largest error that rounding can make as
its bound: half a spacing of the output at the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.meters.relations import EXPONENTS
from ram_studio.algorithm.shapes import Float64, Int64
from ram_studio.errors import SettingsError

DTYPES = ("BF16", "F16", "F32")
PRECISION = {"BF16": 8, "F16": 11, "F32": 24}
"""Binary digits of a number's significand, the leading one included."""

FIRST_NORMAL = {"BF16": 1, "F16": 113, "F32": 1}
"""float32 exponent field of the smallest normal number."""

EXACT_FACTOR = 2.0
"""Up to this lambda the exact part is exact: results were checked to stay in their binade."""

LOSS_LIMIT = 0.1
"""Advice is given when rounding loses more than this share of the requested rescaling."""

_TIE = 1e-4
"""Half-way cases this near (in spacings) may round either way: arithmetic before the rounding,
float32 for bfloat16, moves the result by up to 2**-16 spacings."""


_DIGITS = 4e-5
"""How far shares of five digits can move an estimate, lambda up to 2 (5e-6 of each, twice over)."""


def last_place(exponent: np.ndarray, dtype: str) -> np.ndarray:
    """Return the spacing of a format's numbers in binades by float32 exponent field (float64)."""
    field = np.maximum(exponent, FIRST_NORMAL[dtype]).astype(np.float64)
    return np.exp2(field - 126.0 - PRECISION[dtype])


def kernel_places(dtypes: Sequence[str]) -> Float64[np.ndarray, "agents 2 exponents"]:
    """Return the kernels' table of last places for agents stored in these dtypes."""
    fields = np.arange(EXPONENTS)
    float32 = last_place(fields, "F32")
    return np.stack([np.stack([float32, 2.0 / last_place(fields, d)]) for d in dtypes])


@dataclass(frozen=True)
class StepCounts:
    """Updates of elements that one agent alone changed, by size in last places, and the rest.

    exact: one row per kind of update: agent, index of its dtype in DTYPES, epsilon grid interval
        below which another agent changed the element too, exponent field of the agent's element (of
        the binade that tau points into), |tau| in halves of its last place, number of elements.
    loose: agent, whether the result may leave the binade (0, 1), exponent field;
    loose_sums: sum of |tau| and of tau**2 of these at each grid point.
    layer_exact, layer_loose, layer_sums: the same by layer, at the default epsilon only: layer,
        agent, dtype, exponent, halves, count; layer, agent, edge, exponent; both sums.
    layers: their labels.
    """

    n_agents: int
    layers: tuple[str, ...]
    exact: Int64[np.ndarray, "kinds 6"]
    loose: Int64[np.ndarray, "rows 3"]
    loose_sums: Float64[np.ndarray, "rows points 2"]
    layer_exact: Int64[np.ndarray, "layer_kinds 6"]
    layer_loose: Int64[np.ndarray, "layer_rows 4"]
    layer_sums: Float64[np.ndarray, "layer_rows 2"]

    def keep_agents(self, keep: Sequence[int]) -> StepCounts | None:
        """Return the counts in another order of agents; None when one is left out.

        An agent's unique region grows when others leave; by how much is not stored.
        """
        if len(keep) != self.n_agents:
            return None
        place = np.empty(self.n_agents, dtype=np.int64)
        place[list(keep)] = np.arange(self.n_agents)

        def renumber(rows: np.ndarray, column: int) -> np.ndarray:
            rows = rows.copy()
            rows[:, column] = place[rows[:, column]]
            return rows

        return replace(
            self,
            exact=renumber(self.exact, 0),
            loose=renumber(self.loose, 0),
            layer_exact=renumber(self.layer_exact, 1),
            layer_loose=renumber(self.layer_loose, 1),
        )

    def curve(self, agent: int, point: int, dtype: str) -> Curve | None:
        """Return one agent's curve in an output dtype, over the model, at a grid point.

        None when the agent has no unique elements there.
        """
        updates, lower, first = self._by_agent[agent]
        mine = self.loose[:, 0] == agent
        return _curve(
            dtype,
            updates[:, (lower <= point) & (first > point)],
            self.loose[mine, 1:],
            self.loose_sums[mine, point],
        )

    @cached_property
    def _by_agent(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Each agent's updates (see _curve), and the grid intervals in which they are unique."""
        found = []
        for agent in range(self.n_agents):
            _, source, lower, exponent, halves, count = self.exact[self.exact[:, 0] == agent].T
            updates = _updates(source, exponent, halves, count)
            found.append((updates, lower, grid_intervals(updates[2])))
        return found

    def layer_curve(self, layer: int, agent: int, dtype: str) -> Curve | None:
        """Return the same for one layer (index into ``layers``) at the default epsilon."""
        rows = self.layer_exact[
            (self.layer_exact[:, 0] == layer) & (self.layer_exact[:, 1] == agent)
        ]
        _, _, source, exponent, halves, count = rows.T
        mine = (self.layer_loose[:, 0] == layer) & (self.layer_loose[:, 1] == agent)
        updates = _updates(source, exponent, halves, count)
        return _curve(dtype, updates, self.layer_loose[mine, 2:], self.layer_sums[mine])


def add_up(rows: Int64[np.ndarray, "rows columns"]) -> Int64[np.ndarray, "kinds columns"]:
    """Return the distinct kinds (all columns but the last) in order, their counts added up."""
    kinds, where = np.unique(rows[:, :-1], axis=0, return_inverse=True)
    totals = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(totals, where.reshape(-1), rows[:, -1])
    return np.column_stack([kinds, totals])


_PLACES = np.stack([last_place(np.arange(EXPONENTS), dtype) for dtype in DTYPES])


def update_sizes(source: np.ndarray, exponent: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Return |tau| (float64, exact) from halves of the last place of the agent's dtype."""
    return _PLACES[source, exponent] * halves / 2.0


def _updates(
    source: np.ndarray, exponent: np.ndarray, halves: np.ndarray, count: np.ndarray
) -> np.ndarray:
    """Return rows for _curve: exponent field, the agent's last place there, |tau|, how many."""
    place = _PLACES[source, exponent]
    return np.stack([exponent.astype(np.float64), place, place * halves / 2.0, count])


def grid_intervals(size: np.ndarray) -> np.ndarray:
    """Return how many grid points are below each |tau| (0 for tau = 0)."""
    bins = epsilon_grid.key_of(size.astype(np.float32))
    return np.searchsorted(epsilon_grid.GRID_BINS, bins, side="right")


class Cell(NamedTuple):
    """Updates of ``delta`` spacings of the output: their share of sum tau**2.

    noise: sum over them of (tau g)**2 / (sum tau**2)**2, the variance of the effective factor
    that stochastic rounding adds, but for the f (1 - f) of the drawn step.
    """

    delta: float
    share: float
    noise: float


@dataclass(frozen=True)
class Curve:
    """Effective factor of one agent in one output dtype, as a function of lambda.

    cells: the exact part; loose: share of sum tau**2 of the rest; spread: bound on the rest's
    error at lambda up to 2; noise: as Cell.noise, for the rest.
    """

    dtype: str
    cells: tuple[Cell, ...]
    loose: float
    spread: float
    noise: float

    def short(self) -> Curve:
        """Return the curve with the client profile's digits, so that all estimates agree."""
        return curve_from_dict(self.to_dict(), self.dtype)

    def to_dict(self, coarsest: float = 64.0, smallest: float = 2e-4) -> dict[str, Any]:
        """Return the curve for the client profile, in five significant digits.

        Cells of more than ``coarsest`` spacings, or less than a share of ``smallest``, go to the
        loose part: rounding takes at most half a spacing of them. The bound covers that, and the
        digits left out.
        """
        listed = [c for c in self.cells if c.delta <= coarsest and c.share >= smallest]
        moved = [c for c in self.cells if c.delta > coarsest or c.share < smallest]
        spread = self.spread + sum(c.share / (2 * c.delta) for c in moved) * (1 + _TIE)
        return {
            "cells": [[_as_whole(c.delta), _short(c.share, 5), _short(c.noise, 3)] for c in listed],
            "loose": _short(self.loose + sum(c.share for c in moved), 5),
            "spread": _short(spread + _DIGITS, 5),
            "noise": _short(self.noise + sum(c.noise for c in moved), 3),
        }


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _as_whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def curve_from_dict(data: Mapping[str, Any], dtype: str) -> Curve:
    """Return the curve that ``Curve.to_dict`` wrote."""
    cells = tuple(Cell(*map(float, c)) for c in data["cells"])
    return Curve(dtype, cells, float(data["loose"]), float(data["spread"]), float(data["noise"]))


def _curve(
    dtype: str, updates: np.ndarray, loose: np.ndarray, loose_sums: np.ndarray
) -> Curve | None:
    """Return a curve from updates (see _updates) and sums of loose ones (see StepCounts)."""
    exponent, place, size, count = updates
    squares = count * size**2
    loose_sums = np.maximum(loose_sums, 0.0)
    total = float(squares.sum() + loose_sums[:, 1].sum())
    if not total > 0:
        return None
    spacing = last_place(exponent, dtype)
    noise = squares * spacing**2 / total**2
    on_grid = place >= spacing
    deltas, cell = np.unique((size / spacing)[on_grid], return_inverse=True)
    shares = np.bincount(cell, squares[on_grid] / total, len(deltas))
    noises = np.bincount(cell, noise[on_grid], len(deltas))
    near_edge, loose_spacing = loose[:, 0], last_place(loose[:, 1], dtype)
    off = ~on_grid
    # Within the binade of y the error is at most half a spacing g. Beyond it, with p digits, half
    # the spacing at z is at most 2**-p |z| <= g + 2**-p (lambda - 1) |tau|.
    errors = (
        (count * size * spacing)[off].sum() / 2
        + (loose_sums[:, 0] * loose_spacing * np.where(near_edge, 1.0, 0.5)).sum()
        + loose_sums[near_edge == 1, 1].sum() * 2.0 ** -PRECISION[dtype]
    )
    spread_out = loose_sums[:, 1] * (loose_spacing * np.where(near_edge, 2.0, 1.0)) ** 2
    return Curve(
        dtype,
        tuple(map(Cell, deltas.tolist(), shares.tolist(), noises.tolist())),
        float(squares[off].sum() + loose_sums[:, 1].sum()) / total,
        float(errors) / total * (1 + _TIE),
        float(noise[off].sum() + spread_out.sum() / total**2),
    )


class Estimate(NamedTuple):
    """An effective factor and the range in which the measured one must lie."""

    value: float
    low: float
    high: float


def estimate(curve: Curve, factor: float) -> Estimate:
    """Return the effective factor that rounding to nearest will store for lambda = ``factor``.

    The exact part is exact up to half-way cases, which may go either way; the rest counts as
    ``factor``, within its bound. Beyond lambda = 2 results may leave their binade, and the bound
    is widened for them.

    Raises: SettingsError for a factor below 1 or not finite (no rule gives one).
    """
    if not (math.isfinite(factor) and factor >= 1):
        raise SettingsError(f"lambda is {factor}; the rounding meter takes factors of at least 1.")
    value = curve.loose * factor
    width = curve.spread
    for cell in curve.cells:
        steps = (factor - 1.0) * cell.delta
        whole = math.floor(steps)
        if abs(steps - whole - 0.5) < _TIE:
            rounded_steps = whole + 0.5
            width += cell.share * 0.5 / cell.delta
        else:
            rounded_steps = math.floor(steps + 0.5)
        value += cell.share * (1.0 + rounded_steps / cell.delta)
    if factor > EXACT_FACTOR:
        width += curve.spread + (factor - 1.0) * 2.0 ** -PRECISION[curve.dtype]
        width += sum(cell.share / cell.delta for cell in curve.cells)
    return Estimate(value, value - width, value + width)


def stochastic_error(curve: Curve, factor: float) -> float:
    """Return the standard error of the effective factor when rounding stochastically.

    Its expectation is lambda itself. An element between two numbers a spacing g apart, a share f
    of the way up, has variance f (1 - f) g**2; where f is not known (the loose part) g**2 / 4 is
    the most it can be, within the binade or the next one.
    """
    variance = curve.noise / 4
    for cell in curve.cells:
        steps = (factor - 1.0) * cell.delta
        share = steps - math.floor(steps)
        variance += cell.noise * share * (1.0 - share)
    return math.sqrt(variance)


Factors = Mapping[str, tuple[float | None, float | None]]
"""By agent: requested lambda, and the effective or expected one. None where it is not known."""


def lost_rescaling(factors: Factors) -> dict[str, tuple[float, float]]:
    """Return the factors of which more than a tenth of the rescaling (lambda - 1) is not stored."""
    return {
        name: (requested, effective)
        for name, (requested, effective) in factors.items()
        if requested is not None
        and effective is not None
        and requested > 1
        and effective - 1 < (1 - LOSS_LIMIT) * (requested - 1)
    }


def _lost_texts(factors: Factors) -> list[str]:
    """Return "coding 1.000 instead of 1.200" by agent, with the digits that distinguish the two."""
    texts = []
    for name, (requested, effective) in lost_rescaling(factors).items():
        pairs = ((f"{effective:.{n}f}", f"{requested:.{n}f}") for n in range(3, 17))
        stored, expected = next(pair for pair in pairs if pair[0] != pair[1])
        texts.append(f"{name} {stored} instead of {expected}")
    return texts


def rounding_advice(dtype: str | None, factors: Factors) -> str:
    """Return advice on agents that lose rescaling by rounding to nearest, "" for none.

    dtype: output dtype in words for the user, None to leave it out.
    """
    parts = _lost_texts(factors)
    if not parts:
        return ""
    rounding = "Rounding" if dtype is None else f"Rounding to nearest in {dtype}"
    return (
        f"{rounding} takes part of the rescaling: {'; '.join(parts)}. "
        "Stochastic rounding or float32 keeps it."
    )
