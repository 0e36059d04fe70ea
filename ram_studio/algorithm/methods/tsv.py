"""TSV-M: merge the strongest singular vectors of every task (Gargiulo et al., arXiv 2412.00081).

Per linear layer with task vectors T_1 ... T_N and r = min(rows, columns):

    T_t    = U_t S_t V_t^T,  of which the k = floor(r / N) largest singular values are kept
    U      = [U_1 ... U_N],  V = [V_1 ... V_N],  S = diag(S_1 ... S_N)
    U', V' = the matrices with orthonormal columns that are nearest to U and V (Procrustes)
    merged = base + scale * U' S V'^T

Singular vectors of two tasks that point the same way would add up; whitening sets them apart. Where
k is 0 (more agents than rows or columns) one vector of each is kept and whitening stays what it
is, the polar factor. Singular values that are 0 have no direction of their own and are left out.
Other tensors are averaged unless ``others`` says sum or base (the authors average them too).

As WUDI it needs whole matrices in float64 and moves elements that no agent changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ram_studio.algorithm.methods.matrices import ZERO, ScaledSettings, matrix_method

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor


def merge_tasks(taus: Float64[Tensor, "agents rows columns"]) -> Float64[Tensor, "rows columns"]:
    """Return the merged task vector at scale 1; agents with nothing but zeros take no part."""
    import torch

    rank = max(1, min(taus.shape[1:]) // len(taus))
    left, values, right = [], [], []
    for tau in taus:
        u, s, vt = torch.linalg.svd(tau, full_matrices=False)
        kept = min(rank, int((s > ZERO * s[0]).sum())) if len(s) else 0
        left.append(u[:, :kept])
        values.append(s[:kept])
        right.append(vt[:kept])
    u, s, vt = torch.cat(left, 1), torch.cat(values), torch.cat(right)
    if not len(s):
        return torch.zeros_like(taus[0])
    return (_nearest_orthonormal(u) * s) @ _nearest_orthonormal(vt)


def _nearest_orthonormal(matrix: Float64[Tensor, "a b"]) -> Float64[Tensor, "a b"]:
    import torch

    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vt


TSV = matrix_method(
    lambda taus, settings, check: settings.scale * merge_tasks(taus),
    name="tsv-m",
    title="TSV-M",
    formula="linear layers: scale * the tasks' strongest singular vectors, set apart; others: mean",
    source="arXiv 2412.00081",
    settings=ScaledSettings,
)
