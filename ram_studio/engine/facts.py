"""What a method needs to know before the first block: from a sketch, or by a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ram_studio.algorithm.ladder import ladder_index, single_grid
from ram_studio.algorithm.methods import Facts, Magnitudes, Need
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import Sketch, TensorEntry
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.engine.passes.counting import Counting, EpsilonTally, SizeTally, every_agent
from ram_studio.engine.passes.driver import RunOptions, run_pass
from ram_studio.engine.passes.plan import Counted, Known
from ram_studio.engine.passes.relating import RelationTally
from ram_studio.errors import SketchError


def check_sketch(sketch: Sketch, report: CompatibilityReport) -> None:
    """Raise SketchError unless a sketch is of these checkpoints, agents in this order."""
    names = tuple(agent.name for agent in report.agents)
    different = [
        c.name for c in report.checkpoints if not c.is_known_as(sketch.fingerprints.get(c.name))
    ]
    if sketch.agents != names or different:
        raise SketchError(
            f"The sketch is of the agents {', '.join(sketch.agents)} and differs from the files "
            f"given for {', '.join(different) or 'their order'}; expected {', '.join(names)}. "
            "Analyze these checkpoints again, or leave the sketch out."
        )


def counts_at(
    report: CompatibilityReport,
    epsilon: float,
    sketch: Sketch | None,
    run: RunOptions,
    *,
    by_magnitude: bool = False,
) -> Counted:
    """Return the exact counts at one epsilon: the sketch's on its ladder, else by a pass.

    by_magnitude: sums of |tau| too; a sketch without them does not save the pass.
    """
    point = None if sketch is None else ladder_index(epsilon)
    if sketch is not None and point is not None and (sketch.has_magnitudes or not by_magnitude):
        cut = slice(point, point + 1)
        counts = sketch.counts
        patterns = None if counts.patterns is None else counts.patterns[:, cut]
        return Counted(
            OverlapCounts(counts.numel, patterns, counts.shared[:, cut]),
            sketch.known_relations().magnitude[:, point] if by_magnitude else None,
            is_from_sketch=True,
        )
    tensors, n_agents, grid = report.counted, len(report.agents), single_grid(epsilon)
    tally = EpsilonTally(len(tensors), n_agents, grid)
    related = None
    if by_magnitude:
        related = RelationTally(tensors, n_agents, grid, only_magnitudes=True)
    read = run_pass(report, Counting("count", tensors, [(every_agent, tally)], related), run)
    counts = tally.counts([t.numel for t in tensors])
    magnitude = None if related is None else related.magnitude(counts)[:, 0]
    return Counted(counts, magnitude, bytes_read=read)


def count_magnitudes(
    report: CompatibilityReport, run: RunOptions, *, per_tensor: bool
) -> tuple[np.ndarray, int]:
    """Return the |tau| of each agent by bin (see ``SizeTally``), and the bytes read for it.

    Raises: NonFiniteError, SourceChangedError, Stopped.
    """
    tensors = report.counted
    tally = SizeTally(len(tensors), len(report.agents), per_tensor=per_tensor)
    read = run_pass(report, Counting("count", tensors, [(every_agent, tally)]), run)
    return tally.bins, read


def find_facts(
    report: CompatibilityReport,
    needs: frozenset[str],
    settings: Any,
    seed: int,
    sketch: Sketch | None,
    run: RunOptions,
) -> Known:
    """Return what a method with these needs and settings is prepared with.

    Raises: SketchError for a sketch of other files, also where nothing is taken from it.
    """
    if sketch is not None:
        check_sketch(sketch, report)
    counted, merged = report.counted, report.merged
    names = tuple(agent.name for agent in report.agents)
    row_of = {t.name: i for i, t in enumerate(counted)}
    rows = [row_of[t.tied_to or t.name] for t in merged]  # a head's is its embedding's
    found, ratios, magnitudes, read = None, None, None, 0
    scope: Any = getattr(settings, "scope", "global")
    is_from_sketch = sketch is not None
    if Need.RATIOS in needs:
        by_magnitude = Need.MAGNITUDE_RATIOS in needs
        found = counts_at(report, settings.epsilon, sketch, run, by_magnitude=by_magnitude)
        at_one = Sketch(
            agents=names,
            tensors=tuple(TensorEntry(t.name, t.numel) for t in counted),
            counts=found.counts,
            magnitudes=np.zeros((len(names), 0), dtype=np.int64),
        )
        ratios = at_one.ratios(0, scope, magnitude=found.magnitude)[rows]
        read += found.bytes_read
        is_from_sketch = found.is_from_sketch
    if Need.MAGNITUDES in needs:
        magnitudes, nbytes = _magnitudes(report, rows, sketch, run, per_tensor=scope == "tensor")
        read += nbytes
    facts = Facts(
        agents=names,
        seed=seed,
        tensors=tuple(t.name for t in merged),
        ratios=ratios,
        magnitudes=magnitudes,
        total=sum(t.numel for t in counted),
    )
    return Known(facts, found, is_from_sketch, read)


def _magnitudes(
    report: CompatibilityReport,
    rows: Sequence[int],
    sketch: Sketch | None,
    run: RunOptions,
    *,
    per_tensor: bool,
) -> tuple[Magnitudes, int]:
    """Return histograms per tensor, or of the whole model from a sketch where there is one."""
    numel = np.array([t.numel for t in report.counted], dtype=np.int64)
    group_of = np.array(rows, dtype=np.int64)
    if not per_tensor:
        numel, group_of = numel.sum(keepdims=True), np.zeros_like(group_of)
    if sketch is not None and not per_tensor:
        return Magnitudes(sketch.magnitudes[None], numel, group_of), 0
    bins, read = count_magnitudes(report, run, per_tensor=per_tensor)
    return Magnitudes(bins, numel, group_of), read
