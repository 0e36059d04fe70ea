"""Reads the header of a safetensors file: names, places and dtypes of its tensors.

The header is untrusted, so every number in it is checked against the file before it is used: a
reader of `TensorInfo` may map `nbytes` bytes at `offset` without further checks.
The format is https://huggingface.co/docs/safetensors/index#format; the limits here are the
library's own (100 MB of header, no holes, no overlap, no duplicate names). Tensor data is never
read here.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import printable, quoted, shown_bytes, shown_shape
from ram_studio.checkpoints.read.tensors import DTYPE_BITS, TensorInfo, element_count
from ram_studio.errors import CheckpointError, raise_as

HEADER_METADATA = "__metadata__"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSION = 2**63 - 1
MAX_RANK = 64
# A parsed header takes many times its text: these bound the memory for a hostile one to about
# 300 MB. Each tensor opens two lists and holds some seven commas: 100,000 tensors in one
# file are far beyond any published shard.
MAX_LISTS = 200_000
MAX_COMMAS = 1_000_000


@dataclass(frozen=True, slots=True)
class Header:
    """One shard's header: tensors in file order, the free-form metadata, and the bytes read."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    raw: bytes
    file_size: int

    @property
    def data_start(self) -> int:
        """Byte offset at which the tensors' data begins."""
        return LENGTH_BYTES + len(self.raw)


def read_header(path: str | Path, who: str = "") -> Header:
    """Return the header of a safetensors file; who: starts messages, see ``describe.who``.

    Raises: CheckpointError when the file is missing, is not safetensors, is truncated or holds
    anything the format forbids. The message names the agent, the file and the tensor.
    """
    path = Path(path)
    at = f"{who}{printable(path)}"
    advice = "check that the file exists and that you may read it"
    with raise_as(CheckpointError, f"{at} cannot be read", advice):
        # A pipe or a device with a shard's name would block or never end: check before opening.
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(
                f"{at} is not a regular file; give a folder that holds safetensors files."
            )
        with open(path, "rb") as file:
            length = header_length(file.read(LENGTH_BYTES), status.st_size, at)
            raw = file.read(min(length, 1))
            if raw == b"{":  # else refused below, without reading up to 100 MB
                raw += file.read(length - 1)
    return parse_header(raw, who, file_size=status.st_size, path=path)


def header_length(prefix: bytes, file_size: int, at: str) -> int:
    """Return the header's length in bytes from a file's first eight bytes.

    They are a little-endian unsigned length, and fewer when the file is shorter; at: the file's
    name in messages.

    Raises: CheckpointError when the length cannot be right.
    """
    if file_size < LENGTH_BYTES or len(prefix) < LENGTH_BYTES:
        raise CheckpointError(
            f"{at} is cut short: {file_size} bytes, a safetensors file has at least 8; download or "
            "copy it again."
        )
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        hint = "this is not a safetensors file"
        if prefix.startswith(b"version "):
            hint = "this is a Git LFS pointer, not the file itself: run `git lfs pull`"
        raise CheckpointError(
            f"{at} announces a header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed; "
            f"{hint}."
        )
    if LENGTH_BYTES + length > file_size:
        raise CheckpointError(
            f"{at} is cut short: its header takes {length} bytes, the file has {file_size} in all; "
            "download or copy it again."
        )
    return length


def parse_header(raw: bytes, who: str = "", *, file_size: int, path: Path) -> Header:
    """Check a header's bytes against the format and the file's size, and return the `Header`.

    Args:
        raw: the JSON header without its 8-byte length; who: starts messages.
        file_size: size of the whole file in bytes (local, or as reported by the Hub).
        path: the shard, for every `TensorInfo`.

    Raises: CheckpointError, as `read_header`.
    """
    at = f"{who}{printable(path)}"
    entries = _parse_json(raw, at)
    metadata = _checked_metadata(entries.pop(HEADER_METADATA, {}), at)
    data_start = LENGTH_BYTES + len(raw)
    tensors = []
    for name, entry in entries.items():
        try:
            tensors.append(_checked_tensor(name, entry, path, data_start))
        except ValueError as error:
            raise CheckpointError(f"{at}: tensor {quoted(name)} {error}") from error
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            raise CheckpointError(
                f"{at}: tensor {quoted(tensor.name)} starts at data byte "
                f"{tensor.offset - data_start}, the one before it ends at {end - data_start}; "
                "tensors must follow one another without holes or overlap. The file is damaged: "
                "download or write it again."
            )
        end += tensor.nbytes
    if end != file_size:
        found, expected = file_size, end
        state = "is cut short" if found < expected else "has bytes that belong to no tensor"
        raise CheckpointError(
            f"{at} {state}: it has {found} bytes, its header describes {expected} "
            f"({shown_bytes(abs(expected - found))} {'missing' if found < expected else 'extra'}); "
            "download or copy it again."
        )
    return Header(path, {tensor.name: tensor for tensor in tensors}, metadata, raw, file_size)


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, refusing a name that appears twice (`object_pairs_hook` of `json`)."""
    found = dict(pairs)
    if len(found) != len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name, count in times.items() if count > 1)
        raise ValueError(f"{quoted(twice)} appears twice")
    return found


def _parse_json(raw: bytes, at: str) -> dict[str, Any]:
    """Return the header's JSON object, refusing anything deep, huge, ambiguous or not UTF-8."""
    if not raw.startswith(b"{"):
        raise CheckpointError(
            f"{at} is not a safetensors file: its header starts with {raw[:4]!r}, not with '{{'."
        )
    if raw.count(b"[") > MAX_LISTS or raw.count(b",") > MAX_COMMAS:
        raise CheckpointError(
            f"{at}: the header holds more lists than any real checkpoint; the file is damaged or "
            "made to exhaust memory, and is not opened."
        )
    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_pairs)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(
            f"{at} is not a safetensors file or is damaged: its header is not valid JSON "
            f"({printable(reason)}); download or write it again."
        ) from error
    assert isinstance(entries, dict), "JSON that starts with '{' is an object"
    return entries


def _checked_metadata(metadata: Any, at: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(
            f"{at}: the header's __metadata__ must map text to text; write the file again with "
            "the safetensors library."
        )
    return metadata


def _is_count(value: Any) -> bool:
    # bool is an int in Python, but `true` is not a dimension.
    return type(value) is int and 0 <= value <= MAX_DIMENSION


def _checked_tensor(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    """Return one tensor after all checks that its entry alone allows.

    Raises: ValueError with the reason.
    """
    if not name.isprintable():  # line breaks, control characters, half of a surrogate pair
        raise ValueError("has characters in its name that cannot be printed; the file is damaged.")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(
            "is not described by exactly dtype, shape and data_offsets; the file is damaged."
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(
            f"has the unknown dtype {printable(dtype, 40)}; convert it to bfloat16, float16 or "
            "float32 first."
        )
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_count, shape)):
        raise ValueError(
            f"has the shape {printable(shape, 60)}; expected at most {MAX_RANK} whole numbers that "
            "are not negative."
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise ValueError(f"has the data_offsets {printable(offsets, 60)}; expected [begin, end].")
    begin, end = offsets
    bits = element_count(tuple(shape)) * DTYPE_BITS[dtype]
    if end < begin or bits != 8 * (end - begin):
        raise ValueError(
            f"of dtype {dtype} and shape {shown_shape(shape)} takes "
            f"{printable(Fraction(bits, 8), 40)} bytes, its data_offsets {begin}..{end} give "
            f"{end - begin}; the file is damaged."
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, end - begin)
