"""One part's work: its sketch, and its shards. Done twice it gives the same and changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ram_studio.algorithm.methods import Need
from ram_studio.algorithm.partial import PartialSketch
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.read.content_hash import known_hash
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.part_receipt import (
    MergeFacts,
    Receipt,
    ReceiptHeader,
    read_receipt,
)
from ram_studio.checkpoints.record.partial_file import load_partial, save_partial
from ram_studio.checkpoints.record.passport import ShardRecord, read_passport
from ram_studio.checkpoints.write.part_folder import PartWriter, check_parts_folder, receipt_path
from ram_studio.engine.analyse import partial_sketch
from ram_studio.engine.job import refuse_counts
from ram_studio.engine.merge import flush_watch
from ram_studio.engine.parts.planning import OpenPlan, naming, open_plan
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.source_hashes import SourceHasher
from ram_studio.errors import PlanError, RamStudioError, SketchError


@dataclass(frozen=True)
class PartResult:
    """What the merge of one part did; is_done_before: nothing, for it was merged already."""

    out: Path
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
        own = [t for t in opened.report.counted if t.name in names]
        which = (plan.digest, part, len(plan.parts))
        found = partial_sketch(opened.report, options, own, relations=relations, part=which)
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
    """Write the shards of one part into the folder ``out``, and its receipt.

    Args: part: its number, from 1; sketch: of the whole model, for methods that need its counts.

    Nothing of it is left behind when it fails or is stopped. A part that is merged already, from
    the same sketch, is left as it is; so is all of a merge that was finished.

    Raises: PlanError for sources that changed; SketchError for a sketch of other files, or none
    where one is needed; OutputError; what ``merge`` raises; all of them name the part.
    """
    options = RunOptions.of(**run)
    own = plan.part(part)
    start = time.monotonic()
    done = PartResult(
        Path(out).absolute(), part, len(plan.parts), tuple(own.shards), 0, 0, 0.0, True
    )
    with naming(plan, part):
        if is_finished(plan, Path(out)):
            return done
        out = check_parts_folder(out, plan.digest)
        opened = open_plan(plan, options, on_download)
        job = opened.job
        _require_sketch(job.needs, sketch)
        ready = job.plan(sketch)
        facts = job.facts_of(ready)
        if _is_merged(plan, part, out, facts):
            return done
        folders = [c.folder for c in opened.report.checkpoints]
        writer = PartWriter(
            out, opened.shards_of(part), plan=plan.digest, part=part, sources=folders
        )
        with writer, _hasher(opened, part) or contextlib.nullcontext() as hasher:
            if hasher is not None:
                watch = hasher.watch(options.on_progress)
                job.options = replace(job.options, on_progress=watch)
            tally = job.merge_into(ready, writer, only=opened.tensors_of(part))
            _check_part(ready, tally, opened, part)
            hashes = hasher.finish(options.on_progress, options.cancel) if hasher else {}
            digests, total = writer.digests(), tally.total
            header = ReceiptHeader(
                plan=plan.digest,
                part=part,
                facts=facts,
                shards={
                    name: ShardRecord(nbytes=own.shards[name], blake3=digest)
                    for name, digest in digests.items()
                },
                hashes=_hashes(opened, part, hashes),
                with_torch=not ready.is_fused,
                is_along=total.is_along,
                bytes_read=job.bytes_read,
            )
            options.cancel.raise_if_cancelled()
            writer.finish(
                Receipt(header, total.patterns, total.sums).to_bytes(),
                flush_watch(writer.nbytes, len(writer.shards), options),
            )
    return replace(
        done,
        bytes_read=job.bytes_read,
        bytes_written=writer.nbytes,
        seconds=time.monotonic() - start,
        is_done_before=False,
    )


def is_finished(plan: PartPlan, out: Path) -> bool:
    """Say whether a folder holds the finished merge of a plan."""
    try:
        passport = read_passport(out)
    except RamStudioError:
        return False
    sources = {name: source.fingerprint for name, source in plan.sources.items()}
    shards = [name for part in plan.parts for name in part.shards]
    return (
        passport.recipe == plan.recipe
        and {name: s.fingerprint for name, s in passport.sources.items()} == sources
        and list(passport.shards) == shards
        and not receipt_path(out, 1).parent.exists()
    )


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


def _is_merged(plan: PartPlan, part: int, out: Path, facts: MergeFacts) -> bool:
    """Say whether a part has been merged from the same facts, and its shards are there."""
    path = receipt_path(out, part)
    if not path.exists():
        return False
    try:
        header = read_receipt(path).header
    except PlanError:
        return False  # it is written again
    shards = plan.part(part).shards
    return (
        (header.plan, header.part, header.facts) == (plan.digest, part, facts)
        and header.shards.keys() == shards.keys()
        and all(
            (out / name).is_file() and (out / name).stat().st_size == nbytes
            for name, nbytes in shards.items()
        )
    )


def _check_part(ready: Plan, tally: MergeTally, opened: OpenPlan, part: int) -> None:
    """Compare what was counted with what the sketch says of the part's tensors."""
    counted, names = ready.known.counted, opened.tensors_of(part)
    if counted is None:
        return
    rows = [i for i, t in enumerate(opened.report.counted) if t.name in names]
    if not np.array_equal(tally.shared, counted.counts.shared[rows, 0].sum(0)):
        refuse_counts(is_from_sketch=True)


def _hasher(opened: OpenPlan, part: int) -> SourceHasher | None:
    """Return what hashes the part's share of the source files behind the readers."""
    unknown = [path for path in _files(opened, part).values() if known_hash(path) is None]
    algorithms = dict.fromkeys(unknown, "blake3")
    return SourceHasher(opened.report, algorithms=algorithms) if algorithms else None


def _hashes(
    opened: OpenPlan, part: int, found: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    hashes: dict[str, dict[str, str]] = {}
    for (checkpoint, name), path in _files(opened, part).items():
        digest = known_hash(path) or found[checkpoint][name]
        hashes.setdefault(checkpoint, {})[name] = digest
    return hashes


def _files(opened: OpenPlan, part: int) -> dict[tuple[str, str], Path]:
    names = opened.plan.part(part).hashes
    return {
        (c.name, path.name): path
        for c in opened.report.checkpoints
        for path in c.shards
        if path.name in names.get(c.name, ()) and path not in c.remote
    }
