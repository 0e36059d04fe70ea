"""Making a model of merged parts: everything checked, then card, passport, config and index."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import numpy as np

from ram_studio.algorithm.kernels.cpu import SUMS
from ram_studio.algorithm.meters.kept import Kept
from ram_studio.algorithm.meters.storage import texts
from ram_studio.checkpoints.read.describe import printable, shown_list
from ram_studio.checkpoints.read.shard_files import INDEX_FILE
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.part_receipt import Receipt, read_receipt
from ram_studio.checkpoints.record.passport import AgentRecord, passport_of
from ram_studio.checkpoints.write.part_url import PartsPlace, parts_place
from ram_studio.checkpoints.write.shard_plan import index_json
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.engine.events import Meter
from ram_studio.engine.job import AgentResult, check_counts
from ram_studio.engine.parts.planning import OpenPlan, naming, open_plan
from ram_studio.engine.parts.steps import is_finished
from ram_studio.engine.passes.counting import ROWS
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import Merged
from ram_studio.engine.reading.sampling import other_bases, sampled_densities
from ram_studio.engine.result import (
    MergeResult,
    make_passport,
    measured_peak_rss_bytes,
)
from ram_studio.errors import PlanError


def finish(
    plan: PartPlan,
    out: str | Path,
    *,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> MergeResult:
    """Finish a merge whose parts are all in a folder or URL; its files are those of ``merge``.

    Every shard is read again and compared with the digest that its part told. The index is written
    last; a run that was broken off is run again. A folder that is finished is left as it is.

    Returns: the result of the whole merge; seconds are those of finishing.

    Raises: PlanError naming the parts that are missing, damaged, or merged from another sketch than
    the first, and sources that changed; SketchError where the parts' counts together are not the
    sketch's; OutputError; Stopped.
    """
    options = RunOptions.of(**run)
    start, read = time.monotonic(), 0
    with parts_place(out) as place:
        if not is_finished(plan, place):
            place.begin(plan.digest)
            _receipts(plan, place)  # what is missing is told before the sources are opened
            read = finish_opened(open_plan(plan, options, on_download), place)
        return result_of(plan, place, start, read)


def finish_opened(opened: OpenPlan, place: PartsPlace) -> int:
    """Finish a merge whose parts are all there, see ``finish``; return bytes read for them all."""
    plan, job, options = opened.plan, opened.job, opened.run
    receipts = _receipts(plan, place)
    _check_shards(plan, place, receipts, options)
    tally = MergeTally(len(job.names))
    for _, receipt in receipts:
        header = receipt.header
        tally.add(Merged(None, receipt.patterns, receipt.sums, header.is_along))
    facts = receipts[0][1].header.facts
    check_counts(facts, tally, is_from_sketch=True)
    agents = job.results(facts, tally)
    records = [item for _, receipt in receipts for item in receipt.header.shards.items()]
    digests = {name: record.blake3 for name, record in records}
    with_torch = any(receipt.header.with_torch for _, receipt in receipts)
    files = sidecar_files(job.report.base, dtype=plan.recipe.dtype, tokenizer=job.tokenizer)
    job.warnings += texts(other_bases(sampled_densities(job.report)))
    hashes = _hashes(receipts)
    make_passport(job, agents, files, opened.shards, digests, hashes, with_torch=with_torch)
    if len(opened.shards) > 1:
        files[INDEX_FILE] = index_json(opened.shards)
    options.cancel.raise_if_cancelled()
    place.complete(files)
    return sum(receipt.header.bytes_read for _, receipt in receipts)


def result_of(plan: PartPlan, place: PartsPlace, start: float, bytes_read: int = 0) -> MergeResult:
    """Return the result of a merge that is finished; start: by time.monotonic()."""
    passport = passport_of(place.files)
    return MergeResult(
        out=place.out,
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
        rest = record.all_else, record.all_else_rounding or 0.0
        kept = Kept(record.kept.total, **parts, all_else=rest[0], all_else_rounding=rest[1])
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


def _receipts(plan: PartPlan, place: PartsPlace) -> list[tuple[str, Receipt]]:
    """Return every unit's receipt, after making sure that they belong together."""
    units: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for planned in plan.parts:
        own = place.units(planned.part, list(planned.shards))
        units |= dict.fromkeys(own, planned.part)
        names |= own
    data = {unit: place.receipt(unit) for unit in units}
    missing = sorted({part for unit, part in units.items() if data[unit] is None})
    if missing:
        raise PlanError(
            f"{printable(place.out)} is not complete: {plan.text(*missing)} missing. Merge "
            f"{'it' if len(missing) == 1 else 'them'} with `ram-studio merge --plan PLAN --part "
            f"{missing[0]} --out`, then finish again."
        )
    receipts: list[tuple[str, Receipt]] = []
    for unit, part in units.items():
        with naming(plan, part):
            receipt = read_receipt(data[unit] or b"", f"{place.out}: {unit}")
            header = receipt.header
            if (header.plan, header.part) != (plan.digest, part):
                raise PlanError(
                    f"its receipt is of part {header.part} of the plan {header.plan[:12]}..., "
                    f"expected {plan.digest[:12]}...; merge it again."
                )
            if sorted(header.shards) != sorted(names[unit]) or not _is_sound(
                receipt, len(plan.recipe.agents)
            ):
                raise PlanError("its receipt is damaged, or of other files; merge it again.")
            if receipts and header.facts != receipts[0][1].header.facts:
                raise PlanError(
                    f"it was merged from another sketch, or other Fisher files, than part "
                    f"{receipts[0][1].header.part}; merge all parts from the same."
                )
        receipts.append((unit, receipt))
    return receipts


