"""Common code of methods on whole tensors: task vectors in, one merged task vector out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Method,
    PreparedMethod,
    add_change,
    changed_by,
)

if TYPE_CHECKING:
    from torch import Tensor


def tensor_method(merge_one: Callable[[Tensor, Tensor, Any, Any], Tensor], **fields: Any) -> Method:
    """Return the method that merges each tensor, of any shape, by ``merge_one``.

    Args:
        merge_one: base, float64 (n,), task vectors (agents, n), settings and weights (agents,) ->
            the merged task vector (n,).
        fields: other fields of the method.

    Elements where the merged task vector is 0 stay as in the base.
    """

    def merge_block(block: BlockInput, prepared: PreparedMethod) -> BlockOutput:
        base, taus = block.task_vectors()
        weights = taus.new_tensor(block.weights or (1.0,) * len(taus))
        merged = merge_one(base, taus, prepared.settings, weights)
        return BlockOutput(add_change(base, merged), changed_by(taus))

    return Method(**fields, merge_block=merge_block, whole=lambda settings, name, shape: True)
