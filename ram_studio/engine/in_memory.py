"""Merges in place: into a loaded torch model of the base, and back to the base, bit for bit.

For sweeps and checks, which look at a merge once and throw it away: no checkpoint is written, the
model is loaded once, and the counting pass is made once for all settings. The merged bytes are
those that `merge` would have written: it is the same job with another sink. Agents are streamed
from their files each time (a sweep finds them in the page cache), so that memory stays at one model
whatever the number of agents.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from ram_studio.algorithm.meters.kept import Kept
from ram_studio.algorithm.methods import Need
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    MergeTensor,
    check_compatibility,
)
from ram_studio.checkpoints.read.describe import quoted, shown_list, shown_shape
from ram_studio.checkpoints.read.header import MERGED_DTYPES, TensorInfo
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyse import sketch_of
from ram_studio.engine.job import AgentResult, MergeJob, recipe_of
from ram_studio.engine.passes.driver import RunKeywords, RunOptions
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CompatibilityError, SettingsError

# Older checkpoints store these; transformers computes them when it loads a model.
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(self_attn|attention|attn)\.(masked_)?bias)$")


@dataclass(frozen=True)
class AppliedMerge:
    """A merge that is now in the model: each agent's numbers, and how long it took.

    seconds: of this merge alone; counting passes that later merges use again are included in the
    first one that needed them.
    """

    agents: dict[str, AgentResult]
    seconds: float


class SomeAgents:
    """The report and the sketch of some of the agents that were loaded.

    sketch: of the report's files, None while none was counted.
    """

    def __init__(self, report: CompatibilityReport, sketch: Sketch | None = None) -> None:
        self.report, self.sketch = report, sketch
        self._reports: dict[tuple, CompatibilityReport] = {}

    def report_of(self, recipe: Recipe) -> CompatibilityReport:
        """Return the report of a recipe's agents, which are found by name.

        Raises: SettingsError for an unknown one.
        """
        known = {agent.name: agent for agent in self.report.agents}
        unknown = [name for name in recipe.agents if name not in known]
        if unknown:
            raise SettingsError(
                f"The recipe names {shown_list([quoted(n) for n in unknown])}; the agents loaded "
                f"are {', '.join(known)}."
            )
        key = (*recipe.agents, *recipe.fit.values())
        if key not in self._reports:
            agents = [known[name] for name in recipe.agents]
            self._reports[key] = check_compatibility(self.report.base, agents, **recipe.fit)
        return self._reports[key]

    def sketch_of(self, recipe: Recipe) -> Sketch | None:
        """Return the sketch of a recipe's agents; None where a pass has to count them.

        Of too many agents some cannot be taken out of the counts.
        """
        names = tuple(recipe.agents)
        if self.sketch is None or names == self.sketch.agents:
            return self.sketch
        return None if self.sketch.counts.patterns is None else self.sketch.select(names)


class InMemoryMerger:
    """Puts merges into a loaded model of the base, and takes them out again.

    Args:
        model: a torch module of the base in the base's dtype or a wider one, on any device; its
            state dict has the checkpoint's names (tied heads may share storage).
        report: of the base and all agents that recipes will name, see `engine.analyse.load`.
        sketch: of the same files; else one is counted when a recipe first needs it.
        run: device, threads, block_elements, on_progress, cancel of the merging, see RunKeywords.

    Raises: CompatibilityError when the model does not hold the base's weights.
    """

    def __init__(
        self,
        model: Any,
        report: CompatibilityReport,
        *,
        sketch: Sketch | None = None,
        **run: Unpack[RunKeywords],
    ) -> None:
        self._report = report
        self._known = SomeAgents(report, sketch)
        self._run = RunOptions.of(**run)
        self._targets = flat_tensors(model.state_dict(), report.tensors)
        self._pour_base(compare=True)

    def apply(self, recipe: Recipe) -> AppliedMerge:
        """Put the merge of a recipe into the model, whatever was in it before.

        The recipe's agents are found by name among the report's; its base is the model's.

        Raises: as `merge`; SettingsError when the model's dtype cannot hold the output's. A merge
        that fails or is stopped leaves the base in the model.
        """
        start = time.monotonic()
        job = MergeJob(self._known.report_of(recipe), recipe, self._run)
        for name, dtype in job.dtypes.items():
            check_fits(name, dtype, self._targets.get(name))
        try:
            plan = job.plan(self._sketch_for(job))
            agents = job.run(plan, ModelSink(self._targets, job.dtypes))
        except BaseException:
            self.restore()
            raise
        return AppliedMerge(agents, time.monotonic() - start)

    def apply_agent(self, name: str) -> None:
        """Put one agent's own weights into the model; the base's where it has none.

        Raises: SettingsError for an unknown agent, or when the model's dtype cannot hold it.
        """
        names = [agent.name for agent in self._report.agents]
        if name not in names:
            raise SettingsError(f"There is no agent {quoted(name)}; there are {', '.join(names)}.")
        position = names.index(name)
        for tensor in self._report.tensors:
            own = tensor.agents[position]
            check_fits(tensor.name, own.dtype, self._targets.get(tensor.name))
        self._pour_base()
        self._pour(
            [
                (t, t.agents[position], t.common_numel[position])
                for t in self._report.tensors
                if t.agents[position] is not t.base
            ]
        )

    def restore(self) -> None:
        """Put the base back: every element is bit-equal to what the model was loaded with."""
        self._pour_base()

    def _sketch_for(self, job: MergeJob) -> Sketch | None:
        """Return the sketch of a job's agents where its method asks for counts."""
        if not job.needs & {Need.RATIOS, Need.MAGNITUDES}:
            return None
        by_magnitude = Need.MAGNITUDE_RATIOS in job.needs
        known = self._known
        if known.sketch is None or (by_magnitude and not known.sketch.has_magnitudes):
            known.sketch = sketch_of(self._report, self._run, relations=by_magnitude)
        return known.sketch_of(job.recipe)

    def _pour_base(self, *, compare: bool = False) -> None:
        self._pour([(t, t.base, t.numel) for t in self._report.tensors], compare=compare)

    def _pour(
        self, sources: Sequence[tuple[MergeTensor, TensorInfo, int]], *, compare: bool = False
    ) -> None:
        """Copy the first elements of stored tensors into the model, or compare them with it."""
        dtypes = {tensor.name: source.dtype for tensor, source, _ in sources}
        sink = (ModelComparison if compare else ModelSink)(self._targets, dtypes)
        with Sources(*self._report.checkpoints) as files:
            for tensor, source, numel in sources:
                nbytes = source.nbytes // max(source.numel, 1) * numel
                for start, piece in files.pieces(source, nbytes):
                    if compare:  # what is begun otherwise must be ended
                        self._run.cancel.raise_if_cancelled()
                    sink.write(tensor.name, start, piece.data)


