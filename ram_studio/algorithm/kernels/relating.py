"""Sums for an analysis's statistics beyond counts, over groups of elements on the CPU.

Changed elements are gathered as float32 first, so that the loops over them do not depend on the
storage dtype. ``meters.relations`` turns the sums into statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ram_studio.algorithm.kernels.cpu import Grid, loop_named
from ram_studio.algorithm.meters.part_factors import REFERENCE
from ram_studio.algorithm.meters.relations import (
    EXPONENTS,
    HALF_STEPS,
    QUANTUM,
    RowLayout,
    products_of,
)


class ChangedElements(NamedTuple):
    """The elements of a group that one agent changed, that two did, and that more did.

    alone: float32 (2, n), the agent's element and tau, for the first agent, then the second, ...;
    paired: float32 (4, n), both elements and both tau, pair by pair; several: float32
    (2, agents, n), every agent's element and tau; counts: int64 (agents + pairs + 1,), how many
    there are of each.
    """

    alone: np.ndarray
    paired: np.ndarray
    several: np.ndarray
    counts: np.ndarray

    @classmethod
    def room_for(cls, n_agents: int, elements: int) -> ChangedElements:
        """Return buffers for groups of up to this number of elements."""
        kinds = n_agents + n_agents * (n_agents - 1) // 2 + 1
        return cls(
            alone=np.empty((2, elements), np.float32),
            paired=np.empty((4, elements), np.float32),
            several=np.empty((2, n_agents, elements), np.float32),
            counts=np.zeros(kinds, np.int64),
        )


class RelationSums(NamedTuple):
    """Accumulators over groups of elements.

    grid, interval_of_bin (uint8): the thresholds, as intervals between them by bin of |tau|.
    rows: float64 (rows, intervals), see ``relations.RowLayout``, whose rows begin at conflicts,
    pairs, products, factors and loose; touched: uint8 (rows,), set to 1 where a row was added to.
    reference: the first interval above the epsilon that cuts updates into parts.
    product_of: int64 (sets, agents, agents), which of the rows of products a set's tau_a tau_b is.
    is_full: False for sums of |tau| alone; what follows is then not touched.
    dots: float64 (agents, agents), the upper triangle of tau_a tau_b added up.
    steps: int32 (agents, intervals, EXPONENTS, HALF_STEPS + 1), updates by the interval below which
    the element is no longer unique; stepped: uint8, 1 for rows of ``steps`` that were added to.
    places: float64 (agents, 2, EXPONENTS), float32's last place and the inverse of half the
    format's, by exponent field (``rounding_meter.kernel_places``).
    """

    grid: Grid
    interval_of_bin: np.ndarray
    rounder: float
    has_sets: bool
    is_full: bool
    conflicts: int
    pairs: int
    products: int
    factors: int
    loose: int
    reference: int
    product_of: np.ndarray
    rows: np.ndarray
    touched: np.ndarray
    dots: np.ndarray
    steps: np.ndarray
    stepped: np.ndarray
    places: np.ndarray

    @classmethod
    def zeros(
        cls,
        n_agents: int,
        edge_bits: int,
        interval_of_bin: np.ndarray,
        *,
        only_magnitudes: bool = False,
    ) -> RelationSums:
        """Return empty sums for a grid of thresholds; ``places`` is still to be filled in."""
        layout = RowLayout(n_agents)
        width = int(interval_of_bin.max()) + 1
        n_rows = layout.magnitudes.stop if only_magnitudes else layout.loose.stop
        # Mostly unused: pages without updates never take physical memory.
        shape = (n_agents, 0 if only_magnitudes else width, EXPONENTS)
        sets = 1 << n_agents if layout.has_sets else 0
        product_of = np.zeros((sets, n_agents, n_agents), dtype=np.int64)
        for row, (mask, a, b) in enumerate(products_of(n_agents) if sets else ()):
            product_of[mask, a, b] = product_of[mask, b, a] = row
        return cls(
            grid=Grid.anchored(edge_bits),
            interval_of_bin=interval_of_bin.astype(np.uint8),
            rounder=2.0**52 * QUANTUM,
            has_sets=layout.has_sets,
            is_full=not only_magnitudes,
            conflicts=layout.conflicts,
            pairs=layout.pairs.start,
            products=layout.products.start,
            factors=layout.factors.start,
            loose=layout.loose.start,
            reference=REFERENCE + 1,
            product_of=product_of,
            rows=np.zeros((n_rows, width)),
            touched=np.zeros(n_rows, dtype=np.uint8),
            dots=np.zeros((n_agents, n_agents)),
            steps=np.zeros((*shape, HALF_STEPS + 1), dtype=np.int32),
            stepped=np.zeros(shape, dtype=np.uint8),
            places=np.zeros((n_agents, 2, EXPONENTS)),
        )


def gather_changed(
    base: np.ndarray, agents: tuple[np.ndarray, ...], gathered: ChangedElements
) -> None:
    """Gather the elements of a group (stored, see ``cpu``) that agents changed; overwrites."""
    loop_named("gather_changed")(base, agents, gathered)


def add_relations(gathered: ChangedElements, sums: RelationSums) -> None:
    """Add a group of elements, whose task vectors are finite, to every statistic."""
    loop_named("add_relations")(gathered, sums)
