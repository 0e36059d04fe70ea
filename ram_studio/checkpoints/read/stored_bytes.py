"""Reads, hashes and compares stored bytes of tensors, local or remote; holds none whole."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import MappingProxyType

from ram_studio.checkpoints.read.content_hash import make_hasher
from ram_studio.checkpoints.read.describe import who
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.read.remote import Remote
from ram_studio.checkpoints.read.tensors import TensorInfo

FIRST_BYTES = 4096
BLOCK_BYTES = 4 * 2**20


def _same(a: object, b: object, remote: Remote) -> bool:
    """Return whether two tensors are computed in the same way from tensors of the same bytes.

    Or whether two of their inputs are the same: tensors, boxes, numbers.
    """
    if isinstance(a, TensorInfo) and isinstance(b, TensorInfo):
        return a.dtype == b.dtype and same_bytes(a, b, remote=remote)
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(*pair, remote) for pair in zip(a, b, strict=True))
    if is_dataclass(a):
        return all(_same(getattr(a, f.name), getattr(b, f.name), remote) for f in fields(a))
    return a == b


def same_bytes(
    a: TensorInfo,
    b: TensorInfo,
    *,
    agents: tuple[str | None, str | None] = (None, None),
    remote: Remote = MappingProxyType({}),
) -> bool:
    """Return whether two tensors store the same bytes; reads at most 4 MiB of each at a time.

    Bytes, not values: 0.0 and -0.0 differ, a NaN equals the same NaN. Stops at the first block
    that differs; blocks grow, as most differing tensors differ in their first bytes.

    Args:
        a, b: any two tensors; different sizes are never the same, nor is a virtual tensor that is
            computed in another way.
        agents: their checkpoints' names, for messages.
        remote: places of files that are not on this disk.

    Raises: CheckpointError when a file cannot be read or ends early; HubError.
    """
    if a.virtual is not None or b.virtual is not None:
        return _same(a.virtual, b.virtual, remote)
    if a.nbytes != b.nbytes:
        return False
    if (a.path, a.offset) == (b.path, b.offset):
        return True
    begin, count = 0, FIRST_BYTES
    while begin < a.nbytes:
        count = min(count, a.nbytes - begin)
        left, right = (
            read_bytes(tensor, begin, count, remote, agent)
            for tensor, agent in zip((a, b), agents, strict=True)
        )
        if left != right:
            return False
        begin, count = begin + count, min(8 * count, BLOCK_BYTES)
    return True


def hash_tensor(tensor: TensorInfo, remote: Remote = MappingProxyType({})) -> str:
    """Return the BLAKE3 of a stored tensor's bytes as 64 hex digits.

    Raises: CheckpointError when its file cannot be read; HubError.
    """
    hasher = make_hasher("blake3")
    for begin in range(0, tensor.nbytes, BLOCK_BYTES):
        count = min(BLOCK_BYTES, tensor.nbytes - begin)
        hasher.update(memoryview(read_bytes(tensor, begin, count, remote)))
    return hasher.hexdigest()


def read_bytes(
    tensor: TensorInfo, begin: int, count: int, remote: Remote, agent: str | None = None
) -> bytes:
    """Return some of a stored tensor's bytes; agent: its checkpoint's name, for messages."""
    name, start = tensor.path.name, tensor.offset + begin
    if tensor.path in remote:
        return remote[tensor.path].read_range(name, start, count)
    return Folder(tensor.path.parent, who(agent)).fetch(name, start, count)