def preview_kept(
    report: CompatibilityReport,
    method: str,
    settings: Mapping[str, Any],
    *,
    sketch: Sketch | None = None,
    **run: Unpack[RunKeywords],
) -> dict[str, Kept | None]:
    """Return each agent's Kept in a merge by name, None for one that changed nothing.

    For methods of which the sketch's sums cannot tell: every block is merged in float32, measured
    as a merge measures it, and thrown away.

    sketch: of the same files, else they are counted where the method needs it. run: see
    RunKeywords.

    Raises: as `merge`.
    """
    recipe = recipe_of(report, method, settings, dtype="float32")
    job = MergeJob(report, recipe, RunOptions.of(**run))
    found = job.run(job.plan(sketch), ModelSink({}, {}))
    return {name: agent.kept for name, agent in found.items()}


def flat_tensors(state: Mapping[str, Any], tensors: Sequence[MergeTensor]) -> dict[str, Any]:
    """Return a state dict's tensor for each of the checkpoint's, flat views that share storage."""
    missing = [t.name for t in tensors if t.name not in state and not _COMPUTED.search(t.name)]
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


def check_fits(name: str, dtype: str, target: Any) -> None:
    """Raise SettingsError when the model's dtype would round the merged tensor a second time."""
    import torch

    if target is None or dtype not in MERGED_DTYPES:
        return
    if target.dtype in (torch.float32, torch.float64) or target.dtype == torch_dtype(dtype):
        return
    raise SettingsError(
        f"Tensor {quoted(name)}: the merge gives {dtype}, the loaded model holds "
        f"{str(target.dtype).removeprefix('torch.')}, which cannot hold that exactly. Load the "
        "model in float32, or leave the output dtype at the base's."
    )


def torch_dtype(dtype: str) -> Any:
    """Return the torch dtype of a dtype as safetensors names it."""
    import torch

    if dtype in ("BF16", "BOOL"):
        return torch.bfloat16 if dtype == "BF16" else torch.bool
    words = {"F": "float", "I": "int", "U": "uint"}
    return getattr(torch, words[dtype[0]] + dtype[1:])


class ModelSink:
    """Takes pieces of stored tensors and puts them into the model's; lets go of all others."""

    def __init__(self, targets: dict[str, Any], dtypes: dict[str, str]) -> None:
        self._targets = targets
        self._dtypes = {name: torch_dtype(dtype) for name, dtype in dtypes.items()}

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Put a piece of a tensor's data where it belongs."""
        if name not in self._targets or memoryview(buffer).nbytes == 0:
            return
        import torch

        values = torch.frombuffer(buffer, dtype=self._dtypes[name])
        start = byte_offset // values.element_size()
        with torch.no_grad():
            self._put(name, self._targets[name][start : start + len(values)], values)

    def _put(self, name: str, target: Any, values: Any) -> None:
        target.copy_(values)


class ModelComparison(ModelSink):
    """Raises where the model holds something else than what is stored."""

    def _put(self, name: str, target: Any, values: Any) -> None:
        import torch

        if not torch.equal(values.to(target.device, target.dtype), target):
            raise CompatibilityError(
                f"The loaded model is not the base: its tensor {quoted(name)} differs from the "
                "base's file. Load the model from the base's folder, unchanged and at least in "
                "the dtype it is stored in."
            )
