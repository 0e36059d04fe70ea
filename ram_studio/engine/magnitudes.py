"""Histograms of |tau| without a sketch: what trimming needs, in one streaming pass."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ram_studio.algorithm import ladder
from ram_studio.algorithm.methods import Magnitudes
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, BlockReader, Sources, blocks_of
from ram_studio.engine.device_counting import CountingTask, DeviceCounter
from ram_studio.engine.devices import devices_of, settled
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.finite import non_finite_error
from ram_studio.engine.lanes import DeviceWorker, device_block_elements
from ram_studio.engine.residence import Residence, ResidentReader
from ram_studio.engine.tally import CpuCounter, Grid, Tally
from ram_studio.engine.workers import run_blocks

_GROUP_AGENTS = 4
"""Agents counted together by the sketch's fast kernel, whose tables grow with 2**agents."""


def count_magnitudes(
    report: CompatibilityReport,
    counted: list[MergeTensor],
    *,
    per_tensor: bool,
    device: str = "cpu",
    threads: int = 1,
    block_elements: int = BLOCK_ELEMENTS,
    residence: Residence | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> np.ndarray:
    """Return int64 (groups, agents, bins): the |tau| of each agent by bin of ``ladder``.

    One group per tensor, or one for the whole model. 32 KiB per group and agent are held.
    residence: as for ``count_overlap``.

    Raises: NonFiniteError, SourceChangedError, Stopped.
    """
    n_agents = len(report.agents)
    table = np.zeros((len(counted) if per_tensor else 1, n_agents, ladder.BIN_COUNT), np.int64)
    groups = [slice(first, first + _GROUP_AGENTS) for first in range(0, n_agents, _GROUP_AGENTS)]
    tallies = [_MagnitudeTally(table[:, group], per_tensor) for group in groups]
    if device != "cpu":
        block_elements = device_block_elements(block_elements)
    devices = devices_of(device)
    blocks = list(blocks_of(counted, block_elements))
    meter = Meter("count", sum(b.nbytes for b in blocks), len(counted))
    with Sources(report) as sources, settled(devices):

        def make_task(name: str) -> CountingTask:
            counters = [
                (partial(_only, group), DeviceCounter(tally, name))
                for group, tally in zip(groups, tallies, strict=True)
            ]
            return CountingTask(counters, partial(non_finite_error, report, sources))

        def make_worker() -> _Worker | DeviceWorker:
            if device != "cpu":
                return DeviceWorker(devices, make_task, sources, residence, keeps=True)
            buffers = (sources, n_agents, block_elements)
            reader = (
                BlockReader(*buffers) if residence is None else ResidentReader(residence, *buffers)
            )
            counters = [CpuCounter(tally) for tally in tallies]
            return _Worker(report, sources, reader, list(zip(groups, counters, strict=True)))

        run_blocks(
            blocks,
            make_worker,
            threads=threads,
            meter=meter,
            on_progress=on_progress,
            cancel=cancel,
            finish=lambda worker: worker.close(),
        )
        sources.check_unchanged()
    if residence is not None:
        residence.check_unchanged()
        residence.fill()
    if on_progress:
        on_progress(meter.read())
    return table


class FoundMagnitudes(NamedTuple):
    """Histograms for a method, and the bytes that were read for them."""

    magnitudes: Magnitudes
    bytes_read: int


def magnitudes_of(
    report: CompatibilityReport,
    counted: list[MergeTensor],
    rows: list[int],
    *,
    per_tensor: bool,
    sketch: Sketch | None,
    block_elements: int,
    **options: Any,
) -> FoundMagnitudes:
    """Return histograms per tensor or of the whole model, from the sketch where it has them.

    rows: for each merged tensor, the index of its counted one; sketch: of these files, or None;
    options: as for ``count_magnitudes``.
    """
    numel = np.array([t.numel for t in counted], dtype=np.int64)
    group_of = np.array(rows, dtype=np.int64)
    if not per_tensor:
        numel, group_of = numel.sum(keepdims=True), np.zeros_like(group_of)
    if sketch is not None and not per_tensor:
        return FoundMagnitudes(Magnitudes(sketch.magnitudes[None], numel, group_of), 0)
    bins = count_magnitudes(
        report, counted, per_tensor=per_tensor, block_elements=block_elements, **options
    )
    nbytes = sum(block.nbytes for block in blocks_of(counted, block_elements))
    return FoundMagnitudes(Magnitudes(bins, numel, group_of), nbytes)


class _MagnitudeTally(Tally):
    """Keeps the magnitudes that a counter hands over, and none of its overlaps."""

    def __init__(self, out: np.ndarray, per_tensor: bool) -> None:
        """out: int64 (groups, agents, bins), added to in place."""
        every_bin = np.ones(ladder.BIN_COUNT, dtype=np.int64)
        grid = Grid(ladder.EDGE_BITS, np.zeros(1, dtype=np.int64), every_bin)
        super().__init__(0, out.shape[1], grid)
        self._out = out
        self._per_tensor = per_tensor

    def add(self, tensor: int, table: np.ndarray, magnitudes: np.ndarray) -> None:
        """Add a folded histogram of one tensor."""
        with self._lock:
            self._out[tensor if self._per_tensor else 0] += magnitudes


def _only(group: slice, block: Block, agents: Any) -> Any:
    return agents[group]


class _Worker:
    def __init__(
        self,
        report: CompatibilityReport,
        sources: Sources,
        reader: BlockReader,
        counters: list[tuple[slice, CpuCounter]],
    ) -> None:
        self._report = report
        self._sources = sources
        self._reader = reader
        self._counters = counters

    def __call__(self, block: Block) -> None:
        base, agents = self._reader.read(block)
        for group, counter in self._counters:
            if not counter.add(block.tensor_index, base, agents[group]):
                raise non_finite_error(self._report, self._sources, block)

    def close(self) -> None:
        for _, counter in self._counters:
            counter.close()
