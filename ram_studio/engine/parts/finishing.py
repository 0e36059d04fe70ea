"""Making a model of merged parts: everything checked, then card, passport, config and index."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from ram_studio.algorithm.meters.kept import Kept
from ram_studio.algorithm.meters.storage import texts
from ram_studio.checkpoints.read.content_hash import ALL_CORES, hash_file
from ram_studio.checkpoints.read.describe import printable, shown_list
from ram_studio.checkpoints.read.shard_files import INDEX_FILE
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.part_receipt import Receipt, read_receipt
from ram_studio.checkpoints.record.passport import AgentRecord, Passport, read_passport
from ram_studio.checkpoints.write.part_folder import (
    check_parts_folder,
    complete_folder,
    receipt_path,
)
from ram_studio.checkpoints.write.shard_plan import index_json
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.engine.events import Meter
from ram_studio.engine.job import AgentResult, check_counts
from ram_studio.engine.merge import (
    MergeResult,
    close,
    make_passport,
    measured_peak_rss_bytes,
)
from ram_studio.engine.parts.planning import OpenPlan, naming, open_plan
from ram_studio.engine.parts.steps import is_finished
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import Merged
from ram_studio.engine.reading.sampling import other_bases, sampled_densities
from ram_studio.errors import PlanError


def finish(
    plan: PartPlan,
    out: str | Path,
    *,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> MergeResult:
    """Finish a merge whose parts are all in the folder ``out``; its files are those of ``merge``.

    Every shard is read again and compared with the digest that its part told. The index is written
    last; a run that was broken off is run again. A folder that is finished is left as it is.

    Returns: the result of the whole merge; seconds are those of finishing.

    Raises: PlanError naming the parts that are missing, damaged, or merged from another sketch than
    the first, and sources that changed; SketchError where the parts' counts together are not the
    sketch's; OutputError; Stopped.
    """
    options = RunOptions.of(**run)
    start = time.monotonic()
    if is_finished(plan, Path(out)):
        return _result(plan, Path(out).absolute(), read_passport(out), start)
    out = check_parts_folder(out, plan.digest)
    receipts = _receipts(plan, out)
    opened = open_plan(plan, options, on_download)
    _check_shards(plan, out, receipts, options)
    job = opened.job
    tally = MergeTally(len(job.names))
    for receipt in receipts:
        header = receipt.header
        tally.add(Merged(None, receipt.patterns, receipt.sums, header.is_along))
    facts = receipts[0].header.facts
    check_counts(facts, tally, is_from_sketch=True)
    agents = job.results(facts, tally)
    shards = {name: r for receipt in receipts for name, r in receipt.header.shards.items()}
    hashes = _hashes(opened, receipts)
    checkpoints = {c.name: c for c in opened.report.checkpoints}
    recipe = plan.recipe
    files = sidecar_files(
        opened.report.base, dtype=recipe.dtype, tokenizer=checkpoints[recipe.tokenizer]
    )
    passport = make_passport(
        job,
        agents,
        shards,
        hashes,
        warnings=texts(other_bases(sampled_densities(opened.report))),
        with_torch=any(receipt.header.with_torch for receipt in receipts),
    )
    passport = close(passport, files, opened.shards)
    if len(opened.shards) > 1:
        files[INDEX_FILE] = index_json(opened.shards)
    options.cancel.raise_if_cancelled()
    complete_folder(out, files)
    read = sum(receipt.header.bytes_read for receipt in receipts)
    return _result(plan, out, passport, start, read)


def _result(
    plan: PartPlan,
    out: Path,
    passport: Passport,
    start: float,
    bytes_read: int = 0,
) -> MergeResult:
    return MergeResult(
        out=out,
        method=plan.recipe.method,
        agents={name: _told(record) for name, record in passport.agents.items()},
        bytes_read=bytes_read,
        bytes_written=sum(part.nbytes for part in plan.parts),
        seconds=time.monotonic() - start,
        peak_rss_bytes=measured_peak_rss_bytes(),
        passport=passport,
    )


def _told(record: AgentRecord) -> AgentResult:
    """Return an agent's numbers as the passport has them."""
    assert record.changed is not None, "a merge counts"
    assert record.unique is not None, "a merge counts"
    kept = None
    if record.kept is not None and record.all_else is not None:
        parts = record.kept.model_dump(exclude={"total"})
        kept = Kept(record.kept.total, **parts, all_else=record.all_else)
    return AgentResult(
        rho=math.inf if record.rho is None else record.rho,
        scaling_factor=record.scaling_factor,
        effective_scaling_factor=record.effective_scaling_factor,
        changed=record.changed,
        unique=record.unique,
        rho_m=math.inf if record.is_rho_m_infinite else record.rho_m,
        overlap=record.overlap or (),
        effective_interval=record.effective_interval,
        kept=kept,
    )


def _receipts(plan: PartPlan, out: Path) -> list[Receipt]:
    """Return every part's receipt, after making sure that they belong together."""
    missing = [part.part for part in plan.parts if not receipt_path(out, part.part).is_file()]
    if missing:
        raise PlanError(
            f"{printable(out)} is not complete: {plan.text(*missing)} missing. Merge "
            f"{'it' if len(missing) == 1 else 'them'} with `ram-studio merge --plan PLAN --part "
            f"{missing[0]} --out`, then finish again."
        )
    receipts: list[Receipt] = []
    for part in plan.parts:
        with naming(plan, part.part):
            receipt = read_receipt(receipt_path(out, part.part))
            header = receipt.header
            if (header.plan, header.part) != (plan.digest, part.part):
                raise PlanError(
                    f"its receipt is of part {header.part} of the plan {header.plan[:12]}..., "
                    f"expected {plan.digest[:12]}...; merge it again."
                )
            if receipts and header.facts != receipts[0].header.facts:
                raise PlanError(
                    "it was merged from another sketch than part 1; merge all parts from one."
                )
        receipts.append(receipt)
    return receipts


def _check_shards(plan: PartPlan, out: Path, receipts: list[Receipt], options: RunOptions) -> None:
    """Compare every shard with the digest that its part told when it wrote it."""
    files = [(r.header.part, *item) for r in receipts for item in r.header.shards.items()]
    meter = Meter("check", sum(record.nbytes for _, _, record in files), len(files))
    wrong: dict[str, int] = {}
    for index, (part, name, record) in enumerate(files):
        options.cancel.raise_if_cancelled()
        path = out / name
        is_there = path.is_file() and path.stat().st_size == record.nbytes
        if not is_there or hash_file(path, threads=ALL_CORES) != f"blake3:{record.blake3}":
            wrong[name] = part
        meter.add(record.nbytes, name, index)
        meter.tell(options.on_progress)
    if wrong:
        for part in set(wrong.values()):
            receipt_path(out, part).unlink()  # so that merging it again is not taken for done
        raise PlanError(
            f"{plan.text(*sorted(set(wrong.values()))).capitalize()}: "
            f"{shown_list([printable(name) for name in wrong])} not as written (missing, or of "
            "another size or digest). Merge what is named again, then finish."
        )


def _hashes(opened: OpenPlan, receipts: list[Receipt]) -> dict[str, dict[str, str]]:
    """Return the content hashes of all source files; nothing where the plan asked for none."""
    found: dict[str, dict[str, str]] = {}
    for receipt in receipts:
        for checkpoint, files in receipt.header.hashes.items():
            found.setdefault(checkpoint, {}).update(files)
    return found
