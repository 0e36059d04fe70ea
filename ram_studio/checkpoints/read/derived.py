"""Tensors that follow from stored ones: what they are made of. ``engine.reading.derived`` computes.

So an adapter beside its base is a checkpoint like any other to whoever reads blocks of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from ram_studio.checkpoints.read.header import Derived, TensorInfo


@dataclass(frozen=True, slots=True)
class Sparse(Derived):
    """base with other elements at some places.

    Attributes:
        base: of any dtype; the derived tensor has it too.
        indices: flat places, I32 or I64, rising.
        values: the elements there, in the base's dtype.
    """

    base: TensorInfo
    indices: TensorInfo
    values: TensorInfo


@dataclass(frozen=True, slots=True)
class LowRank(Derived):
    """base + scale * left @ right, in float64 rounded once to float32; DoRA scales rows after.

    Attributes:
        base: (rows, columns).
        left: (rows, rank), or (rank, rows) where `is_transposed`.
        right: (rank, columns), or (columns, rank) where `is_transposed`.
        scale: lora_alpha / rank, or / sqrt(rank) for rank-stabilised adapters.
        is_transposed: both factors are stored the other way round (embeddings, GPT-2's layers).
        magnitude: of DoRA, (rows,): each row gets this length; None for plain LoRA.
    """

    base: TensorInfo
    left: TensorInfo
    right: TensorInfo
    scale: float
    is_transposed: bool = False
    magnitude: TensorInfo | None = None

    @property
    def rank(self) -> int:
        """The rank of the update."""
        return self.right.shape[1 if self.is_transposed else 0]
