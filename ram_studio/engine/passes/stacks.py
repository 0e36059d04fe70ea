"""Counting the experts of a stack singly while their tensor is counted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ram_studio.algorithm.grouping import StackCounts, expert_label, stack_counts
from ram_studio.algorithm.ladder import Thresholds
from ram_studio.algorithm.naming import STACK, expert_of, layer_of
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.passes.counting import Tally, row_shape
from ram_studio.engine.reading.blocks import Block

MOST_BYTES = 400 << 20
"""Of tables. A row takes 11 kB with 3 agents, 30 with 4: 128 experts in 48 layers fit with 4."""


class StackTally(Tally):
    """Counts of all tensors, and of each matrix of those that hold a stack of experts.

    Where single experts would take more than MOST_BYTES they are not counted, their tensors are.
    """

    def __init__(self, tensors: Sequence[MergeTensor], n_agents: int, grid: Thresholds) -> None:
        self._tensors = tensors
        self._is_single = any(map(_is_stack, tensors)) and _fits(tensors, n_agents, grid)
        self._first = list(itertools.accumulate(map(self._rows, tensors), initial=0))
        super().__init__(self._first[-1], n_agents, grid)

    def _rows(self, tensor: MergeTensor) -> int:
        return tensor.shape[0] if self._is_single and _is_stack(tensor) else 1

    def row(self, block: Block) -> int:
        """Return to which row a block's elements count."""
        size = self.every(block.tensor)
        return self._first[block.tensor_index] + (block.start // size if size else 0)

    def every(self, tensor: MergeTensor) -> int:
        """Return the elements of one expert's matrix, 0 of a tensor that is no stack."""
        rows = self._rows(tensor)
        return tensor.numel // rows if rows > 1 else 0

    def counts(self, numel: list[int]) -> OverlapCounts:
        """Return the counts per tensor at each threshold."""
        if not self._is_single:
            return super().counts(numel)
        spans = itertools.pairwise(self._first)
        return self._by_row.grouped([list(range(*span)) for span in spans])

    def singly(self) -> StackCounts | None:
        """Return the counts of each expert in a stack, of its layer's tensors together."""
        if not self._is_single:
            return None
        rows: dict[str, list[int]] = {}
        for tensor, first in zip(self._tensors, self._first[:-1], strict=True):
            for expert in range(self._rows(tensor)) if _is_stack(tensor) else ():
                label = expert_label(layer_of(tensor.name), str(expert))
                rows.setdefault(label, []).append(first + expert)
        return stack_counts(rows, self._by_row)

    @cached_property
    def _by_row(self) -> OverlapCounts:
        sizes = [t.numel // self._rows(t) for t in self._tensors for _ in range(self._rows(t))]
        return super().counts(sizes)


def _is_stack(tensor: MergeTensor) -> bool:
    return len(tensor.shape) == 3 and tensor.numel > 0 and expert_of(tensor.name) == STACK


def _fits(tensors: Sequence[MergeTensor], n_agents: int, grid: Thresholds) -> bool:
    rows = sum(t.shape[0] if _is_stack(t) else 1 for t in tensors)
    return rows * math.prod(row_shape(n_agents, grid)) * np.dtype(np.int64).itemsize <= MOST_BYTES
