"""The baseline methods element by element, in plain Python, from the published equations alone.

Nothing here comes from the package. Numbers are float64; tensors are flat lists. Equations: task
arithmetic arXiv 2212.04089, TIES arXiv 2306.01708, DARE arXiv 2311.03099.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Sequence
from functools import reduce

import numpy as np
from reference import splitmix64

Values = Sequence[float]


def added(values: Values) -> float:
    """Return the sum from left to right (``sum`` compensates since Python 3.12)."""
    return reduce(operator.add, values, 0.0)


def task_arithmetic(base: float, agents: Values, scale: float) -> float:
    return base + scale * added([agent - base for agent in agents])


def kth_largest(magnitudes: Values, density: float) -> float:
    """Return the magnitude of rank floor(density * n) from the top, at least the largest."""
    k = max(1, math.floor(density * len(magnitudes) * (1 + 1e-12)))
    return sorted(magnitudes, reverse=True)[k - 1]


def in_one_bin(a: float, b: float) -> bool:
    """Whether two magnitudes lie in one bin (edge, next edge] of 128 per octave around 1e-5."""

    def index(x: float) -> int:
        bits = int(np.float32(x).view(np.uint32)) - int(np.float32(1e-5).view(np.uint32)) - 1
        return min(max(bits >> 16, -1536), 4096 - 1536 - 1)

    return a != 0 and b != 0 and index(a) == index(b)


def survives_trimming(magnitudes: Values, density: float) -> list[bool]:
    """Return what trimming keeps: all from the k-th largest up, and what shares its bin."""
    limit = kth_largest(magnitudes, density)
    return [m != 0 and (m >= limit or in_one_bin(m, limit)) for m in magnitudes]


def elect(base: float, taus: Values, scale: float) -> float:
    """Return the TIES element from trimmed task vectors (0 where trimmed)."""
    mass = added(taus)
    agreeing = [tau for tau in taus if tau != 0 and (tau > 0) == (mass > 0)]
    if mass == 0 or not agreeing:
        return base
    return base + scale * (added(agreeing) / len(agreeing))


def is_dropped(seed: int, agent: str, tensor: str, index: int, drop_rate: float) -> bool:
    """Return whether the element's 53 upper bits lie below the rate: SplitMix64 of a hashed key."""
    text = f"{seed}\0dare:{agent}\0{tensor}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return (splitmix64(key, index) >> 11) * 2.0**-53 < drop_rate
