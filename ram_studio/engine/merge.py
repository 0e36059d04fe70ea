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
from ram_studio.checkpoints.hub.url_folder import is_url, local_path
from ram_studio.checkpoints.record.passport import ShardRecord
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output_folder import SIDECAR_BYTES, check_output
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.checkpoints.write.writer import DEFAULT_MAX_SHARD_BYTES, CheckpointWriter
from ram_studio.engine.job import MergeJob
from ram_studio.engine.parts.planning import load_sources
from ram_studio.engine.parts.to_url import merge_to_url
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.engine.reading.sampling import other_bases, refuse_other_bases, sampled_densities
from ram_studio.engine.result import (
    MergeResult,
    close,
    flush_watch,
    make_passport,
    measured_peak_rss_bytes,
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
        out: a folder that does not exist yet, or an fsspec URL, see ``merge_to_url``.
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
    options = RunOptions.of(**run)
    if is_url(out):
        if (here := local_path(str(out))) is None:
            assert names is None, "who renames sources gives a folder"
            return merge_to_url(
                recipe,
                str(out),
                options,
                sketch=sketch,
                max_shard_bytes=max_shard_bytes,
                hash_sources=hash_sources,
                on_download=on_download,
                stream=stream,
            )
        out = here
    check_output(out, needed_bytes=0)  # before a download, not only before the work
    start = time.monotonic()
    report = load_sources(recipe, on_download, options.cancel, stream=stream)
    unlike = other_bases(sampled_densities(report))
    if recipe.other_base == "refuse":
        refuse_other_bases(unlike)
    hasher = SourceHasher(report) if hash_sources else None
    tell = hasher.watch(options.on_progress) if hasher else options.on_progress
    job = MergeJob(report, recipe, replace(options, on_progress=tell))
    checkpoints = {c.name: c for c in report.checkpoints}
    # Read before the work: what cannot be copied must not show after an hour.
    files = sidecar_files(report.base, dtype=recipe.dtype, tokenizer=checkpoints[recipe.tokenizer])
    writer = CheckpointWriter(
        out,
        [(t.name, job.dtype_of(t), t.shape) for t in report.tensors],
        max_shard_bytes=max_shard_bytes,
        sources=[c.folder for c in checkpoints.values()],
        sidecar_bytes=SIDECAR_BYTES + sum(map(len, files.values())),
        receiver=options.receiver,
    )
    with writer, hasher or contextlib.nullcontext():
        return _write(job, writer, files, sketch, hasher, texts(unlike), names or {}, start)


def _write(
    job: MergeJob,
    writer: CheckpointWriter,
    files: dict[str, bytes],
    sketch: Sketch | None,
    hasher: SourceHasher | None,
    warnings: tuple[str, ...],
    names: Mapping[str, str],
    start: float,
) -> MergeResult:
    """Merge into the writer, and give its folder the small files, card and passport among them.

    start: by ``time.monotonic``; the others as for ``merge`` and ``make_passport``.
    """
    options = job.options
    plan = job.plan(sketch)
    agents = job.run(plan, writer)
    hashes = hasher.finish(options.on_progress, options.cancel) if hasher else {}
    sizes = {shard.file_name: shard.file_size for shard in writer.shards}
    shards = {
        name: ShardRecord(nbytes=sizes[name], blake3=digest)
        for name, digest in writer.digests().items()
    }
    passport = make_passport(
        job, agents, shards, hashes, warnings=warnings, with_torch=not plan.is_fused
    )
    passport = close(passport.renamed(names), files, writer.shards)
    options.cancel.raise_if_cancelled()
    watch = flush_watch(writer.nbytes, len(writer.shards), options)
    return MergeResult(
        out=writer.finish(files, on_wait=watch),
        method=job.recipe.method,
        agents=agents,
        bytes_read=job.bytes_read,
        bytes_written=writer.nbytes,
        seconds=time.monotonic() - start,
        peak_rss_bytes=measured_peak_rss_bytes(),
        passport=passport,
    )
