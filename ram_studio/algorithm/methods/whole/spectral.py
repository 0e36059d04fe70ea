"""TSV-M and Iso-C: merge by the singular vectors of the task vectors.

TSV-M (Gargiulo et al., arXiv 2412.00081) selects each task's strongest. Per linear layer with
task vectors T_1 ... T_N and r = min(rows, columns):

    T_t    = U_t S_t V_t^T,  truncated to the k = floor(r / N) largest singular values
    U      = [U_1 ... U_N],  V = [V_1 ... V_N],  S = diag(S_1 ... S_N)
    U', V' = the matrices with orthonormal columns that are nearest to U and V (Procrustes)
    merged = base + scale * U' S V'^T

Singular vectors of two tasks that point the same way would add up; whitening separates them. Where
k is 0 (more agents than rows or columns) k is 1, and whitening is still the polar factor. Singular
values that are 0 have no direction of their own and are left out.

Iso-C (Marczak et al., 2502.04959) makes the sum equally strong in all directions. Per linear layer:

    sum_t T_t = U S V^T
    merged    = base + scale * mean(S) * U V^T

so that no task's few strong directions dominate those of the others. The mean is over all
min(rows, columns) singular values, those of 0 too; but directions with singular value 0 are left
out of U V^T.

Other tensors are averaged unless ``others`` is sum or base (TSV-M's authors average them too). Like
WUDI both need whole matrices in float64 and move elements that no agent changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ram_studio.algorithm.methods.whole.matrices import ZERO, ScaledSettings, matrix_method

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor


def merge_tasks(taus: Float64[Tensor, "agents rows columns"]) -> Float64[Tensor, "rows columns"]:
    """Return the merged task vector at scale 1; agents that are all zero are left out."""
    import torch

    rank = max(1, min(taus.shape[1:]) // len(taus))
    left, values, right = [], [], []
    for tau in taus:
        u, s, vt = torch.linalg.svd(tau, full_matrices=False)
        own_rank = min(rank, int((s > ZERO * s[0]).sum())) if len(s) else 0
        left.append(u[:, :own_rank])
        values.append(s[:own_rank])
        right.append(vt[:own_rank])
    u, s, vt = torch.cat(left, 1), torch.cat(values), torch.cat(right)
    if not len(s):
        return torch.zeros_like(taus[0])
    return (_nearest_orthonormal(u) * s) @ _nearest_orthonormal(vt)


def _nearest_orthonormal(matrix: Float64[Tensor, "a b"]) -> Float64[Tensor, "a b"]:
    import torch

    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vt


TSV = matrix_method(
    lambda layer: layer.settings.scale * merge_tasks(layer.taus),
    name="tsv-m",
    title="TSV-M",
    formula="linear layers: scale * the tasks' strongest singular vectors, set apart; others: mean",
    source="arXiv 2412.00081",
    settings=ScaledSettings,
)


def flatten_spectrum(total: Float64[Tensor, "rows columns"]) -> Float64[Tensor, "rows columns"]:
    """Return the matrix with its singular values above 0 replaced by the mean of all."""
    import torch

    u, s, vt = torch.linalg.svd(total, full_matrices=False)
    is_nonzero = s > ZERO * s.max() if len(s) else s > 0
    if not is_nonzero.any():
        return torch.zeros_like(total)
    return s.mean() * (u[:, is_nonzero] @ vt[is_nonzero])


ISO = matrix_method(
    lambda layer: layer.settings.scale * flatten_spectrum(layer.taus.sum(0)),
    name="iso-c",
    title="Iso-C",
    formula="linear layers: scale * the sum of tau, its singular values all at their mean; others: "
    "mean",
    source="arXiv 2502.04959",
    settings=ScaledSettings,
)
