"""SCE: select, calculate, erase (FuseChat 3.0, arXiv 2408.07990).

Per tensor:

    select     keep the share ``select`` of the elements that vary most between agents
               (of those that vary at all)
    calculate  c_t = sum of the selected tau_t^2 / the same of all agents
    erase      keep those tau_t that agree with the sign of sum_t tau_t
    merged     = base + scale * sum of c_t tau_t / sum of c_t over the agreeing tau_t

mergekit takes equal c_t where the mean of squares is below 1e-6, as it is for every RL update; here
c_t are as published. Where the tau cancel exactly the base stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ram_studio.algorithm.methods.base import MethodSettings
from ram_studio.algorithm.methods.task_arithmetic import Scale
from ram_studio.algorithm.methods.whole.formulas import tensor_method

if TYPE_CHECKING:
    from torch import Tensor


_CHUNK = 1 << 22


class SceSettings(MethodSettings):
    """Settings of SCE."""

    select: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            allow_inf_nan=False,
            description="Share of the varying elements that is retained, largest variance first.",
        ),
    ] = 1.0
    scale: Scale = Field(default=1.0, description="Factor on the weighted mean of tau.")


def select_and_merge(base: Tensor, taus: Tensor, settings: SceSettings, weights: Tensor) -> Tensor:
    """Return the merged task vector.

    Chunk by chunk: a whole temporary of an embedding takes gigabytes.
    """
    import torch

    weights = weights[:, None]
    chosen = torch.ones_like(base, dtype=torch.bool)
    if settings.select < 1:
        variance = (taus * weights).var(dim=0, unbiased=False)
        k = int(settings.select * int((variance > 0).sum()))
        chosen[variance.sort(descending=True, stable=True).indices[k:]] = False

    def chunks() -> Iterator[Tensor]:
        for own, is_chosen in zip(taus.split(_CHUNK, 1), chosen.split(_CHUNK), strict=True):
            yield torch.where(is_chosen, own * weights, 0.0)

    squares = torch.stack([own.square().sum(1) for own in chunks()]).sum(0)
    if not squares.sum() > 0:
        return torch.zeros_like(base)
    shares = (squares / squares.sum())[:, None]
    merged = []
    for own in chunks():
        agrees = own * own.sum(0) > 0
        total = torch.where(agrees, shares, 0.0).sum(0)
        mean = torch.where(agrees, shares * own, 0.0).sum(0) / total
        merged.append(settings.scale * torch.where(total > 0, mean, 0.0))
    return torch.cat(merged)


SCE = tensor_method(
    select_and_merge,
    name="sce",
    title="SCE",
    formula="mean of the tau that agree with the sign of their sum, weighted by each one's energy",
    source="arXiv 2408.07990",
    settings=SceSettings,
)
