"""A merge as a job: what the method needs to know, then every block to a sink.

The sink is a checkpoint writer when merging, a comparison with stored bytes when verifying.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np

from ram_studio.algorithm import scaling
from ram_studio.algorithm.ladder import ladder_index
from ram_studio.algorithm.meters import relations
from ram_studio.algorithm.methods import Facts, Magnitudes, Need, get_method, make_settings
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import Sketch, TensorEntry
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.sidecars import OUTPUT_DTYPES
from ram_studio.engine.analyse import count_at, count_with_magnitudes
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, BlockReader, Sources, blocks_of
from ram_studio.engine.device_merging import MergingTask
from ram_studio.engine.devices import choose_device, devices_of, settled
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.finite import non_finite_error
from ram_studio.engine.fisher_files import FisherFiles
from ram_studio.engine.lanes import DeviceWorker, device_block_elements
from ram_studio.engine.magnitudes import magnitudes_of
from ram_studio.engine.merging import (
    BlockMerger,
    FusedMerger,
    MergeTally,
    Plan,
    TorchMerger,
    is_fused,
    pattern_dtype,
)
from ram_studio.engine.residence import Residence, ResidentReader, plan_residence
from ram_studio.engine.whole import blocks_with_whole, read_whole
from ram_studio.engine.workers import run_blocks, thread_count
from ram_studio.errors import SketchError, SourceChangedError


class Sink(Protocol):
    """Where merged bytes go. Called from several threads at once."""

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Take a piece of a tensor's data."""


@dataclass(frozen=True)
class AgentResult:
    """One agent's numbers in a merge. rho is infinite where unique = 0; None where unknown.

    scaling_factor: lambda asked for (the mean over unique elements where the scope is not global),
    None for methods that have none; effective_scaling_factor: what the output's dtype stored.
    rho_m: the ratio by magnitude over the whole model, None unless the method asked for it.
    """

    rho: float
    scaling_factor: float | None
    effective_scaling_factor: float | None
    changed: int
    unique: int
    rho_m: float | None = None


