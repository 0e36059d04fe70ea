"""A LoRA's update on a matrix, or on each of a stack of experts, computed as it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ram_studio.checkpoints.read.tensors import (
    TensorCache,
    TensorInfo,
    TensorReader,
    VirtualTensor,
)

GROUP_ELEMENTS = 1 << 16
"""Approximate number of elements that are computed together."""

Read = Callable[[TensorInfo, int, int], np.ndarray]
"""Returns elements [start, start + count) of a stored tensor as float32."""


@dataclass(frozen=True, slots=True)
class LowRank(VirtualTensor):
    """base + scale * B A, in float64 rounded once to float32; DoRA scales rows after.

    Attributes:
        base: (rows, columns), or (experts, rows, columns).
        left: lora_B, (out, experts * rank).
        right: lora_A, (experts * rank, in).
        scale: lora_alpha / rank, or / sqrt(rank) for rank-stabilized adapters.
        is_turned: a matrix of the base is (in, out), not (out, in): embeddings, GPT-2's layers.
        is_expert_major: order of lora_B's columns, see ``expert_adapters``.
        magnitude: of DoRA, (rows,): each row gets this length; None for plain LoRA.
    """

    base: TensorInfo
    left: TensorInfo
    right: TensorInfo
    scale: float
    is_turned: bool = False
    is_expert_major: bool = False
    magnitude: TensorInfo | None = None

    @property
    def experts(self) -> int:
        """Number of the base's matrices."""
        return self.base.shape[0] if len(self.base.shape) == 3 else 1

    @property
    def rank(self) -> int:
        return self.right.shape[0] // self.experts

    @np.errstate(over="ignore", invalid="ignore")  # reported as non-finite tensors
    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count) as float32, computed in groups of whole rows."""
        rows, columns = self.base.shape[-2:]
        group = max(1, GROUP_ELEMENTS // columns)
        first, last = start // columns, -(-(start + count) // columns)
        origin = first // rows * rows + first % rows // group * group
        parts = []
        for expert in range(first // rows, -(-last // rows)):
            left, right = self.factors(reader.decoded, expert, reader.cache)
            if self.is_turned:
                left, right = right.T, left.T
            above = expert * rows
            for row in range(max(origin - above, 0), min(last - above, rows), group):
                end = min(row + group, rows)
                base = reader.decoded(self.base, (above + row) * columns, (end - row) * columns)
                base = base.reshape(-1, columns)
                update = self.scale * (left[row:end] @ right)
                parts.append(self._add_update(reader, base, update, row).reshape(-1))
        return np.concatenate(parts)[start - origin * columns :][:count]

    def _add_update(
        self, reader: TensorReader, base: np.ndarray, update: np.ndarray, first: int
    ) -> np.ndarray:
        """Return rows of a matrix from row `first` on with their update, as float32."""
        if self.magnitude is None:
            # An update of exactly 0 leaves the base unchanged, also where it is -0.0.
            return np.where(update != 0, base + update, base).astype(np.float32)
        made = base + update
        lengths = np.sqrt((made * made).sum(1))
        wanted = reader.decoded(self.magnitude, first, len(made)).astype(np.float64)
        made *= np.divide(wanted, lengths, out=np.ones_like(lengths), where=lengths > 0)[:, None]
        return made.astype(np.float32)

    def factors(self, read: Read, expert: int, cache: TensorCache) -> tuple[np.ndarray, np.ndarray]:
        """Return B (out, rank) and A (rank, in) of an expert in float64.

        cache: stores A between calls, and all of lora_B, where every expert has single columns.
        """
        rank, (_, wide) = self.rank, self.right.shape

        def all_left() -> np.ndarray:
            stored = read(self.left, 0, self.left.numel).reshape(self.left.shape)
            return stored.astype(np.float64) if self.experts == 1 else stored

        def right() -> np.ndarray:
            stored = read(self.right, expert * rank * wide, rank * wide)
            return stored.reshape(rank, wide).astype(np.float64)

        step = 1 if self.is_expert_major else self.experts
        begin = expert * rank if self.is_expert_major else expert
        left = cache.get(self.left, all_left)[:, begin : begin + rank * step : step]
        left = np.ascontiguousarray(left, np.float64)
        return left, cache.get(self.right, right, part=expert)
