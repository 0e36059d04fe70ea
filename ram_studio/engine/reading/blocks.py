"""Blocks: the unit of work of every pass, a run of consecutive elements of one tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.checkpoints.read.tensors import TensorInfo

BLOCK_ELEMENTS = 1 << 18
"""Half a megabyte of bfloat16 from each checkpoint: blocks of four fit a core's cache."""

GROUP_ELEMENTS = 1 << 16
"""Sums over elements are formed in groups of this many, so that they do not depend on the block."""


@dataclass(frozen=True)
class Block:
    """Elements [start, start + n) of one tensor, and each agent's stored tensor for them."""

    index: int
    tensor_index: int
    tensor: MergeTensor
    start: int
    n: int
    agents: tuple[TensorInfo, ...]

    @cached_property
    def sources(self) -> tuple[TensorInfo, ...]:
        """The stored tensors it is read from: the base's, then each agent's."""
        return (self.tensor.base, *self.agents)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The sources' stored dtypes, by safetensors names."""
        return tuple(source.dtype for source in self.sources)

    @cached_property
    def nbytes(self) -> int:
        """Bytes to read for it."""
        return self.n * sum(rounding.STORAGE[dtype].itemsize for dtype in self.dtypes)

    @property
    def groups(self) -> Iterator[slice]:
        """Its slices, cut at multiples of GROUP_ELEMENTS of the tensor."""
        first = -self.start % GROUP_ELEMENTS or GROUP_ELEMENTS
        cuts = (0, *range(first, self.n, GROUP_ELEMENTS), self.n)
        return itertools.starmap(slice, itertools.pairwise(cuts))

    def chunks(self, elements: int, every: int = 0) -> Iterator[Block]:
        """Yield it in chunks of at most this many elements, also cut where an agent's rows end.

        Beyond an agent's rows (rows "common") the base replaces it.

        every: also cut at multiples of this number of elements (0: nowhere).
        """
        stop = self.start + self.n
        if self.n <= elements and not every and min(self.tensor.common_numel, default=stop) >= stop:
            yield self
            return
        edges = {n for n in self.tensor.common_numel if self.start < n < stop}
        edges |= {*range(self.start, stop, every)} if every else set()
        cuts = sorted(edges | {*range(self.start, stop, elements), stop})
        for first, last in itertools.pairwise(cuts):
            agents = tuple(
                source if first < common else self.tensor.base
                for source, common in zip(self.tensor.agents, self.tensor.common_numel, strict=True)
            )
            yield Block(self.index, self.tensor_index, self.tensor, first, last - first, agents)


def blocks_of(
    tensors: Sequence[MergeTensor],
    block_elements: int = BLOCK_ELEMENTS,
    is_whole: Callable[[MergeTensor], bool] = lambda tensor: False,
    every: Callable[[MergeTensor], int] = lambda tensor: 0,
) -> Iterator[Block]:
    """Yield the blocks of all merged tensors in order.

    Where an agent's rows end (rows "common"), a block ends too; beyond it the base replaces them.

    Args: block_elements: a positive multiple of GROUP_ELEMENTS; is_whole: which tensors are one
        block each, whatever their size (their readers then hold all of them); every: also cut a
        tensor at multiples of this number of elements.
    """
    assert block_elements > 0, "blocks hold elements"
    assert block_elements % GROUP_ELEMENTS == 0, "a block is a number of whole groups"
    numbers = itertools.count()
    for tensor_index, tensor in enumerate(tensors):
        if tensor.kind != "merge" or tensor.numel == 0:
            continue
        whole = Block(0, tensor_index, tensor, 0, tensor.numel, tensor.agents)
        chunks = whole.chunks(block_elements, every(tensor))
        for chunk in (whole,) if is_whole(tensor) else chunks:
            yield Block(next(numbers), tensor_index, tensor, chunk.start, chunk.n, chunk.agents)