class MergeJob:
    """One merge of an opened and checked set of checkpoints."""

    def __init__(
        self,
        report: CompatibilityReport,
        recipe: Recipe,
        *,
        device: str = "auto",
        threads: int | None = None,
        block_elements: int = BLOCK_ELEMENTS,
        residence: Residence | None = None,
    ) -> None:
        """Check the recipe's method, settings and the device; read no tensors.

        residence: of these checkpoints on this device, where blocks are found instead of read; by
        default a GPU keeps what a counting pass uploads, as far as it fits.

        Raises: SettingsError; CheckpointError for damaged Fisher files.
        """
        self.report = report
        self.recipe = recipe
        self.method = get_method(recipe.method)
        self.settings = make_settings(recipe.method, recipe.settings)
        self.device = choose_device(device)
        self.threads = thread_count(threads)
        self.block_elements = block_elements
        if self.device != "cpu":
            self.block_elements = device_block_elements(block_elements)
        pattern_dtype(len(report.agents))
        self.merged = [t for t in report.tensors if t.kind == "merge"]
        self.counted = [t for t in self.merged if t.is_counted]
        self.names = tuple(agent.name for agent in report.agents)
        self.bytes_read = 0
        self._magnitude: np.ndarray | None = None
        self.fisher: FisherFiles | None = None
        if Need.FISHER in self.method.needs(self.settings):
            self.fisher = FisherFiles(report, self.settings.files, self.merged)
        self.residence = residence
        passes = self.method.needs(self.settings) & {Need.RATIOS, Need.MAGNITUDES}
        if residence is None and self.device != "cpu" and passes:
            self.residence = plan_residence(
                report, self.counted, self.device, self.threads, self.block_elements
            )

    @property
    def elements(self) -> int:
        """Elements of all merged tensors, a tied matrix once."""
        return sum(t.numel for t in self.counted)

    @property
    def is_streamed(self) -> bool:
        """Whether blocks pass through a device's lanes.

        Methods that take whole tensors, or read more than the checkpoints, hand a GPU one block
        after another instead, each read from the files.
        """
        is_plain = self.fisher is None and not any(self._is_whole(t) for t in self.merged)
        return self.device != "cpu" and is_plain

    def dtype_of(self, tensor: MergeTensor) -> str:
        """Return the dtype a tensor is written in."""
        if tensor.kind == "copy" or self.recipe.dtype is None:
            return tensor.dtype
        return OUTPUT_DTYPES[self.recipe.dtype]

    def counts(
        self,
        sketch: Sketch | None,
        on_progress: ProgressCallback | None,
        cancel: CancelToken | None,
    ) -> OverlapCounts | None:
        """Return counts per counted tensor at the recipe's epsilon, or None if lambda needs none.

        From the sketch when one is given and the epsilon is on its ladder, else by a counting pass.
        For methods that weigh by magnitude the sums of |tau| come the same way, and are kept for
        ``plan``; a sketch without them does not save the pass.

        Raises: SketchError when the sketch is not of these files.
        """
        if sketch is not None:  # also where nothing is taken from it: it was given for these files
            self._check_sketch(sketch)
        if Need.RATIOS not in self.method.needs(self.settings):
            return None
        epsilon = self.settings.epsilon
        by_magnitude = Need.MAGNITUDE_RATIOS in self.method.needs(self.settings)
        if sketch is not None:
            point = ladder_index(epsilon)
            if point is not None and not (by_magnitude and sketch.relations is None):
                if by_magnitude:
                    self._magnitude = sketch.known_relations().magnitude[:, point]
                counts = sketch.counts
                cut = slice(point, point + 1)
                patterns = counts.patterns
                return OverlapCounts(
                    counts.numel,
                    None if patterns is None else patterns[:, cut],
                    counts.shared[:, cut],
                )
        blocks = list(blocks_of(self.counted, self.block_elements))
        read = sum(b.nbytes for b in blocks) - self._bytes_found(blocks)
        options: dict[str, Any] = {
            "device": self.device,
            "threads": self.threads,
            "block_elements": self.block_elements,
            "residence": self.residence,
            "on_progress": on_progress,
            "cancel": cancel,
        }
        if by_magnitude:
            counts, self._magnitude = count_with_magnitudes(self.report, epsilon, **options)
        else:
            _, counts = count_at(self.report, epsilon, **options)
        self.bytes_read += read
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

    def plan(
        self,
        counts: OverlapCounts | None,
        sketch: Sketch | None = None,
        *,
        on_progress: ProgressCallback | None = None,
        cancel: CancelToken | None = None,
    ) -> Plan:
        """Return the method made ready with these counts, and magnitudes where it needs them.

        Raises: SketchError when magnitudes are wanted from a sketch of other files; SettingsError
        when the settings do not suit these agents.
        """
        rows = self._counted_rows()
        ratios = None
        if counts is not None:
            by_magnitude = Need.MAGNITUDE_RATIOS in self.method.needs(self.settings)
            assert by_magnitude == (self._magnitude is not None), "counts come from `counts`"
            ratios = _as_sketch(self.names, self.counted, counts).ratios(
                0, getattr(self.settings, "scope", "global"), magnitude=self._magnitude
            )[rows]
        facts = Facts(
            agents=self.names,
            seed=self.recipe.seed,
            tensors=tuple(t.name for t in self.merged),
            ratios=ratios,
            magnitudes=self._magnitudes(sketch, on_progress, cancel),
            total=sum(t.numel for t in self.counted),
        )
        return Plan(
            method=self.method,
            prepared=self.method.prepare(self.settings, facts),
            facts=facts,
            dtypes={t.name: self.dtype_of(t) for t in self.merged},
            rows={t.name: i for i, t in enumerate(self.merged)},
            rounding=self.recipe.rounding,
            device=self.device,
        )

    def _counted_rows(self) -> list[int]:
        """Return, for each merged tensor, the index of its counted one (a head's embedding)."""
        row_of = {t.name: i for i, t in enumerate(self.counted)}
        return [row_of[t.tied_to or t.name] for t in self.merged]

    def _magnitudes(
        self,
        sketch: Sketch | None,
        on_progress: ProgressCallback | None,
        cancel: CancelToken | None,
    ) -> Magnitudes | None:
        """Return histograms of |tau| in the settings' scope, or None if the method needs none.

        Over the whole model they are the sketch's when one is given, else counted by a pass.
        """
        if Need.MAGNITUDES not in self.method.needs(self.settings):
            return None
        if sketch is not None:
            self._check_sketch(sketch)
        found = magnitudes_of(
            self.report,
            self.counted,
            self._counted_rows(),
            per_tensor=self.settings.scope == "tensor",
            sketch=sketch,
            device=self.device,
            threads=self.threads,
            block_elements=self.block_elements,
            residence=self.residence,
            on_progress=on_progress,
            cancel=cancel,
        )
        self.bytes_read += found.bytes_read
        return found.magnitudes

    def _bytes_found(self, blocks: Sequence[Block]) -> int:
        return 0 if self.residence is None else self.residence.bytes_found(blocks)

    def _is_whole(self, tensor: MergeTensor) -> bool:
        return self.method.whole(self.settings, tensor.tied_to or tensor.name, tensor.shape)

    def run(
        self,
        plan: Plan,
        sink: Sink,
        *,
        keep: Callable[[Block], bool] = lambda block: True,
        on_progress: ProgressCallback | None = None,
        cancel: CancelToken | None = None,
    ) -> MergeTally:
        """Merge the blocks that ``keep`` selects into the sink; return what was counted.

        Raises: NonFiniteError, SourceChangedError, SettingsError for overflow, Stopped.
        """
        tally = MergeTally(len(self.names))
        every = blocks_with_whole(self.merged, self.block_elements, self._is_whole)
        blocks = [b for b in every if keep(b)]
        total = sum(b.nbytes for b in blocks)
        meter = Meter("merge", total, len(self.merged))
        devices = devices_of(self.device)
        is_streamed = self.is_streamed
        with (
            Sources(self.report) as sources,
            self.fisher or contextlib.nullcontext() as fisher,
            _one_torch_thread(self.device),
            settled(devices),
        ):
            self._copy_integers(sources, sink)

            def make_task(name: str) -> MergingTask:
                return MergingTask(
                    plan,
                    tally,
                    name,
                    give=sink.write,
                    place=getattr(sink, "place", None),
                    error_of=partial(non_finite_error, self.report, sources),
                )

            def make_worker() -> Callable[[Block], None]:
                if is_streamed:
                    return DeviceWorker(devices, make_task, sources, self.residence)
                buffers = (sources, len(self.names), self.block_elements)
                reader = BlockReader(*buffers)
                if self.residence is not None and self.device == "cpu":
                    reader = ResidentReader(self.residence, *buffers)
                merger: BlockMerger = (
                    FusedMerger(plan, tally, self.block_elements)
                    if is_fused(plan)
                    else TorchMerger(plan, tally, (cancel or CancelToken()).raise_if_cancelled)
                )

                def work(block: Block) -> None:
                    if self._is_whole(block.tensor):
                        base, agents = read_whole(reader, block, self.block_elements)
                    else:
                        base, agents = reader.read(block)
                    weights = None if fisher is None else fisher.read(block)
                    stored = merger.merge(block, base, agents, weights)
                    if stored is None:
                        raise non_finite_error(self.report, sources, block)
                    sink.write(block.tensor.name, block.start * stored.itemsize, memoryview(stored))

                return work

            run_blocks(
                blocks,
                make_worker,
                threads=self.threads,
                meter=meter,
                on_progress=on_progress,
                cancel=cancel,
                finish=lambda worker: worker.close() if is_streamed else None,
            )
            sources.check_unchanged()
        if self.residence is not None:
            self.residence.check_unchanged()
        if on_progress:
            on_progress(meter.read())
        self.bytes_read += total - self._bytes_found(blocks)
        return tally

    def _copy_integers(self, sources: Sources, sink: Sink) -> None:
        step = self.block_elements * 2
        for tensor in self.report.tensors:
            if tensor.kind != "copy":
                continue
            for start in range(0, tensor.base.nbytes, step):
                piece = bytearray(min(step, tensor.base.nbytes - start))
                sources.read_into(tensor.base, start, memoryview(piece))
                sink.write(tensor.name, start, piece)

    def check_counts(self, counts: OverlapCounts, tally: MergeTally, sketch: Sketch | None) -> None:
        """Compare what the merge pass counted with what lambda was computed from."""
        changed = counts.active[:, 0].sum(0)
        unique = counts.shared[:, 0, :, 0].sum(0)
        if np.array_equal(changed, tally.changed) and np.array_equal(unique, tally.unique):
            return
        # Off the ladder the counts came from a pass of their own, sketch or not.
        is_on_ladder = ladder_index(self.settings.epsilon) is not None
        self._refuse_counts(is_from_sketch=sketch is not None and is_on_ladder)

    def check_expected(self, plan: Plan, tally: MergeTally, is_from_sketch: bool) -> None:
        """Compare what the merge pass counted with what the method's thresholds promised."""
        expected = getattr(plan.prepared, "expected_active", None)
        if expected is not None and not np.array_equal(expected, tally.changed):
            self._refuse_counts(is_from_sketch)

    def _refuse_counts(self, is_from_sketch: bool) -> NoReturn:
        if is_from_sketch:
            raise SketchError(
                "The sketch does not belong to these files: its counts differ from what the merge "
                "counted. Analyze the checkpoints again, or leave the sketch out."
            )
        raise SourceChangedError(
            "The checkpoints changed between the two passes of the merge: their counts differ. "
            "Leave the files alone during a run, and run again."
        )

    def results(
        self, plan: Plan, counts: OverlapCounts | None, tally: MergeTally
    ) -> dict[str, AgentResult]:
        """Return each agent's numbers after all blocks were merged."""
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
                rho_m=None if self._magnitude is None else self._rho_m(t),
            )
        return results

    def _rho_m(self, agent: int) -> float:
        assert self._magnitude is not None
        every = [range(len(self._magnitude))]
        return float(relations.magnitude_ratios(self._magnitude, every)[0, agent])


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
