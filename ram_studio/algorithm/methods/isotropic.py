"""Iso-C: make the sum of task vectors equally strong everywhere (Marczak et al., 2502.04959).

Per linear layer:

    sum_t T_t = U S V^T
    merged    = base + scale * mean(S) * U V^T

so that no task's few strong directions drown those of the others. Directions in which the sum is
nothing (singular values of 0) have no vectors of their own: they are left out, of the mean too,
which is the published one wherever the sum has full rank. Other tensors are averaged unless
``others`` says sum or base.

As WUDI it needs whole matrices in float64 and moves elements that no agent changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ram_studio.algorithm.methods.matrices import ZERO, ScaledSettings, matrix_method

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor


def flatten_spectrum(total: Float64[Tensor, "rows columns"]) -> Float64[Tensor, "rows columns"]:
    """Return the matrix with all of its singular values replaced by their mean."""
    import torch

    u, s, vt = torch.linalg.svd(total, full_matrices=False)
    kept = s > ZERO * s.max() if len(s) else s > 0
    if not kept.any():
        return torch.zeros_like(total)
    return s[kept].mean() * (u[:, kept] @ vt[kept])


ISO = matrix_method(
    lambda taus, settings, check: settings.scale * flatten_spectrum(taus.sum(0)),
    name="iso-c",
    title="Iso-C",
    formula="linear layers: scale * the sum of tau, its singular values all at their mean; others: "
    "mean",
    source="arXiv 2502.04959",
    settings=ScaledSettings,
)
