"""Pass 1: from checkpoints to an analysis, in one streaming read of every file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Unpack, cast

from ram_studio.algorithm import rounding
from ram_studio.algorithm.analysis import BASE, Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import all_thresholds
from ram_studio.algorithm.partial import PartialAnalysis
from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    FitKeywords,
    MergeTensor,
    check_compatibility,
)
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.url_folder import KnownHeaders
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.events import CancelToken
from ram_studio.engine.passes.counting import (
    Choose,
    Counting,
    StackTally,
    Tally,
    as_base,
    every_agent,
)
from ram_studio.engine.passes.driver import RunKeywords, RunOptions, run_pass
from ram_studio.engine.passes.relating import RelationTally


class FitRunKeywords(FitKeywords, RunKeywords):
    """Policies for agents that do not fit, and options of a pass, as keyword arguments."""


def split_keywords(given: FitRunKeywords) -> tuple[FitKeywords, RunKeywords]:
    """Return the two kinds of keywords separately."""
    fit = {key: value for key, value in given.items() if key in FitKeywords.__annotations__}
    run = {key: value for key, value in given.items() if key not in fit}
    return cast(FitKeywords, fit), cast(RunKeywords, run)


def load(
    base: str | Path,
    agents: Mapping[str, str | Path],
    *,
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
    stream: bool = False,
    known: Mapping[str, KnownHeaders] = MappingProxyType({}),
    **fit: Unpack[FitKeywords],
) -> CompatibilityReport:
    """Open the base and the agents (folders or Hub ids) and check that they fit together.

    stream: passes read uncached weights of Hub ids over the network; by default they are
    downloaded. known: headers of sources at URLs, by name.

    Raises: CheckpointError, HubError, CompatibilityError; Stopped when cancelled.
    """
    opened = {
        name: open_checkpoint(
            source,
            name=name,
            on_progress=on_download,
            cancel=cancel,
            stream=stream,
            known=known.get(name),
        )
        for name, source in {BASE: base, **agents}.items()
    }
    return check_compatibility(opened[BASE], [opened[name] for name in agents], **fit)


def inspect(
    base: str | Path, agents: Mapping[str, str | Path], **fit: Unpack[FitKeywords]
) -> CompatibilityReport:
    """Return how base and agents fit together, from their headers: no weights are downloaded.

    Args: fit: policies for agents that do not fit, see check_compatibility.

    Raises: CheckpointError, HubError, CompatibilityError.
    """
    sources = {BASE: base, **agents}
    opened = [open_checkpoint(s, name=n, headers_only=True) for n, s in sources.items()]
    return check_compatibility(opened[0], opened[1:], **fit)


def load_sources(
    recipe: Recipe,
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
    *,
    stream: bool = False,
    known: Mapping[str, KnownHeaders] = MappingProxyType({}),
) -> CompatibilityReport:
    """Open a recipe's sources, see ``load``."""
    return load(
        recipe.base,
        recipe.agents,
        on_download=on_download,
        cancel=cancel,
        stream=stream,
        known=known,
        **recipe.fit,
    )


def analyze(
    base: str | Path,
    agents: Mapping[str, str | Path],
    *,
    relations: bool = True,
    on_download: Callable | None = None,
    stream: bool = False,
    **keywords: Unpack[FitRunKeywords],
) -> Analysis:
    """Return the analysis of some agents and their base: one streaming pass over all files.

    Args:
        base: folder or Hub id; agents: folder or Hub id by name, in the order of all results.
        relations: also collect statistics beyond counts: magnitudes, signs, cosines, retained
            shares, and the rounding meter's updates. Counting alone is faster: twice where agents
            changed 3 % of all elements, five times at 10 %, more where most elements changed.
        stream: read uncached weights of Hub ids over the network; by default they are downloaded.
        keywords: missing, extra, rows, names, experts_packing (for agents that do not fit, see
            check_compatibility); device, threads, block_elements, on_progress, cancel.

    Raises: CheckpointError (NonFiniteError for NaN or Inf), CompatibilityError, HubError, Stopped.
    """
    fit, run = split_keywords(keywords)
    cancel = run.get("cancel")
    report = load(base, agents, on_download=on_download, cancel=cancel, stream=stream, **fit)
    return analyze_report(report, relations=relations, **run)


def analyze_report(
    report: CompatibilityReport, *, relations: bool = True, **run: Unpack[RunKeywords]
) -> Analysis:
    """Return the analysis of checkpoints that are already open and checked, see ``analyze``.

    Another device than the CPU counts elements; everything else is collected on the CPU.
    """
    options = RunOptions.of(**run)
    return partial_analysis(report, options, report.counted, relations=relations).whole()


def partial_analysis(
    report: CompatibilityReport,
    run: RunOptions,
    tensors: Sequence[MergeTensor],
    *,
    relations: bool = True,
    part: tuple[str, int, int] = ("", 1, 1),
) -> PartialAnalysis:
    """Return the analysis of some of the counted tensors, see ``analyze``.

    part: digest of the plan, number of the part, and number of all parts.
    """
    tensors = list(tensors)
    n_agents = len(report.agents)
    grid = all_thresholds()
    tally = StackTally(tensors, n_agents, grid)
    tallies: list[tuple[Choose, Tally]] = [(every_agent, tally)]
    if any(a.dtype != t.base.dtype for t in report.counted for a in t.agents):
        tallies.append((as_base, Tally(len(tensors), n_agents, grid)))
    related = RelationTally(tensors, n_agents, grid) if relations else None
    run_pass(report, Counting("analyze", tensors, tallies, related), run)
    numel = [t.numel for t in tensors]
    counts, *rounded = (tally.counts(numel) for _, tally in tallies)
    stacks = tally.singly()
    relation = None if related is None else related.relations(counts)
    steps, sums = (None, None) if related is None else related.steps()
    analysis = Analysis(
        agents=tuple(agent.name for agent in report.agents),
        tensors=tuple(TensorEntry(t.name, t.numel) for t in tensors),
        counts=counts,
        magnitudes=tally.magnitudes,
        fingerprints={c.name: c.fingerprint for c in report.checkpoints},
        sources={c.name: c.source for c in report.checkpoints},
        dtypes={name: _one_dtype(dtypes) for name, dtypes in report.dtypes.items()},
        rounded=rounded[0] if rounded else None,
        relations=relation,
        steps=steps,
        weighing=None if related is None else related.weighing(),
        stacks=stacks,
    )
    plan, number, of = part
    return PartialAnalysis(analysis, plan, {number: len(tensors)}, of, report.findings, sums)


def _one_dtype(elements: Mapping[str, int]) -> str:
    floating = [dtype for dtype in elements if dtype in rounding.STORAGE]
    return floating[0] if len(floating) == 1 else "mixed"
