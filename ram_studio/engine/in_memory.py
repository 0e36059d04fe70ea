"""Merges in memory: into a loaded torch model of the base and back to it, or as tensors.

For sweeps and checks, which use a merge once: no checkpoint is written, and one counting pass
serves all settings. The merged bytes are those that `merge` would have written: it is the same job
with another sink.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods import Need
from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    MergeTensor,
)
from ram_studio.checkpoints.fit.mismatches import is_buffer
from ram_studio.checkpoints.read.describe import quoted, shown_bytes, shown_list, shown_shape
from ram_studio.checkpoints.read.tensors import MERGED_DTYPES, TensorInfo
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyze import FitRunKeywords, load, partial_analysis, split_keywords
from ram_studio.engine.events import CancelToken, ProgressCallback
from ram_studio.engine.job import AgentResult, MergeJob, OutputKeywords, recipe_of
from ram_studio.engine.passes.counting import Counting
from ram_studio.engine.passes.driver import RunKeywords, RunOptions, run_pass
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.devices import free_bytes
from ram_studio.engine.reading.residence import Residence
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CompatibilityError, SettingsError

_SPARE = 0.9


@dataclass(frozen=True)
class InMemoryMerge:
    """A merge in memory.

    Attributes:
        recipe: gives the same bytes with `merge`.
        agents: numbers of each agent.
        seconds: of this merge alone; a counting pass that later merges reuse is included in the
            first one that needed it.
        tensors: by the base's names and in file order: those of the model, flat, or new ones.
    """

    recipe: Recipe
    agents: dict[str, AgentResult]
    seconds: float
    tensors: dict[str, Any]


class InMemoryMerger:
    """Copies merges of some agents into a loaded model of the base, and restores the base.

    Agents are streamed from their files each time (in a sweep, from the page cache), so that memory
    stays at one model for any number of agents.

    Args:
        model: a torch module of the base in the base's dtype or a wider one, on any device; its
            state dict has the checkpoint's names (tied heads may share storage); None before `use`.
        report: of the base and all agents that recipes name, see `engine.analyze.load`.
        analysis: of the same files; else one is counted when a recipe first needs it.
        run: device, threads, block_elements, on_progress, cancel of the merge, see RunKeywords.

    Raises: CompatibilityError when the model does not hold the base's weights.
    """

    def __init__(
        self,
        model: Any,
        report: CompatibilityReport,
        *,
        analysis: Analysis | None = None,
        **run: Unpack[RunKeywords],
    ) -> None:
        self.report, self.analysis = report, analysis
        self._run = RunOptions.of(**run)
        self._reports: dict[tuple, CompatibilityReport] = {}
        self.use(model)

    def use(self, model: Any) -> None:
        """Copy merges into this model from now on, see the class; None releases the last one."""
        self._targets: dict[str, Any] = {}
        if model is not None:
            self._targets = flat_tensors(model.state_dict(), self.report.tensors)
            self._copy_base(compare=True)

    @property
    def has_model(self) -> bool:
        return bool(self._targets)

    def report_of(self, recipe: Recipe) -> CompatibilityReport:
        """Return the report of a recipe's agents, matched by name.

        Raises: SettingsError for an unknown one.
        """
        known = [agent.name for agent in self.report.agents]
        unknown = [name for name in recipe.agents if name not in known]
        if unknown:
            raise SettingsError(
                f"The recipe names {shown_list([quoted(n) for n in unknown])}; the agents loaded "
                f"are {', '.join(known)}."
            )
        key = (*recipe.agents, repr(recipe.fit))
        if key not in self._reports:
            self._reports[key] = self.report.of_agents(list(recipe.agents), recipe.fit)
        return self._reports[key]

    def analysis_of(self, recipe: Recipe) -> Analysis | None:
        """Return the analysis of a recipe's agents; None where a pass has to count them.

        Counts of too many agents cannot be reduced to fewer.
        """
        names = tuple(recipe.agents)
        if self.analysis is None or names == self.analysis.agents:
            return self.analysis
        return None if self.analysis.counts.patterns is None else self.analysis.select(names)

    def apply(self, recipe: Recipe) -> InMemoryMerge:
        """Copy the merge of a recipe into the model, and replace all of its weights.

        The recipe's agents are matched by name with the report's; its base is the model's.

        Raises: as `merge`; SettingsError when the model's dtype cannot hold the output's. A merge
        that fails or is stopped leaves the base in the model.
        """
        start = time.monotonic()
        job = MergeJob(self.report_of(recipe), recipe, self._run)
        check_fits(job.dtypes, self._targets)
        try:
            agents = job.run(self._plan(job), TensorSink(self._targets, job.dtypes))
        except BaseException:
            self.restore()
            raise
        return InMemoryMerge(recipe, agents, time.monotonic() - start, self._targets)

    def change_norm(self, recipe: Recipe) -> float:
        """Return the Euclidean distance of a merge's stored weights from the base.

        It runs the merge once more, without changing the model.

        Raises: as `apply`.
        """
        job = MergeJob(self.report_of(recipe), recipe, self._run)
        with Sources(*job.report.checkpoints) as files:
            sink = _ChangeSink(job, files)
            job.run(self._plan(job), sink)
        return math.sqrt(math.fsum(sink.squares))

    def apply_agent(self, name: str) -> None:
        """Copy one agent's own weights into the model; the base's where it has none.

        Raises: SettingsError for an unknown agent, or when the model's dtype cannot hold it.
        """
        names = [agent.name for agent in self.report.agents]
        if name not in names:
            raise SettingsError(f"The agent is {quoted(name)}; expected one of {', '.join(names)}.")
        position = names.index(name)
        own = [(t, t.agents[position], t.common_numel[position]) for t in self.report.tensors]
        check_fits({t.name: source.dtype for t, source, _ in own}, self._targets)
        self._copy_base()
        self._copy_tensors([chunk for chunk in own if chunk[1] is not chunk[0].base])

    def restore(self) -> None:
        """Restore the base: every element is bit-equal to the loaded model's."""
        self._copy_base()

    def _plan(self, job: MergeJob) -> Plan:
        """Return a job's plan; an analysis of all agents is cached for the next plans."""
        if not job.needs & {Need.RATIOS, Need.MAGNITUDES}:
            return job.plan()
        by_magnitude = Need.MAGNITUDE_RATIOS in job.needs
        if self.analysis is None or (by_magnitude and not self.analysis.has_magnitudes):
            self.analysis = _count(self.report, self._run, by_magnitude)
        return job.plan(self.analysis_of(job.recipe))

    def _copy_base(self, *, compare: bool = False) -> None:
        self._copy_tensors([(t, t.base, t.numel) for t in self.report.tensors], compare=compare)

    def _copy_tensors(
        self, sources: Sequence[tuple[MergeTensor, TensorInfo, int]], *, compare: bool = False
    ) -> None:
        """Copy the first elements of stored tensors into the model, or compare them with it."""
        dtypes = {tensor.name: source.dtype for tensor, source, _ in sources}
        sink = (_Comparison if compare else TensorSink)(self._targets, dtypes)
        with Sources(*self.report.checkpoints) as files:
            for tensor, source, numel in sources:
                nbytes = source.nbytes // max(source.numel, 1) * numel
                for start, chunk in files.chunks(source, nbytes):
                    if compare:  # a copy must not stop halfway
                        self._run.cancel.raise_if_cancelled()
                    sink.write(tensor.name, start, chunk.data)


