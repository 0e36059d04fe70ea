"""What every merge method is: settings, what it needs to know beforehand, and one block's merge.

A method sees blocks of elements, never files. What it needs beyond a block (counts over the whole
model, thresholds) it declares in ``needs`` and receives as Facts; the engine computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from jaxtyping import Float32, Float64, Int64
    from torch import Tensor

Epsilon = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False, description="An element is changed when |tau| > epsilon."),
]


class MethodSettings(BaseModel):
    """Settings of a method: immutable, no unknown names, every default valid."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Need:
    """What a method may ask the engine to find out before the first block."""

    RATIOS = "ratios"
    MAGNITUDES = "magnitudes"


@dataclass(frozen=True)
class Facts:
    """What the engine found out before the first block.

    agents: names; seed: of the recipe; tensors: names of all merged tensors, in file order;
    ratios: overlap-unique ratio (tensors, agents) at the settings' epsilon and scope, or None when
    not needed; magnitudes: elements per agent and bin of |tau| (see ``ladder``), or None;
    total: counted elements.
    """

    agents: tuple[str, ...]
    seed: int
    tensors: tuple[str, ...]
    ratios: np.ndarray | None = None
    magnitudes: np.ndarray | None = None
    total: int = 0


class BlockInput(NamedTuple):
    """Elements start, start + 1, ... of one tensor, on the device that merges them.

    base: float32 (n,); agents: float32 (agents, n); tensor: index among Facts.tensors;
    name: of the tensor, for seeding (a tied head goes by its embedding's name).
    """

    base: Float32[Tensor, " n"]
    agents: Float32[Tensor, "agents n"]
    tensor: int
    name: str
    start: int


class BlockOutput(NamedTuple):
    """values: float64 (n,), merged and not yet rounded; active: int64 overlap pattern (n,)."""

    values: Float64[Tensor, " n"]
    active: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Method:
    """One merge method.

    name: as on the command line; title and formula: for people; source: where it is published;
    settings: model of its settings; needs: of these settings, see Need;
    prepare: settings and facts -> whatever ``merge`` wants; merge: one block.
    factors: of a prepared method, lambda per (tensor, agent) where the method has one.
    fused: the prepared method is RAM's region rule, for which the CPU has a fused kernel.
    """

    name: str
    title: str
    formula: str
    source: str
    settings: type[MethodSettings]
    needs: Callable[[Any], frozenset[str]]
    prepare: Callable[[Any, Facts], Any]
    merge: Callable[[BlockInput, Any], BlockOutput]
