"""Collects an analysis's statistics beyond counts, from the blocks of a counting pass.

Threads add up groups of elements on their own; a block's sums are added to its tensor in the
order of the blocks, so that sums of floating-point numbers do not depend on the threads.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from ram_studio.algorithm import epsilon_grid, naming
from ram_studio.algorithm.epsilon_grid import Thresholds
from ram_studio.algorithm.exact_sums import ExactSum
from ram_studio.algorithm.kernels.relating import (
    ChangedElements,
    RelationSums,
    add_relations,
    gather_changed,
)
from ram_studio.algorithm.meters import relations, rounding_meter
from ram_studio.algorithm.meters.relations import EXPONENTS, Relations, RowLayout
from ram_studio.algorithm.meters.rounding_meter import DTYPES, StepCounts, add_up
from ram_studio.algorithm.meters.weighted import WeightSums
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.partial import ExactSums
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, Block


class _Part(NamedTuple):
    """Sums of one group of elements for its tensor: rows of the table, and dot products."""

    rows: np.ndarray
    values: np.ndarray
    dots: np.ndarray


class RelationTally:
    """The statistics of all tensors of a pass.

    Args: tensors: the counted ones; grid: the thresholds, of the epsilon grid unless
    ``only_magnitudes``; only_magnitudes: only sums of |tau| (for rule ``ram+m``).
    """

    def __init__(
        self,
        tensors: list[MergeTensor],
        n_agents: int,
        grid: Thresholds,
        *,
        only_magnitudes: bool = False,
    ) -> None:
        self.layout = RowLayout(n_agents)
        self.grid = grid
        self.only_magnitudes = only_magnitudes
        self.n_rows = self.layout.magnitudes.stop if only_magnitudes else self.layout.loose.stop
        self.width = grid.points + 1
        self._layers = naming.sort_layers({naming.layer_of(t.name) for t in tensors})
        place = {label: i for i, label in enumerate(self._layers)}
        self._layer_of = [place[naming.layer_of(t.name)] for t in tensors]
        table_rows = min(self.n_rows, self.layout.factors.stop)
        self._table = np.zeros((len(tensors), grid.points, table_rows))
        self._dots = np.zeros((len(tensors), n_agents, n_agents))
        loose = 0 if only_magnitudes else self.layout.loose.stop - self.layout.loose.start
        self._loose = ExactSum((loose, grid.points))
        self._layer_loose = ExactSum((len(self._layers), loose))
        self._is_loose = np.zeros((len(self._layers), loose), dtype=np.bool_)
        self._steps: list[tuple[np.ndarray, np.ndarray]] = []
        self._layer_steps: list[tuple[np.ndarray, np.ndarray]] = []
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[int, list[_Part]]] = {}
        self._next = 0
        self._current = 0
        self._sums = np.zeros((self.n_rows, self.width))
        self._touched = np.zeros(self.n_rows, dtype=np.bool_)

    def add(self, index: int, tensor: int, parts: list[_Part]) -> None:
        """Add a block's parts after all blocks before it. Every block must be added once."""
        with self._lock:
            self._waiting[index] = (tensor, parts)
            while self._next in self._waiting:
                self._take(*self._waiting.pop(self._next))
                self._next += 1

    def _take(self, tensor: int, parts: list[_Part]) -> None:
        if tensor != self._current:
            self._finish_tensor()
            self._current = tensor
        for part in parts:
            self._sums[part.rows] += part.values
            self._touched[part.rows] = True
            self._dots[tensor] += part.dots

    def _finish_tensor(self) -> None:
        rows = np.flatnonzero(self._touched)
        if not len(rows):
            return
        # A value at interval v counts at every point below v.
        points = np.cumsum(self._sums[rows, :0:-1], axis=1)[:, ::-1]
        in_table = rows < self._table.shape[2]
        self._table[self._current][:, rows[in_table]] = points[in_table].T
        if not in_table.all():
            layer, loose = self._layer_of[self._current], rows[~in_table] - self.layout.loose.start
            self._loose.add(points[~in_table], loose)
            self._layer_loose.add(points[~in_table, epsilon_grid.DEFAULT_INDEX], (layer, loose))
            self._is_loose[layer, loose] = True
        self._sums[rows] = 0.0
        self._touched[rows] = False

    def add_steps(self, tensor: int, kinds: np.ndarray, counts: np.ndarray) -> None:
        """Add counted updates: rows (agent, dtype, lower, exponent, halves) and how many each."""
        sizes = rounding_meter.update_sizes(kinds[:, 1], kinds[:, 3], kinds[:, 4])
        point = epsilon_grid.DEFAULT_INDEX
        here = (kinds[:, 2] <= point) & (rounding_meter.grid_intervals(sizes) > point)
        layer = np.full((int(here.sum()), 1), self._layer_of[tensor], dtype=np.int64)
        of_layer = np.hstack([layer, np.delete(kinds[here], 2, axis=1)])
        with self._lock:
            self._steps.append((kinds, counts))
            self._layer_steps.append((of_layer, counts[here]))

    def relations(self, counts: OverlapCounts) -> Relations:
        """Return the statistics per tensor, once every block was added."""
        self._finish_tensor()
        return relations.build_relations(self._table, self._dots, counts)

    def weighing(self) -> WeightSums | None:
        """Return the sums by tensor that weights need, once every block was added."""
        self._finish_tensor()
        return WeightSums.of_table(self._table, self.layout.n_agents)

    def magnitude(self, counts: OverlapCounts) -> np.ndarray:
        """Return ``Relations.magnitude``, for a tally with ``only_magnitudes``."""
        self._finish_tensor()
        return relations.build_magnitude(self._table, counts)[0]

    def steps(self) -> tuple[StepCounts, ExactSums]:
        """Return the rounding meter's counts, once every block was added, and unrounded sums.

        The counts' own sums are still 0.
        """
        # The rows come in pairs: |tau| and tau**2.
        layer, loose = np.nonzero(self._is_loose[:, ::2])
        rows = np.flatnonzero(self._is_loose[:, ::2].any(axis=0))
        steps = StepCounts(
            n_agents=self.layout.n_agents,
            layers=tuple(self._layers),
            exact=_added_up(self._steps),
            loose=_places(rows),
            loose_sums=np.zeros((len(rows), self.grid.points, 2)),
            layer_exact=_added_up(self._layer_steps),
            layer_loose=np.column_stack([layer, _places(loose)]),
            layer_sums=np.zeros((len(loose), 2)),
        )
        pairs = 2 * rows[:, None] + np.arange(2), 2 * loose[:, None] + np.arange(2)
        changes = self._table[:, :, self.layout.sums]
        products = ExactSum(changes.shape[1:])
        for change in changes:
            products.add(change)
        return steps, ExactSums(
            products=products.packed(),
            loose=np.moveaxis(self._loose.packed(pairs[0]), 2, 3),
            layer=self._layer_loose.packed((layer[:, None], pairs[1])),
        )


