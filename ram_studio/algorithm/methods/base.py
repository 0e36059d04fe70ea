"""Interface of merge methods: settings, required facts, and the merge of one block.

A method works on blocks of elements, never files. Facts beyond a block (counts over the whole
model, thresholds) are declared in ``needs``, computed by the engine and passed as ``Facts``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ram_studio.algorithm.kernels.rules import Arithmetic, Rule
from ram_studio.algorithm.kernels.rules import BlockOutput as BlockOutput

if TYPE_CHECKING:
    from jaxtyping import Float32, Float64, Int64
    from torch import Tensor

Epsilon = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False, description="An element is changed when |tau| > epsilon."),
]

RankRequests = dict[tuple[int, int], tuple[np.float32, int]]
"""By counted tensor and agent: a bin's lower edge, and the rank of a |tau| in it, largest first."""

Select = Callable[[RankRequests], dict[tuple[int, int], np.float32]]
"""Reads the tensors for those |tau|, and returns the largest float32 below each."""


class MethodSettings(BaseModel):
    """Settings of a method: immutable, no unknown names, every default valid."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Need:
    """Facts that the engine computes for a method before the first block, or reads for each block.

    RATIOS: Facts.ratios, at the settings' ``epsilon`` and ``scope``.
    MAGNITUDE_RATIOS: Facts.ratios are by sums of |tau| instead of counts; goes with RATIOS.
    MAGNITUDES: Facts.magnitudes, over the whole model or per tensor by the settings' ``scope``.
    FISHER: BlockInput.fisher, from the files in the folder that the settings' ``files`` names.
    """

    RATIOS = "ratios"
    MAGNITUDE_RATIOS = "magnitude ratios"
    MAGNITUDES = "magnitudes"
    FISHER = "fisher"


@dataclass(frozen=True)
class Magnitudes:
    """Histograms of |tau| in the bins of ``epsilon_grid``, over groups of tensors.

    bins: int64 (groups, agents, bins), elements with tau = 0 are in none; totals: int64 (groups,),
    all counted elements; group_of: int64 (tensors,), the group of each of Facts.tensors;
    repeats: how many groups each element is in (its tensor and the whole model: 2).
    """

    bins: np.ndarray
    totals: np.ndarray
    group_of: np.ndarray
    repeats: int = 1


@dataclass(frozen=True)
class Facts:
    """Results that the engine computed before the first block.

    agents: names; seed: of the recipe; tensors: names of all merged tensors, in file order;
    ratios: overlap-unique ratio (tensors, agents) at the settings' epsilon and scope, of counts or
    of sums of |tau| as the method needs, or None when not needed;
    magnitudes: or None when not needed.
    weights, densities: of the recipe, float64 (tensors, agents), or None where it gives none.
    select: reads tensors that are stored in float32 for single magnitudes, see ``trimming``.
    """

    agents: tuple[str, ...]
    seed: int
    tensors: tuple[str, ...]
    ratios: np.ndarray | None = None
    magnitudes: Magnitudes | None = None
    weights: np.ndarray | None = None
    densities: np.ndarray | None = None
    select: Select | None = None

    def weights_of(self, tensor: int) -> tuple[float, ...] | None:
        """Return the agents' weights in a tensor; None where all are 1."""
        if self.weights is None or (self.weights[tensor] == 1).all():
            return None
        return tuple(self.weights[tensor].tolist())

    def uniform_factors(self, factor: float) -> np.ndarray:
        """Return one factor for every tensor and agent, float64 (tensors, agents)."""
        return np.full((len(self.tensors), len(self.agents)), factor)


@dataclass(frozen=True)
class PreparedMethod:
    """A method made ready for one merge.

    factors: float64 (tensors, agents), lambda: the requested factor on tau where only one agent
    changed the element; None for methods without one. thresholds: float32 (tensors, agents), only
    |tau| strictly above survives; None for methods that do not trim.
    """

    settings: Any
    facts: Facts
    factors: np.ndarray | None = None
    thresholds: np.ndarray | None = None

    @property
    def expected_active(self) -> np.ndarray | None:
        """Elements that each agent changed according to the facts, int64 (agents,), for a check."""
        found = self.facts.magnitudes
        return None if found is None else found.bins.sum((0, 2)) // found.repeats


