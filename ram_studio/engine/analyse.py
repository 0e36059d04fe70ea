"""Pass 1: from checkpoints to a sketch, in one streaming read of every file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import BASE, Sketch, TensorEntry
from ram_studio.checkpoints.checkpoint import open_checkpoint
from ram_studio.checkpoints.compatibility import (
    CompatibilityReport,
    ExtraPolicy,
    MergeTensor,
    MissingPolicy,
    RowsPolicy,
    check_compatibility,
)
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, BlockReader, Sources, blocks_of
from ram_studio.engine.device_counting import CountingTask, DeviceCounter, as_base, every_agent
from ram_studio.engine.devices import choose_device, devices_of, settled
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.finite import non_finite_error
from ram_studio.engine.lanes import DeviceWorker, device_block_elements
from ram_studio.engine.residence import Residence, ResidentReader
from ram_studio.engine.tally import (
    Counter,
    CpuCounter,
    Grid,
    Tally,
    ladder_grid,
    single_grid,
)
from ram_studio.engine.workers import run_blocks, thread_count

DENSE = 0.95
STORAGE_GAP = 1.5


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
    on_progress: ProgressCallback | None = None,
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
) -> Sketch:
    """Return the sketch of some agents and their base: one streaming pass over all files.

    Args:
        base: folder or Hub id; agents: folder or Hub id by name, in the order results keep.
        device: "auto", "cpu" or "cuda"; threads: default one per core.
        missing, extra, rows: what to do where an agent does not fit, see check_compatibility.
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
        report, device=device, threads=threads, on_progress=on_progress, cancel=cancel
    )


def analyze_report(
    report: CompatibilityReport,
    *,
    device: str = "auto",
    threads: int | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    residence: Residence | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Sketch:
    """Return the sketch of checkpoints that were opened and checked already, see ``analyze``."""
    counted = [t for t in report.tensors if t.kind == "merge" and t.is_counted]
    counts, rounded, magnitudes = count_overlap(
        report,
        counted,
        ladder_grid(),
        stage="analyze",
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
        counts=counts,
        magnitudes=magnitudes,
        fingerprints={c.name: c.fingerprint for c in checkpoints},
        sources={c.name: c.source for c in checkpoints},
        dtypes={name: _one_dtype(dtypes) for name, dtypes in report.dtypes.items()},
        rounded=rounded,
        warnings=report.warnings,
    )
    return sketch.with_warnings(pass_warnings(sketch))


def count_at(
    report: CompatibilityReport, epsilon: float, **options
) -> tuple[list[MergeTensor], OverlapCounts]:
    """Return the exact counts at one epsilon off the ladder, by a streaming pass of its own."""
    counted = [t for t in report.tensors if t.kind == "merge" and t.is_counted]
    counts, _, _ = count_overlap(report, counted, single_grid(epsilon), stage="count", **options)
    return counted, counts


def count_overlap(
    report: CompatibilityReport,
    counted: list[MergeTensor],
    grid: Grid,
    *,
    stage: str,
    device: str = "auto",
    threads: int | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    residence: Residence | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> tuple[OverlapCounts, OverlapCounts | None, np.ndarray]:
    """Return counts per tensor, the same as if in the base's dtype, and magnitudes per agent.

    The second is None when every agent is stored in the base's dtype. residence: where blocks that
    are to stay are put, or found if it is filled.
    """
    device = choose_device(device)
    n_agents = len(report.agents)
    tally = Tally(len(counted), n_agents, grid)
    is_mixed = any(a.dtype != t.base.dtype for t in counted for a in t.agents)
    if_rounded = Tally(len(counted), n_agents, grid) if is_mixed else None
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
            if device != "cpu":
                return DeviceWorker(devices, make_task, sources, residence, keeps=True)
            buffers = (sources, n_agents, block_elements)
            return _CountingWorker(
                report,
                sources,
                BlockReader(*buffers) if residence is None else ResidentReader(residence, *buffers),
                CpuCounter(tally),
                None if if_rounded is None else CpuCounter(if_rounded),
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
    return tally.counts(numel), if_rounded and if_rounded.counts(numel), tally.magnitudes


class _CountingWorker:
    def __init__(
        self,
        report: CompatibilityReport,
        sources: Sources,
        reader: BlockReader,
        counter: Counter,
        as_base: Counter | None,
    ) -> None:
        self._report = report
        self._sources = sources
        self._reader = reader
        self._counter = counter
        self._as_base = as_base

    def __call__(self, block: Block) -> None:
        base, agents = self._reader.read(block)
        if not self._counter.add(block.tensor_index, base, agents):
            raise non_finite_error(self._report, self._sources, block)
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
        if self._as_base is not None:
            self._as_base.close()


def _through(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values rounded to a storage dtype and back; overflow stays as it was."""
    stored = rounding.decode(rounding.store(values.astype(np.float64), dtype), dtype)
    return np.where(np.isfinite(stored), stored, values)


def _one_dtype(elements: Mapping[str, int]) -> str:
    floating = [dtype for dtype in elements if dtype in rounding.STORAGE]
    return floating[0] if len(floating) == 1 else "mixed"


def pass_warnings(sketch: Sketch) -> tuple[str, ...]:
    """Return what the pass found that the user should know, one sentence per finding."""
    from ram_studio.algorithm.ladder import DEFAULT_INDEX

    found = []
    model = sketch.model
    total = max(1, sketch.total)
    for t, agent in enumerate(sketch.agents):
        active = int(model.active[0, DEFAULT_INDEX, t])
        if int(model.active[0, 0, t]) == 0:
            found.append(f'Agent "{agent}" equals the base: nothing was changed, so lambda is 1.')
        elif active / total > DENSE:
            found.append(
                f'Agent "{agent}" changed {active / total:.1%} of all elements. Is this the base '
                "it was trained from?"
            )
        if sketch.rounded is not None:
            rounded = int(sketch.grouped("model", sketch.rounded).active[0, DEFAULT_INDEX, t])
            if active > STORAGE_GAP * rounded:
                found.append(
                    f'Agent "{agent}" is stored as {sketch.dtypes.get(agent)} beside a '
                    f"{sketch.dtypes.get(BASE)} base: its density is {active / total:.2%} as "
                    f"stored and {rounded / total:.2%} when rounded to the base's dtype. The "
                    "difference may be storage rather than training."
                )
    return tuple(found)
