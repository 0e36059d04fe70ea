"""Pass 2: merged checkpoints, written in one streaming pass once lambda is known."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio._version import __version__
from ram_studio.algorithm.methods import make_settings
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.read.shard_files import INDEX_FILE
from ram_studio.checkpoints.record.card import model_card
from ram_studio.checkpoints.record.licences import most_restrictive
from ram_studio.checkpoints.record.passport import (
    PASSPORT_FILE,
    LicenceRecord,
    Passport,
    ShardRecord,
    agent_record,
    source_record,
)
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output_folder import SIDECAR_BYTES, check_output
from ram_studio.checkpoints.write.shard_plan import index_json
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.checkpoints.write.writer import DEFAULT_MAX_SHARD_BYTES, CheckpointWriter
from ram_studio.engine.analyse import load
from ram_studio.engine.blocks import BLOCK_ELEMENTS
from ram_studio.engine.devices import choose_device
from ram_studio.engine.events import CancelToken, Progress, ProgressCallback
from ram_studio.engine.job import AgentResult, MergeJob
from ram_studio.engine.libraries import library_versions
from ram_studio.engine.merging import Plan, is_fused
from ram_studio.engine.source_hashes import SourceHasher

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MergeResult:
    """What a merge did."""

    out: Path
    method: str
    agents: dict[str, AgentResult]
    bytes_read: int
    bytes_written: int
    seconds: float
    peak_rss_bytes: int
    passport: Passport

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each agent: agent, rho, lambda, effective_lambda, changed, unique.

        rho is inf where nothing is unique; ratios that a method does not have are NaN.
        """
        import pandas as pd

        rows = [
            (name, a.rho, a.scaling_factor, a.effective_scaling_factor, a.changed, a.unique)
            for name, a in self.agents.items()
        ]
        ratios = ("rho", "lambda", "effective_lambda")
        frame = pd.DataFrame(rows, columns=["agent", *ratios, "changed", "unique"])
        return frame.astype(dict.fromkeys(ratios, float))

    def to_dict(self) -> dict[str, Any]:
        """Return the ``merge --json`` contract; an infinite rho is None."""
        return {
            "out": str(self.out),
            "method": self.method,
            "agents": {
                name: {
                    "rho": a.rho if math.isfinite(a.rho) else None,
                    "lambda": a.scaling_factor,
                    "effective_lambda": a.effective_scaling_factor,
                }
                for name, a in self.agents.items()
            },
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "seconds": self.seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def merge(
    recipe: Recipe,
    out: str | Path,
    *,
    sketch: Sketch | None = None,
    device: str = "auto",
    threads: int | None = None,
    block_elements: int = BLOCK_ELEMENTS,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    hash_sources: bool = True,
    on_progress: ProgressCallback | None = None,
    on_download: Callable | None = None,
    cancel: CancelToken | None = None,
) -> MergeResult:
    """Merge as the recipe says into the folder ``out``, which appears whole or not at all.

    Args:
        sketch: of the same files; saves the counting pass when the recipe's epsilon is on the
            ladder. The merge counts again and refuses a sketch that does not belong to them.
        device, threads, on_progress, on_download, cancel: as for ``analyze``.
        block_elements: elements a thread holds at a time; the result does not depend on it.
        max_shard_bytes: the most bytes of tensor data in one file.
        hash_sources: keep a content hash of every source file in the passport, computed behind the
            readers of the first pass; False saves its time.

    Raises: SettingsError, CheckpointError, CompatibilityError, HubError, SketchError, OutputError;
    Stopped when cancelled. Nothing is left behind then.
    """
    settings = make_settings(recipe.method, recipe.settings)
    recipe = recipe.model_copy(update={"settings": settings.model_dump(mode="json")})
    choose_device(device)
    check_output(out, needed_bytes=0)  # before a download, not only before the work
    start = time.monotonic()
    report = load(
        recipe.base,
        recipe.agents,
        missing=recipe.missing,
        extra=recipe.extra,
        rows=recipe.rows,
        on_download=on_download,
        cancel=cancel,
    )
    job = MergeJob(report, recipe, device=device, threads=threads, block_elements=block_elements)
    checkpoints = {c.name: c for c in (report.base, *report.agents)}
    # Read before the work: what cannot be copied must not show after an hour.
    files = sidecar_files(report.base, dtype=recipe.dtype, tokenizer=checkpoints[recipe.tokenizer])
    writer = CheckpointWriter(
        out,
        [(t.name, job.dtype_of(t), t.shape) for t in report.tensors],
        max_shard_bytes=max_shard_bytes,
        sources=[c.folder for c in checkpoints.values()],
        sidecar_bytes=SIDECAR_BYTES + sum(map(len, files.values())),
    )
    with writer, _hasher(report, wanted=hash_sources) as hasher:
        watch = on_progress if hasher is None else hasher.watch(on_progress)
        counts = job.counts(sketch, on_progress=watch, cancel=cancel)
        plan = job.plan(counts, sketch, on_progress=watch, cancel=cancel)
        tally = job.run(plan, writer, on_progress=watch, cancel=cancel)
        if counts is not None:
            job.check_counts(counts, tally, sketch)
        job.check_expected(plan, tally, is_from_sketch=sketch is not None)
        agents = job.results(plan, counts, tally)
        hashes = {}
        if hasher is not None:
            hashes = hasher.finish(on_progress=on_progress, cancel=cancel)
        passport = _passport(job, plan, agents, counts, writer, hashes)
        files["README.md"] = model_card(passport).encode()
        index = {INDEX_FILE: index_json(writer.shards)} if len(writer.shards) > 1 else {}
        passport = passport.sealed(files | index)
        files[PASSPORT_FILE] = passport.to_json()
        if cancel:
            cancel.raise_if_cancelled()
        folder = writer.finish(files, on_wait=_flush_watch(writer, on_progress, cancel))
    return MergeResult(
        out=folder,
        method=recipe.method,
        agents=agents,
        bytes_read=job.bytes_read,
        bytes_written=writer.nbytes,
        seconds=time.monotonic() - start,
        peak_rss_bytes=_peak_rss_bytes(),
        passport=passport,
    )


def _hasher(
    report: CompatibilityReport, *, wanted: bool
) -> contextlib.AbstractContextManager[SourceHasher | None]:
    return SourceHasher(report) if wanted else contextlib.nullcontext()


def _passport(
    job: MergeJob,
    plan: Plan,
    agents: dict[str, AgentResult],
    counts: OverlapCounts | None,
    writer: CheckpointWriter,
    hashes: Mapping[str, Mapping[str, str]],
) -> Passport:
    dtypes = {job.dtype_of(t) for t in job.merged}
    records = {}
    for t, agent in enumerate(job.report.agents):
        result = agents[agent.name]
        overlap = None
        if counts is not None:
            overlap = tuple(int(n) for n in counts.shared[:, 0, t].sum(0))
        records[agent.name] = agent_record(
            agent,
            hashes.get(agent.name),
            rho=result.rho,
            rho_m=result.rho_m,
            is_rho_m_infinite=result.rho_m is not None and math.isinf(result.rho_m),
            scaling_factor=result.scaling_factor,
            effective_scaling_factor=result.effective_scaling_factor,
            total=job.elements,
            changed=result.changed,
            unique=result.unique,
            shared=result.changed - result.unique,
            overlap=overlap,
        )
    base = source_record(job.report.base, hashes.get(job.report.base.name))
    sources = {"base": base, **records}
    licence = most_restrictive({name: s.license.licence for name, s in sources.items()})
    sizes = {shard.file_name: shard.file_size for shard in writer.shards}
    return Passport(
        ram_studio_version=__version__,
        recipe=job.recipe,
        base=base,
        agents=records,
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
        rounding=job.recipe.rounding,
        seed=job.recipe.seed,
        elements=job.elements,
        shards={
            name: ShardRecord(nbytes=sizes[name], blake3=digest)
            for name, digest in writer.digests().items()
        },
        warnings=job.report.warnings,
        libraries=library_versions(with_torch=not is_fused(plan), with_triton=job.is_streamed),
        license=LicenceRecord(id=licence.id, name=licence.name, link=licence.link),
    )


def _flush_watch(
    writer: CheckpointWriter, on_progress: ProgressCallback | None, cancel: CancelToken | None
) -> Callable[[int], None]:
    """Return what is called while the output goes to the disk: it reports, and stops."""
    start = time.monotonic()
    shards = len(writer.shards)

    def watch(flushed: int) -> None:
        if cancel:
            cancel.raise_if_cancelled()
        if on_progress:
            seconds = time.monotonic() - start
            on_progress(Progress("flush", "", shards, shards, flushed, writer.nbytes, seconds))

    return watch


def _peak_rss_bytes() -> int:
    """Return the most memory this process ever held.

    Linux counts what the parent held when it started us into ru_maxrss, but not into VmHWM.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
