"""Two rivals that the product does not offer, as merge methods while they are measured.

MagMax (arXiv 2407.06322)   base + scale * tau_s,            s the agent with the largest |tau_s|
a scale per agent           base + sum_t scales[t] * tau_t   (task arithmetic has one for all)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Method,
    MethodSettings,
    Prepared,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor


class MagMaxSettings(MethodSettings):
    """Settings of MagMax."""

    scale: Scale = Field(default=1.0, description="Factor on the largest tau.")


class ScalesSettings(MethodSettings):
    """Settings of task arithmetic with a scale per agent."""

    scales: tuple[Scale, ...] = Field(
        default=(), description="Factor on each agent's tau; 1/N when left out."
    )


def _magmax(block: BlockInput, prepared: Prepared) -> BlockOutput:
    x = block.base.double()
    taus = block.agents.double() - x
    largest = taus.gather(0, taus.abs().argmax(dim=0, keepdim=True))[0]
    return BlockOutput(x + prepared.settings.scale * largest, _pattern(block))


def _scaled_sum(block: BlockInput, prepared: Prepared) -> BlockOutput:
    x = block.base.double()
    n = len(block.agents)
    scales = x.new_tensor(prepared.settings.scales or (1 / n,) * n)
    return BlockOutput(x + scales @ (block.agents.double() - x), _pattern(block))


def _pattern(block: BlockInput) -> Int64[Tensor, " n"]:
    """Return who changed each element, as bits."""
    bits = [(own != block.base).long() << t for t, own in enumerate(block.agents)]
    return sum(bits[1:], bits[0])


MAGMAX = Method(
    name="magmax",
    title="MagMax",
    formula="scale * the largest tau",
    source="arXiv 2407.06322",
    settings=MagMaxSettings,
    merge_block=_magmax,
)
SCALES_BY_AGENT = Method(
    name="task-arithmetic-by-agent",
    title="Task Arithmetic, a scale per agent",
    formula="sum of scales[t] * tau_t",
    source="arXiv 2212.04089",
    settings=ScalesSettings,
    merge_block=_scaled_sum,
)


@contextmanager
def rival_methods() -> Iterator[None]:
    """Have both among `METHODS` for as long as the block runs."""
    own = {method.name: method for method in (MAGMAX, SCALES_BY_AGENT)}
    METHODS.update(own)
    try:
        yield
    finally:
        for name in own:
            del METHODS[name]
