"""A merge as a job: collect the method's facts, then merge every block into a sink.

The sink is a checkpoint writer when merging, a comparison with stored bytes when verifying, tensors
in memory when a merge is used once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, TypedDict

import numpy as np

from ram_studio.algorithm import scaling
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.kernels.rules import Arithmetic, arithmetic
from ram_studio.algorithm.meters.retained import RetainedShares, retained_dict
from ram_studio.algorithm.meters.storage import Finding
from ram_studio.algorithm.methods import Facts, Need, get_method, make_settings
from ram_studio.algorithm.methods.base import RankRequests
from ram_studio.algorithm.rounding import Rounding
from ram_studio.algorithm.verdict import lost_to_epsilon
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.fit.storage_report import check_analysis
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.record.filters import TensorChoice
from ram_studio.checkpoints.record.part_receipt import MergeFacts
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.checkpoints.write.shard_plan import TensorSpec
from ram_studio.checkpoints.write.sidecars import OUTPUT_DTYPES
from ram_studio.engine.facts import find_facts
from ram_studio.engine.passes.driver import RunOptions, run_pass
from ram_studio.engine.passes.merging import MergeTally, Merging, Sink
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.passes.ranking import Ranking
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.fisher_files import FisherFiles
from ram_studio.engine.reading.sampling import (
    ChangeSample,
    other_bases,
    refuse_other_bases,
    sample_changes,
)
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import AnalysisError, SourceChangedError


@dataclass(frozen=True)
class AgentResult:
    """One agent's numbers in a merge. rho is infinite where unique = 0; None where unknown.

    scaling_factor: the requested lambda, times the agent's weight (the mean over unique elements
    where they differ by tensor), None for methods that have none or where it is not known;
    effective_scaling_factor: the same as stored in the output's dtype.
    rho_m: the ratio by magnitude over the whole model, None unless the method needs it.
    effective_interval: 95 % interval of the effective factor, see ``MergeTally``.
    overlap: elements shared with exactly 0, 1, ... others.
    retained: shares of its update in the stored merge, None when it changed nothing.
    """

    rho: float
    scaling_factor: float | None
    effective_scaling_factor: float | None
    changed: int
    unique: int
    rho_m: float | None = None
    overlap: tuple[int, ...] = ()
    effective_interval: tuple[float, float] | None = None
    retained: RetainedShares | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON: an infinite rho is None."""
        return {
            "rho": self.rho if math.isfinite(self.rho) else None,
            "lambda": self.scaling_factor,
            "effective_lambda": self.effective_scaling_factor,
            "effective_lambda_range": self.effective_interval and list(self.effective_interval),
            **retained_dict(self.retained),
        }


class OutputKeywords(TypedDict, total=False):
    """Parts of a recipe besides sources and method, as keyword arguments."""

    dtype: str | None
    rounding: Rounding
    seed: int
    weights: Mapping[str, float | Sequence[float]]
    densities: Mapping[str, float | Sequence[float]]
    filters: Sequence[Mapping[str, Any]]


def recipe_of(
    report: CompatibilityReport, method: str, settings: Mapping[str, Any], **fields: Any
) -> Recipe:
    """Return the recipe that merges a report's checkpoints, with its fit policies, by one method.

    fields: of the recipe, see OutputKeywords. Raises: SettingsError.
    """
    sources = {agent.name: agent.source for agent in report.agents}
    values = {"method": method, "settings": settings, **report.policies, **fields}
    return make_recipe({"base": report.base.source, "agents": sources, **values})


