"""Which tensor goes into which shard, and every shard's header: pure functions of names and sizes.

No file is touched here; the writer allocates what this module lays out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ram_studio.checkpoints.read.describe import quoted
from ram_studio.checkpoints.read.header import HEADER_METADATA, LENGTH_BYTES
from ram_studio.checkpoints.read.shard_files import INDEX_FILE, SINGLE_FILE
from ram_studio.checkpoints.read.tensors import DTYPE_BITS, element_count
from ram_studio.errors import SettingsError

METADATA: Mapping[str, str] = {"format": "pt"}
"""Metadata of every shard, which transformers requires."""

TensorSpec = tuple[str, str, tuple[int, ...]]
"""Name, safetensors dtype, shape."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file to be written.

    Attributes:
        file_name: its final name.
        head: the file's first bytes: length and JSON header, a multiple of 8 bytes.
        offsets: per tensor, start of its data in the file, and its bytes.
        file_size: of the finished file, in bytes.
    """

    file_name: str
    head: bytes
    offsets: dict[str, tuple[int, int]]
    file_size: int


def plan_shards(sizes: Sequence[tuple[str, int]], max_shard_bytes: int) -> list[list[str]]:
    """Return the tensor names of each shard: filled in order, none above `max_shard_bytes`.

    A larger tensor has its own shard. Names keep their order over all shards; no shard is
    empty, and no tensors give no shards.

    Args:
        sizes: (name, bytes) of each tensor, in file order.
        max_shard_bytes: the most bytes of tensor data in one shard, at least 1.

    Raises: SettingsError when max_shard_bytes is below 1.
    """
    if max_shard_bytes < 1:
        raise SettingsError(f"The largest shard is {max_shard_bytes} bytes; expected 1 or more.")
    shards: list[list[str]] = []
    used = 0
    for name, size in sizes:
        if not shards or used + size > max_shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def lay_out(
    tensors: Sequence[TensorSpec], max_shard_bytes: int, metadata: Mapping[str, str] = METADATA
) -> list[Shard]:
    """Return the shards of a checkpoint, with the names of `save_pretrained`.

    Inside a shard wider dtypes come first, so that every tensor starts at a multiple of its
    element size (readers map the file and view it); otherwise the order is unchanged.

    Args:
        tensors: at least one; names all different; dtypes of whole bytes.
        max_shard_bytes: see `plan_shards`.
        metadata: free text pairs for every shard's header.
    """
    specs = {name: (dtype, shape) for name, dtype, shape in tensors}
    assert 0 < len(specs) == len(tensors), "a checkpoint has tensors of different names"
    sizes = {name: tensor_bytes(dtype, shape) for name, (dtype, shape) in specs.items()}
    plan = plan_shards(list(sizes.items()), max_shard_bytes)
    shards = []
    for number, names in enumerate(plan, start=1):
        file_name = SINGLE_FILE
        if len(plan) > 1:
            file_name = f"model-{number:05d}-of-{len(plan):05d}.safetensors"
        ordered = sorted(names, key=lambda name: -DTYPE_BITS[specs[name][0]])
        entries: dict[str, object] = {HEADER_METADATA: dict(metadata)}
        begins, end = {}, 0
        for name in ordered:
            begins[name] = end
            end += sizes[name]
            dtype, shape = specs[name]
            entries[name] = {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [begins[name], end],
            }
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(LENGTH_BYTES, "little") + text
        offsets = {name: (len(head) + begin, sizes[name]) for name, begin in begins.items()}
        shards.append(Shard(file_name, head, offsets, len(head) + end))
    return shards


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes a tensor takes in a file."""
    assert DTYPE_BITS[dtype] % 8 == 0, f"{quoted(dtype)} is not written"
    return element_count(shape) * DTYPE_BITS[dtype] // 8


def index_files(shards: Sequence[Shard]) -> dict[str, bytes]:
    """Return model.safetensors.index.json by its name; {} for a single shard.

    It has tensor -> shard, and the bytes of all tensor data.
    """
    if len(shards) == 1:
        return {}
    weight_map = {name: shard.file_name for shard in shards for name in shard.offsets}
    total = sum(nbytes for shard in shards for _, nbytes in shard.offsets.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return {INDEX_FILE: (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()}
