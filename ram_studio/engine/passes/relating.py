"""Collecting what the sketch knows beyond counts, from the blocks that a pass holds anyway.

Threads add up groups of elements on their own; what a block found is added to its tensor in the
order of the blocks, so that sums of floating-point numbers do not depend on the threads.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from ram_studio.algorithm import ladder, naming
from ram_studio.algorithm.kernels.relating import (
    Gathered,
    RelationSums,
    add_relations,
    gather_changed,
)
from ram_studio.algorithm.ladder import Thresholds
from ram_studio.algorithm.meters import relations, rounding_meter
from ram_studio.algorithm.meters.kept import Energies, build_energies
from ram_studio.algorithm.meters.relations import EXPONENTS, Relations, RowLayout
from ram_studio.algorithm.meters.rounding_meter import DTYPES, StepCounts
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, Block


class _Part(NamedTuple):
    """What one group of elements adds to its tensor: rows of the table, and dot products."""

    rows: np.ndarray
    values: np.ndarray
    dots: np.ndarray


class RelationTally:
    """The statistics of all tensors of a pass.

    Args: tensors: the counted ones; grid: the thresholds, of the ladder unless ``only_magnitudes``;
        only_magnitudes: leave out everything but sums of |tau| (what rule ``ram+m`` needs).
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
        self._names = [t.name for t in tensors]
        self._layers = naming.sort_layers({naming.layer_of(t.name) for t in tensors})
        place = {label: i for i, label in enumerate(self._layers)}
        self._layer_of = [place[naming.layer_of(t.name)] for t in tensors]
        kept = min(self.n_rows, self.layout.products.stop)
        self._table = np.zeros((len(tensors), grid.points, kept))
        self._dots = np.zeros((len(tensors), n_agents, n_agents))
        self._loose: dict[int, np.ndarray] = {}
        self._layer_loose: dict[tuple[int, int], np.ndarray] = {}
        self._steps: list[tuple[np.ndarray, np.ndarray]] = []
        self._layer_steps: list[tuple[np.ndarray, np.ndarray]] = []
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[int, list[_Part]]] = {}
        self._next = 0
        self._current = 0
        self._sums = np.zeros((self.n_rows, self.width))
        self._touched = np.zeros(self.n_rows, dtype=np.bool_)

    def add(self, index: int, tensor: int, parts: list[_Part]) -> None:
        """Add a block's parts once all blocks before it are in. Every block must come once."""
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
        # A value at interval v counts at every point below v.
        points = np.cumsum(self._sums[rows, :0:-1], axis=1)[:, ::-1]
        kept = rows < self._table.shape[2]
        self._table[self._current][:, rows[kept]] = points[kept].T
        layer = self._layer_of[self._current] if self._layer_of else 0
        first = self.layout.loose.start
        for row, values in zip((rows[~kept] - first).tolist(), points[~kept], strict=True):
            self._loose[row] = self._loose.get(row, 0.0) + values
            at_default = values[ladder.DEFAULT_INDEX]
            key = (layer, row)
            self._layer_loose[key] = self._layer_loose.get(key, 0.0) + at_default
        self._sums[rows] = 0.0
        self._touched[rows] = False

    def add_steps(self, tensor: int, kinds: np.ndarray, counts: np.ndarray) -> None:
        """Add counted updates: rows (agent, dtype, lower, exponent, halves) and how many each."""
        sizes = rounding_meter.update_sizes(kinds[:, 1], kinds[:, 3], kinds[:, 4])
        point = ladder.DEFAULT_INDEX
        here = (kinds[:, 2] <= point) & (rounding_meter.ladder_intervals(sizes) > point)
        layer = np.full((int(here.sum()), 1), self._layer_of[tensor], dtype=np.int64)
        of_layer = np.hstack([layer, np.delete(kinds[here], 2, axis=1)])
        with self._lock:
            self._steps.append((kinds, counts))
            self._layer_steps.append((of_layer, counts[here]))

    def relations(self, counts: OverlapCounts) -> Relations:
        """Return the statistics per tensor, once every block was added."""
        self._finish_tensor()
        return relations.build_relations(self._table, self._dots, counts)

    def energies(self, counts: OverlapCounts) -> Energies:
        """Return the sums of products over the model, once every block was added."""
        return build_energies(self._table, self._names, counts)

    def magnitude(self, counts: OverlapCounts) -> np.ndarray:
        """Return only ``Relations.magnitude``, for a tally of nothing else."""
        self._finish_tensor()
        return relations.build_magnitude(self._table, counts)[0]

    def steps(self) -> StepCounts:
        """Return what the rounding meter needs, once every block was added."""
        n_agents = self.layout.n_agents
        points = self.grid.points
        loose = sorted(row for row in self._loose if row % 2 == 0)
        layered = sorted(key for key in self._layer_loose if key[1] % 2 == 0)

        def place(row: int) -> tuple[int, int, int]:
            return row // 2 // EXPONENTS // 2, row // 2 // EXPONENTS % 2, row // 2 % EXPONENTS

        return StepCounts(
            n_agents=n_agents,
            layers=tuple(self._layers),
            exact=_added_up(self._steps, 5),
            loose=np.array([place(row) for row in loose], np.int64).reshape(-1, 3),
            loose_sums=np.array(
                [np.stack([self._loose[r], self._loose[r + 1]], axis=-1) for r in loose]
            ).reshape(-1, points, 2),
            layer_exact=_added_up(self._layer_steps, 5),
            layer_loose=np.array([(g, *place(row)) for g, row in layered], np.int64).reshape(-1, 4),
            layer_sums=np.array(
                [(self._layer_loose[g, r], self._layer_loose[g, r + 1]) for g, r in layered]
            ).reshape(-1, 2),
        )


def _added_up(parts: list[tuple[np.ndarray, np.ndarray]], columns: int) -> np.ndarray:
    """Return the different kinds in order, with their counts added up as the last column."""
    kinds = np.concatenate([np.empty((0, columns), np.int64), *(k for k, _ in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(c for _, c in parts)])
    found, where = np.unique(kinds, axis=0, return_inverse=True)
    totals = np.zeros(len(found), dtype=np.int64)
    np.add.at(totals, where.reshape(-1), counts)
    return np.column_stack([found, totals])


class RelationCounter:
    """Adds blocks to a RelationTally, one thread's worth."""

    def __init__(self, tally: RelationTally) -> None:
        n, grid = tally.layout.n_agents, tally.grid
        self._tally = tally
        self._gathered = Gathered.room_for(n, GROUP_ELEMENTS)
        self._sums = RelationSums.zeros(
            n, grid.edge_bits, grid.interval_of_bin, only_magnitudes=tally.only_magnitudes
        )
        self._held: tuple[int, tuple[str, ...]] | None = None

    def add(self, block: Block, base: np.ndarray, agents: tuple[np.ndarray, ...]) -> None:
        """Add a block whose task vectors are finite; arrays as BlockReader gives them."""
        dtypes = tuple(source.dtype for source in block.agents)
        if not self._tally.only_magnitudes and self._held != (block.tensor_index, dtypes):
            self._fold_steps()
            self._held = (block.tensor_index, dtypes)
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
        if self._held is None:
            return
        tensor, dtypes = self._held
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
        """Hand over what is still held."""
        self._fold_steps()
        self._held = None
