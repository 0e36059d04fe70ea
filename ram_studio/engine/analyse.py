"""Pass 1: from checkpoints to a sketch, in one streaming read of every file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ram_studio.algorithm import rounding
from ram_studio.algorithm.ladder import ladder_grid
from ram_studio.algorithm.sketch import BASE, Sketch, TensorEntry
from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    ExtraPolicy,
    MissingPolicy,
    RowsPolicy,
    check_compatibility,
)
from ram_studio.checkpoints.fit.storage_report import storage_report
from ram_studio.checkpoints.hub.open import open_checkpoint
from ram_studio.engine.events import CancelToken
from ram_studio.engine.passes.counting import Counting, Tally, as_base, every_agent
from ram_studio.engine.passes.driver import RunKeywords, RunOptions, run_pass
from ram_studio.engine.passes.relating import RelationTally


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
    missing: MissingPolicy = "error",
    extra: ExtraPolicy = "error",
    rows: RowsPolicy = "exact",
    relations: bool = True,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> Sketch:
    """Return the sketch of some agents and their base: one streaming pass over all files.

    Args:
        base: folder or Hub id; agents: folder or Hub id by name, in the order results keep.
        missing, extra, rows: what to do where an agent does not fit, see check_compatibility.
        relations: also collect what needs more than counts: magnitudes, signs, cosines, what is
            kept, and the rounding meter's updates. Counting alone is faster: twice where agents
            changed 3 % of all elements, five times at 10 %, more where most elements changed.
        run: device, threads, block_elements, on_progress, cancel, see RunKeywords.

    Raises: CheckpointError (NonFiniteError for NaN or Inf), CompatibilityError, HubError, Stopped.
    """
    options = RunOptions.of(**run)
    report = load(
        base,
        agents,
        missing=missing,
        extra=extra,
        rows=rows,
        on_download=on_download,
        cancel=options.cancel,
    )
    return sketch_of(report, options, relations=relations)


def analyze_report(
    report: CompatibilityReport, *, relations: bool = True, **run: Unpack[RunKeywords]
) -> Sketch:
    """Return the sketch of checkpoints that were opened and checked already, see ``analyze``."""
    return sketch_of(report, RunOptions.of(**run), relations=relations)


def sketch_of(report: CompatibilityReport, run: RunOptions, *, relations: bool = True) -> Sketch:
    """Return the sketch of checkpoints that were opened and checked already, see ``analyze``.

    On other devices than the CPU counts are made there; everything else is collected on the CPU.
    """
    counted = report.counted
    n_agents = len(report.agents)
    grid = ladder_grid()
    tally = Tally(len(counted), n_agents, grid)
    tallies = [(every_agent, tally)]
    if any(a.dtype != t.base.dtype for t in counted for a in t.agents):
        tallies.append((as_base, Tally(len(counted), n_agents, grid)))
    related = RelationTally(counted, n_agents, grid) if relations else None
    run_pass(report, Counting("analyze", counted, tallies, related), run)
    numel = [t.numel for t in counted]
    counts, *rounded = (tally.counts(numel) for _, tally in tallies)
    sketch = Sketch(
        agents=tuple(agent.name for agent in report.agents),
        tensors=tuple(TensorEntry(t.name, t.numel) for t in counted),
        counts=counts,
        magnitudes=tally.magnitudes,
        fingerprints={c.name: c.fingerprint for c in report.checkpoints},
        sources={c.name: c.source for c in report.checkpoints},
        dtypes={name: _one_dtype(dtypes) for name, dtypes in report.dtypes.items()},
        rounded=rounded[0] if rounded else None,
        relations=None if related is None else related.relations(counts),
        steps=None if related is None else related.steps(),
        energies=None if related is None else related.energies(counts),
    )
    return replace(sketch, warnings=storage_report(report, sketch).warnings)


def _one_dtype(elements: Mapping[str, int]) -> str:
    floating = [dtype for dtype in elements if dtype in rounding.STORAGE]
    return floating[0] if len(floating) == 1 else "mixed"
