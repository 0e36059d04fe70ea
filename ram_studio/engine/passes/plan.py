"""A prepared merge: the method, and the facts for every block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.epsilon_grid import Thresholds
from ram_studio.algorithm.kernels.rules import Arithmetic, Rule, arithmetic, keep_rule
from ram_studio.algorithm.methods import Facts, Method, PreparedMethod
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.checkpoints.read.describe import BASE_NAME
from ram_studio.checkpoints.record.filters import TensorChoice
from ram_studio.engine.reading.blocks import Block
from ram_studio.errors import SettingsError

Histogram = Literal["patterns", "chain", "steps", "sizes"]
"""Histogram of a count, see ``kernels.cpu``: ``count_patterns`` at one epsilon; at all of
them ``fill_chain`` up to six agents, beyond ``fill_steps``; ``count_sizes``."""


@dataclass(frozen=True)
class CollectedFacts:
    """The facts of a merge, and their origin.

    counts: per counted tensor, at the method's epsilon, or None; rho_m: each agent's ratio by
    magnitude over the whole model, or None; is_from_analysis: whether they are from an analysis;
    bytes_read: to count them.
    """

    facts: Facts
    counts: OverlapCounts | None = None
    rho_m: tuple[float, ...] | None = None
    is_from_analysis: bool = False
    bytes_read: int = 0


@dataclass(frozen=True)
class Plan:
    """A prepared merge.

    prepared: the method, from its ``prepare``; known: the facts for it;
    dtypes: output dtype of each merged tensor by name; rows: index of each merged tensor among
    Facts.tensors, by name; device: as chosen, see ``devices.choose_device``.
    choices: the recipe's choice for each of Facts.tensors, or None; filtered: the prepared method
    by filter, for filters with their own settings.
    """

    method: Method
    prepared: PreparedMethod
    known: CollectedFacts
    dtypes: dict[str, str]
    rows: dict[str, int]
    rounding: rounding.Rounding
    device: str = "cpu"
    choices: Sequence[TensorChoice] | None = None
    filtered: Mapping[int, PreparedMethod] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        """Results that the engine computed before the first block."""
        return self.known.facts

    @property
    def n_agents(self) -> int:
        return len(self.facts.agents)

    @property
    def is_fused(self) -> bool:
        """Whether a fused CPU loop computes it, not its torch formula."""
        return self.device == "cpu" and self.method.rule is not None

    def choice(self, row: int) -> TensorChoice:
        """Return the recipe's choice for one of Facts.tensors."""
        return TensorChoice() if self.choices is None else self.choices[row]

    def prepared_for(self, row: int) -> PreparedMethod:
        """Return the prepared method for one of Facts.tensors."""
        found = self.choice(row).filter
        return self.prepared if found is None else self.filtered.get(found, self.prepared)

    def rule(self, tensor: MergeTensor) -> Rule | None:
        """Return a tensor's rule; None where the method has none and no filter keeps the tensor.

        Only float32 output to nearest is computed in mergekit's order.
        """
        row = self.rows[tensor.name]
        keep, rule = self.choice(row).keep, None
        if self.method.rule is not None:
            rule = self.method.rule(self.prepared_for(row), row, tensor.merged_as)
        if keep is None:
            if rule is None or rule.as_mergekit is None:
                return rule
            is_exact = self.dtypes[tensor.name] == "F32" and self.rounding == "nearest"
            return rule._replace(is_as_mergekit=is_exact)
        ones = (1.0,) * self.n_agents
        agent = None if keep == BASE_NAME else self.facts.agents.index(keep)
        return keep_rule(rule or Rule(0.0, ones, (0.0, *ones)), agent)

    @cached_property
    def factors(self) -> np.ndarray | None:
        """The requested factor on tau where one agent alone changed the element, weights too.

        float64 (tensors, agents), or None for methods without such a factor.
        """
        if self.prepared.factors is None:
            return None
        factors = self.prepared.factors.copy()
        for row in range(len(factors) if self.choices else 0):
            own, keep = self.prepared_for(row).factors, self.choice(row).keep
            assert own is not None, "one method has them for all settings, or for none"
            weights = self.facts.weights_of(row) or (1.0,) * self.n_agents
            factors[row] = own[row] * weights
            if keep is not None:
                factors[row] = [float(name == keep) for name in self.facts.agents]
        return factors

    def arithmetic_of(self, block: Block) -> Arithmetic:
        """Return the dtype in which a block is computed, see ``kernels.rules``."""
        if self.method.rule is None:
            return "float64"
        return arithmetic((*block.dtypes, self.dtypes[block.tensor.name]))

    def key(self, tensor: MergeTensor) -> np.uint64:
        """Return the tensor's key for stochastic rounding; a tied head shares its embedding's."""
        return rounding.stream_key(self.facts.seed, "rounding", tensor.merged_as)


@dataclass(frozen=True)
class MergedBlock:
    """One block, merged.

    stored: elements of the output's dtype, in the backend's memory; patterns: how many elements
    have each overlap pattern, see ``kernels.cpu.count_patterns``; sums: float64 (groups, agents,
    9), see ``kernels.cpu.measure``, by group of elements. Both are None where nothing is counted:
    no agent changed any, or the tensor is a head that is already counted.
    is_along: the method has no own parts, sums are of whole changes (``kernels.torch.measure``).
    """

    stored: Any
    patterns: np.ndarray | None = None
    sums: np.ndarray | None = None
    is_along: bool = False


def overflow_error(dtype: str, block: Block) -> SettingsError:
    """Return the error for a merged element that became infinite in the output dtype."""
    return SettingsError(
        f"Tensor `{block.tensor.name}`: a merged element is beyond the range of the output "
        f"dtype ({dtype}). Choose float32 or bfloat16 for the output, or a smaller scale."
    )


class Backend(Protocol):
    """Counts and merges blocks in one thread, on its own kind of arrays.

    A block is that of its reader: base (n,) and agents, (agents, n) or a tuple of (n,).
    """

    def zeros(self, shape: tuple[int, ...], base: Any) -> Any:
        """Return a histogram to count blocks like this one into."""

    def count(
        self, kind: Histogram, histogram: Any, grid: Thresholds, base: Any, agents: Any
    ) -> Any:
        """Add a block to a histogram; return a flag, False when some task vector is not finite.

        The flag may be on a device; `read_flags` fetches many together.
        """

    def read_flags(self, flags: Sequence[Any]) -> list[bool]:
        """Return flags of blocks, in order."""

    def take(self, histogram: Any) -> np.ndarray:
        """Return the counts, in the CPU's memory."""

    def merge(
        self, plan: Plan, block: Block, base: Any, agents: Any, fisher: np.ndarray | None = None
    ) -> MergedBlock | None:
        """Merge and measure a block; None when some task vector is not finite.

        fisher: float32 (agents, n) for methods that need it. The result may be overwritten by the
        next.

        Raises: SettingsError for a merged element beyond the output dtype's range.
        """

    def stored_elements(self, merged: MergedBlock) -> np.ndarray:
        """Return the stored elements of a merged block as a numpy array."""

    def as_base(self, block: Block, agents: Any) -> Any:
        """Return agents rounded to the base's dtype; elements that overflow stay unrounded."""

    def on_host(self, base: Any, agents: Any) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return a block as arguments of the CPU's loops."""
