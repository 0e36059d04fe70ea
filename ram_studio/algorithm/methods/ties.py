"""TIES: trim, elect sign and merge (Yadav et al., arXiv 2306.01708).

    trimmed_t = tau_t where |tau_t| is among the largest ``density`` of agent t, else 0
    sign      = sign(sum_t trimmed_t)                       (the sign with more mass)
    merged    = base + scale * mean of the trimmed_t != 0 whose sign is that sign

Where the trimmed task vectors cancel exactly, the base stays. (Among bfloat16 checkpoints +1 and -1
unit in the last place meet often. The authors' code takes the model's most frequent sign there,
mergekit the positive one; neither has a reason for it.) What "among the largest" means: see
``trimming``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Facts,
    Kernel,
    KernelInput,
    Method,
    MethodSettings,
    Need,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale
from ram_studio.algorithm.methods.trimming import Density, ScopeOfTrimming, keep_thresholds

if TYPE_CHECKING:
    from torch import Tensor


class TiesSettings(MethodSettings):
    """Settings of TIES; the defaults are the paper's."""

    density: Density = 0.2
    scale: Scale = Field(default=1.0, description="Factor on the mean of the agreeing tau.")
    scope: ScopeOfTrimming = "global"


@dataclass(frozen=True)
class ElectedMean:
    """TIES made ready for one merge.

    thresholds: float32 (tensors, agents); expected_active: int64 (agents,), how many elements
    each agent changed by the histogram, for the engine to check it with.
    """

    thresholds: np.ndarray
    scale: float
    factors: np.ndarray
    expected_active: np.ndarray

    def kernel(self, block: KernelInput) -> Kernel:
        """Return the fused kernel, see base.Fused."""
        from ram_studio.algorithm import sum_kernels

        thresholds = tuple(self.thresholds[block.tensor])
        return sum_kernels.merge_trimmed, (
            thresholds,
            self.scale,
            (),
            np.uint64(0),
            np.uint64(0),
        )


def _prepare(settings: TiesSettings, facts: Facts) -> ElectedMean:
    return ElectedMean(
        keep_thresholds(facts.magnitudes, settings.density),
        settings.scale,
        facts.uniform_factors(settings.scale),
        facts.magnitudes.bins.sum((0, 2)),
    )


def above(block: BlockInput, thresholds: np.ndarray) -> Tensor:
    """Return where |tau| > threshold: bool (agents, n), from float32 thresholds (agents,)."""
    import torch

    limits = torch.from_numpy(thresholds.copy()).to(block.base.device)
    return (block.agents - block.base).abs() > limits[:, None]


def merge_elected(block: BlockInput, kept: Tensor, factor: float) -> BlockOutput:
    """Return base + factor * mean of the kept tau that agree with the sign of their sum.

    kept: bool (agents, n).
    """
    import torch

    x = block.base.double()
    total = torch.zeros_like(x)
    mass = {1: torch.zeros_like(x), -1: torch.zeros_like(x)}
    voters = {1: torch.zeros_like(x), -1: torch.zeros_like(x)}
    active = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for t, agent in enumerate(block.agents):
        tau = torch.where(kept[t], agent.double() - x, 0.0)
        total += tau
        for sign in (1, -1):
            has_sign = tau.sign() == sign
            mass[sign] += torch.where(has_sign, tau, 0.0)
            voters[sign] += has_sign
        active |= (agent != block.base).long() << t
    mean = torch.where(
        total > 0,
        mass[1] / voters[1].clamp(min=1),
        mass[-1] / voters[-1].clamp(min=1),
    )
    return BlockOutput(torch.where(total != 0, x + factor * mean, x), active)


def merge_block(block: BlockInput, rule: ElectedMean) -> BlockOutput:
    """Merge one block."""
    return merge_elected(block, above(block, rule.thresholds[block.tensor]), rule.scale)


TIES = Method(
    name="ties",
    title="TIES",
    formula="scale * mean of the trimmed tau that agree with the sign of their sum",
    source="arXiv 2306.01708",
    settings=TiesSettings,
    needs=lambda settings: frozenset({Need.MAGNITUDES}),
    prepare=_prepare,
    merge=merge_block,
)
