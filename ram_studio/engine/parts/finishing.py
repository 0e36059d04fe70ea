"""Makes a model of merged parts: checks everything, writes card, provenance, config and index."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

import numpy as np

from ram_studio.algorithm.meters.retained import RetainedShares
from ram_studio.checkpoints.read.describe import printable, shell_word, shown_list
from ram_studio.checkpoints.record.card import model_card
from ram_studio.checkpoints.record.part_plan import PartPlan
from ram_studio.checkpoints.record.part_receipt import Receipt, read_receipt
from ram_studio.checkpoints.record.provenance import (
    PROVENANCE_FILE,
    AgentRecord,
    Provenance,
)
from ram_studio.checkpoints.write.output import Output
from ram_studio.checkpoints.write.parts import open_output
from ram_studio.checkpoints.write.shard_plan import index_files
from ram_studio.engine.events import Meter
from ram_studio.engine.job import AgentResult, check_counts
from ram_studio.engine.parts.planning import OpenPlan, name_part, open_plan
from ram_studio.engine.parts.steps import find_finished
from ram_studio.engine.passes.counting import ROWS
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.passes.merging import TALLY_SUMS, MergeTally
from ram_studio.engine.passes.plan import MergedBlock
from ram_studio.engine.result import MergeResult, make_provenance, measured_peak_rss_bytes
from ram_studio.errors import PlanError


def finish(
    plan: PartPlan,
    out: str | Path,
    *,
    on_download: Callable | None = None,
    **run: Unpack[RunKeywords],
) -> MergeResult:
    """Finish a merge whose parts are all in a folder or URL; its files are those of ``merge``.

    Every shard is read again and compared with its part's digest. The index is written
    last; an interrupted run can be repeated. A finished folder is left unchanged.

    Returns: the result of the whole merge; seconds are those of finishing.

    Raises: PlanError naming the parts that are missing, damaged, or merged from another analysis
    than the first, and sources that changed; AnalysisError where the parts' counts together are not
    the analysis's; OutputError; Stopped.
    """
    options = RunOptions.of(**run)
    start, read = time.monotonic(), 0
    with open_output(out, in_parts=True) as output:
        provenance = find_finished(plan, output)
        if provenance is None:
            output.begin(plan.digest)
            units = read_receipts(plan, output)  # report missing parts before opening sources
            opened = open_plan(plan, options, on_download=on_download)
            provenance = finish_opened(opened, output, units)
            read = sum(receipt.header.bytes_read for receipt in units.values())
        return result_of(plan, output.out, provenance, start, read)


def finish_opened(
    opened: OpenPlan,
    output: Output,
    units: Mapping[str, Receipt],
    names: Mapping[str, str] = MappingProxyType({}),
) -> Provenance:
    """Finish a merge whose parts are complete, see ``finish``; return its provenance.

    Args: units: their receipts; names: of sources in the provenance, see ``merge``.
    """
    plan, job, run = opened.plan, opened.job, opened.job.options
    receipts = list(units.values())
    headers = [receipt.header for receipt in receipts]
    if not output.is_private:
        _check_shards(plan, output, units, run)
    tally = MergeTally(len(job.names))
    for receipt in receipts:
        tally.join(MergedBlock(None, receipt.patterns, receipt.sums, receipt.header.is_along))
    check_counts(headers[0].facts, tally)
    agents = job.results(headers[0].facts, tally)
    hashes: dict[str, dict[str, str]] = {}
    for header in headers:
        for checkpoint, own in header.hashes.items():
            hashes.setdefault(checkpoint, {}).update(own)
    provenance = make_provenance(
        job,
        agents,
        shards={name: record for header in headers for name, record in header.shards.items()},
        hashes=hashes,
        with_torch=any(header.with_torch for header in headers),
        devices={header.device for header in headers},
    ).renamed(names)
    card = {"README.md": model_card(provenance).encode()}
    files = opened.small_files | index_files(opened.shards) | card
    provenance = provenance.with_checksum(files)
    files[PROVENANCE_FILE] = provenance.to_json()
    run.cancel.raise_if_cancelled()
    output.complete(files)
    return provenance


def result_of(
    plan: PartPlan, out: Path | str, provenance: Provenance, start: float, bytes_read: int
) -> MergeResult:
    """Return the result of a finished merge; start: by time.monotonic()."""
    return MergeResult(
        out=out,
        method=plan.recipe.method,
        agents={name: _agent_result(record) for name, record in provenance.agents.items()},
        bytes_read=bytes_read,
        bytes_written=sum(part.nbytes for part in plan.parts),
        seconds=time.monotonic() - start,
        peak_rss_bytes=measured_peak_rss_bytes(),
        provenance=provenance,
    )


def _agent_result(record: AgentRecord) -> AgentResult:
    """Return an agent's numbers from the provenance."""
    assert record.changed is not None, "a merge counts"
    assert record.unique is not None, "a merge counts"
    retained = None
    if record.retained is not None and record.interference is not None:
        parts = record.retained.model_dump(exclude={"total"})
        rest = record.interference, record.interference_rounding or 0.0
        retained = RetainedShares(
            record.retained.total, **parts, interference=rest[0], interference_rounding=rest[1]
        )
    return AgentResult(
        rho=math.inf if record.rho is None else record.rho,
        scaling_factor=record.scaling_factor,
        effective_scaling_factor=record.effective_scaling_factor,
        changed=record.changed,
        unique=record.unique,
        rho_m=math.inf if record.is_rho_m_infinite else record.rho_m,
        overlap=record.overlap or (),
        effective_interval=record.effective_interval,
        retained=retained,
    )