class ResidentMerge:
    """All tensors of a base and its agents in memory, counted, and ready to be merged.

    Every merge is the job that `merge` runs, with blocks found in memory instead of read.

    Args:
        base: folder or Hub id; agents: folder or Hub id by name.
        device: "auto" and "cpu" keep them in RAM, "cuda" on all GPUs, "cuda:N" on one.
        missing, extra, rows, run: as for `analyze`.
        relations: as for `analyze`; without them each `ram+m` merge collects magnitudes again.

    Attributes:
        report: the checkpoints; analysis: their counts; nbytes: memory in use on the devices.

    Raises: as `analyze`; SettingsError when the free memory is too small.

    Example:
        resident = ResidentMerge("base", {"coding": "coder", "memory": "memorizer"})
        for r in (0.0, 0.1, 0.2):
            weights = resident.merge("ram+", {"r": r}).tensors
    """

    def __init__(
        self,
        base: str | Path,
        agents: Mapping[str, str | Path],
        *,
        relations: bool = False,
        **keywords: Unpack[FitRunKeywords],
    ) -> None:
        fit, run = split_keywords(keywords)
        options = RunOptions.of(**run)
        self.report = load(base, agents, **fit, cancel=options.cancel)
        self._residence = _reserve(self.report, options)
        self.nbytes = self._residence.nbytes
        self._run = replace(options, residence=self._residence)
        self.analysis = _count(self.report, self._run, relations)
        # Heads that the base stores a second time are not counted, so not yet loaded.
        heads = [t for t in self.report.merged if not t.is_counted]
        run_pass(self.report, Counting("load", heads, ()), self._run)

    def merge(
        self,
        method: str = "ram+",
        settings: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
        on_progress: ProgressCallback | None = None,
        cancel: CancelToken | None = None,
        **output: Unpack[OutputKeywords],
    ) -> InMemoryMerge:
        """Return the merge of all agents with these settings, its tensors in the base's shapes.

        Args:
            method, settings, output (dtype, seed, weights, filters, ...): as in a recipe.
            into: tensors by name, or a torch module, that receive the result: of the base's shapes,
                contiguous, on any device, of the output's dtype or a wider one. Without it new
                tensors are made on the device.

        Raises: SettingsError, NonFiniteError; SourceChangedError when the files were written to
        since they were loaded; Stopped, with ``into`` half-filled.
        """
        start = time.monotonic()
        recipe = recipe_of(self.report, method, settings or {}, **output)
        cancel = cancel or CancelToken()  # not the token of loading
        run = replace(self._run, on_progress=on_progress, cancel=cancel)
        job = MergeJob(self.report, recipe, run)
        tensors = self.report.tensors
        if into is None:
            flat = {t.name: self._empty(t, job.dtypes[t.name]) for t in tensors}
        else:
            state = into.state_dict() if hasattr(into, "state_dict") else into
            flat = flat_tensors(state, tensors)
            check_fits(job.dtypes, flat)
        agents = job.run(job.plan(self.analysis), TensorSink(flat, job.dtypes))
        shaped = {t.name: flat[t.name].view(t.shape) for t in tensors if t.name in flat}
        return InMemoryMerge(recipe, agents, time.monotonic() - start, shaped)

    def _empty(self, tensor: MergeTensor, dtype: str) -> Any:
        import torch

        device = self._residence.device_of(tensor.name)
        return torch.empty(tensor.numel, dtype=torch_dtype(dtype), device=device)


