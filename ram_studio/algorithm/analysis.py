"""The analysis: everything the previews, the charts and lambda need, without the weights.

One pass over the checkpoints fills it; afterwards rho, lambda and densities at any grid point
follow by arithmetic on counts. It is exact, not a sample.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ram_studio.algorithm import naming, scaling
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.grouping import (
    StackCounts,
    at_depth,
    depths_of,
    experts_of,
    index_of,
    labels_of,
)
from ram_studio.algorithm.meters import relations
from ram_studio.algorithm.meters.part_factors import PartFactors, factors_dict
from ram_studio.algorithm.meters.relations import Relations
from ram_studio.algorithm.meters.retained import Energies, retained_dict
from ram_studio.algorithm.meters.rounding_meter import StepCounts
from ram_studio.algorithm.meters.weighted import (
    GroupSettings,
    WeightSums,
    describe_retained,
    resolve_compact,
    retained_of,
    sums_of_products,
)
from ram_studio.algorithm.overlap import OverlapCounts, counts_dict
from ram_studio.algorithm.preview import Preview
from ram_studio.algorithm.shapes import Float, Int
from ram_studio.errors import AnalysisError, SettingsError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Scope = Literal["global", "layer", "tensor"]
SCOPES: tuple[Scope, ...] = ("global", "layer", "tensor")
BASE = "base"


class TensorEntry(NamedTuple):
    """One counted tensor: its name and number of elements."""

    name: str
    numel: int

    @property
    def layer(self) -> str:
        """Layer label (see algorithm.naming)."""
        return naming.layer_of(self.name)

    @property
    def module(self) -> str:
        """Kind of module (see algorithm.naming)."""
        return naming.module_of(self.name)


@dataclass(frozen=True)
class Analysis:
    """Overlap counts of every tensor at every grid point, and the sources that were counted.

    agents: names in the order given; bit t of a pattern is agent t.
    tensors: the counted tensors (a head tied to the embedding is counted once, integer tensors
        not at all).
    counts: one group per tensor, one point per epsilon grid entry.
    magnitudes: per agent, elements by bin of |tau| (elements with tau = 0 are in no bin).
    fingerprints: of the base ("base") and each agent, to recognize the files.
    sources: the paths or ids that the user gave for the base and each agent.
    dtypes: storage dtype of the base and each agent ("BF16", "F32", "mixed").
    rounded: counts with every agent rounded to the base's dtype; only when dtypes differ.
    relations: magnitudes, signs and cosines per tensor at every grid point; None when they were
        not collected.
    steps: unique updates by size in last places, for the rounding meter; None when they were not
        collected, or when agents were left out (the others' unique regions then grow).
    energies: sums of products of changes over the model, for retained shares; None when they were
        not collected.
    part_factors: sums for own and shared factors; None where energies are, or agents were left out.
    weighing, module_weighing: sums by tensor for weights, None where part factors are; ``compact``.
    warnings: of the compatibility check and the counting pass, for the user.
    stacks: counts of single experts in tensors that hold many; None without such tensors.
    is_compact: `relations` are per layer (in the order of ``group_labels``), not per tensor: enough
        for previews, see ``compact``.
    """

    agents: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    counts: OverlapCounts
    magnitudes: Int[np.ndarray, "agents bins"]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    rounded: OverlapCounts | None = None
    relations: Relations | None = None
    steps: StepCounts | None = None
    energies: Energies | None = None
    part_factors: PartFactors | None = None
    weighing: WeightSums | None = None
    module_weighing: WeightSums | None = None
    warnings: tuple[str, ...] = ()
    stacks: StackCounts | None = None
    is_compact: bool = False

    def __repr__(self) -> str:
        size = f"{self.total:,} elements in {len(self.tensors)} tensors"
        return f"Analysis({', '.join(self.agents)}: {size})"

    def _repr_html_(self) -> str:
        """Return the preview at the default settings, for notebooks."""
        return f"<p>{html.escape(repr(self))}</p>{self.to_frame().to_html(index=False)}"

    @property
    def has_magnitudes(self) -> bool:
        """Whether it has sums of |tau| for each tensor, which a merge by magnitude needs."""
        return self.relations is not None and not self.is_compact

    @property
    def total(self) -> int:
        """Elements in all counted tensors."""
        return int(self.counts.numel.sum())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The counted tensors' names."""
        return tuple(tensor.name for tensor in self.tensors)

    @cached_property
    def experts(self) -> StackCounts:
        """Routers and experts with their counts; empty for a dense model."""
        return experts_of(self.names, self.counts, self.stacks)

    def group_labels(self, by: str) -> tuple[str, ...]:
        """Return the group labels of a grouping of the tensors, in model order."""
        return self.experts.labels if by == "expert" else labels_of(self.names, by)

    def group_index(self, by: str) -> Int[np.ndarray, " tensors"]:
        """Return, for each tensor, the index of its group among ``group_labels(by)``."""
        return index_of(self.names, by)

    def groups(self, by: str) -> list[list[int]]:
        """Return the tensors (indices) of each of ``group_labels(by)``."""
        index = self.group_index(by)
        return [np.flatnonzero(index == g).tolist() for g in range(len(self.group_labels(by)))]

    def grouped(self, by: str, counts: OverlapCounts | None = None) -> OverlapCounts:
        """Return the counts summed over the groups of ``group_labels(by)``."""
        if by == "expert":
            return self.experts.counts
        return (self.counts if counts is None else counts).grouped(self.groups(by))

    def grouped_relations(self, by: str) -> Relations:
        """Return magnitudes, signs and dot products summed over the groups of ``by``.

        Raises: AnalysisError when the analysis has none.
        """
        if not self.is_compact:
            return self.require_relations().grouped(self.groups(by))
        groups = {"layer": [[i] for i in range(len(self.group_labels("layer")))]}
        groups["model"] = [list(range(len(groups["layer"])))]
        if by not in groups:
            raise AnalysisError(
                f"A compact analysis holds magnitudes, signs and cosines by layer, not by {by}; "
                "use the whole analysis."
            )
        return self.require_relations().grouped(groups[by])

    def compact(self) -> Analysis:
        """Return a smaller analysis for previews: counts by tensor, relations by layer.

        Sums for weights are by layer, too, and by layer and module at epsilon 0 and the default.
        """
        if self.is_compact:
            return self
        relations = None if self.relations is None else self.grouped_relations("layer")
        found = replace(self, relations=relations, stacks=None, is_compact=True)
        if self.weighing is None:
            return found
        by_module = self.weighing.at_points((0, DEFAULT_INDEX)).grouped(self.groups("place"))
        by_layer = self.weighing.grouped(self.groups("layer"))
        by_layer, by_module = by_layer.with_fewer_digits(), by_module.with_fewer_digits()
        return replace(found, weighing=by_layer, module_weighing=by_module)

    def require_relations(self) -> Relations:
        """Return ``relations``.

        Raises: AnalysisError when the analysis has none.
        """
        if self.relations is None:
            raise AnalysisError(
                "This analysis holds counts only: no sums of |tau|, signs or cosines. Rule ram+m "
                "needs them; analyze the checkpoints again (without --no-relations)."
            )
        return self.relations

    @cached_property
    def model(self) -> OverlapCounts:
        """Counts over the whole model (one group)."""
        return self.grouped("model")

    def select(self, agents: Sequence[str]) -> Analysis:
        """Return the analysis as if only these agents, in this order, were merged.

        Raises: SettingsError for an unknown or repeated name, none at all, or more than six
            agents in the analysis (their patterns were not counted).
        """
        names = tuple(agents)
        unknown = [a for a in names if a not in self.agents]
        if unknown or not names or len(set(names)) != len(names):
            raise SettingsError(
                f"The chosen agents are {', '.join(names) or 'none'}; choose from "
                f"{', '.join(self.agents)}, each once."
            )
        if names == self.agents:
            return self
        if self.counts.patterns is None:
            raise SettingsError(
                f"This analysis has {len(self.agents)} agents; single agents can be left out of "
                "analyses with up to 6. Analyze the chosen agents on their own."
            )
        keep = [self.agents.index(a) for a in names]

        def only(values: Mapping[str, str]) -> dict[str, str]:
            return {k: v for k, v in values.items() if k == BASE or k in names}

        parts: tuple[str, ...] = ("counts", "rounded", "relations", "steps", "stacks")
        parts += ("energies", "part_factors", "weighing", "module_weighing")
        return replace(
            self,
            agents=names,
            magnitudes=self.magnitudes[keep],
            fingerprints=only(self.fingerprints),
            sources=only(self.sources),
            dtypes=only(self.dtypes),
            **{n: own.keep_agents(keep) for n in parts if (own := getattr(self, n)) is not None},
        )

    def preview(
        self,
        point: int = DEFAULT_INDEX,
        rule: str = scaling.DEFAULT_RULE,
        r: float = scaling.DEFAULT_R,
        alpha: float = scaling.DEFAULT_ALPHA,
        *,
        by: str = "model",
        weights: Mapping[str, float | Sequence[float]] | None = None,
    ) -> Preview:
        """Return rho, lambda and counts of every agent at one grid point, ready for JSON.

        Args: point: index into EPSILON_GRID; rule, r, alpha: see scaling.scaling_factor; by:
            "model", or a grouping whose groups are added under "groups" with ratios inside each;
            weights: of agents, 1 where left out, or a list over the layers as in a recipe:
            "retained", "interference" and "factors" are then of the weighted merge.
        Returns: the keys of the ``preview --json`` contract; rho is None where it is infinite.
            With relations, agents have "rho_m" (None where infinite) as well. "retained" and
            "interference" (see ``meters.retained``) are None without energies and for an agent that
            changed nothing; "factors" has "own" and "shared" (see ``meters.part_factors``), None
            where a part is empty or unknown; "methods" has all of these for the plain average and
            sum (any scale is a multiple of the sum's factors), or is None.
        Raises: AnalysisError for rule ``ram+m`` without them, and for weights without sums for
        them; SettingsError for weights of unknown agents.
        """
        scaling.check_scaling(rule, r, alpha)
        if rule == scaling.MAGNITUDE_RULE:
            self.require_relations()

        settings = (rule, r, alpha)
        result = Preview(epsilon=EPSILON_GRID[point], rule=rule, r=r, alpha=alpha)
        result |= self._describe_groups("model", point, settings)["model"]
        result["methods"] = self._add_retained(result["agents"], point, weights or {})
        if weights:
            result["weights"] = {name: weights.get(name, 1.0) for name in self.agents}
        if self.rounded is not None:
            rounded = self.grouped("model", self.rounded)
            result["as_base_dtype"] = self._describe(rounded, 0, point, settings, None)
        if by != "model":
            result |= {"by": by, "groups": self._describe_groups(by, point, settings)}
            if not result["groups"]:
                raise SettingsError("None of these tensors is a router or an expert.")
        return result

    def _describe_groups(
        self, by: str, point: int, settings: tuple[str, float, float]
    ) -> dict[str, dict[str, Any]]:
        counts, magnitudes = self.grouped(by), self._magnitude_ratios(point, by)
        return {
            label: self._describe(
                counts, g, point, settings, None if magnitudes is None else magnitudes[g]
            )
            for g, label in enumerate(self.group_labels(by))
        }

    def _settings_of_tensors(
        self, point: int, lambdas: Sequence[float], weights: Mapping[str, float | Sequence[float]]
    ) -> GroupSettings:
        """Return the merge settings of every tensor under these weights."""
        if unknown := [name for name in weights if name not in self.agents]:
            known = ", ".join(self.agents)
            raise SettingsError(f"Weights name agent {unknown[0]!r}; the agents are {known}.")
        own = [weights.get(name, 1.0) for name in self.agents]
        shared = np.array([[at_depth(w, d) for w in own] for d in depths_of(self.names)])
        return GroupSettings.uniform(point, shared * lambdas, shared)

    def _add_retained(
        self,
        agents: dict[str, Any],
        point: int,
        weights: Mapping[str, float | Sequence[float]],
    ) -> dict[str, Any] | None:
        """Add retained shares to each agent's preview; return those of other methods."""
        energies, parts = self.energies, self.part_factors
        if energies is None:
            for agent in agents.values():
                agent |= retained_dict(None) | {"factors": factors_dict(None)}
            return None
        lambdas = [agent["lambda"] for agent in agents.values()]
        if weights:
            by_agent = self.merged_retained(self._settings_of_tensors(point, lambdas, weights))
        else:
            factors = parts.of_ram(point, lambdas) if parts else None
            by_agent = describe_retained(self.agents, energies.ram(point, lambdas), factors)
        for name, agent in agents.items():
            agent |= by_agent[name]
        return {
            name: describe_retained(
                self.agents,
                energies.scaled_sum(scale),
                None if parts is None else scale * parts.sum,
            )
            for name, scale in {"average": 1.0 / len(self.agents), "sum": 1.0}.items()
        }

    def merged_retained(self, settings: GroupSettings) -> dict[str, dict[str, Any]]:
        """Return a merge's retained share of each agent. Raises: AnalysisError without its sums."""
        energies, parts, sums = self.energies, self.part_factors, self.weighing
        if energies is None or energies.products is None:
            raise AnalysisError(
                "The analysis has no sums by set of agents (more than six, or --no-relations): "
                "weights cannot be previewed. Run the merge: it measures the same."
            )
        if sums is None or parts is None:
            uniform = settings.grouped([range(len(self.tensors))])
            if uniform is None or uniform.keep[0] >= 0:
                reason = "Agents were left out, so layer weights and filters are not known. "
                raise AnalysisError(f"{reason}Analyze these on their own.")
            of_model = sums_of_products(energies.products[None], energies.n_agents)
            return describe_retained(self.agents, retained_of(*of_model, uniform), None)
        if self.is_compact:
            sums, settings = resolve_compact(sums, self.module_weighing, settings, self.groups)
        retained = retained_of(sums.square, sums.gram, settings)
        return describe_retained(self.agents, retained, sums.part_factors(settings, parts))

    def to_frame(
        self,
        by: str = "model",
        point: int = DEFAULT_INDEX,
        rule: str = scaling.DEFAULT_RULE,
        r: float = scaling.DEFAULT_R,
        alpha: float = scaling.DEFAULT_ALPHA,
    ) -> pd.DataFrame:
        """Return a preview as a tidy table: a row for each group and agent.

        Args: by: a grouping, whose label becomes a column of this name (a tensor's layer and
            module come along; an expert is layer/number or layer/router); others: see ``preview``.
        Returns: columns agent, [by,] total, active, unique, shared (int64), density, rho and, with
            relations, rho_m (float64; rho and rho_m are inf where nothing is unique); for the model
            also lambda, retained, interference, own_factor and shared_factor (NaN where unknown).
        Raises: SettingsError, AnalysisError as ``preview`` does.
        """
        return self.preview(point, rule, r, alpha, by=by).to_frame()

    def plot(
        self, kind: str = "patterns", point: int = DEFAULT_INDEX, *, agent: str | None = None
    ) -> go.Figure:
        """Return one of the app's plotly figures.

        Args: kind: "patterns" (which agents changed the same weights), "layers" (share that one
            agent changed, by layer and module), "towers" or "experts"; point: index into
            EPSILON_GRID; agent: the agent of "layers", by default the first.
        Raises: SettingsError for another kind, or one that does not apply to the model.
        """
        from ram_studio.algorithm.figures.catalog import plot

        return plot(self, kind, point, agent)

    def _magnitude_ratios(self, point: int, by: str) -> Float[np.ndarray, "groups agents"] | None:
        is_known = not self.is_compact or by in ("model", "layer")
        if self.relations is None or not is_known or by == "expert":
            return None
        if not self.is_compact:
            return relations.group_ratios(self.relations.magnitude[:, point], self.groups(by))
        magnitude = self.grouped_relations(by).magnitude[:, point]
        return relations.group_ratios(magnitude, [[g] for g in range(len(magnitude))])

    def _describe(
        self,
        counts: OverlapCounts,
        group: int,
        point: int,
        settings: tuple[str, float, float],
        magnitude: Float[np.ndarray, " agents"] | None,
    ) -> dict[str, Any]:
        agents: dict[str, Any] = {}
        total = int(counts.numel[group])
        rule = settings[0]
        for t, name in enumerate(self.agents):
            own = counts_dict(counts.shared[group, point, t].tolist(), total)
            rho = math.inf if own["rho"] is None else own["rho"]
            agents[name] = own | {"lambda": scaling.scaling_factor(rho, *settings)}
            if magnitude is not None:
                rho_m = float(magnitude[t])
                agents[name]["rho_m"] = None if math.isinf(rho_m) else rho_m
            if rule == scaling.MAGNITUDE_RULE:
                # Magnitudes are of the agents as stored, not as if in the base's dtype.
                factor = None if magnitude is None else scaling.scaling_factor(rho_m, *settings)
                agents[name]["lambda"] = factor
        described: dict[str, Any] = {"agents": agents}
        if counts.patterns is not None:
            described["patterns"] = {
                "+".join(a for t, a in enumerate(self.agents) if mask >> t & 1): int(n)
                for mask, n in enumerate(counts.patterns[group, point])
                if mask
            }
        return described

    def ratios(
        self,
        point: int | Int[np.ndarray, " tensors"],
        scope: Scope = "global",
        *,
        magnitude: Float[np.ndarray, "tensors agents 2"] | None = None,
    ) -> Float[np.ndarray, "tensors agents"]:
        """Return rho of each agent for each tensor (infinite where unique = 0).

        point: on the epsilon grid, or one for each tensor. scope: over the whole model (the paper),
            the tensor's layer, or the tensor alone.
        magnitude: sums of unique and shared |tau| to take the ratios of, instead of counts.
        """
        if scope not in SCOPES:
            raise SettingsError(f"The scope is {scope!r}; it must be one of {', '.join(SCOPES)}.")
        by = "model" if scope == "global" else scope
        shared = self.counts.shared[np.arange(len(self.tensors)), point]
        counts = np.stack([shared[..., 0], shared[..., 1:].sum(-1)], axis=-1)
        sums = counts if magnitude is None else magnitude
        return relations.group_ratios(sums, self.groups(by))[self.group_index(by)]

    def dialects(self, point: int = DEFAULT_INDEX) -> dict[str, Float[np.ndarray, " agents"]]:
        """Return each agent's lambda in other implementations, see ``scaling.PRESETS``.

        Where rho is counted per tensor: the mean lambda of the agent's unique elements, or 1.
        """
        unique = self.counts.shared[:, point, :, 0]
        found = {}
        for name, preset in scaling.PRESETS.items():
            ratios, is_global = self.ratios(point, preset["scope"]), preset["scope"] == "global"
            own = ratios[:1] if is_global else ratios  # one value for all tensors
            factors = scaling.scaling_factors(own, "ram+", preset["r"], preset["alpha"])
            if is_global and len(factors):
                found[name] = factors[0]
                continue
            total, weighed = unique.sum(0), (unique * factors).sum(0)
            found[name] = np.divide(weighed, total, out=np.ones(len(total)), where=total > 0)
        return found
