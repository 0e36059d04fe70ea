"""torch's distributed checkpoints (DCP) with safetensors shards: boxes of tensors, put together.

``HuggingFaceStorageWriter(save_distributed=True)`` writes files of its own for each rank. They hold
boxes of tensors, and a header's DCP_SHARDING_INFO says where in the whole tensor each begins; the
whole is as large as its boxes reach. No pickle is there to be read.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.derived import Tile, Tiled
from ram_studio.checkpoints.read.describe import plural, printable, quoted, who
from ram_studio.checkpoints.read.header import DTYPE_BITS, MAX_DIMENSION, Header, TensorInfo
from ram_studio.errors import CheckpointError

SHARDING_INFO = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"


def collect_boxes(headers: Sequence[Header], folder: Path, *, name: str) -> dict[str, TensorInfo]:
    """Return the tensors of a distributed checkpoint by name, those in several boxes as ``Tiled``.

    Raises: CheckpointError when a header does not say where its boxes lie, or when the boxes of a
    tensor leave a hole, overlap, or differ in dtype.
    """
    at = f"{who(name)}{printable(folder)}"
    boxes: dict[str, list[Tile]] = {}
    for header in headers:
        for tensor, offsets in zip(header.tensors.values(), _offsets(header, name), strict=True):
            tile = Tile(tensor, offsets, tensor.shape)
            found = boxes.setdefault(tensor.name, [])
            # What all ranks hold may be stored by several of them.
            if all((t.offsets, t.shape) != (offsets, tensor.shape) for t in found):
                found.append(tile)
    return {
        tensor: _whole(tiles, f"{at}: tensor {quoted(tensor)}") for tensor, tiles in boxes.items()
    }


def _offsets(header: Header, name: str) -> list[tuple[int, ...]]:
    """Return where each of a file's tensors begins in the whole one, in the header's order."""
    at = f"{who(name)}{printable(header.path)}"
    try:
        told: Any = json.loads(header.metadata.get(SHARDING_INFO, "null"))
    except (ValueError, RecursionError):
        told = None
    found = []
    for tensor in header.tensors.values():
        entry = told.get(tensor.name) if isinstance(told, dict) else None
        offsets = entry.get(_OFFSETS) if isinstance(entry, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != len(tensor.shape)
            or not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in offsets)
        ):
            raise CheckpointError(
                f"{at} is called like a part of a torch distributed checkpoint (DCP), but its "
                f"header does not say in {SHARDING_INFO} where {quoted(tensor.name)} lies; save "
                "the checkpoint again, or put it together with consolidate_safetensors_files."
            )
        found.append(tuple(offsets))
    return found


def _whole(tiles: list[Tile], at: str) -> TensorInfo:
    """Return the tensor of some boxes, which must be a grid of them without holes."""
    tiles = [tile for tile in tiles if tile.part.numel] or tiles[:1]
    first = tiles[0].part
    if (dtypes := {tile.part.dtype for tile in tiles}) != {first.dtype}:
        raise CheckpointError(
            f"{at} has parts of different dtypes ({', '.join(sorted(dtypes))}); save it again."
        )
    if len({len(tile.shape) for tile in tiles}) > 1:
        raise CheckpointError(f"{at} has parts of different dimensions; save it again.")
    rank = range(len(first.shape))
    shape = tuple(max(tile.offsets[d] + tile.shape[d] for tile in tiles) for d in rank)
    begins = [sorted({tile.offsets[d] for tile in tiles}) for d in rank]
    ends = [
        dict(itertools.pairwise([*begin, end])) for begin, end in zip(begins, shape, strict=True)
    ]
    is_grid = len({tile.offsets for tile in tiles}) == len(tiles) == math.prod(map(len, begins))
    if first.numel and not (
        is_grid
        and all(begin[0] == 0 for begin in begins)
        and all(t.offsets[d] + t.shape[d] == ends[d][t.offsets[d]] for t in tiles for d in rank)
    ):
        raise CheckpointError(
            f"{at} of shape {list(shape)} is not complete in the {plural(len(tiles), 'part')} that "
            "are here; copy the files of all ranks of one save, and nothing else."
        )
    if len(tiles) == 1:
        return first
    tiles = sorted(tiles, key=lambda tile: tile.offsets)
    nbytes = math.prod(shape) * DTYPE_BITS[first.dtype] // 8
    return replace(tiles[0].part, shape=shape, offset=0, nbytes=nbytes, derived=Tiled(tuple(tiles)))
