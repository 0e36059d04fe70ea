"""How a merge combines the task vectors of one element: numbers that both backends use.

Some tau of an element survive (the mask, trimming, dropping). With their sum and their number c,

    merged = base + factors[t] * tau_t         where only tau_t survives
             base + shares[c] * sum            where c survive

so RAM has factors lambda_t and shares 1 / c, task arithmetic the same number everywhere. Methods
that elect a sign sum only the tau that agree with the sign of the sum, and c counts those. Where
none survives, or the sum is exactly 0, the base stays bit for bit.

With weights, w_t tau_t replaces tau_t above; which tau survive still depends on tau_t alone.

Arithmetic: with at least twice the output's digits. Where everything stored is bfloat16 (8 digits)
that is float32 (24), else float64; in a written order, without fused operations, and rounded to the
output once. So the same numbers come out on every processor and device. The exception is float32
output of mergekit's own methods: ``MergekitSum``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

Arithmetic = Literal["float32", "float64"]


def arithmetic(stored: Iterable[str]) -> Arithmetic:
    """Return the arithmetic of a merge, from the stored dtypes ("BF16") of sources and output."""
    return "float32" if set(stored) == {"BF16"} else "float64"


class Drawing(NamedTuple):
    """Random dropping of tau: those whose word's 53 upper bits are below the agent's cut.

    keys: per agent, of the tensor's random words (``rounding.stream_key``); cuts: per agent.
    """

    keys: tuple[np.uint64, ...]
    cuts: tuple[int, ...]


class MergekitSum(NamedTuple):
    """A rule's sum as mergekit's ``dtype: float32`` adds it up: every operation rounds to float32.

    merged = base + (sum of weights[t] * tau_t) / divisor * factor, from left to right.

    weights: per agent. parts: per agent where a sign is elected; the sum of the agreeing tau is
    divided by the sum of their parts (by 1 where that is 0), not by ``divisor``.
    base_weight: None, or that of the base in an average of models instead of task vectors:
    merged = (base_weight * base + sum of weights[t] * theta_t) / divisor, each product added to
    the sum by one rounding (a fused multiplication and addition, as torch's addcmul).
    """

    weights: tuple[float, ...]
    factor: float = 1.0
    divisor: float = 1.0
    parts: tuple[float, ...] | None = None
    base_weight: float | None = None


def float32_total(numbers: Iterable[float]) -> float:
    """Return a sum of weights in torch's order for up to seven float32: four lanes, then these."""
    values, lanes = np.array(tuple(numbers), dtype=np.float32), np.zeros(4, dtype=np.float32)
    whole = len(values) // 4 * 4
    for row in values[:whole].reshape(-1, 4):
        lanes += row
    for value in values[whole:]:
        lanes[0] += value
    return float(((lanes[0] + lanes[1]) + lanes[2]) + lanes[3])


class Rule(NamedTuple):
    """How the elements of one tensor are merged, see the module.

    epsilon: float32 value; an agent changed an element where |tau| > epsilon; only changed tau
        survive. factors: per agent; shares: by c = 0 ... agents; elect_sign: whether.
    thresholds: per agent, float32 values; only |tau| strictly above survives trimming. drawing:
        which survivors are dropped. Neither makes an element count as unchanged.
    weights: per agent; None is 1 for all, and costs nothing. divisors: per agent; the sum is also
        divided by the sum of those of the tau in it (by 1 where that is 0). With elect_sign only.
    as_mergekit: the sum in mergekit's order, of its own methods; is_as_mergekit: whether that is
        what is stored. Overlap patterns and measurements do not depend on it.
    """

    epsilon: float
    factors: tuple[float, ...]
    shares: tuple[float, ...]
    elect_sign: bool = False
    thresholds: tuple[float, ...] | None = None
    drawing: Drawing | None = None
    weights: tuple[float, ...] | None = None
    divisors: tuple[float, ...] | None = None
    as_mergekit: MergekitSum | None = None
    is_as_mergekit: bool = False


def means(n_agents: int, factor: float = 1.0) -> tuple[float, ...]:
    """Return the shares of a scaled mean: factor / c, and 0 for c = 0."""
    return (0.0, *(factor / c for c in range(1, n_agents + 1)))


def keep_rule(rule: Rule, agent: int | None) -> Rule:
    """Return the rule that stores one agent's elements as they are, or the base's with None.

    Overlap patterns still follow the rule's epsilon.
    """
    n = len(rule.factors)
    limits = tuple(0.0 if t == agent else math.inf for t in range(n))
    ones = (1.0,) * n
    return Rule(rule.epsilon, ones, (0.0, *ones), elect_sign=True, thresholds=limits)


class BlockOutput(NamedTuple):
    """A merged block of elements, from a rule or a formula.

    values: float (n,), merged and not yet rounded; active: int64 overlap pattern (n,). Bit t of the
    pattern is set where agent t changed the element: by more than epsilon where the method has one,
    else by any amount. The engine counts changed and unique elements by it, measures the
    effective factor where it has one bit, and rounds to nearest where it is 0.
    own: agent's index -> its own part of the change, (n,), where the change is a sum of such parts;
    without it the retained share is measured along the agent's own direction (``meters.retained``).
    """

    values: Float[Tensor, " n"]
    active: Int64[Tensor, " n"]
    own: Callable[[int], Tensor] | None = None

    def part(self, where: slice) -> BlockOutput:
        """Return this result for a slice of the elements."""
        own = self.own
        own_there = None if own is None else lambda t: own(t)[where]
        return BlockOutput(self.values[where], self.active[where], own_there)
