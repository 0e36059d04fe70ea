"""WUDI: minimize interference between task vectors without data (Cheng et al., arXiv 2503.08099).

Per linear layer with weights (out, in), task vectors T_t and merged task vector M:

    loss(M) = sum_t || (M - T_t) T_t^T ||_F^2 / || T_t ||_F^2
    M_0     = sum_t T_t,  then ``iterations`` steps of Adam at ``learning_rate`` (300 and 1e-5)
    merged  = base + M

The rows of T_t are near the span of agent t's inputs in training, so (M - T_t) T_t^T estimates how
much M disturbs agent t's outputs.

The loss is quadratic: with A = sum_t T_t^T T_t / ||T_t||^2 and B = sum_t T_t T_t^T T_t / ||T_t||^2
its gradient is 2 (M A - B). Solver "closed" computes the minimum, M = M_0 + (B - M_0 A) A^+;
directions whose eigenvalue in A is below 1e-9 of the largest, where the minimum is ill-conditioned
or not unique, stay at M_0. Adam as published is stopped early and seldom reaches the minimum.

``matrices`` defines linear layers (packed experts are among them). For all other tensors the
authors' scripts differ (their vision script leaves them at the base); here they are averaged unless
``others`` is sum or base. An agent that did not change a layer has no term in its loss (the
authors' code divides by zero there).

A linear layer needs its whole matrix, in float64: about 8 (2 agents + 6) bytes per element and
8 in^2 more, for each thread; a running merge can be stopped between two steps. The optimization
also moves elements that no agent changed; they count as unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ram_studio.algorithm.methods.whole.matrices import Layer, MatrixSettings, matrix_method

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

EIGENVALUE_CUTOFF = 1e-9
_BETA1, _BETA2, _TINY = 0.9, 0.999, 1e-8
"""Adam's default constants, which the authors use."""


class WudiSettings(MatrixSettings):
    """Settings of WUDI; the defaults are the authors'."""

    solver: Annotated[
        Literal["adam", "closed"],
        Field(description="Adam as published, or the minimum in closed form."),
    ] = "adam"
    iterations: Annotated[int, Field(ge=0, le=100_000, description="Steps of Adam.")] = 300
    learning_rate: Annotated[
        float, Field(gt=0, le=1, allow_inf_nan=False, description="Step size of Adam.")
    ] = 1e-5


def quadratic_form(
    taus: Float64[Tensor, "agents out in"],
    check: Callable[[], None] = lambda: None,
) -> tuple[Float64[Tensor, "in in"], Float64[Tensor, "out in"]]:
    """Return A and B of the loss, whose gradient is 2 (M A - B)."""
    import torch

    _, rows, columns = taus.shape
    a = torch.zeros(columns, columns, dtype=taus.dtype, device=taus.device)
    b = torch.zeros(rows, columns, dtype=taus.dtype, device=taus.device)
    for tau in taus:
        check()
        norm = (tau * tau).sum()
        if norm > 0:
            gram = tau.T @ tau / norm
            a += gram
            b += tau @ gram
    return a, b


def descend(
    start: Float64[Tensor, "out in"],
    a: Float64[Tensor, "in in"],
    b: Float64[Tensor, "out in"],
    iterations: int,
    learning_rate: float,
    check: Callable[[], None] = lambda: None,
) -> Float64[Tensor, "out in"]:
    """Return the merged task vector after steps of Adam (Kingma and Ba, arXiv 1412.6980).

    check is called before each step, and may raise.
    """
    import torch

    merged = start.clone()
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, iterations + 1):
        check()
        gradient = 2 * (merged @ a - b)
        first.mul_(_BETA1).add_(gradient, alpha=1 - _BETA1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        size = (second / (1 - _BETA2**step)).sqrt_().add_(_TINY)
        merged.addcdiv_(first, size, value=-learning_rate / (1 - _BETA1**step))
    return merged


def minimum(
    start: Float64[Tensor, "out in"],
    a: Float64[Tensor, "in in"],
    b: Float64[Tensor, "out in"],
) -> Float64[Tensor, "out in"]:
    """Return the minimum of the loss nearest to ``start``."""
    import torch

    values, vectors = torch.linalg.eigh(a)
    is_large = values > EIGENVALUE_CUTOFF * values.max().clamp(min=0)
    vectors = vectors[:, is_large]
    return start + (b - start @ a) @ vectors / values[is_large] @ vectors.T


def merge_layer(layer: Layer) -> Float64[Tensor, "out in"]:
    """Return the merged task vector of a layer."""
    settings: WudiSettings = layer.settings
    start = layer.taus.sum(0)
    a, b = quadratic_form(layer.taus, layer.check)
    if settings.solver == "closed":
        return minimum(start, a, b)
    return descend(start, a, b, settings.iterations, settings.learning_rate, layer.check)


WUDI = matrix_method(
    merge_layer,
    name="wudi",
    title="WUDI",
    formula="linear layers: the tau that least disturbs every agent's own; others: mean of tau",
    source="arXiv 2503.08099",
    settings=WudiSettings,
)
