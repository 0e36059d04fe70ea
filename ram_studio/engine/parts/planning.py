"""Plans: a merge cut into parts, and the sources of a plan.

A part is a run of the output's shards: its reads are close together in the sources too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ram_studio._version import __version__
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, find_grid_index, snap
from ram_studio.algorithm.methods import Need
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.fit.tokenizers import all_stop_tokens
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import plural, shown_list
from ram_studio.checkpoints.read.remote import MAX_BUFFERED_BYTES
from ram_studio.checkpoints.read.url_folder import KnownHeaders, UrlFolder
from ram_studio.checkpoints.record.part_plan import PartPlan, PlannedPart, PlannedSource
from ram_studio.checkpoints.record.part_receipt import MergeFacts
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output import DEFAULT_MAX_SHARD_BYTES
from ram_studio.checkpoints.write.shard_plan import Shard, lay_out
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.engine.analyze import load_sources
from ram_studio.engine.events import CancelToken
from ram_studio.engine.job import MergeJob
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS
from ram_studio.errors import PlanError, RamStudioError, SettingsError, Stopped

MOST_PARTS = 10_000

# Memory of a part: Python, numpy and numba; per tensor of a source, its header and objects made
# from it; per element of a source, float64 and as much again to compute with.
_PROCESS_BYTES = 300 << 20
_HEADER_BYTES = 2_500
_ELEMENT_BYTES = 16


def make_plan(
    recipe: Recipe,
    parts: int | None = None,
    *,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    hash_sources: bool = True,
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
) -> PartPlan:
    """Return a merge cut into parts of whole output shards, balanced by bytes.

    It depends on the recipe and the sources alone: tensors are only sampled, as before every
    merge. If there are more parts than shards, the last parts are empty.

    Args:
        parts: by default, the number of the output's files.
        max_shard_bytes, hash_sources, on_download: as for ``merge``.

    Raises: SettingsError for fewer parts than one or more than 10,000, and for a method that
    cannot be merged in parts; what ``merge`` raises before its work.
    """
    if parts is not None and not 1 <= parts <= MOST_PARTS:
        raise SettingsError(f"parts is {parts}; give 1 to {MOST_PARTS}.")
    job = divisible_job(recipe, on_download, cancel)
    return plan_of(job, parts, max_shard_bytes=max_shard_bytes, hash_sources=hash_sources)


def divisible_job(
    recipe: Recipe, on_download: Callable | None = None, cancel: CancelToken | None = None
) -> MergeJob:
    """Open a recipe's sources for a merge in parts, see ``make_plan``."""
    job = MergeJob(load_sources(recipe, on_download, cancel), recipe)
    _refuse_indivisible(job)
    return job


def plan_of(
    job: MergeJob, parts: int | None, *, max_shard_bytes: int, hash_sources: bool
) -> PartPlan:
    """Return a job cut into parts, see ``make_plan``."""
    report = job.report
    job.refuse_other_bases()
    shards = lay_out(job.specs, max_shard_bytes)
    runs = cut([shard.file_size for shard in shards], parts or len(shards))
    chosen = [[shards[i] for i in run] for run in runs]
    hashed = deal_files(report, chosen) if hash_sources else [[] for _ in chosen]
    return PartPlan(
        ram_studio_version=__version__,
        recipe=job.recipe,
        max_shard_bytes=max_shard_bytes,
        sources={
            c.name: PlannedSource(
                fingerprint=c.fingerprint,
                nbytes=c.nbytes,
                known=_known_headers(c) if parts != 1 else None,
            )
            for c in report.checkpoints
        },
        parts=tuple(
            PlannedPart(
                part=number,
                shards={shard.file_name: shard.file_size for shard in own},
                nbytes=sum(shard.file_size for shard in own),
                hashes={
                    c.name: names
                    for c in report.checkpoints
                    if (names := tuple(path.name for of, path in files if of is c))
                },
            )
            for number, (own, files) in enumerate(zip(chosen, hashed, strict=True), start=1)
        ),
    ).with_digest()


def _known_headers(checkpoint: Checkpoint) -> KnownHeaders | None:
    """Return the headers of a URL's files for the parts, None for other sources."""
    place = checkpoint.remote.get(checkpoint.shards[0])
    if not isinstance(place, UrlFolder):
        return None
    return place.as_read([path.name for path in checkpoint.shards], checkpoint.fingerprint)


def cut(sizes: Sequence[int], parts: int) -> list[range]:
    """Return this number of runs of consecutive indices, about equal in total size.

    Runs are empty only if there are fewer sizes than runs: the last ones.
    """
    runs, start, left = [], 0, sum(sizes)
    for others in reversed(range(parts)):
        stop, run_size = start, 0
        most = max(start + 1, len(sizes) - others)
        # Until the middle of the next size is beyond an equal share.
        while stop < min(most, len(sizes)) and (
            stop == start or 2 * run_size + sizes[stop] <= 2 * left / (others + 1)
        ):
            run_size += sizes[stop]
            stop += 1
        if not others:
            stop = len(sizes)
        runs.append(range(start, stop))
        start, left = stop, left - run_size
    return runs


