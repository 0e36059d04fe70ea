"""Reads the small files beside the weights, most of them JSON: config, index, tokenizer.

They are untrusted like everything else: links stay in their folder, sizes are bounded,
objects may not repeat a name in the index (where that would hide a shard), and deep nesting is an
error message, not a crash.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.content_hash import blob_of
from ram_studio.checkpoints.read.describe import printable, shown_bytes
from ram_studio.checkpoints.read.header import unique_pairs
from ram_studio.errors import CheckpointError, raise_as

MAX_JSON_BYTES = 256_000_000
MAX_CONFIG_BYTES = 16_000_000

# A parsed object takes many times its text: these bound the memory for a hostile file.
# The largest tokenizers have 260,000 tokens and 520,000 merges, each in its own list.
MAX_COMMAS = 3_000_000
MAX_BRACKETS = 1_500_000


def check_link(path: Path, at: str, *, suffix: str | None = None) -> Path:
    """Return `path` if it is not a link, or a link that may be followed.

    An untrusted folder may hold a link to any private file of its user, which would be copied
    beside a merge and published. A link may lead to a file inside its own folder or to a
    blob of a Hub cache (the cache's snapshots are such links). With `suffix` it may also
    lead to any file with that ending: users who store weights in one place link to
    `.safetensors` files.

    Args:
        path: a file directly inside a checkpoint's folder, or a folder in it.
        at: the start of messages, from `who()`.
        suffix: with its dot.

    Raises: CheckpointError naming the link and where it leads.
    """
    if not path.is_symlink() or blob_of(path) is not None:
        return path
    target = Path(os.path.realpath(path))
    if target.is_relative_to(os.path.realpath(path.parent)):
        return path
    if suffix is not None and target.name.endswith(suffix):
        return path
    raise CheckpointError(
        f"{at}{printable(path)} is a link that leaves its folder, to {printable(target)}; it is "
        "not followed. If you trust it, put a copy of the file in its place."
    )


def read_bounded(path: Path, at: str, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return a file's bytes, at most `limit` of them; at: the start of messages, from `who()`.

    Raises: CheckpointError when the file cannot be read or is larger.
    """
    with raise_as(CheckpointError, f"{at}{printable(path)} cannot be read"):
        if not path.is_file():
            raise CheckpointError(f"{at}{printable(path)} is missing or is not a regular file.")
        with open(path, "rb") as file:
            # `read` allocates the requested size at once: request no more than the file has.
            data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
    if len(data) > limit:
        raise CheckpointError(
            f"{at}{printable(path)} is larger than {shown_bytes(limit)}, the most a file of its "
            "kind may be."
        )
    return data


def parse_json_object(
    data: bytes, path: Path | str, at: str, *, unique: bool = False
) -> dict[str, Any]:
    """Return the JSON object in UTF-8 text (a byte order mark is accepted).

    Args:
        path, at: where it came from, and the start of messages.
        unique: refuse a name that appears twice in one object.

    Raises: CheckpointError when it is not a JSON object, or holds millions of entries.
    """
    if data.count(b",") > MAX_COMMAS or data.count(b"[") + data.count(b"{") > MAX_BRACKETS:
        raise CheckpointError(
            f"{at}{printable(path)} holds more entries than any real file of its kind; it is "
            "damaged or made to exhaust memory, and is not opened."
        )
    try:
        value = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=unique_pairs if unique else None
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(
            f"{at}{printable(path)} is not valid JSON ({printable(reason)}); download it again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{at}{printable(path)} holds a {type(value).__name__}, expected a JSON object."
        )
    return value


def read_json_object(
    path: Path, at: str, *, limit: int = MAX_JSON_BYTES, unique: bool = False
) -> dict[str, Any]:
    """Return the JSON object in a file; see `read_bounded` and `parse_json_object`."""
    return parse_json_object(read_bounded(path, at, limit=limit), path, at, unique=unique)
