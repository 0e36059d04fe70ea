"""One part's work: its sketch, and its shards. Done twice it gives the same and changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ram_studio.algorithm.methods import Need
from ram_studio.algorithm.partial import PartialSketch
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE, Checkpoint
from ram_studio.checkpoints.read.content_hash import known_hash
from ram_studio.checkpoints.read.shard_files import INDEX_FILE
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.part_receipt import (
    MergeFacts,
    Receipt,
    ReceiptHeader,
    read_receipt,
)
from ram_studio.checkpoints.record.partial_file import load_partial, save_partial
from ram_studio.checkpoints.record.passport import PASSPORT_FILE, passport_of
from ram_studio.checkpoints.write.part_url import PartsPlace, parts_place
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.engine.analyse import partial_sketch
from ram_studio.engine.events import Progress, ProgressCallback
from ram_studio.engine.job import refuse_counts
from ram_studio.engine.parts.planning import OpenPlan, deal_files, naming, open_plan, tensors_in
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.engine.result import shard_records, waiting
from ram_studio.errors import PlanError, RamStudioError, SketchError

_Files = list[tuple[Checkpoint, Path]]
"""Source files, each with the checkpoint it is of."""


@dataclass(frozen=True)
class PartResult:
    """What the merge of one part did; is_done_before: nothing, for it was merged already.

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

    def to_dict(self) -> dict[str, Any]:
        """Return what ``merge --plan --part --json`` prints."""
        return asdict(self) | {"out": str(self.out), "shards": list(self.shards)}


