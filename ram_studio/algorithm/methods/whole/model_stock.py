"""Model Stock: the average pulled back to the base by how much agents agree (arXiv 2403.19522).

Per tensor, with the mean cosine of all pairs of task vectors and N agents:

    t      = N cos / (1 + (N - 1) cos),     cos taken as 0 where it is negative
    merged = base + t * mean of tau

mergekit divides each pair's product by at least 1e-6, too large for small updates; here by their
norms, as published. A pair in which an agent changed nothing counts with cosine 0.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ram_studio.algorithm.methods.base import Facts, MethodSettings, PreparedMethod
from ram_studio.algorithm.methods.whole.formulas import tensor_method
from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor


class ModelStockSettings(MethodSettings):
    """Model Stock has none."""


def pull_back(base: Tensor, taus: Tensor, settings: ModelStockSettings, weights: Tensor) -> Tensor:
    """Return the merged task vector."""
    import torch

    taus = taus * weights[:, None]
    n, norms = len(taus), taus.norm(dim=1)
    cosines = [
        taus[a] @ taus[b] / (norms[a] * norms[b])
        if norms[a] * norms[b] > 0
        else torch.zeros_like(norms[0])
        for a, b in itertools.combinations(range(n), 2)
    ]
    cosine = torch.stack(cosines).mean().clamp(0, 1)
    return n * cosine / (1 + (n - 1) * cosine) * taus.mean(0)


def _prepare(settings: ModelStockSettings, facts: Facts) -> PreparedMethod:
    if len(facts.agents) < 2:
        raise SettingsError("model-stock compares agents with each other; give at least two.")
    return PreparedMethod(settings, facts)


MODEL_STOCK = tensor_method(
    pull_back,
    name="model-stock",
    title="Model Stock",
    formula="t * mean of tau, t from the cosines of the agents' tau",
    source="arXiv 2403.19522",
    settings=ModelStockSettings,
    prepare=_prepare,
)
