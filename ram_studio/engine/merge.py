"""Pass 2: merged checkpoints, written in one streaming pass once lambda is known.

A merge is a plan with one part, merged and finished in one run; ``parts`` has its steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.record.provenance import PROVENANCE_FILE
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output import DEFAULT_MAX_SHARD_BYTES, Output
from ram_studio.checkpoints.write.output_folder import SIDECAR_BYTES
from ram_studio.checkpoints.write.parts import open_output
from ram_studio.engine.analyze import load_sources
from ram_studio.engine.job import MergeJob
from ram_studio.engine.parts.finishing import finish_opened, read_receipts, result_of
from ram_studio.engine.parts.planning import OpenPlan, plan_of
from ram_studio.engine.parts.steps import find_finished, merge_units
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.result import MergeResult
from ram_studio.errors import CheckpointError, OutputError


def merge(
    recipe: Recipe,
    out: str | Path,
    *,
    analysis: Analysis | None = None,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    hash_sources: bool = True,
    names: Mapping[str, str] = MappingProxyType({}),
    on_download: Callable | None = None,
    stream: bool = False,
    **run: Unpack[RunKeywords],
) -> MergeResult:
    """Merge by the recipe into the folder ``out``, which is created complete or not at all.

    Args:
        out: a folder that does not exist yet, or an fsspec URL, whose shards are uploaded as they
            are merged: after a failure or a stop the next run continues with the missing ones.
            Where either holds this same merge, finished, it is left unchanged.
        analysis: of the same files; saves the counting pass when the recipe's epsilon is on the
            epsilon grid. The merge counts again and refuses an analysis of other files.
        max_shard_bytes: the most bytes of tensor data in one file.
        hash_sources: store a content hash of every source file in the provenance, computed behind
            the readers of the first pass; False saves its time.
        names: a source's name in the provenance, by its name in the recipe; hides local paths in a
            folder that is passed on.
        on_download, stream: as for ``analyze``; each pass reads again from the Hub.
        run: device, threads, block_elements, on_progress, cancel, receiver, see RunKeywords.

    An agent of which nearly all elements differ (by a sample) is refused unless the recipe has
    ``other_base: accept``.

    Raises: SettingsError, CheckpointError, CompatibilityError, HubError, AnalysisError,
    OutputError; Stopped when cancelled. Nothing is left behind in a folder then.
    """
    options, start = RunOptions.of(**run), time.monotonic()
    with open_output(out, in_parts=False, receiver=options.receiver) as output:
        refusal = _refusal(output)
        job = MergeJob(
            load_sources(recipe, on_download, options.cancel, stream=stream), recipe, options
        )
        plan = plan_of(job, 1, max_shard_bytes=max_shard_bytes, hash_sources=hash_sources)
        opened = OpenPlan(plan, job, analysis)
        provenance = find_finished(plan, output)
        is_done_before = provenance is not None
        if provenance is None:
            if refusal is not None:
                raise refusal
            # Read before the work: an unreadable file must not fail after an hour.
            room = SIDECAR_BYTES + sum(map(len, opened.small_files.values()))
            output.begin(plan.digest, room=room)
            merge_units(opened, 1, output)
            provenance = finish_opened(opened, output, read_receipts(plan, output), names)
        result = result_of(plan, output.out, provenance, start, job.bytes_read)
        return replace(result, is_done_before=is_done_before)


def _refusal(output: Output) -> OutputError | None:
    """Return why an output cannot be used, where it may hold this same merge, finished.

    Raises: OutputError for any other reason.
    """
    try:
        output.check()
    except OutputError as error:
        with contextlib.suppress(CheckpointError):  # the store refuses this request too
            if output.files.has(PROVENANCE_FILE):
                return error
        raise
    return None
