"""Content hashes of files, as "sha256:<hex>" or "blake3:<hex>".

The Hub's cache names large files by their SHA-256, so a download's hash is known without
reading it; every other file gets BLAKE3, which is several times faster to compute.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import blake3

from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import CheckpointError, raise_as

CHUNK_BYTES = 1 << 20
"""Bytes that are read and hashed at a time: they stay in a core's cache."""

_SHARED_CHUNK_BYTES = 4 << 20
"""The same for several cores."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
CONTENT_HASH = r"^(sha256|blake3):[0-9a-f]{64}$"
# Everything besides the weights that affects an answer.
_BEHAVIOR_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("tokenizer.model", "chat_template.jinja"),
)


class Hasher(Protocol):
    """Common interface of both algorithms."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all bytes."""


def known_hash(path: Path) -> str | None:
    """Return the hash by which the Hub's cache stores a file, or None for any other file.

    A snapshot's file is a link to `models--owner--name/blobs/<sha256>`. (Small files have a Git
    hash of 40 digits, which is not one of their content alone.)
    """
    target = blob_of(path)
    if target is None or not _SHA256.fullmatch(target.name):
        return None
    return f"sha256:{target.name}"


def blob_of(path: Path) -> Path | None:
    """Return the blob in a Hub cache that `path` is a link to, or None."""
    if not path.is_symlink():
        return None
    target = Path(os.path.realpath(path))
    is_cache = target.parent.name == "blobs" and "--" in target.parent.parent.name
    return target if is_cache else None


def make_hasher(algorithm: str) -> Hasher:
    """Return an empty hasher: "sha256", or "blake3" on the thread that uses it."""
    return hashlib.sha256() if algorithm == "sha256" else blake3.blake3()


def _reading(path: Path) -> AbstractContextManager[None]:
    advice = "check the disk, or fetch the file again"
    return raise_as(CheckpointError, f"{printable(path)} cannot be read", advice)


def blake3_of(path: Path) -> str:
    """Return a file's BLAKE3 as 64 hex digits, hashed by all cores.

    It is read in chunks, as a memory map's pages would count as memory.

    Raises: CheckpointError when it cannot be read.
    """
    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
    buffer = memoryview(bytearray(_SHARED_CHUNK_BYTES))
    with _reading(path), open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return str(hasher.hexdigest())


def model_fingerprint(folder: Path, weights: str) -> str:
    """Return 32 hex digits that change when a model's answers may change.

    Args:
        folder: of the model; its config, tokenizer and chat template count, missing ones too.
        weights: fingerprint of the weights, see `fingerprint_of`.

    Raises: OSError when an existing file cannot be read.
    """
    digest = hashlib.blake2b(weights.encode(), digest_size=16)
    for name in _BEHAVIOR_FILES:
        file = folder / name
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def hash_bytes(data: bytes) -> str:
    """Return the BLAKE3 of some bytes as 64 hex digits."""
    return blake3.blake3(data).hexdigest()


def hash_json(values: Mapping[str, Any]) -> str:
    """Return the BLAKE3 of plain data as JSON: keys sorted, no spaces, UTF-8."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hash_bytes(text.encode("utf-8", "surrogatepass"))