class MergeJob:
    """One merge of an opened and checked set of checkpoints.

    recipe: with all of its settings, defaults too; every_settings: these, then those of filters;
    dtypes: of written tensors, by name;
    bytes_read: up to now.
    """

    def __init__(
        self, report: CompatibilityReport, recipe: Recipe, run: RunOptions | None = None
    ) -> None:
        """Check the recipe's method and settings; read no tensors.

        run: by default on the CPU; a GPU holds the uploads of a counting pass, as far as they fit.

        Raises: SettingsError, also for a filter that matches no tensor; CheckpointError for damaged
        Fisher files.
        """
        self.report = report
        self.method = get_method(recipe.method)
        self.settings = make_settings(recipe.method, recipe.settings)
        self.recipe = recipe.model_copy(update={"settings": self.settings.model_dump(mode="json")})
        self.merged = report.merged
        self._row = {t.name: i for i, t in enumerate(self.merged)}
        self.choices = recipe.choices([t.merged_as for t in self.merged])
        self._filtered = {
            i: make_settings(recipe.method, recipe.every_settings[i + 1])
            for i, own in enumerate(recipe.filters)
            if own.settings
        }
        self.every_settings = (self.settings, *self._filtered.values())
        self.needs = frozenset[str]().union(*map(self.method.needs, self.every_settings))
        requested = OUTPUT_DTYPES.get(recipe.dtype or "")
        self.dtypes = {
            t.name: requested if requested and t.kind == "merge" else t.dtype
            for t in report.tensors
        }
        self.names = tuple(agent.name for agent in report.agents)
        self.bytes_read = 0
        self.options = run or RunOptions.of()
        self.fisher: FisherFiles | None = None
        if Need.FISHER in self.needs:
            self.fisher = FisherFiles(report, getattr(self.settings, "files", None), self.merged)
        if self.options.device != "cpu" and self.needs & {Need.RATIOS, Need.MAGNITUDES}:
            self.options = self.options.with_residence(report.counted)

    @cached_property
    def change_samples(self) -> dict[str, ChangeSample]:
        """How much agents changed, by a sample."""
        return sample_changes(self.report)

    @property
    def other_bases(self) -> tuple[Finding, ...]:
        """A warning for each agent that seems to be of another base, by a sample."""
        return other_bases(self.change_samples)

    def lost_to_epsilon(self, agents: Mapping[str, AgentResult]) -> tuple[Finding, ...]:
        """Return a warning where the merge's epsilon removed an agent's update in effect.

        agents: measured numbers of the merge.
        """
        epsilon = getattr(self.settings, "epsilon", 0.0)
        found = {n: 1.0 - a.retained.lost_to_epsilon for n, a in agents.items() if a.retained}
        total = self.elements
        changed = {n: own.changed * total for n, own in self.change_samples.items()}
        bounds = {n: epsilon for n, share in found.items() if share <= 0}
        lost = lost_to_epsilon(epsilon, found, changed, total, bounds, is_sampled=True)
        return () if lost is None or not epsilon else (lost.finding,)

    def refuse_other_bases(self) -> None:
        """Raise CompatibilityError for agents of another base, unless the recipe accepts them."""
        if self.recipe.other_base == "refuse":
            refuse_other_bases(self.other_bases)

    @property
    def elements(self) -> int:
        """Elements of all merged tensors, a tied matrix once."""
        return self.report.counted_elements

    @property
    def tokenizer(self) -> Checkpoint:
        """The checkpoint whose tokenizer is copied to the output."""
        return next(c for c in self.report.checkpoints if c.name == self.recipe.tokenizer)

    @property
    def specs(self) -> list[TensorSpec]:
        """Name, dtype and shape of each tensor of the output, in file order."""
        return [(t.name, self.dtypes[t.name], t.shape) for t in self.report.tensors]

    @property
    def arithmetic(self) -> Arithmetic:
        """Dtype in which merged elements are computed: float32 where all are bfloat16."""
        if self.method.rule is None:
            return "float64"
        kinds = {
            arithmetic((self.dtypes[t.name], t.base.dtype, *(a.dtype for a in t.agents)))
            for t in self.merged
        }
        return "float32" if "float32" in kinds else "float64"

    def plan(self, analysis: Analysis | None = None) -> Plan:
        """Return the prepared method, with the analysis's counts or those of a separate pass.

        Raises: AnalysisError when the analysis is not of these files; SettingsError when the
        settings do not suit these agents.
        """
        if analysis is not None:
            check_analysis(analysis, self.report)
        each = [self.settings] * len(self.merged)
        if self.choices is not None:
            each = [self._settings_of(choice) for choice in self.choices]
        known = find_facts(self.report, self.needs, each, self.recipe.seed, analysis, self.options)
        self.bytes_read += known.bytes_read
        facts = replace(self._with_choices(known.facts), select=self._select)
        return Plan(
            method=self.method,
            prepared=self.method.prepare(self.settings, facts),
            known=replace(known, facts=facts),
            choices=self.choices,
            filtered={i: self.method.prepare(s, facts) for i, s in self._filtered.items()},
            dtypes=self.dtypes,
            rows=self._row,
            rounding=self.recipe.rounding,
            device=self.options.device,
        )

    def _select(self, wanted: RankRequests) -> dict[tuple[int, int], np.float32]:
        """Read tensors that are stored in float32 for single magnitudes, see ``Facts.select``."""
        counted = self.report.counted
        own = {
            where: one
            for where, one in wanted.items()
            if where[0] < len(counted) and self.dtypes[counted[where[0]].name] == "F32"
        }
        work = Ranking(counted, own)
        if own:
            self.bytes_read += run_pass(self.report, work, self.options)
        return work.found

    def _settings_of(self, choice: TensorChoice) -> Any:
        """Return the method's settings in a tensor."""
        own = None if choice.filter is None else self._filtered.get(choice.filter)
        return self.settings if own is None else own

    def _with_choices(self, facts: Facts) -> Facts:
        """Return the facts with the recipe's weights and densities of every tensor."""
        if self.choices is None:
            return facts
        shape = len(self.choices), len(self.names)
        weights, densities = np.ones(shape), np.empty(shape)
        for row, choice in enumerate(self.choices):
            settings = self._settings_of(choice)
            density = getattr(settings, "density", 1.0)
            densities[row] = 1.0 - getattr(settings, "drop_rate", 1.0 - density)
            if choice.weights is not None:
                weights[row] = choice.weights
            if choice.densities is not None:
                own = np.array(choice.densities)
                densities[row] = np.where(np.isnan(own), densities[row], own)
        has_own = any(choice.densities is not None for choice in self.choices)
        return replace(facts, weights=weights, densities=densities if has_own else None)

    def run(
        self, plan: Plan, sink: Sink, *, keep: Callable[[Block], bool] | None = None
    ) -> dict[str, AgentResult]:
        """Merge into the sink; return each agent's numbers, checked with the plan's facts.

        keep: merge only these blocks, and check nothing.

        Raises: NonFiniteError, SourceChangedError, Stopped; SettingsError for overflow;
        AnalysisError when the plan's analysis is not of these files.
        """
        tally, facts = self.merge_into(plan, sink, keep=keep), self.facts_of(plan)
        if keep is None:
            check_counts(facts, tally)
        return self.results(facts, tally)

    def merge_into(
        self,
        plan: Plan,
        sink: Sink,
        *,
        keep: Callable[[Block], bool] | None = None,
        only: Collection[str] | None = None,
    ) -> MergeTally:
        """Merge into the sink; return counts and measurements, see ``run``.

        keep: merge only these blocks; only: of these tensors, integers too, by default of all.
        """
        tensors = [t for t in self.report.tensors if only is None or t.name in only]
        merged = [t for t in tensors if t.kind == "merge"]
        with Sources(*self.report.checkpoints) as sources:
            for copied in (t.base for t in tensors if t.kind == "copy"):
                for start, chunk in sources.chunks(copied, copied.nbytes):
                    sink.write(copied.name, start, chunk.data)
        with self.fisher or contextlib.nullcontext() as fisher:
            work = Merging(plan, merged, sink, self.is_whole, fisher, keep)
            self.bytes_read += run_pass(self.report, work, self.options)
        return work.tally

    def facts_of(self, plan: Plan) -> MergeFacts:
        """Return the plan's facts that results and checks need."""
        known, active = plan.known, plan.prepared.expected_active
        return MergeFacts(
            factors={name: self._factor(plan, t) for t, name in enumerate(self.names)},
            rho_m=dict(zip(self.names, known.rho_m or (None,) * len(self.names), strict=True)),
            shared=None if known.counts is None else known.counts.shared[:, 0].sum(0).tolist(),
            active=None if active is None else active.tolist(),
            fisher={} if self.fisher is None else self.fisher.fingerprints,
            is_from_analysis=known.is_from_analysis,
        )

    def is_whole(self, tensor: MergeTensor) -> bool:
        """Return whether a tensor is one block, whatever its size."""
        if self.choices is not None and self.choices[self._row[tensor.name]].keep is not None:
            return False
        return self.method.whole(self.settings, tensor.merged_as, tensor.shape)

    def results(self, facts: MergeFacts, tally: MergeTally) -> dict[str, AgentResult]:
        """Return each agent's numbers of a whole merge."""
        results = {}
        for t, (name, shared) in enumerate(zip(self.names, tally.shared.tolist(), strict=True)):
            changed, unique = sum(shared), shared[0]
            results[name] = AgentResult(
                rho=scaling.overlap_unique_ratio(changed - unique, unique),
                scaling_factor=facts.factors[name],
                effective_scaling_factor=tally.effective_factor(t),
                changed=changed,
                unique=unique,
                rho_m=facts.rho_m[name],
                overlap=tuple(shared),
                effective_interval=tally.effective_interval(t),
                retained=tally.retained(t),
            )
        return results

    def _factor(self, plan: Plan, agent: int) -> float | None:
        """Return the requested lambda, see AgentResult."""
        factors = plan.factors
        if factors is None:
            return None
        column = [float(factors[plan.rows[t.name], agent]) for t in self.report.counted]
        if len(set(column)) <= 1:
            return column[0] if column else 1.0
        if plan.known.counts is None:
            return None
        weights = plan.known.counts.shared[:, 0, agent, 0]
        return float(np.average(column, weights=weights)) if weights.any() else 1.0


def check_counts(facts: MergeFacts, tally: MergeTally) -> None:
    """Compare the counts of a whole merge with those of its plan.

    Raises: AnalysisError when the plan's are from an analysis, else SourceChangedError.
    """
    known = ((facts.shared, tally.shared), (facts.active, tally.shared.sum(1)))
    if any(planned is not None and not np.array_equal(planned, found) for planned, found in known):
        refuse_counts(is_from_analysis=facts.is_from_analysis)


def refuse_counts(*, is_from_analysis: bool) -> NoReturn:
    """Raise the error for a merge whose counts differ from its plan's."""
    if is_from_analysis:
        raise AnalysisError(
            "The analysis does not belong to these files: its counts differ from the merge's. "
            "Analyze the checkpoints again, or leave the analysis out."
        )
    raise SourceChangedError(
        "The checkpoints changed between the two passes of the merge: their counts differ. "
        "Do not change the files during a run, and run again."
    )
