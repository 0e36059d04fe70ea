"""torch's distributed checkpoints (DCP) with safetensors shards: tensors joined from boxes.

``HuggingFaceStorageWriter(save_distributed=True)`` writes separate files for each rank. They hold
boxes of tensors, and a header's DCP_SHARDING_INFO has the offsets of each in the whole tensor; the
end of the last box is the size of the whole. They contain no pickle.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ram_studio.checkpoints.read.describe import plural, printable, quoted
from ram_studio.checkpoints.read.files import Files
from ram_studio.checkpoints.read.header import MAX_DIMENSION, Header
from ram_studio.checkpoints.read.remote import Remote, RemoteFiles
from ram_studio.checkpoints.read.stored_bytes import same_bytes
from ram_studio.checkpoints.read.tensors import TensorInfo, TensorReader, VirtualTensor
from ram_studio.errors import CheckpointError

SHARDING_INFO = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"


@dataclass(frozen=True, slots=True)
class Box:
    """A tensor that is a box of a larger one.

    Attributes:
        part: its elements, in the order of the box.
        offsets: start of the box along each dimension of the larger tensor.
        shape: of the box, with the larger tensor's number of dimensions.
    """

    part: TensorInfo
    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def rows(self, lead: tuple[int, ...], first: int, last: int) -> tuple[np.ndarray, int]:
        """Return which rows first ... last - 1 of the larger tensor are in the box.

        lead: the larger tensor's shape without its columns. Rows follow one another in the box; the
        second value is the number there of the first of them.
        """
        begins, sizes = self.offsets[: len(lead)], self.shape[: len(lead)]
        lowest = int(np.ravel_multi_index(begins, lead))
        ends = tuple(begin + size - 1 for begin, size in zip(begins, sizes, strict=True))
        highest = int(np.ravel_multi_index(ends, lead))
        rows = np.arange(max(first, lowest), min(last, highest + 1))
        if not len(rows):
            return rows, 0
        places = np.unravel_index(rows, lead)
        inside = np.ones(len(rows), dtype=bool)
        for place, begin, size in zip(places, begins, sizes, strict=True):
            inside &= (place >= begin) & (place < begin + size)
        rows = rows[inside]
        if not len(rows):
            return rows, 0
        at = [int(place[inside][0]) - begin for place, begin in zip(places, begins, strict=True)]
        return rows, int(np.ravel_multi_index(at, sizes))


@dataclass(frozen=True, slots=True)
class Boxes(VirtualTensor):
    """A tensor of boxes: they fill it without overlap, and all have its dtype."""

    boxes: tuple[Box, ...]

    def parts(self) -> Iterator[TensorInfo]:
        """Yield the tensors that it is joined from."""
        return (box.part for box in self.boxes)

    def read_into(
        self, tensor: TensorInfo, reader: TensorReader, byte_start: int, buffer: memoryview
    ) -> None:
        """Fill a buffer with bytes of the tensor.

        Each box has consecutive rows: the bytes of a box as wide as the tensor are read directly
        into the buffer; of narrower boxes, the needed rows are read whole.
        """
        width = tensor.element_bytes
        start, stop = byte_start // width, (byte_start + len(buffer)) // width
        if start >= stop:
            return
        # A vector is read as a matrix of one column.
        lead, columns = (tensor.shape, 1) if len(tensor.shape) < 2 else (tensor.shape[:-1], 0)
        columns = columns or tensor.shape[-1]
        first, last = start // columns, -(-stop // columns)
        out = np.frombuffer(buffer, dtype=f"u{width}")
        for box in self.boxes:
            rows, begin = box.rows(lead, first, last)
            if not len(rows):
                continue
            wide = box.shape[-1] if len(tensor.shape) > 1 else 1
            if wide == columns and rows[-1] - rows[0] + 1 == len(rows):
                low = max(start, int(rows[0]) * columns)
                high = min(stop, (int(rows[-1]) + 1) * columns)
                place = (begin * columns + low - int(rows[0]) * columns) * width
                part = buffer[(low - start) * width : (high - start) * width]
                reader.read_into(box.part, place, part)
                continue
            found = np.empty((len(rows), wide), dtype=out.dtype)
            reader.read_into(box.part, begin * wide * width, found.data.cast("B"))
            left = box.offsets[-1] if len(tensor.shape) > 1 else 0
            places = rows[:, None] * columns + np.arange(left, left + wide) - start
            inside = (places >= 0) & (places < len(out))
            out[places[inside]] = found[inside]


def collect_boxes(files: Files, headers: Sequence[Header]) -> dict[str, TensorInfo]:
    """Return the tensors of a distributed checkpoint by name, those in several boxes as ``Boxes``.

    Raises: CheckpointError when a header lacks the offsets of its boxes, or when the boxes of a
    tensor leave a hole, overlap, or differ in dtype, or in content at the same place.
    """
    paths = (header.path for header in headers)
    remote: Remote = dict.fromkeys(paths, files) if isinstance(files, RemoteFiles) else {}
    at = f"{files.who}{printable(files.folder)}"
    boxes: dict[str, list[Box]] = {}
    for header in headers:
        for tensor, offsets in zip(
            header.tensors.values(), _offsets(header, files.who), strict=True
        ):
            boxes.setdefault(tensor.name, []).append(Box(tensor, offsets, tensor.shape))
    return {
        tensor: join_boxes(own, f"{at}: tensor {quoted(tensor)}", remote)
        for tensor, own in boxes.items()
    }


def _offsets(header: Header, who: str) -> list[tuple[int, ...]]:
    """Return the offsets of each of a file's tensors in the whole one, in the header's order."""
    at = f"{who}{printable(header.path)}"
    try:
        sharding: Any = json.loads(header.metadata.get(SHARDING_INFO, "null"))
    except (ValueError, RecursionError):
        sharding = None
    found = []
    for tensor in header.tensors.values():
        entry = sharding.get(tensor.name) if isinstance(sharding, dict) else None
        offsets = entry.get(_OFFSETS) if isinstance(entry, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != len(tensor.shape)
            or not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in offsets)
        ):
            raise CheckpointError(
                f"{at} is named like a part of a torch distributed checkpoint (DCP), but its "
                f"header has no offsets of {quoted(tensor.name)} in {SHARDING_INFO}; save "
                "the checkpoint again, or join it with consolidate_safetensors_files."
            )
        found.append(tuple(offsets))
    return found


def join_boxes(boxes: list[Box], at: str, remote: Remote = MappingProxyType({})) -> TensorInfo:
    """Return the tensor of some boxes, which must be a grid without holes.

    A replicated box may be stored by several ranks, with the same bytes. at: starts messages.
    Raises: CheckpointError, as `collect_boxes`.
    """
    places: dict[object, Box] = {}
    for box in boxes:
        first = places.setdefault((box.offsets, box.shape), box).part
        is_alike = box.part.dtype == first.dtype
        if not is_alike or not same_bytes(first, box.part, remote=remote):
            raise CheckpointError(
                f"{at} has two parts at offsets {list(box.offsets)} that differ "
                f"({printable(first.path.name)}, {printable(box.part.path.name)}); copy the files "
                "of all ranks of one save, and nothing else."
            )
    boxes = list(places.values())
    boxes = [box for box in boxes if box.part.numel] or boxes[:1]
    first = boxes[0].part
    if (dtypes := {box.part.dtype for box in boxes}) != {first.dtype}:
        raise CheckpointError(
            f"{at} has parts of different dtypes ({', '.join(sorted(dtypes))}); save it again."
        )
    if len({len(box.shape) for box in boxes}) > 1:
        raise CheckpointError(f"{at} has parts of different dimensions; save it again.")
    rank = range(len(first.shape))
    shape = tuple(max(box.offsets[d] + box.shape[d] for box in boxes) for d in rank)
    begins = [sorted({box.offsets[d] for box in boxes}) for d in rank]
    ends = [
        dict(itertools.pairwise([*begin, end])) for begin, end in zip(begins, shape, strict=True)
    ]
    is_grid = len({box.offsets for box in boxes}) == len(boxes) == math.prod(map(len, begins))
    if first.numel and not (
        is_grid
        and all(begin[0] == 0 for begin in begins)
        and all(b.offsets[d] + b.shape[d] == ends[d][b.offsets[d]] for b in boxes for d in rank)
    ):
        raise CheckpointError(
            f"{at} of shape {list(shape)} is not complete in the {plural(len(boxes), 'part')} that "
            "were found; copy the files of all ranks of one save, and nothing else."
        )
    if len(boxes) == 1:
        return first
    boxes = sorted(boxes, key=lambda box: box.offsets)
    return boxes[0].part.replaced_by(Boxes(tuple(boxes)), name=first.name, shape=shape)
