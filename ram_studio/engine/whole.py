"""Whole tensors as one block, for methods that cannot merge a tensor piece by piece.

Memory is then threads x checkpoints x the largest such tensor in float32, plus what the method
itself holds; all other tensors are streamed as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.blocks import Block, BlockReader, blocks_of


def blocks_with_whole(
    tensors: Sequence[MergeTensor], block_elements: int, is_whole: Callable[[MergeTensor], bool]
) -> Iterator[Block]:
    """Yield the blocks of all merged tensors, those that ``is_whole`` selects as one block each."""
    index = 0
    for tensor_index, tensor in enumerate(tensors):
        if tensor.numel and is_whole(tensor):
            yield Block(index, tensor_index, tensor, 0, tensor.numel, tensor.agents)
            index += 1
            continue
        for block in blocks_of([tensor], block_elements):
            yield Block(index, tensor_index, tensor, block.start, block.n, block.agents)
            index += 1


def read_whole(
    reader: BlockReader, block: Block, block_elements: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return a whole tensor of base and agents as float32, read through a reader's small buffers.

    Where an agent's rows end (rows "common"), the base stands in.
    """
    base = np.empty(block.n, dtype=np.float32)
    agents = tuple(np.empty(block.n, dtype=np.float32) for _ in block.agents)
    for piece in blocks_of([block.tensor], block_elements):
        stored = reader.read(piece)
        part = slice(piece.start, piece.start + piece.n)
        for target, source in zip((base, *agents), (stored[0], *stored[1]), strict=True):
            dtype = "BF16" if source.dtype == np.uint16 else "F32"
            target[part] = rounding.decode(source, dtype)
    return base, agents