def deal_files(
    report: CompatibilityReport, chosen: Sequence[Sequence[Shard]]
) -> list[list[tuple[Checkpoint, Path]]]:
    """Return the source files that each of some runs of shards hashes.

    A file is hashed by the run that reads most of it, or by the first run if none reads it.
    """
    part_of = {n: i for i, own in enumerate(chosen) for shard in own for n in shard.offsets}
    read: dict[Path, Counter[int]] = {}
    for tensor in report.tensors:
        for source in (tensor.base, *tensor.agents):
            if tensor.name in part_of:
                read.setdefault(source.path, Counter())[part_of[tensor.name]] += source.nbytes
    dealt: list[list[tuple[Checkpoint, Path]]] = [[] for _ in chosen]
    for checkpoint in report.checkpoints:
        for path in checkpoint.shards:
            most = read.get(path, Counter({0: 0})).items()
            dealt[min(most, key=lambda item: (-item[1], item[0]))[0]].append((checkpoint, path))
    return dealt


def memory_of_parts(job: MergeJob, plan: PartPlan, threads: int) -> list[int]:
    """Return the approximate memory in bytes of each part of a job, on this number of threads.

    It includes libraries, all sources' headers, the threads' blocks or whole matrices, and
    read-ahead from remote files.
    """
    sources = job.report.checkpoints
    whole = {t.name: t.numel for t in job.merged if job.is_whole(t)}
    shards = lay_out(job.specs, plan.max_shard_bytes) if whole else []
    largest = {s.file_name: max(whole.get(name, 0) for name in s.offsets) for s in shards}
    needed = _PROCESS_BYTES + sum(len(c.tensors) for c in sources) * _HEADER_BYTES
    needed += MAX_BUFFERED_BYTES if any(c.remote for c in sources) else 0
    elements = [max(BLOCK_ELEMENTS, *(largest.get(n, 0) for n in p.shards), 0) for p in plan.parts]
    return [needed + threads * n * _ELEMENT_BYTES * (len(sources) + 1) for n in elements]


def _refuse_indivisible(job: MergeJob) -> None:
    """Refuse methods for which a part would need the whole model besides the analysis."""
    epsilons = [getattr(own, "epsilon", 0.0) for own in job.every_settings]
    epsilon = next((own for own in epsilons if find_grid_index(own) is None), None)
    if Need.RATIOS in job.needs and epsilon is not None:
        raise SettingsError(
            f"epsilon is {epsilon:g}; a merge in parts takes its counts from an analysis, which "
            f"has them on the epsilon grid only. The nearest is {EPSILON_GRID[snap(epsilon)]:g}."
        )
    scopes = {getattr(own, "scope", "global") for own in job.every_settings}
    if Need.MAGNITUDES in job.needs and "tensor" in scopes:
        raise SettingsError(
            f"{job.method.name} with scope tensor needs |tau| of every tensor by size, which an "
            "analysis has for the whole model only; use scope global for a merge in parts."
        )


@dataclass
class OpenPlan:
    """A plan and its sources, unchanged since it was made.

    analysis: of the whole model, if the method takes its counts from one.
    """

    plan: PartPlan
    job: MergeJob
    analysis: Analysis | None = None

    @cached_property
    def ready(self) -> Plan:
        """The prepared method, by a counting pass where it needs one and has no analysis."""
        return self.job.plan(self.analysis)

    @cached_property
    def facts(self) -> MergeFacts:
        """The facts that the method was prepared with."""
        return self.job.facts_of(self.ready)

    @cached_property
    def shards(self) -> list[Shard]:
        """All of the output, in file order."""
        return lay_out(self.job.specs, self.plan.max_shard_bytes)

    @cached_property
    def small_files(self) -> dict[str, bytes]:
        """Files that are copied to the output from the base and the tokenizer's checkpoint."""
        job = self.job
        base, agents = job.report.base, job.report.agents
        union = job.recipe.stop_tokens == "union"
        return sidecar_files(
            base,
            dtype=job.recipe.dtype,
            tokenizer=job.tokenizer,
            stop_tokens=all_stop_tokens(base, agents) if union else (),
        )

    def shards_of(self, names: Collection[str]) -> list[Shard]:
        """Return the shards with these file names."""
        return [shard for shard in self.shards if shard.file_name in names]


def tensors_in(shards: Sequence[Shard]) -> frozenset[str]:
    """Return the names of the tensors in some shards."""
    return frozenset(name for shard in shards for name in shard.offsets)


def open_plan(
    plan: PartPlan,
    run: RunOptions,
    *,
    analysis: Analysis | None = None,
    on_download: Callable | None = None,
) -> OpenPlan:
    """Open the sources of a plan.

    Raises: PlanError when one changed since the plan was made; see ``load``.
    """
    known = {name: source.known for name, source in plan.sources.items() if source.known}
    report = load_sources(plan.recipe, on_download, run.cancel, known=known)
    stale = [
        f"{c.who}{c.source}"
        for c in report.checkpoints
        if c.fingerprint != plan.sources[c.name].fingerprint
    ]
    if stale:
        raise PlanError(
            f"{plural(len(stale), 'source')} changed since the plan was made: "
            f"{shown_list(stale)}. Restore the old files, or plan and analyze again."
        )
    return OpenPlan(plan, MergeJob(report, plan.recipe, run), analysis)


@contextlib.contextmanager
def name_part(plan: PartPlan, part: int) -> Iterator[None]:
    """Add the part to every error of the block."""
    text = plan.text(part).capitalize()
    try:
        yield
    except Stopped:
        raise
    except RamStudioError as error:
        error.args = (f"{text}: {error}",)
        error.part = part
        raise