class BlockInput(NamedTuple):
    """Elements start, start + 1, ... of one tensor, on the device that merges them.

    base: float32 (n,); agents: float32 (agents, n); tensor: index among Facts.tensors;
    name: of the tensor, for seeding (a tied head uses its embedding's name).
    arithmetic: what rules are computed in, see ``kernels.rules``; formulas take float64.
    shape: of the whole tensor; a method that works on it whole (see Method.whole) gets all of it.
    fisher: float32 (agents, n), the diagonal Fisher information of each agent's own elements, for
    methods that need it.
    weights: what each agent's tau is multiplied by first, for methods that have no rule; None: 1.
    check: raises when the merge is to stop; slow methods call it now and then.
    """

    base: Float32[Tensor, " n"]
    agents: Float32[Tensor, "agents n"]
    tensor: int
    name: str
    start: int
    shape: tuple[int, ...] = ()
    fisher: Float32[Tensor, "agents n"] | None = None
    check: Callable[[], None] = lambda: None
    arithmetic: Arithmetic = "float64"
    weights: tuple[float, ...] | None = None

    def task_vectors(self) -> tuple[Float64[Tensor, " n"], Float64[Tensor, "agents n"]]:
        """Return the base and every agent's task vector, not weighted."""
        base = self.base.double()
        return base, self.agents - base  # in float64, which the base is in

    def weighted(self, taus: Tensor) -> Tensor:
        """Return task vectors (agents, ...) times their agents' weights."""
        if self.weights is None:
            return taus
        return taus * taus.new_tensor(self.weights).view(-1, *(1,) * (taus.ndim - 1))


def changed_by(taus: Float64[Tensor, "agents n"]) -> Int64[Tensor, " n"]:
    """Return the overlap pattern of elements whose task vector is not 0, see BlockOutput."""
    import torch

    active = torch.zeros(taus.shape[1:], dtype=torch.int64, device=taus.device)
    for t, tau in enumerate(taus):
        active |= (tau != 0).long() << t
    return active


def add_change(base: Float64[Tensor, " n"], change: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Return base + change; where the change is 0 the base stays, bit for bit (-0.0 too)."""
    import torch

    return torch.where(change != 0, base + change, base)


@dataclass(frozen=True)
class Method:
    """One merge method.

    name: as on the command line; title and formula: for display; source: where it is published;
    settings: model of its settings; needs: of these settings, see Need;
    prepare: settings and facts -> the method made ready for the whole merge.
    rule: for methods that are weighted sums of the tau of an element: (prepared, index among
    Facts.tensors, name) -> the tensor's rule; fast on the CPU, and the same bits everywhere.
    merge_block: for any other method: merges one block with torch, on any device.
    whole: whether a tensor of this name and shape must come as one block (a matrix method);
    memory then grows with the largest such tensor.
    is_experiment: a probe of single agents rather than a merge to use.
    takes_weights: whether agents may have weights.
    draws: of these settings, whether another seed of the recipe makes another merge.
    """

    name: str
    title: str
    formula: str
    source: str
    settings: type[MethodSettings]
    prepare: Callable[[Any, Facts], PreparedMethod] = PreparedMethod
    needs: Callable[[Any], frozenset[str]] = lambda settings: frozenset()
    rule: Callable[[PreparedMethod, int, str], Rule] | None = None
    merge_block: Callable[[BlockInput, PreparedMethod], BlockOutput] | None = None
    whole: Callable[[Any, str, tuple[int, ...]], bool] = lambda settings, name, shape: False
    is_experiment: bool = False
    takes_weights: bool = True
    draws: Callable[[Any], bool] = lambda settings: False

    def merge(self, block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
        """Merge one block with torch: by ``merge_block``, or by the rule."""
        if self.merge_block is not None:
            return self.merge_block(block, prepared)
        from ram_studio.algorithm.kernels import torch as kernels

        assert self.rule is not None, "a method has a rule or a formula"
        rule = self.rule(prepared, block.tensor, block.name)
        return kernels.merge(
            rule, block.base, block.agents, arithmetic=block.arithmetic, start=block.start
        )
