"""What a method needs to know before the first block: from an analysis, or by a pass of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import find_grid_index
from ram_studio.algorithm.meters.relations import group_ratios
from ram_studio.algorithm.methods import Facts, Magnitudes, Need
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.engine.passes.counting import (
    Counting,
    EpsilonTally,
    SizeTally,
    every_agent,
)
from ram_studio.engine.passes.driver import RunOptions, run_pass
from ram_studio.engine.passes.plan import Known
from ram_studio.engine.passes.relating import RelationTally


def find_facts(
    report: CompatibilityReport,
    needs: frozenset[str],
    settings: Any,
    seed: int,
    analysis: Analysis | None,
    run: RunOptions,
) -> Known:
    """Return what a method with these needs and settings is prepared with.

    What the analysis tells is taken from it; one pass counts all the rest. On the analysis's
    epsilon grid its counts are exact; it knows |tau| by size of the whole model only (scope
    "global").

    analysis: of these files, see ``check_analysis``.

    Raises: NonFiniteError, SourceChangedError, Stopped.
    """
    tensors = report.counted
    names, numel = tuple(agent.name for agent in report.agents), [t.numel for t in tensors]
    scope: Any = getattr(settings, "scope", "global")
    by_magnitude, per_tensor = Need.MAGNITUDE_RATIOS in needs, scope == "tensor"
    counts, magnitude, bins = None, None, None
    if analysis is not None and Need.RATIOS in needs:
        counts, magnitude = _at_epsilon(analysis, settings.epsilon, by_magnitude)
    if analysis is not None and not per_tensor:
        bins = analysis.magnitudes[None]

    wanted: list[EpsilonTally | SizeTally] = []
    related, read = None, 0
    if Need.MAGNITUDES in needs and bins is None:
        wanted.append(sizes := SizeTally(len(tensors), len(names), per_tensor=per_tensor))
        bins = sizes.bins
    if is_counted := Need.RATIOS in needs and counts is None:
        wanted.append(at_epsilon := EpsilonTally(len(tensors), len(names), settings.epsilon))
        if by_magnitude:
            related = RelationTally(tensors, len(names), at_epsilon.grid, only_magnitudes=True)
    if wanted:
        work = Counting("count", tensors, [(every_agent, tally) for tally in wanted], related)
        read = run_pass(report, work, run)
    if is_counted:
        counts = at_epsilon.counts(numel)
        magnitude = None if related is None else related.magnitude(counts)[:, 0]
    rho_m = None
    if magnitude is not None:
        rho_m = tuple(group_ratios(magnitude, [range(len(magnitude))])[0].tolist())

    row_of = {t.name: i for i, t in enumerate(tensors)}
    rows = [row_of[t.merged_as] for t in report.merged]  # a head's is its embedding's
    ratios, magnitudes = None, None
    if counts is not None:
        entries = tuple(TensorEntry(t.name, t.numel) for t in tensors)
        nothing = np.zeros((len(names), 0), dtype=np.int64)
        ratios = Analysis(names, entries, counts, nothing).ratios(0, scope, magnitude=magnitude)[
            rows
        ]
    if Need.MAGNITUDES in needs and bins is not None:
        totals, group_of = np.array(numel, dtype=np.int64), np.array(rows, dtype=np.int64)
        if not per_tensor:
            totals, group_of = totals.sum(keepdims=True), np.zeros_like(group_of)
        magnitudes = Magnitudes(bins, totals, group_of)
    facts = Facts(
        agents=names,
        seed=seed,
        tensors=tuple(t.name for t in report.merged),
        ratios=ratios,
        magnitudes=magnitudes,
    )
    return Known(facts, counts, rho_m, analysis is not None and not is_counted, read)


def _at_epsilon(
    analysis: Analysis, epsilon: float, by_magnitude: bool
) -> tuple[OverlapCounts | None, np.ndarray | None]:
    """Return an analysis's counts at one epsilon, and sums of |tau| there if asked for.

    Neither where the epsilon is not on the epsilon grid, or it has no such sums.
    """
    point = find_grid_index(epsilon)
    if point is None or (by_magnitude and not analysis.has_magnitudes):
        return None, None
    counts, cut = analysis.counts, slice(point, point + 1)
    patterns = None if counts.patterns is None else counts.patterns[:, cut]
    magnitude = analysis.known_relations().magnitude[:, point] if by_magnitude else None
    return OverlapCounts(counts.numel, patterns, counts.shared[:, cut]), magnitude
