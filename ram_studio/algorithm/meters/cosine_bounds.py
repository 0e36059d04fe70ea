"""Floor and ceiling of the cosine between two agents' updates, without a pass over the weights.

    floor_ab   = 1.96 sqrt(sum_l |a_l|^2 |b_l|^2 / n_l) / (|a| |b|)      a_l: a's update in layer l
    ceiling_ab = sqrt(sum over S of a_i^2 * sum over S of b_i^2) / (|a| |b|)  S: what both changed

Floor: shuffle one of the updates within each layer, n_l elements; 95 % of the cosines are then
within it, for updates whose mean is near 0. Ceiling: the largest cosine possible with these sums
over S (Cauchy-Schwarz). For near-orthogonal updates that share many elements, RAM, TIES and the
mean give nearly the same merge (arXiv 2607.16062, where floor and ceiling are a random
initialization and checkpoints of one run).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.meters.relations import pairs_of, products_of
from ram_studio.algorithm.shapes import Float64

WITHIN = 1.96
"""Standard deviations that cover 95 % of a normal distribution."""


@dataclass(frozen=True)
class CosineBounds:
    """Bounds by pair, in the order of ``pairs_of``, and of the mean weighted by |a| |b|.

    NaN where one of two agents changed nothing; ceilings None beyond six agents.
    """

    floors: Float64[np.ndarray, " pairs"]
    ceilings: Float64[np.ndarray, " pairs"] | None
    mean_floor: float
    mean_ceiling: float | None


def cosine_bounds(analysis: Analysis) -> CosineBounds | None:
    """Return the bounds of all pairs; None without relations or fewer than two agents."""
    n = len(analysis.agents)
    if analysis.relations is None or n < 2:
        return None
    layers = analysis.grouped_relations("layer")
    numel = np.maximum(analysis.grouped("layer").numel, 1)
    norm2 = np.einsum("gaa->ga", layers.dots)
    first, second = (list(side) for side in zip(*pairs_of(n), strict=True))
    sizes = np.sqrt(norm2.sum(0)[first] * norm2.sum(0)[second])
    spread = (norm2[:, first] * norm2[:, second] / numel[:, None]).sum(0)
    both = _energy_of_both(analysis, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = float(sizes.sum())
        return CosineBounds(
            WITHIN * np.sqrt(spread) / sizes,
            None if both is None else np.minimum(both / sizes, 1.0),
            WITHIN * float(np.sqrt(spread.sum())) / whole if whole else float("nan"),
            None if both is None or not whole else float(min(both.sum() / whole, 1.0)),
        )


def _energy_of_both(analysis: Analysis, n: int) -> Float64[np.ndarray, " pairs"] | None:
    """Return sqrt(a's energy * b's energy) over what both of each pair changed; None if unknown."""
    if analysis.energies is None or analysis.energies.products is None:
        return None
    energy = np.zeros((n, n))
    for value, (mask, a, b) in zip(analysis.energies.products[0], products_of(n), strict=True):
        if a == b:
            # The changes of a in this set, for every other agent of the set.
            energy[a, [t for t in range(n) if mask >> t & 1]] += value
    return np.sqrt(np.array([energy[a, b] * energy[b, a] for a, b in pairs_of(n)]))
