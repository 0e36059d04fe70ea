"""Effect of one merge on single elements: its stored bytes, from the merge code, and the reason.

A probe is one recipe prepared for one tensor. It is given chunks of that tensor and never reads
elements itself, except from Fisher files.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import find_grid_index
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels.rules import Arithmetic, Drawing, Rule
from ram_studio.algorithm.meters.rounding_meter import last_place
from ram_studio.algorithm.methods import OWN, BlockInput, Need, get_method, make_settings
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.job import MergeJob
from ram_studio.engine.microscope.worked_example import (
    ElementInput,
    WorkedExample,
    number,
    worked_example,
)
from ram_studio.engine.passes.cpu_backend import CpuBackend
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.reading.blocks import Block
from ram_studio.errors import SettingsError


@dataclass(frozen=True)
class ProbeResult:
    """Effect of one method on the inspected elements, or why it is not available.

    reason: None where available; otherwise everything below is None.
    settings: the method's, in full; dtype: of the stored elements, as in safetensors.
    factors: lambda (or scale) per agent in this tensor, None for methods without.
    stored: float32 (n,), exactly the stored elements; exact: float64 (n,), before rounding;
    step: float64 (n,), the distance of neighboring numbers of ``dtype`` at the base's element;
    worked: the formula with its numbers, one per element.
    """

    method: str
    settings: Mapping[str, Any]
    reason: str | None = None
    dtype: str | None = None
    rounding: str | None = None
    factors: tuple[float, ...] | None = None
    stored: np.ndarray | None = None
    exact: np.ndarray | None = None
    step: np.ndarray | None = None
    worked: tuple[WorkedExample, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the method's part of ``microscope --json``."""
        if self.stored is None or self.exact is None or self.step is None:
            return {"method": self.method, "settings": dict(self.settings), "reason": self.reason}
        return {
            "method": self.method,
            "settings": dict(self.settings),
            "dtype": self.dtype,
            "rounding": self.rounding,
            "factors": None if self.factors is None else list(self.factors),
            "stored": self.stored.tolist(),
            "exact": self.exact.tolist(),
            "step": self.step.tolist(),
            "worked": [w.expression for w in self.worked],
            "notes": [w.note for w in self.worked],
        }


