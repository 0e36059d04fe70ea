"""Facts that a method needs before the first block: from an analysis, or by a separate pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ram_studio.algorithm.analysis import Analysis, Scope, TensorEntry
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
from ram_studio.engine.passes.plan import CollectedFacts
from ram_studio.engine.passes.relating import RelationTally


def find_facts(
    report: CompatibilityReport,
    needs: frozenset[str],
    settings: Sequence[Any],
    seed: int,
    analysis: Analysis | None,
    run: RunOptions,
) -> CollectedFacts:
    """Return the facts for a method with these needs and settings.

    Facts in the analysis are taken from it; one pass counts the others. On the analysis's
    epsilon grid its counts are exact; its histogram of |tau| is of the whole model only (scope
    "global").

    settings: of each of ``report.merged``; filters may give some their own epsilon or scope.
    Counts are then of every tensor at its own epsilon.
    analysis: of these files, see ``check_analysis``.

    Raises: NonFiniteError, SourceChangedError, Stopped.
    """
    tensors = report.counted
    names = tuple(agent.name for agent in report.agents)
    row_of = {t.name: i for i, t in enumerate(tensors)}
    rows = [row_of[t.merged_as] for t in report.merged]  # a head's is its embedding's
    own: dict[int, Any] = dict(zip(rows, settings, strict=True))
    of_rows = [own[row] for row in range(len(tensors))]
    scopes: list[Scope] = [getattr(one, "scope", "global") for one in of_rows]
    epsilons = [one.epsilon for one in of_rows] if Need.RATIOS in needs else []
    by_magnitude = Need.MAGNITUDE_RATIOS in needs
    known = {
        epsilon: None if analysis is None else _at_epsilon(analysis, epsilon, by_magnitude)
        for epsilon in dict.fromkeys(epsilons)
    }
    bins, sizes = None, None
    if Need.MAGNITUDES in needs:
        if analysis is not None and "tensor" not in scopes:
            bins = analysis.magnitudes[None]
        else:
            sizes = SizeTally(len(tensors), len(names), per_tensor="tensor" in scopes)
            bins = sizes.bins
    missing = [epsilon for epsilon, found in known.items() if found is None]
    read = _count(report, missing, known, sizes, by_magnitude, run)
    counts, magnitude = _select_own_epsilons(epsilons, known)
    rho_m = None
    if magnitude is not None:
        rho_m = tuple(group_ratios(magnitude, [range(len(magnitude))])[0].tolist())

    ratios, magnitudes = None, None
    if counts is not None:
        entries = tuple(TensorEntry(t.name, t.numel) for t in tensors)
        nothing = np.zeros((len(names), 0), dtype=np.int64)
        view = Analysis(names, entries, counts, nothing)
        by_scope = {scope: view.ratios(0, scope, magnitude=magnitude) for scope in set(scopes)}
        ratios = np.array([by_scope[scope][row] for row, scope in enumerate(scopes)])[rows]
    if bins is not None:
        magnitudes = _sizes(bins, [t.numel for t in tensors], scopes, rows)
    facts = Facts(
        agents=names,
        seed=seed,
        tensors=tuple(t.name for t in report.merged),
        ratios=ratios,
        magnitudes=magnitudes,
    )
    is_from_analysis = analysis is not None and not missing
    return CollectedFacts(facts, counts, rho_m, is_from_analysis, read)


_Counts = dict[float, tuple[OverlapCounts, np.ndarray | None] | None]
"""By epsilon: counts, and sums of |tau| where requested; None where not yet counted."""


def _count(
    report: CompatibilityReport,
    epsilons: Sequence[float],
    known: _Counts,
    sizes: SizeTally | None,
    by_magnitude: bool,
    run: RunOptions,
) -> int:
    """Count at these epsilons, and fill the sizes, where they are given; return the bytes read."""
    tensors, n_agents, read = report.counted, len(report.agents), 0
    tallies = {epsilon: EpsilonTally(len(tensors), n_agents, epsilon) for epsilon in epsilons}
    # Sums of |tau| take a pass for each epsilon, the others are counted in one.
    passes = [[epsilon] for epsilon in epsilons] if by_magnitude else [list(epsilons)]
    for i, own in enumerate(passes or [[]]):
        wanted: list[EpsilonTally | SizeTally] = [tallies[epsilon] for epsilon in own]
        wanted += [sizes] if sizes is not None and i == 0 else []
        related = None
        if by_magnitude and own:
            grid = tallies[own[0]].grid
            related = RelationTally(tensors, n_agents, grid, only_magnitudes=True)
        if wanted:
            chosen = [(every_agent, tally) for tally in wanted]
            read += run_pass(report, Counting("count", tensors, chosen, related), run)
        for epsilon in own:
            counts = tallies[epsilon].counts([t.numel for t in tensors])
            sums = None if related is None else related.magnitude(counts)[:, 0]
            known[epsilon] = counts, sums
    return read


def _select_own_epsilons(
    epsilons: Sequence[float], known: _Counts
) -> tuple[OverlapCounts | None, np.ndarray | None]:
    """Return counts, and sums of |tau| where there are any, of each tensor at its epsilon."""
    counted = [found for found in known.values() if found is not None]
    if len(counted) <= 1:
        return counted[0] if counted else (None, None)
    index = {epsilon: i for i, epsilon in enumerate(known)}
    pick = np.array([index[epsilon] for epsilon in epsilons]), np.arange(len(epsilons))

    def pick_rows(parts: Sequence[np.ndarray | None]) -> Any:
        whole = [part for part in parts if part is not None]
        return np.stack(whole)[pick] if len(whole) == len(parts) else None

    counts = [found for found, _ in counted]
    own = pick_rows([c.patterns for c in counts]), pick_rows([c.shared for c in counts])
    return OverlapCounts(counts[0].numel, *own), pick_rows([sums for _, sums in counted])


def _sizes(
    bins: np.ndarray, numel: Sequence[int], scopes: Sequence[str], rows: Sequence[int]
) -> Magnitudes:
    """Return |tau| by size over the tensor or the whole model, by each tensor's scope.

    bins: of each tensor, or one of the whole model where no scope is "tensor".
    """
    totals = np.array(numel, dtype=np.int64)
    is_whole = np.array([scope != "tensor" for scope in scopes])
    if is_whole.all():
        nothing = np.zeros(len(rows), dtype=np.int64)
        return Magnitudes(bins, totals.sum(keepdims=True), nothing)
    is_mixed = bool(is_whole.any())
    if is_mixed:
        bins = np.concatenate([bins, bins.sum(0, keepdims=True)])
        totals = np.append(totals, totals.sum())
    group_of = np.where(is_whole, len(numel), np.arange(len(numel)))
    return Magnitudes(bins, totals, group_of[list(rows)], 2 if is_mixed else 1)


def _at_epsilon(
    analysis: Analysis, epsilon: float, by_magnitude: bool
) -> tuple[OverlapCounts, np.ndarray | None] | None:
    """Return an analysis's counts at one epsilon, and sums of |tau| there on request.

    None where the epsilon is not on the epsilon grid, or the sums are missing.
    """
    point = find_grid_index(epsilon)
    if point is None or (by_magnitude and not analysis.has_magnitudes):
        return None
    counts, cut = analysis.counts, slice(point, point + 1)
    patterns = None if counts.patterns is None else counts.patterns[:, cut]
    magnitude = analysis.require_relations().magnitude[:, point] if by_magnitude else None
    return OverlapCounts(counts.numel, patterns, counts.shared[:, cut]), magnitude
