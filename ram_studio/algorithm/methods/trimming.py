"""Trimming: the threshold that a share ``density`` of a task vector survives, largest first.

The k-th largest |tau|, k = int(density * elements) as in the authors' code and mergekit, is looked
up in a histogram of |tau| whose bins are 1/128 of an octave wide (``epsilon_grid``), so that the
analysis has it ready and no pass sorts. Every |tau| above the lower edge of the bin of the k-th
largest one survives. TIES by tensor, stored in float32, requests the k-th itself (``Select``).

- The surviving share is never below density, and exceeds it by at most the rest of that one bin:
  equal magnitudes all survive, as in the authors' code (its mask is |tau| >= the k-th largest), and
  so do smaller ones within 0.8 % of the k-th. Where the magnitudes in the bin are equal, as nearly
  always in bfloat16 checkpoints, that is the authors' definition exactly.
- Elements with tau = 0 count in the share but never survive: an agent that changed fewer than k
  elements loses none.
- |tau| below 2.4e-9 share one bin, and so do those above 10.5.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ram_studio.algorithm.epsilon_grid import edge_value, float32_threshold
from ram_studio.algorithm.methods.base import Magnitudes, RankRequests, Select
from ram_studio.algorithm.shapes import Float32

Density = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of each task vector that is retained, largest magnitudes first.",
    ),
]
ScopeOfTrimming = Annotated[
    Literal["global", "tensor"],
    Field(
        description="Scope in which the largest magnitudes are selected: the whole model (the "
        "authors' code) or each tensor on its own (mergekit)."
    ),
]


def retained_count(density: float, total: int) -> int:
    """Return k = int(density * total), at least 1 unless total is 0."""
    return min(max(int(density * total), 1), total)


def trim_thresholds(
    magnitudes: Magnitudes, density: float | np.ndarray, select: Select | None = None
) -> Float32[np.ndarray, "tensors agents"]:
    """Return the threshold per tensor and agent: |tau| > threshold, strictly, survives.

    density: of all, or (tensors, agents); more than 1 counts as 1, and at 0 nothing survives.
    select: for the k-th largest |tau| itself where its bin holds smaller ones.
    """
    agents, group_of = magnitudes.bins.shape[1], magnitudes.group_of
    densities = np.broadcast_to(density, (len(group_of), agents))
    thresholds = np.zeros((len(group_of), agents), dtype=np.float32)
    wanted: RankRequests = {}

    @cache  # most tensors have one group and one density
    def threshold(group: int, agent: int, share: float) -> np.float32:
        if share == 0:
            return np.float32(np.inf)
        k = retained_count(min(share, 1.0), int(magnitudes.totals[group]))
        # Per bin, how many elements are in it or a higher one (descending).
        at_least = np.cumsum(magnitudes.bins[group, agent, ::-1])[::-1]
        reaching = np.flatnonzero(at_least >= k)
        if not (k and len(reaching) and reaching[-1] > 0):
            return np.float32(0)
        index = int(reaching[-1])
        edge = np.float32(float32_threshold(edge_value(index)))
        if index + 1 < len(at_least) and at_least[index] > k:
            wanted[group, agent] = edge, k - int(at_least[index + 1])
        return edge

    for tensor, group in enumerate(group_of.tolist()):
        for agent in range(agents):
            thresholds[tensor, agent] = threshold(group, agent, float(densities[tensor, agent]))
    if select is not None and wanted:
        for (group, agent), exact in select(wanted).items():
            thresholds[group_of == group, agent] = exact
    return thresholds
