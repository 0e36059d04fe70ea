"""Sparse deltas as agents: changed elements and the base they belong to, as a checkpoint.

The layout is that of TRL's weight synchronisation: for each changed tensor `NAME.indices`, flat and
rising (int32, int64 for larger tensors), and `NAME.values`, the agent's own elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.content_hash import hash_bytes, hash_tensor
from ram_studio.checkpoints.read.derived import Sparse
from ram_studio.checkpoints.read.describe import printable, quoted
from ram_studio.checkpoints.read.header import TensorInfo
from ram_studio.errors import CompatibilityError

CONTENT = "base_content"
"""Key of a delta's metadata: what its base holds, however it is cut into files."""


def content_of(tensors: Mapping[str, str]) -> str:
    """Return one hash of a model's tensors, given each one's BLAKE3 by name."""
    lines = "".join(f"{name}:{digest}\n" for name, digest in sorted(tensors.items()))
    return hash_bytes(lines.encode())


def _same_content(delta: Mapping[str, str], base: Checkpoint) -> bool:
    """Say whether a base in other files holds what a delta was made from; reads all of it."""
    if CONTENT not in delta or any(t.derived is not None for t in base.tensors.values()):
        return False
    return content_of({n: hash_tensor(t) for n, t in base.tensors.items()}) == delta[CONTENT]


def rebuilt(agent: Checkpoint, base: Checkpoint) -> Checkpoint:
    """Return the agent that a delta is of; other checkpoints as they are.

    Raises: CompatibilityError for a delta of another base, or one that does not fit its tensors.
    """
    if base.delta is not None:
        raise CompatibilityError(
            f"{base.at} is a delta; give the whole model that it was made from as the base."
        )
    if agent.delta is None:
        return agent
    at = agent.at
    made = agent.delta.get("base")
    # Of files still on the Hub the fingerprint is another one.
    if base.is_local and made != base.fingerprint and not _same_content(agent.delta, base):
        raise CompatibilityError(
            f"{at} is a delta of another base: it was made from {printable(made, 16)}..., the base "
            f"given is {base.fingerprint[:16]}... Give the base it was made from, the same files."
        )
    tensors = dict(base.tensors)
    for stored in agent.tensors.values():
        name, _, part = stored.name.rpartition(".")
        if part != "indices":
            continue
        below, values = base.tensors.get(name), agent.tensors.get(f"{name}.values")
        if (
            below is None
            or values is None
            or values.dtype != below.dtype
            or stored.dtype not in ("I32", "I64")
            or stored.numel != values.numel
        ):
            raise CompatibilityError(
                f"{at}: {quoted(stored.name)} does not fit the base's {quoted(name)}; the file is "
                "damaged, make it again."
            )
        derived = Sparse(below, stored, values)
        tensors[name] = TensorInfo(
            name, below.dtype, below.shape, stored.path, 0, below.nbytes, derived
        )
    return replace(
        agent,
        tensors=tensors,
        config=base.config,
        is_local=agent.is_local and base.is_local,
        remote={**base.remote, **agent.remote},
    )
