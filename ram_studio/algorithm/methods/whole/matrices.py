"""Common code of matrix methods: which tensors are matrices, and the merge of all others.

A matrix is a linear layer's weights: two-dimensional, neither embedding nor head. Packed experts,
(experts, rows, columns), are a stack of matrices, each merged by itself. Rows are taken as outputs
and columns as inputs, as in a linear layer; some models pack experts the other way round.

An agent's weight multiplies its task vector before anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Method,
    MethodSettings,
    PreparedMethod,
    add_change,
    changed_by,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale, sum_rule
from ram_studio.algorithm.naming import EMBEDDING, HEAD, layer_of

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

_EXPERTS = re.compile(r"(^|\.)experts?\.")

ZERO = 1e-6
"""Singular values below this share of the largest count as 0: float32's last place."""

Others = Annotated[
    Literal["mean", "sum", "base"],
    Field(description="How tensors that are not linear layers are merged."),
]


class MatrixSettings(MethodSettings):
    """Settings that every matrix method has."""

    others: Others = "mean"


class ScaledSettings(MatrixSettings):
    """Settings of a matrix method with a factor."""

    scale: Scale = Field(default=1.0, description="Factor on the merged matrices.")


def other_factor(settings: Any, n_agents: int) -> float:
    """Return the factor on the sum of tau in tensors that are not linear layers."""
    return {"mean": 1.0 / n_agents, "sum": 1.0, "base": 0.0}[settings.others]


def is_linear(settings: Any, name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor holds linear layers' weights (and is therefore needed whole)."""
    if len(shape) == 3:
        return _EXPERTS.search(name) is not None
    return len(shape) == 2 and layer_of(name) not in (EMBEDDING, HEAD)


class Layer(NamedTuple):
    """One linear layer's weights, the input of a matrix method.

    base: float64; taus: task vectors times their agents' weights; settings: of the method; name: of
    the tensor; check: raises when the merge is to stop; densities: of agents in this tensor, None
    where the recipe gives none.
    """

    base: Float64[Tensor, "rows columns"]
    taus: Float64[Tensor, "agents rows columns"]
    settings: Any
    name: str
    check: Callable[[], None]
    densities: tuple[float, ...] | None = None


def matrix_method(merge_one: Callable[[Layer], Tensor], **fields: Any) -> Method:
    """Return the method that merges each linear layer by ``merge_one``.

    Args:
        merge_one: a layer -> the merged task vector (rows, columns). Elements where it is 0 stay as
            in the base, bit for bit.
        fields: name, title, formula, source and settings of the method.
    """

    def merge_block(block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
        settings = prepared.settings
        if not is_linear(settings, block.name, block.shape):
            from ram_studio.algorithm.kernels import torch as kernels

            n = len(block.agents)
            averaging = sum_rule(n, other_factor(settings, n), block.weights)
            # Matrices have no own parts: measure all tensors in the same way.
            return kernels.merge(averaging, block.base, block.agents)._replace(own=None)
        densities = prepared.facts.densities
        own = None if densities is None else tuple(densities[block.tensor].tolist())
        return merge_matrices(block, settings, merge_one, own)

    return Method(**fields, merge_block=merge_block, whole=is_linear)


def merge_matrices(
    block: BlockInput,
    settings: Any,
    merge_one: Callable[[Layer], Tensor],
    densities: tuple[float, ...] | None,
) -> BlockOutput:
    """Merge a whole tensor matrix by matrix; densities: see Layer."""
    import torch

    rows, columns = block.shape[-2:]
    values = block.base.double()
    active = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
    # One matrix at a time: all of a stack in float64 could be many times the model.
    size = rows * columns
    for first in range(0, len(values), size) if size else ():
        block.check()
        part = slice(first, first + size)
        base, taus = block._replace(
            base=block.base[part], agents=block.agents[:, part]
        ).task_vectors()
        own = block.weighted(taus).view(-1, rows, columns)
        layer = Layer(base.view(rows, columns), own, settings, block.name, block.check, densities)
        values[part] = add_change(base, merge_one(layer).reshape(-1))
        active[part] = changed_by(taus)
    return BlockOutput(values, active)
