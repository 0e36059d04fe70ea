"""Reinforced Agent Merging element by element, in plain Python, from the published equations alone.

Nothing here comes from the package: it is what the package is checked against. Numbers are Python
floats (float64) and exact fractions; tensors are flat lists of them. Equations are those of arXiv
2601.13572.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

Values = Sequence[float]

# Storage formats: digits of the significand, and exponents of the smallest and largest normal.
FORMATS = {"BF16": (8, -126, 127), "F16": (11, -14, 15), "F32": (24, -126, 127)}


def float32(value: float) -> float:
    """Return the float32 nearest to a float64 (infinite beyond float32's range)."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def splitmix64(key: int, index: int) -> int:
    """Return the published finaliser (Steele et al. 2014) of key + index golden gammas."""
    mask = (1 << 64) - 1
    z = (key + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def tau(base: float, agent: float) -> float:
    """Return one element of a task vector, theta_t - theta_base, in float32.

    Rounding the float64 difference of two float32 numbers once more is the float32 difference.
    """
    return float32(agent - base)


def pattern(base: float, agents: Values, epsilon: float) -> int:
    """Return which agents changed an element, |tau| > epsilon strictly: bit t is agent t."""
    return sum(1 << t for t, agent in enumerate(agents) if abs(tau(base, agent)) > epsilon)


def patterns(base: Values, agents: Sequence[Values], epsilon: float) -> list[int]:
    """Return the overlap pattern of every element."""
    columns = zip(*agents, strict=True)
    return [pattern(x, ys, epsilon) for x, ys in zip(base, columns, strict=True)]


def pattern_counts(base: Values, agents: Sequence[Values], epsilon: float) -> list[int]:
    """Return how many elements have each of the 2**agents patterns."""
    found = Counter(patterns(base, agents, epsilon))
    return [found[mask] for mask in range(1 << len(agents))]


def add_counts(parts: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums, place by place, of equally long lists of counts."""
    return [sum(column) for column in zip(*parts, strict=True)]


def shared_counts(counts: Sequence[int], agents: int) -> list[list[int]]:
    """Return, per agent, the elements it shares with exactly 0, 1, 2, ... others."""
    shared = [[0] * agents for _ in range(agents)]
    for mask, count in enumerate(counts):
        members = [t for t in range(agents) if mask >> t & 1]
        for t in members:
            shared[t][len(members) - 1] += count
    return shared


def ratio(overlap: Sequence[int]) -> float:
    """Return rho (Eq. 2): elements shared with others by elements changed alone.

    Not published: 0 for an agent that changed nothing, infinite for one with nothing of its own.
    """
    unique, shared = overlap[0], sum(overlap[1:])
    if unique == 0:
        return math.inf if shared else 0.0
    return shared / unique


def scaling(rho: float, rule: str, r: float, alpha: float) -> float:
    """Return lambda: 1 (ram), Eq. 6 (ram+, and ram+m with rho by magnitude) or Eq. 8 (ram+s)."""
    if rule == "ram":
        return 1.0
    if rule in ("ram+", "ram+m"):
        return 1.0 + r * max(0.0, min(rho, alpha))
    assert rule == "ram+s"
    return 1.0 + r * (rho / (1.0 + rho) if rho < math.inf else 1.0)


def merged(
    base: float, agents: Values, epsilon: float, factors: Values, shared: str = "mean"
) -> float:
    """Return the merged element (Eq. 7) in float64; tau itself is taken in float64 here.

    shared "ties": of the agents that changed an element, only those are averaged that agree with
    the sign of the sum of all of them; where the sum is 0 the base stays.
    """
    mask = pattern(base, agents, epsilon)
    changes = [agent - base for t, agent in enumerate(agents) if mask >> t & 1]
    if not changes:
        return base
    if len(changes) == 1:
        t = mask.bit_length() - 1
        # Exactly the agent where nothing is rescaled.
        return agents[t] if factors[t] == 1.0 else base + factors[t] * changes[0]
    if shared == "ties":
        total = sum(changes)
        changes = [c for c in changes if (c > 0) == (total > 0) and c != 0 and total != 0]
        if not changes:
            return base
    total = 0.0
    for change in changes:
        total += change
    return base + total / len(changes)


def merged_exactly(
    base: float, agents: Values, epsilon: float, factors: Values, shared: str = "mean"
) -> Fraction:
    """Return the merged element without any rounding at all."""
    mask = pattern(base, agents, epsilon)
    origin = Fraction(base)
    members = [t for t in range(len(agents)) if mask >> t & 1]
    changes = [Fraction(agents[t]) - origin for t in members]
    if not changes:
        return origin
    if len(changes) == 1:
        return origin + Fraction(factors[members[0]]) * changes[0]
    if shared == "ties":
        total = sum(changes)
        changes = [c for c in changes if c * total > 0]
        if not changes:
            return origin
    return origin + sum(changes) / len(changes)


def effective_scaling(
    base: Values, agents: Sequence[Values], epsilon: float, agent: int, stored: Values
) -> float | None:
    """Return sum((stored - base) tau) / sum(tau**2) over what only this agent changed."""
    numerator = denominator = Fraction(0)
    for i, mask in enumerate(patterns(base, agents, epsilon)):
        if mask == 1 << agent:
            change = Fraction(agents[agent][i]) - Fraction(base[i])
            numerator += (Fraction(stored[i]) - Fraction(base[i])) * change
            denominator += change * change
    return float(numerator / denominator) if denominator else None


def spacing(value: Fraction, dtype: str) -> Fraction:
    """Return the distance between neighbors of a storage format around a value."""
    digits, lowest, highest = FORMATS[dtype]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    if size == 0:
        exponent = lowest
    return Fraction(2) ** (min(max(exponent, lowest), highest) - digits + 1)


def largest(dtype: str) -> Fraction:
    """Return the largest finite number of a storage format."""
    digits, _, highest = FORMATS[dtype]
    return (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** highest


def neighbors(value: Fraction, dtype: str) -> tuple[Fraction, Fraction]:
    """Return the representable numbers at or below and at or above a value in range."""
    step = spacing(value, dtype)
    below = math.floor(value / step) * step
    return below, below if below == value else below + step


def nearest(value: Fraction, dtype: str) -> Fraction:
    """Return the representable number nearest to a value in range, ties to the even one."""
    step = spacing(value, dtype)
    return round(value / step) * step  # round() of a fraction takes ties to even