def read_receipts(plan: PartPlan, output: Output) -> dict[str, Receipt]:
    """Return every unit's receipt, after checking that all are of one merge."""
    units = {
        unit: (planned.part, names, output.receipt(unit))
        for planned in plan.parts
        for unit, names in output.units(planned.part, list(planned.shards)).items()
    }
    if missing := sorted({part for part, _, data in units.values() if data is None}):
        raise PlanError(
            f"{printable(output.out)} is not complete: {plan.text(*missing)} missing. Merge "
            f"{'it' if len(missing) == 1 else 'them'} with `ram-studio merge --plan PLAN --part "
            f"{missing[0]} --out {shell_word(output.out)}`, then finish again."
        )
    receipts: dict[str, Receipt] = {}
    for unit, (part, names, data) in units.items():
        with name_part(plan, part):
            receipt = read_receipt(data or b"", f"{output.out}: {unit}")
            header = receipt.header
            if (header.plan, header.part) != (plan.digest, part):
                raise PlanError(
                    f"its receipt is of part {header.part} of the plan {header.plan[:12]}..., "
                    f"expected {plan.digest[:12]}...; merge it again."
                )
            is_sound = _is_sound(receipt, len(plan.recipe.agents))
            if sorted(header.shards) != sorted(names) or not is_sound:
                raise PlanError("its receipt is damaged, or of other files; merge it again.")
            first = next(iter(receipts.values()), receipt).header
            if header.facts != first.facts:
                raise PlanError(
                    "it was merged with another analysis or other Fisher files than part "
                    f"{first.part}; use the same for all parts."
                )
        receipts[unit] = receipt
    return receipts


def _is_sound(receipt: Receipt, n_agents: int) -> bool:
    """Return whether a receipt's arrays have the shapes for this number of agents."""
    patterns, sums = receipt.patterns, receipt.sums
    if patterns is None or sums is None:
        return patterns is sums
    shapes = (patterns.shape, sums.ndim, sums.shape[1:])
    return (
        (patterns.dtype, sums.dtype) == (np.dtype(np.int64), np.dtype(np.float64))
        and shapes == (ROWS["patterns"](n_agents), 3, (n_agents, TALLY_SUMS))
        and bool(np.isfinite(sums).all())
    )


def _check_shards(
    plan: PartPlan, output: Output, receipts: Mapping[str, Receipt], run: RunOptions
) -> None:
    """Compare every shard with the digest in its part's receipt.

    Shards that this process has just uploaded are not fetched again.
    """
    shards = [
        (unit, receipt.header.part, name, record)
        for unit, receipt in receipts.items()
        for name, record in receipt.header.shards.items()
    ]
    meter = Meter("check", sum(record.nbytes for *_, record in shards), len(shards))
    sizes = output.files.sizes()
    wrong: dict[str, int] = {}
    check = run.cancel.raise_if_cancelled
    for index, (unit, part, name, record) in enumerate(shards):
        check()
        if sizes.get(name) != record.nbytes or (
            name not in output.uploaded and output.files.blake3(name, check) != record.blake3
        ):
            wrong[name] = part
            if output.receipt(unit) is not None:
                output.forget(unit)  # so that the part is merged again
        meter.add(record.nbytes, name, index)
        meter.report_progress(run.on_progress)
    if wrong:
        raise PlanError(
            f"{plan.text(*sorted(set(wrong.values()))).capitalize()}: "
            f"{shown_list([printable(name) for name in wrong])} not as written (missing, or of "
            "another size or digest). Merge those parts again, then finish."
        )
