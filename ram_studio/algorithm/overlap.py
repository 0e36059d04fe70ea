"""Overlap counts: how many elements each set of agents changed, at each epsilon.

The counts are int64 and additive: those of two disjoint sets of elements add up to those of their
union, so tensors, shards, threads and machines may be counted separately in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ram_studio.algorithm.scaling import overlap_unique_ratio
from ram_studio.algorithm.shapes import Int, Real

MAX_PATTERN_AGENTS = 6
"""Up to 6 agents every overlap pattern is counted; beyond, only numbers of agents that share."""


def counts_dict(shared: Sequence[int], total: int) -> dict[str, Any]:
    """Return an agent's counts for JSON; an infinite rho is None.

    shared: elements that it changed with exactly 0, 1, ... others; total: all elements.
    """
    unique, rest = shared[0], sum(shared[1:])
    rho = overlap_unique_ratio(rest, unique)
    return {
        "total": total,
        "active": unique + rest,
        "unique": unique,
        "shared": rest,
        "overlap": list(shared),
        "density": (unique + rest) / total if total else 0.0,
        "rho": None if math.isinf(rho) else rho,
    }


@dataclass(frozen=True)
class OverlapCounts:
    """Counts for some groups of elements (tensors, layers or the model) at some epsilons.

    numel: elements in each group.
    patterns: elements changed by exactly the agents in the bit mask (bit t is agent t), or None
        for more than MAX_PATTERN_AGENTS agents.
    shared: elements that agent t changed together with exactly j others (j = 0: unique). Never
        None; derived from ``patterns`` when these are given.
    """

    numel: Int[np.ndarray, " groups"]
    patterns: Int[np.ndarray, "groups points sets"] | None
    shared: Int[np.ndarray, "groups points agents others"]

    @classmethod
    def from_patterns(
        cls,
        numel: Int[np.ndarray, " groups"],
        patterns: Int[np.ndarray, "groups points sets"],
    ) -> OverlapCounts:
        """Return counts from overlap patterns; the number of sets must be a power of two."""
        return cls(numel, patterns, shared_of_patterns(patterns))

    @property
    def n_agents(self) -> int:
        return self.shared.shape[2]

    @cached_property
    def active(self) -> Int[np.ndarray, "groups points agents"]:
        """Elements that each agent changed."""
        return self.shared.sum(-1)

    @cached_property
    def by_count(self) -> Int[np.ndarray, "groups points counts"]:
        """Elements by overlap count c = 0 ... number of agents."""
        n = self.n_agents
        # An element with overlap count j + 1 appears once for each of its j + 1 agents.
        changed = self.shared.sum(2) // np.arange(1, n + 1)
        unchanged = self.numel[:, None] - changed.sum(-1)
        return np.concatenate([unchanged[..., None], changed], axis=-1)

    def grouped(self, groups: Sequence[Sequence[int]]) -> OverlapCounts:
        """Return the counts summed over each list of group indices."""
        return OverlapCounts(
            sum_groups(self.numel, groups),
            None if self.patterns is None else sum_groups(self.patterns, groups),
            sum_groups(self.shared, groups),
        )

    def keep_agents(self, keep: Sequence[int]) -> OverlapCounts:
        """Return the counts as if only these agents (indices, in this order) were merged.

        Exact: the dropped agents' bits are summed away.

        Raises: ValueError without patterns (more than MAX_PATTERN_AGENTS agents).
        """
        if self.patterns is None:
            raise ValueError("Agents can only be dropped when overlap patterns were counted.")
        masks = [(mask,) for mask in range(self.patterns.shape[-1])]
        patterns = keep_sets(self.patterns, masks, masks[: 1 << len(keep)], keep)
        return OverlapCounts.from_patterns(self.numel, patterns)


def sum_groups(values: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the sum of the rows in each list of indices; no row for no list."""
    sums = [values[np.asarray(group, dtype=np.int64)].sum(0) for group in groups]
    return np.stack(sums) if sums else values[:0]


def keep_sets(
    values: Real[np.ndarray, "*groups sets"],
    old: Sequence[tuple[int, ...]],
    new: Sequence[tuple[int, ...]],
    keep: Sequence[int],
) -> Real[np.ndarray, "*groups new"]:
    """Return sums by set of agents as if only these agents (indices, in this order) were merged.

    old, new: labels of the last axis before and after: (bit mask, members that a sum is about, if
    any, ascending). Sums about an agent that is dropped are left out.
    """
    place = {row: i for i, row in enumerate(new)}
    sums = np.zeros((*values.shape[:-1], len(new)), dtype=values.dtype)
    for i, (mask, *about) in enumerate(old):
        if set(about) <= set(keep):
            renamed = sum((mask >> agent & 1) << t for t, agent in enumerate(keep))
            sums[..., place[renamed, *sorted(map(keep.index, about))]] += values[..., i]
    return sums


def shared_of_patterns(
    patterns: Int[np.ndarray, "*groups sets"],
) -> Int[np.ndarray, "*groups agents others"]:
    """Return how many elements each agent shares with exactly j others, from pattern counts."""
    agents = patterns.shape[-1].bit_length() - 1
    shared = np.zeros((*patterns.shape[:-1], agents, agents), dtype=np.int64)
    for mask in range(1, patterns.shape[-1]):
        for agent in range(agents):
            if mask >> agent & 1:
                shared[..., agent, mask.bit_count() - 1] += patterns[..., mask]
    return shared


def patterns_from_chain(
    chain: Int[np.ndarray, "sets agents bins"], first_bins: Int[np.ndarray, " points"], numel: int
) -> Int[np.ndarray, "points sets"]:
    """Return the exact overlap pattern counts at each point from one chain histogram.

    As epsilon rises, the agents active at an element leave one by one. ``chain[S][a][k]`` counts
    the elements where agent a leaves, with |tau_a| in bin k, while exactly S (a included) is still
    active. An element has pattern S at epsilon when S was entered and not yet left:

        count(S) = sum_{a in S} tail(S, a) - sum_{a not in S} tail(S + a, a),

    with tail(S, a) = sum of chain[S][a][k] over the bins k above epsilon.

    Args:
        chain: int64; first_bins: first bin above epsilon at each point, ascending;
        numel: elements counted, for the empty pattern.
    """
    sets, agents, _ = chain.shape
    suffix = np.cumsum(chain[:, :, ::-1], axis=-1)[:, :, ::-1]
    tail = suffix[:, :, first_bins]
    out = np.zeros((len(first_bins), sets), dtype=np.int64)
    for mask in range(1, sets):
        for agent in range(agents):
            if mask >> agent & 1:
                out[:, mask] += tail[mask, agent]
            else:
                out[:, mask] -= tail[mask | 1 << agent, agent]
    out[:, 0] = numel - out[:, 1:].sum(-1)
    return out


def shared_from_steps(
    steps: Int[np.ndarray, "agents others bins"], first_bins: Int[np.ndarray, " points"]
) -> Int[np.ndarray, "points agents others"]:
    """Return how many elements each agent shares with exactly j others, beyond six agents.

    ``steps[t][j][k]`` is the increase, when epsilon falls below bin k, in the number of elements
    that agent t shares with exactly j others (it can be negative: one more agent became active).
    """
    suffix = np.cumsum(steps[:, :, ::-1], axis=-1)[:, :, ::-1]
    return np.ascontiguousarray(np.moveaxis(suffix[:, :, first_bins], -1, 0))
