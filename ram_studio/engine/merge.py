"""Pass 2: merged checkpoints, written in one streaming pass once lambda is known."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ram_studio._version import __version__
from ram_studio.algorithm import scaling
from ram_studio.algorithm.ladder import ladder_index
from ram_studio.algorithm.methods import (
    Facts,
    Method,
    MethodSettings,
    Need,
    get_method,
    make_settings,
)
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import Sketch, TensorEntry
from ram_studio.checkpoints.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.model_card import model_card
from ram_studio.checkpoints.passport import (
    PASSPORT_FILE,
    Passport,
    ShardRecord,
    agent_record,
    source_record,
)
from ram_studio.checkpoints.recipe import Recipe
from ram_studio.checkpoints.sidecars import OUTPUT_DTYPES, known_license, sidecar_files
from ram_studio.checkpoints.writer import DEFAULT_MAX_SHARD_BYTES, CheckpointWriter
from ram_studio.engine.analyse import count_at, load
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, BlockReader, Sources, blocks_of
from ram_studio.engine.devices import choose_device
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.finite import non_finite_error
from ram_studio.engine.merging import (
    BlockMerger,
    FusedMerger,
    MergeTally,
    Plan,
    TorchMerger,
    is_fused,
    pattern_dtype,
)
from ram_studio.engine.workers import run_blocks, thread_count
from ram_studio.errors import SketchError, SourceChangedError


@dataclass(frozen=True)
class AgentResult:
    """One agent's numbers in a merge. rho is infinite where unique = 0; None where unknown.

    scaling_factor: lambda asked for (the mean over unique elements where the scope is not global),
    None for methods that have none; effective_scaling_factor: what the output's dtype stored.
    """

    rho: float
    scaling_factor: float | None
    effective_scaling_factor: float | None
    changed: int
    unique: int


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

    Raises: SettingsError, CheckpointError, CompatibilityError, HubError, SketchError, OutputError;
    Stopped when cancelled. Nothing is left behind then.
    """
    method = get_method(recipe.method)
    settings = make_settings(recipe.method, recipe.settings)
    recipe = recipe.model_copy(update={"settings": settings.model_dump(mode="json")})
    device = choose_device(device)
    pattern_dtype(len(recipe.agents))
    report = load(
        recipe.base,
        recipe.agents,
        missing=recipe.missing,
        extra=recipe.extra,
        rows=recipe.rows,
        on_download=on_download,
        cancel=cancel,
    )
    job = _Job(report, recipe, method, settings, device, thread_count(threads), block_elements)
    return job.run(out, sketch, max_shard_bytes, on_progress, cancel)


