"""Comparing the stored bytes of two tensors without holding either in memory."""

from __future__ import annotations

from dataclasses import fields

from ram_studio.checkpoints.read.describe import printable, quoted, who
from ram_studio.checkpoints.read.header import Derived, TensorInfo
from ram_studio.errors import CheckpointError

BLOCK_BYTES = 4 * 2**20


def _same_derivation(a: Derived | None, b: Derived | None) -> bool:
    """Say whether two tensors are computed alike from tensors of the same bytes."""
    if a is None or b is None or type(a) is not type(b):
        return False
    parts = [(getattr(a, field.name), getattr(b, field.name)) for field in fields(a)]
    return all(
        same_bytes(*pair)
        if all(isinstance(part, TensorInfo) for part in pair)
        else pair[0] == pair[1]
        for pair in parts
    )


def same_bytes(
    a: TensorInfo, b: TensorInfo, *, agents: tuple[str | None, str | None] = (None, None)
) -> bool:
    """Say whether two tensors store the same bytes; reads 4 MiB of each at a time.

    Bytes, not values: 0.0 and -0.0 differ, a NaN equals the same NaN. Stops at the first block
    that differs.

    Args:
        a, b: any two tensors; different sizes are never the same, nor is a derived tensor that is
            computed in another way.
        agents: whose they are, for messages.

    Raises: CheckpointError when a file cannot be read or ends early.
    """
    if a.derived is not None or b.derived is not None:
        return _same_derivation(a.derived, b.derived)
    if a.nbytes != b.nbytes:
        return False
    if (a.path, a.offset) == (b.path, b.offset):
        return True
    at = (a, agents[0])
    try:
        with open(a.path, "rb") as left, open(b.path, "rb") as right:
            left.seek(a.offset)
            right.seek(b.offset)
            for begin in range(0, a.nbytes, BLOCK_BYTES):
                count = min(BLOCK_BYTES, a.nbytes - begin)
                blocks = []
                for file, side in ((left, (a, agents[0])), (right, (b, agents[1]))):
                    at = side
                    blocks.append(file.read(count))
                    if len(blocks[-1]) < count:
                        raise OSError("the file ends before the tensor does")
                if blocks[0] != blocks[1]:
                    return False
    except OSError as error:
        tensor, agent = at
        raise CheckpointError(
            f"{who(agent)}{printable(tensor.path)}: tensor {quoted(tensor.name)} cannot be read: "
            f"{error.strerror or error}."
        ) from error
    return True
