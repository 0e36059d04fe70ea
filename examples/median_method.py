"""A merge method of one's own: every element goes to the median of the agents.

    ram-studio merge --method examples/median_method.py:MEDIAN --base BASE --agent a=A --out merged
    ram-studio verify merged --full --method examples/median_method.py:MEDIAN

A method that is no rule gets blocks of elements and returns merged values, and which agents changed
each element (bit t for agent t). It must not depend on where a block begins.
"""

import torch
from pydantic import Field

import ram_studio as rs


class MedianSettings(rs.MethodSettings):
    """Settings of the median."""

    scale: float = Field(default=1.0, ge=0, le=10, description="Factor on the median of tau.")


def merge_block(block: rs.BlockInput, prepared) -> rs.BlockOutput:
    """Merge one block; of an even number of agents the lower middle counts."""
    base, taus = block.task_vectors()
    active = sum((tau != 0).long() << t for t, tau in enumerate(taus))
    step = prepared.settings.scale * block.weighted(taus).median(dim=0).values
    return rs.BlockOutput(torch.where(step != 0, base + step, base), active)


MEDIAN = rs.Method(
    name="median",
    title="Median",
    formula="base + scale * median of tau",
    source="an example",
    settings=MedianSettings,
    merge_block=merge_block,
)
