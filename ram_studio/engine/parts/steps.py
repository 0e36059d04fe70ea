"""One part's work: its analysis and its shards. Both are idempotent."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods import Need
from ram_studio.algorithm.partial import PartialAnalysis
from ram_studio.checkpoints.read.describe import plural, shown_bytes
from ram_studio.checkpoints.record.analysis_file import load_partial, save_analysis
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.part_receipt import Receipt, ReceiptHeader, read_receipt
from ram_studio.checkpoints.record.provenance import PROVENANCE_FILE, Provenance, provenance_of
from ram_studio.checkpoints.write.output import Output
from ram_studio.checkpoints.write.parts import open_output
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.engine.analyze import partial_analysis
from ram_studio.engine.events import Progress, ProgressCallback
from ram_studio.engine.job import refuse_counts
from ram_studio.engine.parts.planning import OpenPlan, deal_files, name_part, open_plan, tensors_in
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.engine.result import shard_records, wait_hook
from ram_studio.errors import AnalysisError, PlanError, RamStudioError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartResult:
    """Result of the merge of one part; is_done_before: an earlier run had merged it.

    out: the folder, or the URL. bytes_read, bytes_written: in this run.
    """

    out: Path | str
    part: int
    of: int
    shards: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    seconds: float
    is_done_before: bool = False


def analyze_part(
    plan: PartPlan,
    part: int,
    file: str | Path | None = None,
    *,
    relations: bool | None = None,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> PartialAnalysis:
    """Return the analysis of one part's tensors, to be added to those of other parts.

    Args:
        part: its number, from 1.
        file: where to store it; an analysis of this part and plan in that file is used again.
        relations: as for ``analyze``; by default only where the plan's method needs them.
        run: as for ``analyze``.

    Raises: PlanError for sources that changed; OutputError when the file cannot be written; what
    ``analyze`` raises; all of them name the part.
    """
    options = RunOptions.of(**run)
    plan.part(part)
    with name_part(plan, part):
        opened = open_plan(plan, options, on_download=on_download)
        if relations is None:
            relations = Need.MAGNITUDE_RATIOS in opened.job.needs
        found = _load_analysis(plan, part, file)
        if found is not None and (found.sums is not None) == relations:
            return found
        names = tensors_in(opened.shards_of(plan.part(part).shards))
        own = [t for t in opened.job.report.counted if t.name in names]
        which = (plan.digest, part, len(plan.parts))
        found = partial_analysis(opened.job.report, options, own, relations=relations, part=which)
        if file is not None:
            save_analysis(found, file)
        return found


def _load_analysis(plan: PartPlan, part: int, file: str | Path | None) -> PartialAnalysis | None:
    """Return the part's analysis in a file, None without a file or for another analysis."""
    with contextlib.suppress(AnalysisError):
        found = None if file is None else load_partial(file)
        if found is not None and (found.plan, list(found.parts)) == (plan.digest, [part]):
            return found
    return None


