"""Joins the parts of tensors that each rank saved (DTensor, ShardedTensor)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import plural, printable, quoted
from ram_studio.checkpoints.read.stored_bytes import same_bytes
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.virtual.distributed import Box, join_boxes
from ram_studio.convert.names import Keys, choose_names
from ram_studio.convert.sealed import describe_pickles
from ram_studio.convert.torch_files import TorchFile, open_torch_file
from ram_studio.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Shards:
    """A rank's parts of a ShardedTensor, none or several, and the shape of the whole tensor."""

    boxes: tuple[Box, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a DTensor.

    Attributes:
        part: its stored elements.
        shape: of the whole tensor.
        cuts: for each dimension of the mesh: placement, the tensor's dimension, split factor.
        coordinate: the rank's place in the mesh.
    """

    part: TensorInfo
    shape: tuple[int, ...]
    cuts: tuple[tuple[str, int, int | None], ...]
    coordinate: tuple[int, ...]


Part = TensorInfo | Shards | Cut
"""A rank's share of a tensor: all of it, or parts."""


def read_ranks(files: Sequence[Path], key: str | None, at: str) -> dict[str, TensorInfo]:
    """Return the model's tensors by name, in the order of the first file.

    Args: files: of all ranks, in order; one file is a model saved whole; key: see `choose_names`.

    Raises: CheckpointError when files do not fit together, SettingsError as `choose_names`.
    """
    parts: dict[Keys, list[Part]] = {}
    nameless: list[Keys] = []
    for rank, path in enumerate(files):
        for keys, part in _parts_of(path, rank, printable(path)):
            if part is None:
                nameless.append(keys)
            else:
                parts.setdefault(keys, []).append(part)
    names = choose_names(parts.keys(), key, at, nameless)
    return {name: _join_parts(name, parts[keys], at) for keys, name in names.items()}


def read_files(files: Sequence[Path], key: str | None, at: str) -> dict[str, TensorInfo]:
    """Return the tensors of a model whose files hold different ones, each whole."""
    found: dict[Keys, TensorInfo] = {}
    nameless: list[Keys] = []
    for path in files:
        for keys, part in _parts_of(path, 0, printable(path)):
            if part is None:
                nameless.append(keys)
                continue
            if not isinstance(part, TensorInfo):
                raise CheckpointError(
                    f"{printable(path)}: tensor {quoted('.'.join(keys))} is a rank's part of a "
                    "tensor; expected files named ..._rank_0.pt, ..._rank_1.pt, ... of all ranks."
                )
            if keys in found:
                raise CheckpointError(
                    f"{at}: tensor {quoted('.'.join(keys))} is in {printable(path.name)} and in "
                    f"{printable(found[keys].path.name)}; keep the files of one save."
                )
            found[keys] = part
    names = choose_names(found.keys(), key, at, nameless)
    return {name: found[keys] for keys, name in names.items()}


def _parts_of(path: Path, rank: int, at: str) -> Iterator[tuple[Keys, Part | None]]:
    """Yield the tensors in a rank's file, with the keys that lead to them; None: without a name."""
    archive = open_torch_file(path, at)
    for stored_keys, stored in describe_pickles("torch", [archive.pickle], at)[0]:
        keys = tuple(stored_keys)
        if not keys:
            raise CheckpointError(f"{at} holds one tensor without a name, not a model.")
        name = ".".join(keys)
        if not stored:
            yield keys, None
        elif "parts" in stored:
            found = [(archive.tensor(name, part, at), offsets) for part, offsets in stored["parts"]]
            boxes = tuple(Box(info, tuple(offsets), info.shape) for info, offsets in found)
            yield keys, Shards(boxes, tuple(stored["shape"]))
        elif "local" in stored:
            yield keys, _cut(archive, name, stored, rank, at)
        else:
            yield keys, archive.tensor(name, stored, at)


def _cut(archive: TorchFile, name: str, stored: Mapping[str, Any], rank: int, at: str) -> Cut:
    cuts = tuple((kind, dim, split) for kind, dim, split in stored["cuts"])
    unknown = next((c for c in cuts if c[0] not in ("Shard", "_StridedShard", "Replicate")), None)
    coordinate = stored["coordinate"]
    if coordinate is None and len(cuts) == 1:
        coordinate = [rank]
    if unknown or stored["local"] is None or coordinate is None or len(coordinate) != len(cuts):
        raise CheckpointError(
            f"{at}: tensor {quoted(name)} has placement {unknown[0] if unknown else 'unknown'}; "
            "expected Shard or Replicate on every dimension of the mesh. Save the full state dict."
        )
    part = archive.tensor(name, stored["local"], at)
    return Cut(part, tuple(stored["shape"]), cuts, tuple(coordinate))


def _join_parts(name: str, parts: list[Part], at: str) -> TensorInfo:
    """Return a tensor joined from its parts."""
    at = f"{at}: tensor {quoted(name)}"
    first, *others = parts
    if any(type(other) is not type(first) for other in others):
        raise CheckpointError(
            f"{at} is stored in another way by some ranks than by others; the files are not of one "
            "save. Copy those of all ranks."
        )
    if isinstance(first, TensorInfo):
        wholes = [part for part in parts if isinstance(part, TensorInfo)]
        return _same_everywhere(wholes, at).renamed(name)
    boxes = _cut_boxes([part for part in parts if isinstance(part, Cut)], at)
    boxes += [box for part in parts if isinstance(part, Shards) for box in part.boxes]
    whole = join_boxes(boxes, at) if boxes else None
    if whole is None or whole.shape != first.shape:
        made = "nothing" if whole is None else list(whole.shape)
        raise CheckpointError(
            f"{at} has shape {list(first.shape)}, but its parts make {made}; the files of some "
            "ranks are missing. Copy those of all ranks."
        )
    return whole.renamed(name)


def _cut_boxes(cuts: list[Cut], at: str) -> list[Box]:
    """Return the boxes of the ranks' parts of a DTensor, without empty ones."""
    ranks = zip(*(cut.coordinate for cut in cuts), strict=True)
    mesh = tuple(1 + max(of_dimension) for of_dimension in ranks)
    return [_box(cut, mesh, at) for cut in cuts]


def _box(cut: Cut, mesh: tuple[int, ...], at: str) -> Box:
    """Return the box of a rank's part, cut as in torch: equal chunks, the last ones smaller."""
    offsets, sizes = [0] * len(cut.shape), list(cut.shape)
    plain = [i for i, (kind, _, _) in enumerate(cut.cuts) if kind == "Shard"]
    # A strided cut (FSDP over tensor parallelism) applies after the plain cuts right of it.
    strided = [i for i, (kind, _, _) in enumerate(cut.cuts) if kind == "_StridedShard"]
    for i in strided:
        right = [mesh[j] for j in plain if j > i and cut.cuts[j][1] == cut.cuts[i][1]]
        if cut.cuts[i][2] != math.prod(right):
            raise CheckpointError(
                f"{at} is cut in an order that is not read (split factor {cut.cuts[i][2]}, expected"
                f" {math.prod(right)}); save the full state dict."
            )
    for i in [*plain, *strided]:
        dim = cut.cuts[i][1]
        chunk = -(-sizes[dim] // mesh[i])
        begin = min(chunk * cut.coordinate[i], sizes[dim])
        offsets[dim] += begin
        sizes[dim] = min(chunk, sizes[dim] - begin)
    if tuple(sizes) != cut.part.shape:
        raise CheckpointError(
            f"{at}: {printable(cut.part.path.name)} holds a part of shape {list(cut.part.shape)}, "
            f"expected {sizes} of {plural(math.prod(mesh), 'rank')}; the files are not of one save,"
            " or some ranks are missing. Copy those of all ranks."
        )
    return Box(cut.part, tuple(offsets), cut.part.shape)


def _same_everywhere(parts: list[TensorInfo], at: str) -> TensorInfo:
    """Return a tensor that every rank holds whole; refuse parts that differ."""
    first = parts[0]
    for other in parts[1:]:
        is_alike = (other.dtype, other.shape) == (first.dtype, first.shape)
        if not is_alike or not same_bytes(other, first):
            raise CheckpointError(
                f"{at} differs between ranks ({printable(first.path.name)}, "
                f"{printable(other.path.name)}), and neither file has its sharding; save it as "
                "a DTensor (FSDP with a device mesh), or the full state dict."
            )
    return first
