"""Merging again and again from memory: all checkpoints are loaded once, onto a GPU or into RAM.

For sweeps over settings and for evaluating in place. Every merge is the job that `merge` runs, with
blocks found in memory instead of read and tensors instead of files, so it gives the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    ExtraPolicy,
    FitKeywords,
    MissingPolicy,
    RowsPolicy,
)
from ram_studio.checkpoints.read.describe import shown_bytes
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyse import load, sketch_of
from ram_studio.engine.events import CancelToken, ProgressCallback
from ram_studio.engine.in_memory import ModelSink, check_fits, flat_tensors, torch_dtype
from ram_studio.engine.job import AgentResult, MergeJob, OutputKeywords, recipe_of
from ram_studio.engine.passes.counting import Counting
from ram_studio.engine.passes.driver import RunKeywords, RunOptions, run_pass
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.devices import free_bytes
from ram_studio.engine.reading.residence import Residence
from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from ram_studio.algorithm.sketch import Sketch

_SPARE = 0.9


@dataclass(frozen=True)
class ResidentResult:
    """A merge in memory.

    recipe: which gives the same bytes with `merge`; tensors: by the base's names, in its shapes and
    file order; agents: each one's numbers; seconds: of this merge.
    """

    recipe: Recipe
    tensors: dict[str, torch.Tensor]
    agents: dict[str, AgentResult]
    seconds: float


class ResidentMerge:
    """All tensors of a base and its agents in memory, counted, and ready to be merged.

    Args:
        base: folder or Hub id; agents: folder or Hub id by name.
        device: "auto" and "cpu" keep them in RAM, "cuda" on all GPUs, "cuda:N" on one.
        missing, extra, rows, run: as for `analyze`.
        relations: as for `analyze`; without them each `ram+m` merge collects magnitudes anew.

    Attributes:
        report: the checkpoints; sketch: their counts; nbytes: of memory held on the devices.

    Raises: as `analyze`; SettingsError when the memory that is free does not hold them.

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
        missing: MissingPolicy = "error",
        extra: ExtraPolicy = "error",
        rows: RowsPolicy = "exact",
        relations: bool = False,
        **run: Unpack[RunKeywords],
    ) -> None:
        options = RunOptions.of(**run)
        self._policies: FitKeywords = {"missing": missing, "extra": extra, "rows": rows}
        self.report: CompatibilityReport = load(
            base, agents, **self._policies, cancel=options.cancel
        )
        residence = self._reserve(options)
        self.nbytes = residence.nbytes
        self._run = replace(options, residence=residence)
        self.sketch: Sketch = sketch_of(self.report, self._run, relations=relations)
        # Heads that the base stores a second time are not counted, and so not loaded yet.
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
    ) -> ResidentResult:
        """Return the merge of all agents with these settings.

        Args:
            method, settings, output (dtype, rounding, seed): as in a recipe.
            into: tensors by name, or a torch module, that receive the result: of the base's shapes,
                contiguous, on any device, of the output's dtype or a wider one. Without it new
                tensors are made on the device.

        Raises: SettingsError, NonFiniteError; SourceChangedError when the files were written to
        since they were loaded; Stopped, with ``into`` half-filled.
        """
        start = time.monotonic()
        recipe = recipe_of(self.report, method, settings or {}, **output, **self._policies)
        cancel = cancel or CancelToken()  # another than that of loading
        run = replace(self._run, on_progress=on_progress, cancel=cancel)
        job = MergeJob(self.report, recipe, run)
        sink = _TensorSink(job, into)
        agents = job.run(job.plan(self.sketch), sink)
        return ResidentResult(recipe, sink.finish(), agents, time.monotonic() - start)

    def _reserve(self, options: RunOptions) -> Residence:
        """Return room for everything, a merged model beside it."""
        devices = options.devices
        free = [free_bytes(name) // devices.count(name) for name in devices]
        merged = sum(t.base.nbytes for t in self.report.tensors)
        budgets = [max(0, int(_SPARE * n) - merged // len(devices)) for n in free]
        residence = Residence(self.report.merged, devices, budgets)
        if residence.left_out:
            needed = residence.nbytes + residence.left_out + merged
            where = "RAM" if options.device == "cpu" else options.device
            raise SettingsError(
                f"Holding base, {len(self.report.agents)} agents and a merge takes "
                f"{shown_bytes(needed)}; {where} has {shown_bytes(sum(free))} free. Merge into a "
                "folder instead, which streams, or leave agents out."
            )
        return residence


class _TensorSink(ModelSink):
    """Takes merged blocks into tensors, on a device without a detour."""

    def __init__(self, job: MergeJob, into: Any) -> None:
        import torch

        residence = job.options.residence
        assert residence is not None, "the merge finds its blocks there"
        tensors = job.report.tensors
        dtypes = job.dtypes
        self._shapes = {t.name: t.shape for t in tensors}
        self._given: dict[str, Any] = {}
        if into is not None:
            state = into.state_dict() if hasattr(into, "state_dict") else into
            self._given = flat_tensors(state, tensors)
        flat = {}
        for t in tensors:
            given, dtype = self._given.get(t.name), torch_dtype(dtypes[t.name])
            device = torch.device(residence.device_of(t.name))
            check_fits(t.name, dtypes[t.name], given)
            is_direct = given is not None and (given.dtype, given.device) == (dtype, device)
            flat[t.name] = given if is_direct else torch.empty(t.numel, dtype=dtype, device=device)
        super().__init__(flat, dtypes)

    def put(self, block: Block, stored: Any) -> None:
        """Take a merged block where it is."""
        self._targets[block.tensor.name][block.start : block.start + block.n].copy_(stored)

    def finish(self) -> dict[str, Any]:
        """Return the tensors in their shapes, those given filled."""
        for name, given in self._given.items():
            if given.data_ptr() != self._targets[name].data_ptr():
                given.copy_(self._targets[name])
        flat = {**self._targets, **self._given}
        return {name: flat[name].view(shape) for name, shape in self._shapes.items()}