def _count(report: CompatibilityReport, run: RunOptions, relations: bool) -> Analysis:
    return partial_analysis(report, run, report.counted, relations=relations).whole()


def _reserve(report: CompatibilityReport, options: RunOptions) -> Residence:
    """Return memory for all tensors, if a merged model fits besides."""
    devices = options.devices
    free = [free_bytes(name) // devices.count(name) for name in devices]
    merged = sum(t.base.nbytes for t in report.tensors)
    budgets = [max(0, int(_SPARE * n) - merged // len(devices)) for n in free]
    residence = Residence(report.merged, devices, budgets)
    if residence.left_out:
        needed = residence.nbytes + residence.left_out + merged
        where = "RAM" if options.device == "cpu" else options.device
        raise SettingsError(
            f"Holding base, {len(report.agents)} agents and a merge takes {shown_bytes(needed)}; "
            f"{where} has {shown_bytes(sum(free))} free. Merge into a folder instead (it "
            "streams), or leave agents out."
        )
    return residence


def flat_tensors(state: Mapping[str, Any], tensors: Sequence[MergeTensor]) -> dict[str, Any]:
    """Return a state dict's tensor for each of the checkpoint's, flat views that share storage."""
    # Libraries compute the buffers that older ones stored.
    missing = [t.name for t in tensors if t.name not in state and not is_buffer(t.base)]
    if missing:
        raise CompatibilityError(
            f"The loaded model has no {shown_list([quoted(n) for n in missing], separator=', ')}, "
            "which the base stores; its library names or packs them differently. Write the merge "
            "to a folder and load that instead."
        )
    targets = {}
    for tensor in tensors:
        own = state.get(tensor.name)
        if own is None:
            continue
        if tuple(own.shape) != tensor.shape or not own.is_contiguous():
            raise CompatibilityError(
                f"The loaded model's tensor {quoted(tensor.name)} has shape "
                f"{shown_shape(tuple(own.shape))}, the base stores {shown_shape(tensor.shape)} "
                "(rows in order). Load the model from the base's folder."
            )
        targets[tensor.name] = own.detach().view(-1)
    return targets


def check_fits(dtypes: Mapping[str, str], targets: Mapping[str, Any]) -> None:
    """Raise SettingsError when a target's dtype would round a merged tensor a second time."""
    import torch

    for name, dtype in dtypes.items():
        own = targets[name].dtype if name in targets and dtype in MERGED_DTYPES else None
        if own not in (None, torch.float32, torch.float64, torch_dtype(dtype)):
            raise SettingsError(
                f"Tensor {quoted(name)}: the merge gives {dtype}, the loaded model holds "
                f"{str(own).removeprefix('torch.')}, which cannot hold that exactly. Load the "
                "model in float32, or leave the output dtype at the base's."
            )


def torch_dtype(dtype: str) -> Any:
    """Return the torch dtype of a safetensors dtype name."""
    import torch

    if dtype in ("BF16", "BOOL"):
        return torch.bfloat16 if dtype == "BF16" else torch.bool
    words = {"F": "float", "I": "int", "U": "uint"}
    return getattr(torch, words[dtype[0]] + dtype[1:])


class TensorSink:
    """Copies chunks of stored tensors into flat ones of any device; ignores all others."""

    def __init__(self, targets: dict[str, Any], dtypes: dict[str, str]) -> None:
        self._targets = targets
        self._dtypes = {name: torch_dtype(dtype) for name, dtype in dtypes.items()}

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Copy a chunk of a tensor's data to its target."""
        if name not in self._targets or memoryview(buffer).nbytes == 0:
            return
        import torch

        values = torch.frombuffer(buffer, dtype=self._dtypes[name])
        start = byte_offset // values.element_size()
        with torch.no_grad():
            self._put(name, self._targets[name][start : start + len(values)], values)

    def put(self, block: Block, stored: Any) -> None:
        """Copy a merged block from its device."""
        if (target := self._targets.get(block.tensor.name)) is not None:
            target[block.start : block.start + block.n].copy_(stored)

    def _put(self, name: str, target: Any, values: Any) -> None:
        target.copy_(values)


class _ChangeSink:
    """Adds up the squares of merged minus base elements; a tied head counts once."""

    def __init__(self, job: MergeJob, files: Sources) -> None:
        self._tensors = {t.name: t for t in job.report.counted}
        self._dtypes, self._files = job.dtypes, files
        self.squares: list[float] = []

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Add a chunk of a tensor's data."""
        if (tensor := self._tensors.get(name)) is None or not memoryview(buffer).nbytes:
            return
        dtype = self._dtypes[name]
        stored = np.frombuffer(buffer, dtype=rounding.STORAGE[dtype])
        start = byte_offset // stored.itemsize
        base = self._files.decoded(tensor.base, start, len(stored))
        change = rounding.decode(stored, dtype).astype(np.float64) - base
        self.squares.append(float(change @ change))


class _Comparison(TensorSink):
    """Raises where the model differs from the stored tensors."""

    def _put(self, name: str, target: Any, values: Any) -> None:
        import torch

        if not torch.equal(values.to(target.device, target.dtype), target):
            raise CompatibilityError(
                f"The loaded model is not the base: its tensor {quoted(name)} differs from the "
                "base's file. Load the model from the base's folder, unchanged and at least in "
                "the dtype it is stored in."
            )