class _Job:
    """One merge, from an opened and checked set of checkpoints."""

    def __init__(
        self,
        report: CompatibilityReport,
        recipe: Recipe,
        method: Method,
        settings: MethodSettings,
        device: str,
        threads: int,
        block_elements: int,
    ) -> None:
        self.report = report
        self.recipe = recipe
        self.method = method
        self.settings = settings
        self.device = device
        self.threads = threads
        self.block_elements = block_elements
        self.merged = [t for t in report.tensors if t.kind == "merge"]
        self.counted = [t for t in self.merged if t.is_counted]
        self.names = tuple(agent.name for agent in report.agents)
        self.bytes_read = 0

    def run(
        self,
        out: str | Path,
        sketch: Sketch | None,
        max_shard_bytes: int,
        on_progress: ProgressCallback | None,
        cancel: CancelToken | None,
    ) -> MergeResult:
        start = time.monotonic()
        writer = CheckpointWriter(
            out,
            [(t.name, self._dtype(t), t.shape) for t in self.report.tensors],
            max_shard_bytes=max_shard_bytes,
            sources=[c.folder for c in (self.report.base, *self.report.agents)],
        )
        with writer, _one_torch_thread(self.device):
            counts = self._counts(sketch, on_progress, cancel)
            plan = self._plan(counts)
            tally = MergeTally(len(self.names))
            self._merge(plan, tally, writer, on_progress, cancel)
            if counts is not None:
                self._check_counts(counts, tally, sketch is not None)
            agents = self._results(plan, counts, tally)
            passport = self._passport(agents, counts, writer)
            tokenizer = {c.name: c for c in (self.report.base, *self.report.agents)}
            files = sidecar_files(
                self.report.base,
                dtype=self.recipe.dtype,
                tokenizer=tokenizer[self.recipe.tokenizer],
            )
            files["README.md"] = model_card(passport).encode()
            files[PASSPORT_FILE] = passport.to_json()
            if cancel:
                cancel.raise_if_cancelled()
            folder = writer.finish(files)
        return MergeResult(
            out=folder,
            method=self.recipe.method,
            agents=agents,
            bytes_read=self.bytes_read,
            bytes_written=writer.nbytes,
            seconds=time.monotonic() - start,
            peak_rss_bytes=_peak_rss_bytes(),
            passport=passport,
        )

    def _dtype(self, tensor: MergeTensor) -> str:
        if tensor.kind == "copy" or self.recipe.dtype is None:
            return tensor.dtype
        return OUTPUT_DTYPES[self.recipe.dtype]

    def _counts(
        self,
        sketch: Sketch | None,
        on_progress: ProgressCallback | None,
        cancel: CancelToken | None,
    ) -> OverlapCounts | None:
        """Return counts per counted tensor at the recipe's epsilon, if the method needs them."""
        if Need.RATIOS not in self.method.needs(self.settings):
            return None
        epsilon = self.settings.epsilon
        if sketch is not None:
            self._check_sketch(sketch)
            point = ladder_index(epsilon)
            if point is not None:
                counts = sketch.counts
                cut = slice(point, point + 1)
                patterns = counts.patterns
                return OverlapCounts(
                    counts.numel,
                    None if patterns is None else patterns[:, cut],
                    counts.shared[:, cut],
                )
        _, counts = count_at(
            self.report,
            epsilon,
            device=self.device,
            threads=self.threads,
            block_elements=self.block_elements,
            on_progress=on_progress,
            cancel=cancel,
        )
        self.bytes_read += sum(b.nbytes for b in blocks_of(self.counted, self.block_elements))
        return counts

    def _check_sketch(self, sketch: Sketch) -> None:
        expected = {c.name: c.fingerprint for c in (self.report.base, *self.report.agents)}
        different = [
            name
            for name, fingerprint in expected.items()
            if sketch.fingerprints.get(name) != fingerprint
        ]
        if sketch.agents != self.names or different:
            found = ", ".join(sketch.agents)
            raise SketchError(
                f"The sketch is of the agents {found} and differs from the files given for "
                f"{', '.join(different) or 'their order'}; expected {', '.join(self.names)}. "
                "Analyze these checkpoints again, or leave the sketch out."
            )

    def _plan(self, counts: OverlapCounts | None) -> Plan:
        row_of = {t.name: i for i, t in enumerate(self.counted)}
        rows = [row_of[t.tied_to or t.name] for t in self.merged]
        ratios = None
        if counts is not None:
            ratios = _as_sketch(self.names, self.counted, counts).ratios(
                0, getattr(self.settings, "scope", "global")
            )[rows]
        facts = Facts(
            agents=self.names,
            seed=self.recipe.seed,
            tensors=tuple(t.name for t in self.merged),
            ratios=ratios,
            total=sum(t.numel for t in self.counted),
        )
        return Plan(
            method=self.method,
            prepared=self.method.prepare(self.settings, facts),
            facts=facts,
            dtypes={t.name: self._dtype(t) for t in self.merged},
            rows={t.name: i for i, t in enumerate(self.merged)},
            rounding=self.recipe.rounding,
            device=self.device,
        )

    def _merge(
        self,
        plan: Plan,
        tally: MergeTally,
        writer: CheckpointWriter,
        on_progress: ProgressCallback | None,
        cancel: CancelToken | None,
    ) -> None:
        blocks = list(blocks_of(self.merged, self.block_elements))
        total = sum(b.nbytes for b in blocks)
        meter = Meter("merge", total, len(self.merged))
        with Sources(self.report) as sources:
            self._copy_integers(sources, writer)

            def make_worker() -> Callable[[Block], None]:
                reader = BlockReader(sources, len(self.names), self.block_elements)
                merger: BlockMerger = (
                    FusedMerger(plan, tally, self.block_elements)
                    if is_fused(plan)
                    else TorchMerger(plan, tally)
                )

                def work(block: Block) -> None:
                    base, agents = reader.read(block)
                    stored = merger.merge(block, base, agents)
                    if stored is None:
                        raise non_finite_error(self.report, sources, block)
                    writer.write(
                        block.tensor.name, block.start * stored.itemsize, memoryview(stored)
                    )

                return work

            run_blocks(
                blocks,
                make_worker,
                threads=self.threads,
                meter=meter,
                on_progress=on_progress,
                cancel=cancel,
            )
            sources.check_unchanged()
        if on_progress:
            on_progress(meter.read())
        self.bytes_read += total

    def _copy_integers(self, sources: Sources, writer: CheckpointWriter) -> None:
        step = self.block_elements * 2
        for tensor in self.report.tensors:
            if tensor.kind != "copy":
                continue
            for start in range(0, tensor.base.nbytes, step):
                piece = bytearray(min(step, tensor.base.nbytes - start))
                sources.read_into(tensor.base, start, memoryview(piece))
                writer.write(tensor.name, start, piece)

    def _check_counts(self, counts: OverlapCounts, tally: MergeTally, is_from_sketch: bool) -> None:
        """Compare what the merge pass counted with what lambda was computed from."""
        changed = counts.active[:, 0].sum(0)
        unique = counts.shared[:, 0, :, 0].sum(0)
        if np.array_equal(changed, tally.changed) and np.array_equal(unique, tally.unique):
            return
        if is_from_sketch:
            raise SketchError(
                "The sketch does not belong to these files: its counts differ from what the merge "
                "counted. Analyze the checkpoints again, or leave the sketch out."
            )
        raise SourceChangedError(
            "The checkpoints changed between the two passes of the merge: their counts differ. "
            "Leave the files alone during a run, and run again."
        )

    def _results(
        self, plan: Plan, counts: OverlapCounts | None, tally: MergeTally
    ) -> dict[str, AgentResult]:
        results = {}
        factors = getattr(plan.prepared, "factors", None)
        for t, name in enumerate(self.names):
            changed, unique = int(tally.changed[t]), int(tally.unique[t])
            factor = None
            if factors is not None:
                column = [factors[plan.rows[tensor.name], t] for tensor in self.counted]
                factor = float(column[0]) if column else 1.0
                if counts is not None and len(set(column)) > 1:
                    weights = counts.shared[:, 0, t, 0]
                    factor = float(np.average(column, weights=weights)) if unique else 1.0
            results[name] = AgentResult(
                rho=scaling.overlap_unique_ratio(changed - unique, unique),
                scaling_factor=factor,
                effective_scaling_factor=tally.effective_factor(t),
                changed=changed,
                unique=unique,
            )
        return results

    def _passport(
        self,
        agents: dict[str, AgentResult],
        counts: OverlapCounts | None,
        writer: CheckpointWriter,
    ) -> Passport:
        total = sum(t.numel for t in self.counted)
        dtypes = {self._dtype(t) for t in self.merged}
        checkpoints = [self.report.base, *self.report.agents]
        records = {}
        for t, agent in enumerate(self.report.agents):
            result = agents[agent.name]
            overlap = None
            if counts is not None:
                overlap = tuple(int(n) for n in counts.shared[:, 0, t].sum(0))
            records[agent.name] = agent_record(
                agent,
                rho=result.rho,
                scaling_factor=result.scaling_factor,
                effective_scaling_factor=result.effective_scaling_factor,
                total=total,
                changed=result.changed,
                unique=result.unique,
                shared=result.changed - result.unique,
                overlap=overlap,
            )
        sizes = {shard.file_name: shard.file_size for shard in writer.shards}
        return Passport(
            ram_studio_version=__version__,
            recipe=self.recipe,
            base=source_record(self.report.base),
            agents=records,
            dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
            rounding=self.recipe.rounding,
            seed=self.recipe.seed,
            elements=total,
            shards={
                name: ShardRecord(nbytes=sizes[name], blake3=digest)
                for name, digest in writer.digests().items()
            },
            warnings=self.report.warnings,
            license=known_license(checkpoints),
        )


def _as_sketch(
    agents: tuple[str, ...], tensors: list[MergeTensor], counts: OverlapCounts
) -> Sketch:
    """Return counts at one epsilon as a sketch with that single point, for its ratios."""
    return Sketch(
        agents=agents,
        tensors=tuple(TensorEntry(t.name, t.numel) for t in tensors),
        counts=counts,
        magnitudes=np.zeros((len(agents), 0), dtype=np.int64),
    )


@contextlib.contextmanager
def _one_torch_thread(device: str) -> Iterator[None]:
    """Keep torch to one thread per call while blocks are dealt to threads of our own."""
    torch = sys.modules.get("torch")
    if torch is None or device != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
