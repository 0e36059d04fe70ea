"""Tensors that follow from stored ones: what they are made of. ``engine.reading.derived`` computes.

So an adapter beside its base is a checkpoint like any other to whoever reads blocks of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

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


@dataclass(frozen=True, slots=True)
class Scaled(Derived):
    """8-bit floating-point codes times a scale for each block of them, rounded to bfloat16.

    Attributes:
        codes: F8_E4M3 or F8_E5M2, of the derived tensor's shape.
        scale: of as many dimensions as `codes` once `scale_shape` is put on it.
        scale_shape: number of blocks along each dimension.
        block: elements of a block along each dimension; the last block may be cut short.
    """

    codes: TensorInfo
    scale: TensorInfo
    scale_shape: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Microscaled(Derived):
    """MXFP4 (OCP Microscaling): 4-bit codes, two a byte, and a power of two for each 32 of them.

    Attributes:
        blocks: U8, (matrices, columns, groups, 16): the low half of a byte is the earlier element.
        scales: U8, (matrices, columns, groups): the exponent plus 127.

    The derived tensor is (matrices, groups * 32, columns): transposed, as transformers holds it.
    """

    blocks: TensorInfo
    scales: TensorInfo


@dataclass(frozen=True, slots=True)
class Tile:
    """A tensor that lies as a box in a larger one.

    Attributes:
        part: its elements, in the order of the box.
        offsets: where the box begins along each dimension of the larger tensor.
        shape: of the box, with as many dimensions as the larger tensor has.
    """

    part: TensorInfo
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tiled(Derived):
    """A tensor that lies in pieces: its tiles fill it, none overlaps another, all of its dtype."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Run(Derived):
    """Consecutive elements of another tensor of the same dtype, from element `start` on."""

    of: TensorInfo
    start: int


@dataclass(frozen=True, slots=True)
class Transposed(Derived):
    """A matrix, or each matrix of a stack, turned: (..., columns, rows) of `of` as (..., rows,
    columns).
    """

    of: TensorInfo


def stored_tensors(tensor: TensorInfo) -> Iterator[TensorInfo]:
    """Yield the tensors in files that a tensor is made of: itself, where a file holds it."""
    if tensor.derived is None:
        yield tensor
        return
    parts = (getattr(tensor.derived, field.name) for field in fields(tensor.derived))
    if isinstance(tensor.derived, Tiled):
        parts = (tile.part for tile in tensor.derived.tiles)
    for part in parts:
        if isinstance(part, TensorInfo):
            yield from stored_tensors(part)
