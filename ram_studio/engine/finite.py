"""Saying exactly where a NaN or Inf is, once a kernel has seen one in a block."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.read.header import TensorInfo
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, Sources
from ram_studio.errors import NonFiniteError


def non_finite_error(report: CompatibilityReport, sources: Sources, block: Block) -> NonFiniteError:
    """Return the error for a block with a non-finite task vector.

    Reads the whole tensor of the first checkpoint at fault again, to count its NaN and Inf and to
    give the index of the first.
    """
    for name, tensor in zip(
        ("base", *(a.name for a in report.agents)), (block.tensor.base, *block.agents), strict=True
    ):
        count, first = _count(sources, tensor)
        if count:
            who = "Base" if name == "base" else f'Agent "{name}"'
            index = tuple(int(i) for i in np.unravel_index(first, tensor.shape))
            return NonFiniteError(
                f"{who}: {tensor.path}: tensor `{tensor.name}` has {count} NaN or Inf "
                f"{'element' if count == 1 else 'elements'}, the first at index {index}; every "
                "element must be finite. Fetch or export this checkpoint again."
            )
    return NonFiniteError(
        f"Tensor `{block.tensor.name}`: base and agents differ by more than float32 can hold; "
        "check that the agents were trained from this base."
    )


def _count(sources: Sources, tensor: TensorInfo) -> tuple[int, int]:
    storage = rounding.STORAGE[tensor.dtype]
    total, first = 0, -1
    for start in range(0, tensor.numel, BLOCK_ELEMENTS):
        n = min(BLOCK_ELEMENTS, tensor.numel - start)
        raw = np.empty(n, dtype=storage)
        sources.read_into(tensor, start * storage.itemsize, memoryview(raw).cast("B"))
        bad = np.flatnonzero(~np.isfinite(rounding.decode(raw, tensor.dtype)))
        if len(bad) and first < 0:
            first = start + int(bad[0])
        total += len(bad)
    return total, first
