"""Project: the part of each update in the base's own directions (SAR, Zhang et al., 2607.03065).

Per linear layer with base W = U S V^T and task vectors T_t:

    T_t,k  = the k largest singular components of T_t,  k = max(1, floor(density * their number))
    P(T_t) = U_r U_r^T T_t,k V_r V_r^T,                 r likewise by ``base_rank``
    merged = base + scale * sum_t P(T_t)

A recipe's ``densities`` are density by agent and layer; at density 0 an agent is left out.
With one agent this is the paper's filter: the result is the agent without the other directions, and
may be merged by any method after that. With several it is the paper's merge of filtered experts.
Defaults are those of the authors' script: density 0.01, and all directions of the base. For a
square matrix of full rank this cuts nothing; in others, the side longer than the rank is cut.
Directions with singular value 0 in the base are left out.

Other tensors stay at the base unless ``others`` is mean or sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ram_studio.algorithm.methods.whole.matrices import (
    ZERO,
    Layer,
    Others,
    ScaledSettings,
    matrix_method,
)

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

_Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class ProjectSettings(ScaledSettings):
    """Settings of the projection; the defaults are the authors'."""

    others: Others = "base"
    density: _Share = Field(default=0.01, description="Share of an update's singular components.")
    base_rank: _Share = Field(default=1.0, description="Share of the base's singular directions.")


def strongest(matrix: Float64[Tensor, "a b"], share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V^T of a share of a matrix's singular components, at least one, not 0."""
    import torch

    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    rank = min(max(1, int(share * len(s))), int((s > ZERO * s[0]).sum())) if len(s) else 0
    return u[:, :rank], s[:rank], vt[:rank]


def projected(
    tau: Float64[Tensor, "a b"], base: tuple[Tensor, Tensor, Tensor], share: float
) -> Float64[Tensor, "a b"]:
    """Return the part of a task vector in the base's directions; base, share: see `strongest`."""
    u, _, vt = base
    left, values, right = strongest(tau, share)
    return (u @ (u.T @ left) * values) @ (right @ vt.T @ vt)


def project_layer(layer: Layer) -> Float64[Tensor, "rows columns"]:
    """Return the merged task vector of a layer."""
    import torch

    settings: ProjectSettings = layer.settings
    base = strongest(layer.base, settings.base_rank)
    merged = torch.zeros_like(layer.base)
    shares = layer.densities or (settings.density,) * len(layer.taus)
    for tau, share in zip(layer.taus, shares, strict=True):
        layer.check()
        if share > 0:
            merged += projected(tau, base, share)
    return settings.scale * merged


PROJECT = matrix_method(
    project_layer,
    name="project",
    title="Project (SAR)",
    formula="linear layers: scale * the sum of the tau, each cut to its k strongest components and "
    "to the base's own directions; others: base",
    source="arXiv 2607.03065",
    settings=ProjectSettings,
)
