"""Pass 1: from checkpoints to a sketch, in one streaming read of every file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.meters.relations import Relations
from ram_studio.algorithm.meters.rounding_meter import StepCounts
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import BASE, Sketch, TensorEntry
from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    ExtraPolicy,
    MergeTensor,
    MissingPolicy,
    RowsPolicy,
    check_compatibility,
)
from ram_studio.checkpoints.fit.storage_report import storage_report
from ram_studio.checkpoints.read.checkpoint import open_checkpoint
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, BlockReader, Sources, blocks_of
from ram_studio.engine.device_counting import CountingTask, DeviceCounter, as_base, every_agent
from ram_studio.engine.devices import choose_device, devices_of, settled
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.finite import non_finite_error
from ram_studio.engine.lanes import DeviceWorker, device_block_elements
from ram_studio.engine.relating import RelationCounter, RelationTally
from ram_studio.engine.residence import Residence, ResidentReader
from ram_studio.engine.tally import Counter, CpuCounter, Grid, Tally, ladder_grid, single_grid
from ram_studio.engine.workers import run_blocks, thread_count


def load(
    base: str | Path,
    agents: Mapping[str, str | Path],
    *,
    missing: MissingPolicy = "error",
    extra: ExtraPolicy = "error",
    rows: RowsPolicy = "exact",
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
) -> CompatibilityReport:
    """Open the base and the agents (folders or Hub ids) and check that they fit together.

    Raises: CheckpointError, HubError, CompatibilityError; Stopped when cancelled.
    """
    opened = {
        name: open_checkpoint(source, name=name, on_progress=on_download, cancel=cancel)
        for name, source in {BASE: base, **agents}.items()
    }
    return check_compatibility(
        opened[BASE],
        [opened[name] for name in agents],
        missing=missing,
        extra=extra,
        rows=rows,
    )


def analyze(
    base: str | Path,
    agents: Mapping[str, str | Path],
    *,
    device: str = "auto",
    threads: int | None = None,
    missing: MissingPolicy = "error",
    extra: ExtraPolicy = "error",
    rows: RowsPolicy = "exact",
    relations: bool = True,
    on_progress: ProgressCallback | None = None,
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
) -> Sketch:
    """Return the sketch of some agents and their base: one streaming pass over all files.

    Args:
        base: folder or Hub id; agents: folder or Hub id by name, in the order results keep.
        device: "auto", "cpu" or "cuda"; threads: default one per core.
        missing, extra, rows: what to do where an agent does not fit, see check_compatibility.
        relations: also collect what needs more than counts: magnitudes, signs, cosines, and the
            rounding meter's updates. Counting alone is faster: twice where agents changed 3 % of
            all elements, five times at 10 %, more where most elements changed.
        on_progress: called about ten times a second in this thread; cancel: stops within a block.

    Raises: CheckpointError (NonFiniteError for NaN or Inf), CompatibilityError, HubError, Stopped.
    """
    report = load(
        base,
        agents,
        missing=missing,
        extra=extra,
        rows=rows,
        on_download=on_download,
        cancel=cancel,
    )
    return analyze_report(
        report,
        device=device,
        threads=threads,
        relations=relations,
        on_progress=on_progress,
        cancel=cancel,
    )


def analyze_report(
    report: CompatibilityReport,
    *,
    device: str = "auto",
    threads: int | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    residence: Residence | None = None,
    relations: bool = True,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Sketch:
    """Return the sketch of checkpoints that were opened and checked already, see ``analyze``."""
    counted = [t for t in report.tensors if t.kind == "merge" and t.is_counted]
    found = count_overlap(
        report,
        counted,
        ladder_grid(),
        stage="analyze",
        collect="everything" if relations else "counts",
        device=device,
        threads=threads,
        block_elements=block_elements,
        residence=residence,
        on_progress=on_progress,
        cancel=cancel,
    )
    checkpoints = (report.base, *report.agents)
    sketch = Sketch(
        agents=tuple(agent.name for agent in report.agents),
        tensors=tuple(TensorEntry(t.name, t.numel) for t in counted),
        counts=found.counts,
        magnitudes=found.bins,
        fingerprints={c.name: c.fingerprint for c in checkpoints},
        sources={c.name: c.source for c in checkpoints},
        dtypes={name: _one_dtype(dtypes) for name, dtypes in report.dtypes.items()},
        rounded=found.rounded,
        relations=found.relations,
        steps=found.steps,
    )
    return replace(sketch, warnings=storage_report(report, sketch).warnings)


def count_at(
    report: CompatibilityReport, epsilon: float, **options
) -> tuple[list[MergeTensor], OverlapCounts]:
    """Return the exact counts at one epsilon off the ladder, by a streaming pass of its own."""
    counted = [t for t in report.tensors if t.kind == "merge" and t.is_counted]
    found = count_overlap(report, counted, single_grid(epsilon), stage="count", **options)
    return counted, found.counts


def count_with_magnitudes(
    report: CompatibilityReport, epsilon: float, **options
) -> tuple[OverlapCounts, np.ndarray]:
    """Return the exact counts at any one epsilon and the sums of |tau|, by a streaming pass.

    The second is float64 (tensors, agents, 2): over elements changed alone, and with others.
    """
    counted = [t for t in report.tensors if t.kind == "merge" and t.is_counted]
    grid = single_grid(epsilon)
    found = count_overlap(report, counted, grid, stage="count", collect="magnitudes", **options)
    assert found.magnitude is not None
    return found.counts, found.magnitude[:, 0]


Collect = Literal["counts", "magnitudes", "everything"]
"""What a pass collects: counts; also sums of |tau|; all relations and updates (on the ladder)."""


class Counted(NamedTuple):
    """What a pass found, per tensor in the order of the counted ones.

    rounded: counts with every agent rounded to the base's dtype, None when all are stored in it;
    bins: elements of each agent by bin of |tau|; magnitude: ``Relations.magnitude``.
    """

    counts: OverlapCounts
    rounded: OverlapCounts | None
    bins: np.ndarray
    magnitude: np.ndarray | None = None
    relations: Relations | None = None
    steps: StepCounts | None = None


def count_overlap(
    report: CompatibilityReport,
    counted: list[MergeTensor],
    grid: Grid,
    *,
    stage: str,
    collect: Collect = "counts",
    device: str = "auto",
    threads: int | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    residence: Residence | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Counted:
    """Return what one streaming pass over the counted tensors finds, see Collect.

    On a CUDA device counts are made there; everything else is collected on the CPU, from the
    blocks on their way. residence: where blocks that are to stay are put, or found if it is filled.
    """
    device = choose_device(device)
    n_agents = len(report.agents)
    tally = Tally(len(counted), n_agents, grid)
    is_mixed = any(a.dtype != t.base.dtype for t in counted for a in t.agents)
    if_rounded = Tally(len(counted), n_agents, grid) if is_mixed else None
    related = None
    if collect != "counts":
        only_magnitudes = collect == "magnitudes"
        related = RelationTally(counted, n_agents, grid, only_magnitudes=only_magnitudes)
        if residence is not None and residence.is_filled and device != "cpu":
            # Collected on the host, from blocks that are read.
            residence, block_elements = None, BLOCK_ELEMENTS
    if device != "cpu":
        block_elements = device_block_elements(block_elements)
    devices = devices_of(device)
    blocks = list(blocks_of(counted, block_elements))
    meter = Meter(stage, sum(b.nbytes for b in blocks), len(counted))

    with Sources(report) as sources, settled(devices):

        def make_task(name: str) -> CountingTask:
            counters = [(every_agent, DeviceCounter(tally, name))]
            if if_rounded is not None:
                counters.append((as_base, DeviceCounter(if_rounded, name)))
            return CountingTask(counters, partial(non_finite_error, report, sources))

        def make_worker() -> _CountingWorker | DeviceWorker:
            relating = None if related is None else RelationCounter(related)
            if device != "cpu":
                return DeviceWorker(
                    devices, make_task, sources, residence, keeps=True, also=relating
                )
            buffers = (sources, n_agents, block_elements)
            return _CountingWorker(
                report,
                sources,
                BlockReader(*buffers) if residence is None else ResidentReader(residence, *buffers),
                CpuCounter(tally),
                None if if_rounded is None else CpuCounter(if_rounded),
                relating,
            )

        run_blocks(
            blocks,
            make_worker,
            threads=thread_count(threads),
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
    numel = [t.numel for t in counted]
    found = Counted(tally.counts(numel), if_rounded and if_rounded.counts(numel), tally.magnitudes)
    if related is None:
        return found
    if collect == "magnitudes":
        return found._replace(magnitude=related.magnitude(found.counts))
    relations = related.relations(found.counts)
    return found._replace(magnitude=relations.magnitude, relations=relations, steps=related.steps())


class _CountingWorker:
    def __init__(
        self,
        report: CompatibilityReport,
        sources: Sources,
        reader: BlockReader,
        counter: Counter,
        as_base: Counter | None,
        related: RelationCounter | None,
    ) -> None:
        self._report = report
        self._sources = sources
        self._reader = reader
        self._counter = counter
        self._as_base = as_base
        self._related = related

    def __call__(self, block: Block) -> None:
        base, agents = self._reader.read(block)
        if not self._counter.add(block.tensor_index, base, agents):
            raise non_finite_error(self._report, self._sources, block)
        if self._related is not None:
            self._related.add(block, base, agents)
        if self._as_base is None:
            return
        dtype = block.tensor.base.dtype
        rounded = tuple(
            array if source.dtype == dtype else _through(array, dtype)
            for array, source in zip(agents, block.agents, strict=True)
        )
        self._as_base.add(block.tensor_index, base, rounded)

    def close(self) -> None:
        self._counter.close()
        if self._related is not None:
            self._related.close()
        if self._as_base is not None:
            self._as_base.close()


def _through(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values rounded to a storage dtype and back; overflow stays as it was."""
    stored = rounding.decode(rounding.store(values.astype(np.float64), dtype), dtype)
    return np.where(np.isfinite(stored), stored, values)


def _one_dtype(elements: Mapping[str, int]) -> str:
    floating = [dtype for dtype in elements if dtype in rounding.STORAGE]
    return floating[0] if len(floating) == 1 else "mixed"
