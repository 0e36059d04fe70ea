"""Sums of float64 arrays that are never rounded before the end: the same in any order.

A sum is stored as several arrays, whose exact total it is. A value is added to each of them in turn
with Knuth's two-sum, which splits a + b into the rounded sum and its rounding error; the last error
becomes one more array. So partial sums of threads, tensors or machines add up to the same bits as
one sum over everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ram_studio.algorithm.shapes import Float64

LANES = 256
"""Rows that ``ExactTotal`` adds at a time."""

_SPLIT = float(2**27 + 1)


class ExactSum:
    """The exact sum of arrays of one shape.

    terms: arrays that add up to the sum, most significant first; empty for a sum of zeros.
    """

    def __init__(self, shape: tuple[int, ...], terms: Sequence[np.ndarray] = ()) -> None:
        self.shape = shape
        self.terms: list[np.ndarray] = []
        for term in terms:
            self.add(term)

    def add(self, values: Float64[np.ndarray, ...], where: Any = ...) -> None:
        """Add finite values: of the whole shape, or at indices ``where`` (each at most once)."""
        left = np.array(values, dtype=np.float64)
        for term in self.terms:
            if not left.any():
                return
            old = term[where]
            total = old + left
            added = total - old
            left = (old - (total - added)) + (left - added)
            term[where] = total
        if left.any():
            self.terms.append(np.zeros(self.shape))
            self.terms[-1][where] = left

    def packed(self, where: Any = ...) -> Float64[np.ndarray, "terms ..."]:
        """Return the terms as one array, without those that are zero everywhere."""
        chosen = [chosen for term in self.terms if (chosen := term[where]).any()]
        nothing = np.empty((0, *np.empty(self.shape)[where].shape))
        return np.stack(chosen) if chosen else nothing


class ExactTotal:
    """The exact total of rows of one shape, in memory that does not grow with their number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._lanes = ExactSum((LANES, *shape))  # adding one row costs as much as LANES
        self._rest = ExactSum(shape)

    def add(self, rows: Float64[np.ndarray, "rows ..."]) -> None:
        """Add finite rows."""
        for start in range(0, len(rows), LANES):
            some = rows[start : start + LANES]
            self._lanes.add(some, slice(len(some)))

    def join(self, terms: Float64[np.ndarray, "terms ..."]) -> None:
        """Add the packed terms of another total."""
        for term in terms:
            self._rest.add(term)

    def packed(self) -> Float64[np.ndarray, "terms ..."]:
        """Return the fewest arrays that add up to the total: the same bits in any order of adding.

        The first is the total rounded once, each further one the remainder, rounded once.
        """
        every = [*self._rest.terms, *(lane for term in self._lanes.terms for lane in term)]
        size = math.prod(self.shape)
        columns = np.reshape(every, (len(every), size)).T.tolist()
        expansions = [_expansion(column) for column in columns]
        packed = np.zeros((max(map(len, expansions), default=0), size))
        for place, found in enumerate(expansions):
            packed[: len(found), place] = found
        return packed.reshape(len(packed), *self.shape)


def _expansion(values: list[float]) -> list[float]:
    """Return the total rounded once, then the remainder rounded once, and so on."""
    found: list[float] = []
    while (left := math.fsum(values)) and math.isfinite(left):
        found.append(left)
        values.append(-left)
    return found


def exact_product(
    a: Float64[np.ndarray, ...], b: Float64[np.ndarray, ...]
) -> tuple[Float64[np.ndarray, ...], Float64[np.ndarray, ...]]:
    """Return two arrays that add up to a b exactly: the rounded product and its rounding error.

    By Dekker (1971), "A floating-point technique for extending the available precision", which
    splits each factor into two of 26 bits; for products between 1e-290 and 1e290, and 0.
    """
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = values * _SPLIT
    high = scaled - (scaled - values)
    return high, values - high


def rounded(terms: Float64[np.ndarray, "terms ..."]) -> Float64[np.ndarray, ...]:
    """Return a packed sum, rounded once to the nearest float64."""
    shape = terms.shape[1:]
    columns = terms.reshape(len(terms), math.prod(shape)).T.tolist()
    return np.array([math.fsum(column) for column in columns]).reshape(shape)