def merge_part(
    plan: PartPlan,
    part: int,
    out: str | Path,
    *,
    analysis: Analysis | None = None,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> PartResult:
    """Write the shards of one part, and its receipt, into the folder or URL ``out``.

    Args: part: its number, from 1; analysis: of the whole model, for methods that need its counts.

    After a failure or a stop a folder has none of its files; at a URL complete shards stay. Units
    that were merged from the same analysis, and finished merges, are left unchanged.

    Raises: PlanError for sources that changed; AnalysisError for an analysis of other files, or
    none where one is needed; OutputError; what ``merge`` raises; all of them name the part.
    """
    options = RunOptions.of(**run)
    own = plan.part(part)
    start = time.monotonic()
    with name_part(plan, part), open_output(out, in_parts=True) as output:
        done = PartResult(output.out, part, len(plan.parts), tuple(own.shards), 0, 0, 0.0, True)
        if find_finished(plan, output) is not None:
            return done
        output.begin(plan.digest)
        opened = open_plan(plan, options, analysis=analysis, on_download=on_download)
        _require_analysis(opened.job.needs, analysis)
        if not (written := merge_units(opened, part, output)):
            return done
    return replace(
        done,
        bytes_read=opened.job.bytes_read,
        bytes_written=written,
        seconds=time.monotonic() - start,
        is_done_before=False,
    )


def merge_units(opened: OpenPlan, part: int, output: Output) -> int:
    """Write the missing units of a part; return the bytes of their shards."""
    own, run = opened.plan.part(part), opened.job.options
    units = output.units(part, list(own.shards))
    every = {unit: opened.shards_of(names) for unit, names in units.items()}
    dealt = deal_files(opened.job.report, list(every.values()))
    there = {u for u, shards in every.items() if _is_merged(opened, part, output, u, shards)}
    _log_found_units(output, every, there)
    written = done = 0
    for (unit, shards), files in zip(every.items(), dealt, strict=True):
        size = sum(shard.file_size for shard in shards)
        if unit not in there:
            hashed = {path: "" for c, path in files if path.name in own.hashes.get(c.name, ())}
            report_progress = scale_progress(run.on_progress, done, size, own.nbytes)
            opened.job.options = replace(run, on_progress=report_progress)
            _merge_unit(opened, part, output, unit, shards, hashed)
            written += size
        done += size
    opened.job.options = run
    output.wait(wait_hook("upload", run))
    return written


def _log_found_units(
    output: Output, every: Mapping[str, Sequence[Shard]], there: Collection[str]
) -> None:
    """Log the units of an earlier run, and how many are missing."""
    files = {unit: len(shards) for unit, shards in every.items()}
    found, total = sum(files[unit] for unit in there), sum(files.values())
    if 0 < found < total:
        nbytes = sum(shard.file_size for unit in there for shard in every[unit])
        _LOG.info(
            "%s holds %d of %s already (%s); merging the other %d",
            *(output.out, found, plural(total, "file"), shown_bytes(nbytes), total - found),
        )


def _merge_unit(
    opened: OpenPlan,
    part: int,
    output: Output,
    unit: str,
    shards: Sequence[Shard],
    hashed: Mapping[Path, str],
) -> None:
    """Merge one unit; hashed: the source files whose content hash goes into its receipt."""
    job, run = opened.job, opened.job.options
    before = job.bytes_read
    folders = [c.folder for c in job.report.checkpoints]
    with (
        output.writer(unit, shards, folders) as writer,
        SourceHasher(job.report, algorithms=hashed) as hasher,
    ):
        # A counting pass before the merge is followed too.
        job.options = replace(run, on_progress=hasher.watch(run.on_progress))
        names = tensors_in(shards)
        tally = job.merge_into(opened.ready, writer, only=names)
        _check_unit(opened, tally, names)
        hashes = hasher.finish(run.on_progress, run.cancel)
        total = tally.total
        header = ReceiptHeader(
            plan=opened.plan.digest,
            part=part,
            facts=opened.facts,
            shards=shard_records(shards, writer.digests()),
            hashes={name: files for name, files in hashes.items() if files},
            with_torch=not opened.ready.is_fused,
            device=opened.ready.device.partition(":")[0],
            is_along=total.is_along,
            bytes_read=job.bytes_read - before,
        )
        run.cancel.raise_if_cancelled()
        receipt = Receipt(header, total.patterns, total.sums).to_bytes()
        output.keep(unit, writer, receipt, wait_hook("flush", run, writer.nbytes, len(shards)))


def scale_progress(
    on_progress: ProgressCallback | None, before: int, own: int, total: int
) -> ProgressCallback | None:
    """Return a callback that scales a unit's progress to its part; before, own, total: bytes."""
    if on_progress is None or own == total:
        return on_progress
    report_progress, start = on_progress, time.monotonic()

    def report_share(progress: Progress) -> None:
        done = before + int(progress.fraction * own)
        seconds = time.monotonic() - start
        report_progress(replace(progress, done_bytes=done, total_bytes=total, seconds=seconds))

    return report_share


def find_finished(plan: PartPlan, output: Output) -> Provenance | None:
    """Return the provenance of a plan's finished merge in the output, else None.

    Temporary files of ``finish`` are removed.
    """
    if not output.files.has(PROVENANCE_FILE):
        return None
    try:
        provenance = provenance_of(output.files)
    except RamStudioError:
        return None
    sources = {name: source.fingerprint for name, source in plan.sources.items()}
    shards = [name for part in plan.parts for name in part.shards]
    sizes = output.files.sizes()
    is_ours = (
        provenance.recipe == plan.recipe
        and {name: s.fingerprint for name, s in provenance.sources.items()} == sources
        and list(provenance.shards) == shards
        and all(sizes.get(name) == own.nbytes for name, own in provenance.shards.items())
        and provenance.files.keys() <= sizes.keys()
    )
    if is_ours:
        output.clear()
    return provenance if is_ours else None


def _require_analysis(needs: frozenset[str], analysis: Analysis | None) -> None:
    if analysis is None and needs & {Need.RATIOS, Need.MAGNITUDES}:
        raise AnalysisError(
            "The method needs counts of the whole model and no analysis was given. Analyze all "
            "parts, add them with `ram-studio analysis add`, and give the result as --analysis."
        )
    if analysis is not None and Need.MAGNITUDE_RATIOS in needs and not analysis.has_magnitudes:
        raise AnalysisError(
            "The method needs magnitudes of the whole model, and the analysis has counts only. "
            "Analyze all parts without --no-relations, and add them again."
        )


def _is_merged(
    opened: OpenPlan, part: int, output: Output, unit: str, shards: Sequence[Shard]
) -> bool:
    """Return whether a unit was merged from the same facts and its shards exist."""
    try:
        header = read_receipt(output.receipt(unit) or b"", unit).header
    except PlanError:
        return False  # missing or damaged: write it again
    found = output.files.sizes()
    wanted = opened.plan.digest, part, opened.facts
    return (header.plan, header.part, header.facts) == wanted and all(
        s.file_name in header.shards and found.get(s.file_name) == s.file_size for s in shards
    )


def _check_unit(opened: OpenPlan, tally: MergeTally, names: Collection[str]) -> None:
    """Compare the counts of a unit with the known counts of its tensors."""
    known = opened.ready.known
    if known.counts is None:
        return
    rows = [i for i, t in enumerate(opened.job.report.counted) if t.name in names]
    if not np.array_equal(tally.shared, known.counts.shared[rows, 0].sum(0)):
        refuse_counts(is_from_analysis=known.is_from_analysis)