def analyze_part(
    plan: PartPlan,
    part: int,
    file: str | Path | None = None,
    *,
    relations: bool | None = None,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> PartialSketch:
    """Return what the tensors of one part give, to be added to the other parts'.

    Args:
        part: its number, from 1.
        file: where to keep it; what is there already, of this part of this plan, is not counted
            again.
        relations: as for ``analyze``; by default only where the plan's method merges by them.
        run: as for ``analyze``.

    Raises: PlanError for sources that changed; OutputError when the file cannot be written; what
    ``analyze`` raises; all of them name the part.
    """
    options = RunOptions.of(**run)
    plan.part(part)
    with naming(plan, part):
        opened = open_plan(plan, options, on_download)
        if relations is None:
            relations = Need.MAGNITUDE_RATIOS in opened.job.needs
        found = _analyzed(plan, part, file)
        if found is not None and (found.sums is not None) == relations:
            return found
        names = opened.tensors_of(part)
        own = [t for t in opened.job.report.counted if t.name in names]
        which = (plan.digest, part, len(plan.parts))
        found = partial_sketch(opened.job.report, options, own, relations=relations, part=which)
        if file is not None:
            save_partial(found, file)
        return found


def _analyzed(plan: PartPlan, part: int, file: str | Path | None) -> PartialSketch | None:
    """Return the part's sketch in a file, None where there is another or nothing."""
    with contextlib.suppress(SketchError):
        found = None if file is None else load_partial(file)
        if found is not None and (found.plan, list(found.parts)) == (plan.digest, [part]):
            return found
    return None


def merge_part(
    plan: PartPlan,
    part: int,
    out: str | Path,
    *,
    sketch: Sketch | None = None,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> PartResult:
    """Write the shards of one part into the folder or URL ``out``, and what says that they are.

    Args: part: its number, from 1; sketch: of the whole model, for methods that need its counts.

    Nothing of it is left behind in a folder when it fails or is stopped; at a URL every shard that
    is there stays. What is merged already, from the same sketch, is left as it is; so is all of a
    merge that was finished.

    Raises: PlanError for sources that changed; SketchError for a sketch of other files, or none
    where one is needed; OutputError; what ``merge`` raises; all of them name the part.
    """
    options = RunOptions.of(**run)
    own = plan.part(part)
    start = time.monotonic()
    with naming(plan, part), parts_place(out) as place:
        done = PartResult(place.out, part, len(plan.parts), tuple(own.shards), 0, 0, 0.0, True)
        if is_finished(plan, place):
            return done
        place.begin(plan.digest)
        opened = open_plan(plan, options, on_download)
        job = opened.job
        _require_sketch(job.needs, sketch)
        ready = job.plan(sketch)
        written = merge_units(opened, ready, part, place, options.on_progress)
        place.wait(waiting("upload", options))
        if not written:
            return done
    return replace(
        done,
        bytes_read=job.bytes_read,
        bytes_written=written,
        seconds=time.monotonic() - start,
        is_done_before=False,
    )


def merge_units(
    opened: OpenPlan,
    ready: Plan,
    part: int,
    place: PartsPlace,
    on_progress: ProgressCallback | None,
) -> int:
    """Write those units of a part that are not there yet; return how many bytes of shards."""
    facts = opened.job.facts_of(ready)
    own = opened.plan.part(part)
    units = place.units(part, list(own.shards))
    dealt = _dealt(opened, part, list(units.values()))
    written = done = 0
    for (unit, names), files in zip(units.items(), dealt, strict=True):
        shards = opened.shards_of(names)
        size = sum(shard.file_size for shard in shards)
        if not _is_merged(opened.plan, part, place, unit, facts):
            tell = share_of(on_progress, done, size, own.nbytes)
            _merge_unit(opened, ready, part, unit, shards, files, place, tell)
            written += size
        done += size
    return written


def _merge_unit(
    opened: OpenPlan,
    ready: Plan,
    part: int,
    unit: str,
    shards: Sequence[Shard],
    files: _Files,
    place: PartsPlace,
    on_progress: ProgressCallback | None,
) -> None:
    """Merge a unit whole: shards of a part, and the source files that are hashed meanwhile."""
    job = opened.job
    cancel = opened.run.cancel
    before = job.bytes_read
    folders = [c.folder for c in opened.job.report.checkpoints]
    writer = place.writer(unit, shards, folders)
    hasher = _hasher(opened, files)
    with writer as sink, hasher or contextlib.nullcontext():
        watch = hasher.watch(on_progress) if hasher else on_progress
        job.options = replace(job.options, on_progress=watch)
        names = tensors_in(shards)
        tally = job.merge_into(ready, sink, only=names)
        _check_unit(ready, tally, opened, names)
        hashes = hasher.finish(on_progress, cancel) if hasher else {}
        total = tally.total
        header = ReceiptHeader(
            plan=opened.plan.digest,
            part=part,
            facts=job.facts_of(ready),
            shards=shard_records(shards, sink.digests()),
            hashes=_hashes(files, hashes),
            with_torch=not ready.is_fused,
            is_along=total.is_along,
            bytes_read=job.bytes_read - before,
        )
        cancel.raise_if_cancelled()
        on_wait = waiting("flush", opened.run, sink.nbytes, len(shards))
        sink.finish(Receipt(header, total.patterns, total.sums).to_bytes(), on_wait)


def share_of(
    on_progress: ProgressCallback | None, before: int, own: int, total: int
) -> ProgressCallback | None:
    """Return what tells a unit's progress as that of its part; sizes: bytes of shards."""
    if on_progress is None or own == total:
        return on_progress
    tell, start = on_progress, time.monotonic()

    def share(progress: Progress) -> None:
        done = before + int(progress.fraction * own)
        seconds = time.monotonic() - start
        tell(replace(progress, done_bytes=done, total_bytes=total, seconds=seconds))

    return share


def is_finished(plan: PartPlan, place: PartsPlace) -> bool:
    """Say whether a place holds the finished merge of a plan; remove what a finish left beside."""
    shards = [name for part in plan.parts for name in part.shards]
    last = INDEX_FILE if len(shards) > 1 else CONFIG_FILE
    if not place.files.has(PASSPORT_FILE) or not place.files.has(last):
        return False
    try:
        passport = passport_of(place.files)
    except RamStudioError:
        return False
    sources = {name: source.fingerprint for name, source in plan.sources.items()}
    is_ours = (
        passport.recipe == plan.recipe
        and {name: s.fingerprint for name, s in passport.sources.items()} == sources
        and list(passport.shards) == shards
    )
    if is_ours:
        place.clear()
    return is_ours


def _require_sketch(needs: frozenset[str], sketch: Sketch | None) -> None:
    if sketch is None and needs & {Need.RATIOS, Need.MAGNITUDES}:
        raise SketchError(
            "The method needs counts of the whole model and no sketch was given. Analyze all "
            "parts, add them with `ram-studio sketch add`, and give the result as --sketch."
        )
    if sketch is not None and Need.MAGNITUDE_RATIOS in needs and not sketch.has_magnitudes:
        raise SketchError(
            "The method needs magnitudes of the whole model, and the sketch holds counts alone. "
            "Analyze all parts without --no-relations, and add them again."
        )


def _is_merged(plan: PartPlan, part: int, place: PartsPlace, unit: str, facts: MergeFacts) -> bool:
    """Say whether a unit has been merged from the same facts, and its shards are there."""
    receipt = place.receipt(unit)
    if receipt is None:
        return False
    try:
        header = read_receipt(receipt, unit).header
    except PlanError:
        return False  # it is written again
    own = plan.part(part).shards
    wanted = {name: own[name] for name in place.units(part, list(own))[unit]}
    found = place.files.sizes()
    return (header.plan, header.part, header.facts) == (plan.digest, part, facts) and all(
        name in header.shards and found.get(name) == nbytes for name, nbytes in wanted.items()
    )


def _check_unit(ready: Plan, tally: MergeTally, opened: OpenPlan, names: Collection[str]) -> None:
    """Compare what was counted with what the sketch says of the tensors."""
    counts = ready.known.counts
    if counts is None:
        return
    rows = [i for i, t in enumerate(opened.job.report.counted) if t.name in names]
    if not np.array_equal(tally.shared, counts.shared[rows, 0].sum(0)):
        refuse_counts(is_from_sketch=ready.known.is_from_sketch)


def _dealt(opened: OpenPlan, part: int, units: Sequence[Sequence[str]]) -> list[_Files]:
    """Return the part's share of the source files, by the unit that hashes them."""
    own = opened.plan.part(part).hashes
    dealt = deal_files(opened.job.report, [opened.shards_of(names) for names in units])
    return [[(c, path) for c, path in files if path.name in own.get(c.name, ())] for files in dealt]


def _known(checkpoint: Checkpoint, path: Path) -> str | None:
    place = checkpoint.remote.get(path)
    return known_hash(path) if place is None else place.content_hash(path)


def _hasher(opened: OpenPlan, files: _Files) -> SourceHasher | None:
    """Return what hashes source files behind the readers, None where all are known."""
    algorithms = {path: "blake3" for c, path in files if _known(c, path) is None}
    return SourceHasher(opened.job.report, algorithms=algorithms) if algorithms else None


def _hashes(files: _Files, found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    hashes: dict[str, dict[str, str]] = {}
    for checkpoint, path in files:
        digest = _known(checkpoint, path) or found[checkpoint.name][path.name]
        hashes.setdefault(checkpoint.name, {})[path.name] = digest
    return hashes