def _is_sound(receipt: Receipt, n_agents: int) -> bool:
    """Say whether a receipt's arrays can be those of a merge of so many agents."""
    patterns, sums = receipt.patterns, receipt.sums
    if patterns is None or sums is None:
        return patterns is sums
    shapes = (patterns.shape, sums.ndim, sums.shape[1:])
    return (
        (patterns.dtype, sums.dtype) == (np.dtype(np.int64), np.dtype(np.float64))
        and shapes == (ROWS["patterns"](n_agents), 3, (n_agents, SUMS))
        and bool(np.isfinite(sums).all())
    )


def _check_shards(
    plan: PartPlan, place: PartsPlace, receipts: list[tuple[str, Receipt]], options: RunOptions
) -> None:
    """Compare every shard with the digest that its part told when it wrote it.

    Those that this process has just uploaded itself are not fetched again.
    """
    files = [(unit, r.header.part, *x) for unit, r in receipts for x in r.header.shards.items()]
    meter = Meter("check", sum(record.nbytes for *_, record in files), len(files))
    sizes = place.files.sizes()
    wrong: dict[str, int] = {}
    for index, (unit, part, name, record) in enumerate(files):
        check = options.cancel.raise_if_cancelled
        check()
        if sizes.get(name) != record.nbytes or (
            name not in place.uploaded and place.files.blake3(name, check) != record.blake3
        ):
            wrong[name] = part
            if place.receipt(unit) is not None:
                place.forget(unit)  # so that merging it again is not taken for done
        meter.add(record.nbytes, name, index)
        meter.tell(options.on_progress)
    if wrong:
        raise PlanError(
            f"{plan.text(*sorted(set(wrong.values()))).capitalize()}: "
            f"{shown_list([printable(name) for name in wrong])} not as written (missing, or of "
            "another size or digest). Merge what is named again, then finish."
        )


def _hashes(receipts: list[tuple[str, Receipt]]) -> dict[str, dict[str, str]]:
    """Return the content hashes of all source files; nothing where the plan asked for none."""
    found: dict[str, dict[str, str]] = {}
    for _, receipt in receipts:
        for checkpoint, files in receipt.header.hashes.items():
            found.setdefault(checkpoint, {}).update(files)
    return found