def spacing(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the step of a dtype at each value: the distance to its next number away from zero.

    values: float32 or float64; returns float64. At 0 it is the smallest positive number.
    """
    _, exponent = np.frexp(np.asarray(values, dtype=np.float64))  # m * 2**exponent, |m| in [1/2, 1)
    return last_place(np.where(values == 0, 0, exponent + 126), dtype)


class ElementProbe:
    """One recipe prepared for one tensor, and its merged elements.

    ``reason`` explains why it can show nothing, or is None.
    """

    def __init__(
        self,
        report: CompatibilityReport,
        tensor: MergeTensor,
        recipe: Recipe,
        analysis: Analysis | None,
    ) -> None:
        self.tensor = tensor
        self.recipe = recipe
        self.settings = make_settings(recipe.method, recipe.settings)
        every = (make_settings(recipe.method, own) for own in recipe.every_settings)
        reasons = (_missing_reason(recipe, own, tensor, analysis) for own in every)
        self.reason = next((reason for reason in reasons if reason is not None), None)
        if self.reason is not None:
            return
        self._job = MergeJob(report, recipe, RunOptions.of("cpu", threads=1))
        self._plan: Plan = self._job.plan(analysis)
        if not self._plan.is_fused and importlib.util.find_spec("torch") is None:
            self.reason = "This method needs PyTorch, which is not installed."
        self._stored: list[np.ndarray] = []
        self._fisher: list[np.ndarray] = []
        self._arithmetics: list[Arithmetic] = []

    def merge(self, chunk: Block, base: np.ndarray, agents: tuple[np.ndarray, ...]) -> int:
        """Merge a chunk; return the bytes read besides the given ones."""
        if self.reason is not None:
            return 0
        weights, read = None, 0
        if self._job.fisher is not None:
            with self._job.fisher as files:
                weights = files.read(chunk)
            self._fisher.append(weights)
            read = weights.nbytes
        backend = CpuBackend(chunk.n)
        try:
            merged = backend.merge(self._plan, chunk, base, agents, weights)
        except SettingsError as error:  # an element beyond the range of the output's dtype
            self.reason = str(error)
            return read
        if merged is None:
            self.reason = "These elements hold NaN or Inf: this tensor cannot be merged."
            return read
        self._stored.append(backend.stored_elements(merged))
        self._arithmetics += [self._plan.arithmetic_of(chunk)] * chunk.n
        return read

    def result(self, index: np.ndarray, base: np.ndarray, agents: np.ndarray) -> ProbeResult:
        """Return its effect on the elements of all chunks, given together."""
        settings = self.settings.model_dump(mode="json")
        if self.reason is not None:
            return ProbeResult(self.recipe.method, settings, self.reason)
        dtype = self._plan.dtypes[self.tensor.name]
        row = self._plan.rows[self.tensor.name]
        factors = self._plan.factors
        worked = self._worked_examples(index, base, agents)
        return ProbeResult(
            method=self.recipe.method,
            settings=settings,
            dtype=dtype,
            rounding=self.recipe.rounding,
            factors=None if factors is None else tuple(float(f) for f in factors[row]),
            stored=rounding.decode(np.concatenate(self._stored), dtype),
            exact=np.array([w.value for w in worked]),
            step=spacing(base, dtype),
            worked=worked,
        )

    def _worked_examples(
        self, index: np.ndarray, base: np.ndarray, agents: np.ndarray
    ) -> tuple[WorkedExample, ...]:
        plan = self._plan
        row = plan.rows[self.tensor.name]
        prepared = plan.rule(self.tensor) or plan.prepared_for(row)
        survives = _survivors(getattr(prepared, "drawing", None), index)
        fisher = np.concatenate(self._fisher, axis=1) if self._fisher else None
        if self.recipe.method in OWN and not isinstance(prepared, Rule):
            places = range(len(index))
            return tuple(self._own_example(i, index[i], base, agents, fisher) for i in places)
        return tuple(
            worked_example(
                self.recipe.method,
                prepared,
                ElementInput(
                    plan.facts.agents,
                    float(base[i]),
                    tuple(agents[:, i].tolist()),
                    None if survives is None else tuple(survives[:, i].tolist()),
                    None if fisher is None else tuple(fisher[:, i].tolist()),
                    self._arithmetics[i],
                ),
            )
            for i in range(len(index))
        )

    def _own_example(
        self, i: int, index: int, base: np.ndarray, agents: np.ndarray, fisher: np.ndarray | None
    ) -> WorkedExample:
        """Return the result of a user's own method for element i; its formula is unknown here."""
        import torch

        row = self._plan.rows[self.tensor.name]
        x, y = torch.from_numpy(base[i : i + 1]), torch.from_numpy(agents[:, i : i + 1])
        at = (row, self.tensor.merged_as, int(index), self.tensor.shape)
        read = None if fisher is None else torch.from_numpy(fisher[:, i : i + 1])
        own = BlockInput(x, y, *at, fisher=read, weights=self._plan.facts.weights_of(row))
        merged = get_method(self.recipe.method).merge(own, self._plan.prepared_for(row))
        taus = ", ".join(number(float(tau)) for tau in agents[:, i] - base[i])
        text = f"{self.recipe.method} of {number(float(base[i]))} and the changes {taus}"
        return WorkedExample(text, float(merged.values[0]))


def _survivors(drawing: Drawing | None, index: np.ndarray) -> np.ndarray | None:
    """Return which elements of each agent survive random dropping: bool (agents, n), or None."""
    if drawing is None:
        return None
    rows = []
    for key, cut in zip(drawing.keys, drawing.cuts, strict=True):
        words = np.empty(len(index), dtype=np.uint64)
        for i, element in enumerate(index.tolist()):
            cpu.random_words(key, element, words[i : i + 1])
        rows.append((words >> np.uint64(11)) >= np.uint64(cut))
    return np.stack(rows)


def _missing_reason(
    recipe: Recipe, settings: Any, tensor: MergeTensor, analysis: Analysis | None
) -> str | None:
    """Return what a method needs besides the bytes shown and the analysis, or None."""
    method = get_method(recipe.method)
    needs = method.needs(settings)
    if method.whole(settings, tensor.merged_as, tensor.shape):
        return (
            "It merges this tensor as a whole: every element depends on all others, not on the "
            "shown ones alone."
        )
    if Need.FISHER in needs and settings.files is None:
        return (
            "It needs a Fisher file of each agent. Estimate them with `ram-studio fisher`, then "
            "set files to their folder."
        )
    from_counts = needs - {Need.FISHER}
    if from_counts and analysis is None:
        return "It needs counts over the whole model; analyze first, and give the analysis."
    if Need.MAGNITUDE_RATIOS in needs and analysis and not analysis.has_magnitudes:
        return "It needs sums of |tau|, which this analysis does not have; analyze again."
    if Need.MAGNITUDES in needs and settings.scope == "tensor":
        return (
            "To trim by tensor it needs all magnitudes of this tensor; the analysis has only "
            "those of the whole model (scope global)."
        )
    if from_counts - {Need.MAGNITUDES} and find_grid_index(settings.epsilon) is None:
        return (
            f"The analysis has no counts at epsilon {settings.epsilon:g}; choose a point of its "
            "epsilon grid."
        )
    return None
