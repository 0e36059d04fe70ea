"""Sums of float64 arrays that are never rounded before the end: the same in any order.

A sum is kept as several arrays whose exact total it is. Adding goes through them with Knuth's
two-sum, which splits a + b into the rounded sum and what rounding took; what is left at the end
becomes one more array. So partial sums of threads, tensors or machines add up to the very bits of
the sum of all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ram_studio.algorithm.shapes import Float64


class ExactSum:
    """The exact sum of arrays of one shape.

    terms: arrays that add up to it, most significant first; none is a sum of zeros.
    """

    def __init__(self, shape: tuple[int, ...], terms: Sequence[np.ndarray] = ()) -> None:
        self.shape = shape
        self.terms: list[np.ndarray] = []
        for term in terms:
            self.add(term)

    def add(self, values: Float64[np.ndarray, ...], where: Any = ...) -> None:
        """Add finite values: of the whole shape, or of the places ``where`` (each at most once)."""
        left = np.array(values, dtype=np.float64)
        for term in self.terms:
            if not left.any():
                return
            old = term[where]
            total = old + left
            taken = total - old
            left = (old - (total - taken)) + (left - taken)
            term[where] = total
        if left.any():
            self.terms.append(np.zeros(self.shape))
            self.terms[-1][where] = left

    def packed(self, where: Any = ...) -> Float64[np.ndarray, "terms ..."]:
        """Return the terms as one array, without those that are zero everywhere."""
        chosen = [chosen for term in self.terms if (chosen := term[where]).any()]
        nothing = np.empty((0, *np.empty(self.shape)[where].shape))
        return np.stack(chosen) if chosen else nothing


def rounded(terms: Float64[np.ndarray, "terms ..."]) -> Float64[np.ndarray, ...]:
    """Return a packed sum, rounded once to the nearest float64."""
    shape = terms.shape[1:]
    columns = terms.reshape(len(terms), math.prod(shape)).T.tolist()
    return np.array([math.fsum(column) for column in columns]).reshape(shape)