def _places(rows: np.ndarray) -> np.ndarray:
    """Return agent, whether near an edge, and exponent field of loose rows (counted in pairs)."""
    return np.column_stack(
        [rows // EXPONENTS // 2, rows // EXPONENTS % 2, rows % EXPONENTS]
    ).astype(np.int64)


def _added_up(parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    kinds = np.concatenate([np.empty((0, 5), np.int64), *(k for k, _ in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(c for _, c in parts)])
    return add_up(np.column_stack([kinds, counts]))


class RelationCounter:
    """Adds one thread's blocks to a RelationTally."""

    def __init__(self, tally: RelationTally) -> None:
        n, grid = tally.layout.n_agents, tally.grid
        self._tally = tally
        self._gathered = ChangedElements.room_for(n, GROUP_ELEMENTS)
        self._sums = RelationSums.zeros(
            n, grid.edge_bits, grid.interval_of_bin, only_magnitudes=tally.only_magnitudes
        )
        self._place: tuple[int, tuple[str, ...]] | None = None

    def add(self, block: Block, base: np.ndarray, agents: tuple[np.ndarray, ...]) -> None:
        """Add a block whose task vectors are finite; arrays as BlockReader gives them."""
        dtypes = tuple(source.dtype for source in block.agents)
        if not self._tally.only_magnitudes and self._place != (block.tensor_index, dtypes):
            self._fold_steps()
            self._place = (block.tensor_index, dtypes)
            self._sums.places[:] = rounding_meter.kernel_places(dtypes)
        parts, sums = [], self._sums
        for part in block.groups:
            gather_changed(base[part], tuple(agent[part] for agent in agents), self._gathered)
            if self._gathered.counts.any():
                add_relations(self._gathered, sums)
                rows = np.flatnonzero(sums.touched)
                parts.append(_Part(rows, sums.rows[rows], sums.dots.copy()))
                sums.rows[rows] = 0.0
                sums.touched[rows] = 0
                sums.dots[:] = 0.0
        self._tally.add(block.index, block.tensor_index, parts)

    def _fold_steps(self) -> None:
        if self._place is None:
            return
        tensor, dtypes = self._place
        agent, lower, exponent = np.nonzero(self._sums.stepped)
        counts = self._sums.steps[agent, lower, exponent]
        row, halves = np.nonzero(counts)
        source = np.array([DTYPES.index(d) for d in dtypes], dtype=np.int64)[agent]
        kinds = np.column_stack([agent, source, lower, exponent])[row]
        if len(row):
            self._tally.add_steps(
                tensor, np.column_stack([kinds, halves]), counts[row, halves].astype(np.int64)
            )
        self._sums.steps[agent, lower, exponent] = 0
        self._sums.stepped[agent, lower, exponent] = 0

    def close(self) -> None:
        """Add the remaining steps to the tally."""
        self._fold_steps()
        self._place = None
