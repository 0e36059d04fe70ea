"""A rival outside the settings of the package's methods, as a method while it is measured.

a scale per agent           base + sum_t scales[t] * tau_t   (task arithmetic with weights)
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
    PreparedMethod,
)
from ram_studio.algorithm.methods.task_arithmetic import Scale

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor


class ScalesSettings(MethodSettings):
    """Settings of task arithmetic with a scale per agent."""

    scales: tuple[Scale, ...] = Field(
        default=(), description="Factor on each agent's tau; 1/N when left out."
    )


def _scaled_sum(block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
    x = block.base.double()
    n = len(block.agents)
    scales = x.new_tensor(prepared.settings.scales or (1 / n,) * n)
    return BlockOutput(x + scales @ (block.agents.double() - x), _pattern(block))


def _pattern(block: BlockInput) -> Int64[Tensor, " n"]:
    """Return the agents that changed each element, as bits."""
    bits = [(own != block.base).long() << t for t, own in enumerate(block.agents)]
    return sum(bits[1:], bits[0])


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
    """Add it to `METHODS` while the block runs."""
    METHODS[SCALES_BY_AGENT.name] = SCALES_BY_AGENT
    try:
        yield
    finally:
        del METHODS[SCALES_BY_AGENT.name]
