"""Pass 2: merged checkpoints, written in one streaming pass once lambda is known."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ram_studio.algorithm.meters.storage import texts
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output_folder import SIDECAR_BYTES, check_output
from ram_studio.checkpoints.write.part_url import PartsUrl, parts_place
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.checkpoints.write.writer import DEFAULT_MAX_SHARD_BYTES, CheckpointWriter
from ram_studio.engine.analyse import load_sources
from ram_studio.engine.job import MergeJob
from ram_studio.engine.parts.finishing import finish_opened, result_of
from ram_studio.engine.parts.planning import OpenPlan, plan_of
from ram_studio.engine.parts.steps import is_finished, merge_units, share_of
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.engine.reading.sampling import check_other_bases
from ram_studio.engine.result import (
    MergeResult,
    make_passport,
    measured_peak_rss_bytes,
    waiting,
)


def merge(
    recipe: Recipe,
    out: str | Path,
    *,
    sketch: Sketch | None = None,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    hash_sources: bool = True,
    names: Mapping[str, str] | None = None,
    on_download: Callable | None = None,
    stream: bool = False,
    **run: Unpack[RunKeywords],
) -> MergeResult:
    """Merge as the recipe says into the folder ``out``, which appears whole or not at all.

    Args:
        out: a folder that does not exist yet, or an fsspec URL, whose shards go up as
            they are merged: what is there already when it failed or was stopped is kept.
        sketch: of the same files; saves the counting pass when the recipe's epsilon is on the
            ladder. The merge counts again and refuses a sketch that does not belong to them.
        max_shard_bytes: the most bytes of tensor data in one file.
        hash_sources: keep a content hash of every source file in the passport, computed behind the
            readers of the first pass; False saves its time.
        names: what the passport calls a source, by what the recipe calls it; for those who give the
            folder to people who need not know where the sources lie.
        on_download, stream: as for ``analyze``; what a pass reads from the Hub, the next pass reads
            again.
        run: device, threads, block_elements, on_progress, cancel, receiver, see RunKeywords.

    An agent of which nearly all elements differ (by a sample) is refused unless the recipe says
    ``other_base: accept``.

    Raises: SettingsError, CheckpointError, CompatibilityError, HubError, SketchError, OutputError;
    Stopped when cancelled. Nothing is left behind then.
    """
    options, start = RunOptions.of(**run), time.monotonic()
    with parts_place(out) as place:
        # What is wrong with the output is told before a download, not only before the work.
        if isinstance(place, PartsUrl):
            assert names is None, "who renames sources gives a folder"
            place.receipt("none")
        else:
            check_output(place.out, needed_bytes=0)
        report = load_sources(recipe, on_download, options.cancel, stream=stream)
        job = MergeJob(report, recipe, options)
        if isinstance(place, PartsUrl):
            return _to_url(job, place, sketch, max_shard_bytes, hash_sources, start)
        hasher = SourceHasher(report) if hash_sources else None
        return _to_folder(job, place.out, sketch, max_shard_bytes, hasher, names or {}, start)


def _to_folder(
    job: MergeJob,
    folder: Path,
    sketch: Sketch | None,
    max_shard_bytes: int,
    hasher: SourceHasher | None,
    names: Mapping[str, str],
    start: float,
) -> MergeResult:
    """Write the merged folder, card and passport included; start: by ``time.monotonic``."""
    report, recipe, options = job.report, job.recipe, job.options
    job.warnings += texts(check_other_bases(report, recipe))
    # Read before the work: what cannot be copied must not show after an hour.
    files = sidecar_files(report.base, dtype=recipe.dtype, tokenizer=job.tokenizer)
    writer = CheckpointWriter(
        folder,
        job.specs,
        max_shard_bytes=max_shard_bytes,
        sources=[c.folder for c in report.checkpoints],
        sidecar_bytes=SIDECAR_BYTES + sum(map(len, files.values())),
        receiver=options.receiver,
    )
    with writer, hasher or contextlib.nullcontext():
        if hasher is not None:
            job.options = replace(options, on_progress=hasher.watch(options.on_progress))
        plan = job.plan(sketch)
        agents = job.run(plan, writer)
        hashes = hasher.finish(options.on_progress, options.cancel) if hasher else {}
        passport = make_passport(
            job,
            agents,
            files,
            writer.shards,
            writer.digests(),
            hashes,
            with_torch=not plan.is_fused,
            names=names,
        )
        options.cancel.raise_if_cancelled()
        watch = waiting("flush", options, writer.nbytes, len(writer.shards))
        return MergeResult(
            out=writer.finish(files, on_wait=watch),
            method=recipe.method,
            agents=agents,
            bytes_read=job.bytes_read,
            bytes_written=writer.nbytes,
            seconds=time.monotonic() - start,
            peak_rss_bytes=measured_peak_rss_bytes(),
            passport=passport,
        )


def _to_url(
    job: MergeJob,
    place: PartsUrl,
    sketch: Sketch | None,
    max_shard_bytes: int,
    hash_sources: bool,
    start: float,
) -> MergeResult:
    """Merge shard by shard, each as a part of its own, to object storage.

    A shard goes up while the next one is merged, and its copy here is removed then. Given again, a
    merge that failed or was stopped goes on with the shards that are missing; those of the run
    before are fetched once and compared with their digests. One that is finished is left as it is.
    """
    run = job.options
    plan = plan_of(job, None, max_shard_bytes=max_shard_bytes, hash_sources=hash_sources)
    if is_finished(plan, place):
        return result_of(plan, place, start)
    place.begin(plan.digest)
    opened, ready = OpenPlan(plan, job, run), job.plan(sketch)
    sizes = [part.nbytes for part in plan.parts]
    for index, part in enumerate(plan.parts):
        tell = share_of(run.on_progress, sum(sizes[:index]), sizes[index], sum(sizes))
        merge_units(opened, ready, part.part, place, tell)
    place.wait(waiting("upload", run))
    finish_opened(opened, place)
    return result_of(plan, place, start, job.bytes_read)
