"""What a merge does with the task vectors of one element, for both backends: numbers, no code.

Of the tau of an element some are kept. With their sum and their number c,

    merged = base + factors[t] * tau_t         where only tau_t is kept
             base + shares[c] * sum            where c are kept

so RAM has factors lambda_t and shares 1 / c, task arithmetic the same number everywhere. Methods
that elect a sign sum only the tau that agree with the sign of the sum, and c counts those. Where
nothing is kept, or the sum is exactly 0, the base stays bit for bit.

Arithmetic: with at least twice the output's digits. Where everything stored is bfloat16 (8 digits)
that is float32 (24), else float64; in a written order, without fused operations, and rounded to the
output once. So the same numbers come out on every processor and device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

Arithmetic = Literal["float32", "float64"]


def arithmetic(stored: Iterable[str]) -> Arithmetic:
    """Return what an element is merged in, from the dtypes ("BF16") it is stored in, output too."""
    return "float32" if set(stored) == {"BF16"} else "float64"


class Drawing(NamedTuple):
    """Which tau are dropped at random: those whose word's 53 upper bits are below ``cut``.

    keys: per agent, of the tensor's random words (``rounding.stream_key``).
    """

    keys: tuple[np.uint64, ...]
    cut: int


class Rule(NamedTuple):
    """How the elements of one tensor are merged, see the module.

    epsilon: float32 value; an agent changed an element where |tau| > epsilon, and what it changed
        is kept. factors: per agent; shares: by c = 0 ... agents; elect_sign: whether.
    thresholds: per agent, float32 values; kept is only |tau| above, strictly. drawing: what of the
        kept is dropped. Neither makes an element count as unchanged.
    """

    epsilon: float
    factors: tuple[float, ...]
    shares: tuple[float, ...]
    elect_sign: bool = False
    thresholds: tuple[float, ...] | None = None
    drawing: Drawing | None = None


def means(n_agents: int, factor: float = 1.0) -> tuple[float, ...]:
    """Return the shares of a scaled mean: factor / c, and 0 where nothing is kept."""
    return (0.0, *(factor / c for c in range(1, n_agents + 1)))
