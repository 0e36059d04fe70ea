"""ResMerge: residuals agree where leading directions conflict (Sun et al., arXiv 2606.02252).

RL task vectors hold much behavior outside their strongest singular directions. Per linear layer
with task vectors T_1 ... T_N and K = ``head_rank``:

    T_t = H_t + R_t      H_t the K largest singular components, R_t the residual
    q_t = R_t / |R_t|,   q = sum q_t / |sum q_t|         (Frobenius norms)
    c   = mean of <q_t, q>,   s = mean of <q_a, q_b> over all pairs
    b   = beta_max - (beta_max - beta_min) ((s + 1) / 2 + (c + 1) / 2) / 2
    A   = c^b * mean of |R_t| * q        or the mean of R_t where c <= 1 / sqrt(N)
    g   = mean of max(0, cos(H_a, H_b)) over all pairs
    C   = budget * g * |A| * mean of H_t / |mean of H_t|
    merged = base + A + C

K, beta_min, beta_max and budget are 1, 0.7, 1 and 0.2 in the paper's script. Residuals all at right
angles have c = 1 / sqrt(N): they are averaged. Matrices that are neither attention nor feed-forward
take b = beta_max, as there. An agent that changed nothing counts in N, but in no pair of heads.

A task vector of rank K or less (a small LoRA) has no residual; where no agent has one, nothing is
added to the base. Packed experts are merged one by one, where the script stops. Other tensors get
the mean.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from ram_studio.algorithm.methods.whole.matrices import (
    ZERO,
    Layer,
    MatrixSettings,
    matrix_method,
)

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

_NAMED = re.compile(
    r"self_attn|\.attn\.|attention|[qkvo]_proj|mlp|ffn|feed_forward|(gate|up|down)_proj"
)
"""Attention and feed-forward layers, by the names in the paper's script."""

_Exponent = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class ResMergeSettings(MatrixSettings):
    """Settings of ResMerge; the defaults are the paper's."""

    head_rank: Annotated[
        int, Field(ge=1, le=10_000, description="Singular components that are the head.")
    ] = 1
    beta_min: _Exponent = Field(
        default=0.7, description="Exponent of the coherence where residuals agree."
    )
    beta_max: _Exponent = Field(
        default=1.0, description="Exponent of the coherence where they do not."
    )
    budget: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            allow_inf_nan=False,
            description="Largest head, as a share of the residual.",
        ),
    ] = 0.2

    @model_validator(mode="after")
    def _betas_are_in_order(self) -> ResMergeSettings:
        if self.beta_min > self.beta_max:
            raise ValueError(f"beta_min {self.beta_min:g} is above beta_max {self.beta_max:g}")
        return self


def split_head(tau: Float64[Tensor, "rows columns"], rank: int) -> tuple[Tensor, Tensor]:
    """Return the largest singular components of a task vector, and the rest."""
    import torch

    u, s, vt = torch.linalg.svd(tau, full_matrices=False)
    if not len(s) or not (s[rank:] > ZERO * s[0]).any():
        return tau, torch.zeros_like(tau)
    head = (u[:, :rank] * s[:rank]) @ vt[:rank]
    return head, tau - head


def merge_residuals(
    residuals: list[Tensor], settings: ResMergeSettings, *, is_named: bool
) -> Tensor:
    """Return A of the formula. is_named: whether the layer is attention or feed-forward."""
    import torch

    n = len(residuals)
    norms = torch.stack([residual.norm() for residual in residuals])
    units = [r / norm if norm > 0 else r for r, norm in zip(residuals, norms, strict=True)]
    total = torch.stack(units).sum(0)
    length = total.norm()
    mean = torch.stack(residuals).mean(0)
    coherence = float(length) / n  # the mean of <q_t, q>
    # Right angles give 1 / sqrt(n) up to rounding, which is not agreement.
    if coherence <= n**-0.5 * (1 + ZERO) and n > 1:
        return mean
    if not length > 0:
        return mean
    pairs = [float((a * b).sum()) for a, b in itertools.combinations(units, 2)]
    similarity = sum(pairs) / len(pairs) if pairs else 1.0
    score = ((similarity + 1) / 2 + (coherence + 1) / 2) / 2 if is_named else 0.0
    beta = settings.beta_max - (settings.beta_max - settings.beta_min) * score
    return coherence**beta * norms.mean() * total / length


def agreement(heads: list[Tensor]) -> float:
    """Return g of the formula, over the heads that are not 0; 1 for one, 0 for none."""
    units = [head / head.norm() for head in heads if head.any()]
    if len(units) < 2:
        return float(len(units))
    pairs = [max(0.0, float((a * b).sum())) for a, b in itertools.combinations(units, 2)]
    return min(1.0, sum(pairs) / len(pairs))


def merge_layer(layer: Layer) -> Float64[Tensor, "rows columns"]:
    """Return the merged task vector of a layer."""
    import torch

    settings: ResMergeSettings = layer.settings
    heads, residuals = [], []
    for tau in layer.taus:
        layer.check()
        head, residual = split_head(tau, settings.head_rank)
        heads.append(head)
        residuals.append(residual)
    is_named = _NAMED.search(layer.name.lower()) is not None
    backbone = merge_residuals(residuals, settings, is_named=is_named)
    head = torch.stack(heads).mean(0)
    if not head.norm() > 0:
        return backbone
    return backbone + settings.budget * agreement(heads) * backbone.norm() * head / head.norm()


RESMERGE = matrix_method(
    merge_layer,
    name="resmerge",
    title="ResMerge",
    formula="linear layers: the residuals' common direction, and of leading ones what agrees; "
    "others: mean of tau",
    source="arXiv 2606.02252",
    settings=ResMergeSettings,
)
