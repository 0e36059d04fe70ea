"""Results of a merge: its numbers, and the provenance and card of its folder."""

from __future__ import annotations

import contextlib
import html
import importlib.metadata
import math
import platform
import resource
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio._version import __version__, full_version
from ram_studio.algorithm.meters.retained import RetainedShares, retained_dict
from ram_studio.algorithm.meters.storage import texts
from ram_studio.checkpoints.own_methods import own_record
from ram_studio.checkpoints.record.provenance import (
    Provenance,
    ShardRecord,
    agent_record,
    not_checked,
    source_record,
)
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.engine.events import Progress
from ram_studio.engine.job import AgentResult, MergeJob
from ram_studio.engine.passes.driver import RunOptions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MergeResult:
    """Result of a merge; out: the folder, or the URL it was written to.

    is_done_before: the output already existed, and nothing was done.
    """

    out: Path | str
    method: str
    agents: dict[str, AgentResult]
    bytes_read: int
    bytes_written: int
    seconds: float
    peak_rss_bytes: int
    provenance: Provenance
    is_done_before: bool = False

    def __repr__(self) -> str:
        return f"MergeResult({self.method} of {', '.join(self.agents)} in {self.out})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each agent."""
        return f"<p>{html.escape(repr(self))}</p>{self.to_frame().to_html(index=False)}"

    @property
    def retained(self) -> dict[str, RetainedShares | None]:
        """Stored shares of each agent's update; None where it changed nothing."""
        return {name: agent.retained for name, agent in self.agents.items()}

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each agent.

        Columns: agent, rho, lambda, effective_lambda, changed, unique, retained, interference.

        rho is inf where nothing is unique; ratios that a method does not have are NaN.
        """
        import pandas as pd

        rows = [
            (name, a.rho, a.scaling_factor, a.effective_scaling_factor, a.changed, a.unique)
            + (
                (None, None)
                if a.retained is None
                else (a.retained.retained, a.retained.interference)
            )
            for name, a in self.agents.items()
        ]
        ratios, shares = ("rho", "lambda", "effective_lambda"), ("retained", "interference")
        frame = pd.DataFrame(rows, columns=["agent", *ratios, "changed", "unique", *shares])
        return frame.astype(dict.fromkeys((*ratios, *shares), float))

    def to_dict(self) -> dict[str, Any]:
        """Return the ``merge --json`` contract; an infinite rho is None."""
        return {
            "out": str(self.out),
            "method": self.method,
            "agents": {name: a.to_dict() for name, a in self.agents.items()},
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "seconds": self.seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def shard_records(shards: Sequence[Shard], digests: Mapping[str, str]) -> dict[str, ShardRecord]:
    """Return the provenance's records of written shards, in the order of their digests."""
    sizes = {shard.file_name: shard.file_size for shard in shards}
    return {
        name: ShardRecord(nbytes=sizes[name], blake3=digest) for name, digest in digests.items()
    }


def make_provenance(
    job: MergeJob,
    agents: Mapping[str, AgentResult],
    *,
    shards: dict[str, ShardRecord],
    hashes: Mapping[str, Mapping[str, str]],
    with_torch: bool,
    devices: Collection[str],
) -> Provenance:
    """Return the provenance of a merge, without a checksum yet.

    hashes: of the sources' files, by checkpoint; with_torch: whether torch computed; devices: those
    of all parts.
    """
    dtypes = {job.dtypes[t.name] for t in job.merged}
    records = {
        agent.name: agent_record(
            agent,
            hashes.get(agent.name),
            **asdict(result) | retained_dict(result.retained),
            is_rho_m_infinite=result.rho_m is not None and math.isinf(result.rho_m),
            total=job.elements,
            shared=result.changed - result.unique,
        )
        for agent, result in zip(job.report.agents, agents.values(), strict=True)
    }
    return Provenance(
        ram_studio_version=__version__,
        recipe=job.recipe,
        base=source_record(job.report.base, hashes.get(job.report.base.name)),
        agents=records,
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
        rounding=job.recipe.rounding,
        seed=job.recipe.seed,
        arithmetic=job.arithmetic,
        device=",".join(sorted(devices)) if any(map(job.is_whole, job.merged)) else None,
        own_method=own_record(job.method.name),
        elements=job.elements,
        shards=shards,
        warnings=job.report.warnings + texts(job.other_bases + job.lost_to_epsilon(agents)),
        libraries=library_versions(with_torch=with_torch),
        not_checked=not_checked(),
    )


def library_versions(*, with_torch: bool) -> dict[str, str]:
    """Return name -> version of this code, Python and the libraries that the numbers depend on."""
    found = {"ram-studio": full_version(), "python": platform.python_version()}
    for name in ("numpy", "numba", "llvmlite", "blake3", *["torch"] * with_torch):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def wait_hook(stage: str, run: RunOptions, total: int = 0, shards: int = 0) -> Callable[..., None]:
    """Return a callback for flushing or uploading the output: it reports progress, and stops.

    Its arguments: bytes done, and of how many unless ``total`` is given.
    """
    start = time.monotonic()

    def watch(done: int, of: int = total) -> None:
        run.cancel.raise_if_cancelled()
        if run.on_progress:
            seconds = time.monotonic() - start
            run.on_progress(Progress(stage, "", shards, shards, done, of, seconds))

    return watch


def measured_peak_rss_bytes() -> int:
    """Return the peak memory of this process.

    On Linux, ru_maxrss includes the parent's memory at our start; VmHWM does not.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
