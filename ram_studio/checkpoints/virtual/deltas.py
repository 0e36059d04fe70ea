"""Deltas: files of the elements that an agent changed, applied to the base when read.

They have the layout of TRL's weight synchronization: for each changed tensor `NAME.indices`, flat
and ascending (int32, int64 for larger tensors), and `NAME.values`, the agent's own elements.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ram_studio.checkpoints.read.checkpoint import (
    HUB_FINGERPRINT,
    Checkpoint,
    fingerprint_of,
)
from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.read.describe import printable, quoted
from ram_studio.checkpoints.read.stored_bytes import hash_tensor
from ram_studio.checkpoints.read.tensors import TensorInfo, TensorReader, VirtualTensor
from ram_studio.errors import CheckpointError, CompatibilityError


@dataclass(frozen=True, slots=True)
class Sparse(VirtualTensor):
    """base with other elements at some indices.

    Attributes:
        base: of any dtype; the virtual tensor has it too.
        indices: flat indices, I32 or I64, ascending.
        values: the elements there, in the base's dtype.
    """

    base: TensorInfo
    indices: TensorInfo
    values: TensorInfo

    def read_into(
        self, tensor: TensorInfo, reader: TensorReader, byte_start: int, buffer: memoryview
    ) -> None:
        """Fill a buffer with the base's bytes and the changed elements among them.

        The indices are found by bisection in the file, so only the needed part of it is read.
        """
        reader.read_into(self.base, byte_start, buffer)
        width = self.base.nbytes // max(1, self.base.numel)
        index = np.dtype(np.int32 if self.indices.dtype == "I32" else np.int64)

        def places(first: int, count: int) -> np.ndarray:
            size = index.itemsize
            return reader.stored(self.indices, first * size, count * size).view(index)

        start, stop = byte_start // width, (byte_start + len(buffer)) // width
        keys = range(self.indices.numel)
        first, last = (
            bisect.bisect_left(keys, end, key=lambda k: int(places(k, 1)[0]))
            for end in (start, stop)
        )
        at = places(first, last - first).astype(np.int64) - start
        # One of the blocks checks each index, so that none is silently left out.
        if (
            (at < 0).any()
            or (at >= stop - start).any()
            or (np.diff(at) <= 0).any()
            or (start == 0 and first > 0)
            or (stop == self.base.numel and last < len(keys))
        ):
            raise CheckpointError(
                f"{printable(self.indices.path)}: {quoted(self.indices.name)} does not rise from 0 "
                f"to less than {self.base.numel}; the file is damaged, make it again."
            )
        if not len(at):
            return
        changed = reader.stored(self.values, first * width, len(at) * width)
        elements = changed.view(f"u{width}")
        np.frombuffer(buffer, dtype=elements.dtype)[at] = elements


CONTENT = "base_content"
"""Key of a delta's metadata: hash of its base's content, for any sharding."""


UNCHANGED = "unchanged"
"""The only tensor, without elements, in the delta of an agent that equals its base."""


def content_of(tensors: Mapping[str, str]) -> str:
    """Return one hash of a model's tensors, given each one's BLAKE3 by name."""
    lines = "".join(f"{name}:{digest}\n" for name, digest in sorted(tensors.items()))
    return hash_bytes(lines.encode())


def _fingerprint(base: Checkpoint) -> str | None:
    """Return a base's fingerprint of local files; None where only headers may be read."""
    if not base.fingerprint.startswith(HUB_FINGERPRINT):
        return base.fingerprint
    if not base.remote:
        return None
    files = base.remote[base.shards[0]]
    return fingerprint_of(files.headers(shard.name for shard in base.shards), files)


def _same_content(delta: Mapping[str, str], base: Checkpoint) -> bool:
    """Return whether a base in other files has the content that a delta needs; reads all of it."""
    if CONTENT not in delta or any(t.virtual is not None for t in base.tensors.values()):
        return False
    found = {n: hash_tensor(t, base.remote) for n, t in base.tensors.items()}
    return content_of(found) == delta[CONTENT]


def overlay_delta(agent: Checkpoint, delta: Mapping[str, str], base: Checkpoint) -> Checkpoint:
    """Return the agent of a delta: its elements replace the base's (``Sparse``).

    delta: its metadata. Raises: CompatibilityError for a delta of another base, or a damaged one.
    """
    of = delta.get("base")
    found = _fingerprint(base)
    if found is not None and of != found and not _same_content(delta, base):
        raise CompatibilityError(
            f"{agent.at} is a delta of another base: it was made from {printable(of, 16)}..., "
            f"the base given is {found[:16]}... Give exactly the files it was "
            "made from."
        )
    tensors = dict(base.tensors)
    for stored in agent.tensors.values():
        if stored.name == UNCHANGED:
            continue
        name, _, part = stored.name.rpartition(".")
        below = base.tensors.get(name) if part in ("indices", "values") else None
        places, values = (agent.tensors.get(f"{name}.{what}") for what in ("indices", "values"))
        if (
            below is None
            or places is None
            or values is None
            or values.dtype != below.dtype
            or places.dtype not in ("I32", "I64")
            or not below.numel >= places.numel == values.numel
        ):
            raise CompatibilityError(
                f"{agent.at}: {quoted(stored.name)} does not fit the base's {quoted(name)}; the "
                "file is damaged, make it again."
            )
        sparse = Sparse(below, places, values)
        tensors[name] = places.replaced_by(sparse, name=name, shape=below.shape, dtype=below.dtype)
    return agent.on_base(base, tensors)
