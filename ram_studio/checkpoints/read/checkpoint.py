"""An opened checkpoint: its tensors by their headers, its config, its fingerprint.

``opening`` makes one of a folder, a URL or a Hub id.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ram_studio.checkpoints.read.content_hash import blob_of
from ram_studio.checkpoints.read.describe import printable, who
from ram_studio.checkpoints.read.files import Files
from ram_studio.checkpoints.read.header import Header
from ram_studio.checkpoints.read.remote import Remote
from ram_studio.checkpoints.read.tensors import TensorInfo

CONFIG_FILE = "config.json"
QUANTIZATION = "quantization_config"
"""Key of a config that describes quantized weights."""
DELTA_FORMAT = "ram-studio delta 1"
HUB_FINGERPRINT = "hub-"
"""Prefix of the fingerprints of shards that are still on the Hub."""

# Small checkpoints are fingerprinted whole; large ones by this many pages.
WHOLE_FINGERPRINT_BYTES = 16 * 2**20
FINGERPRINT_PAGES = 1024
PAGE_BYTES = 4096
WHOLE_CHUNK_BYTES = 2**20

_HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}))?"
)


_HF_URL = re.compile(
    r"hf://(models/)?(?P<id>[^/@]+/[^/@]+(@(refs/[^/]+/[^/]+|[^/]+))?)(?P<folder>(/[^/]+)*)/?"
)


class CancelSignal(Protocol):
    """Checked by a long step, to learn whether the user pressed Stop."""

    def raise_if_cancelled(self) -> None:
        """Raise `Stopped` after a stop was requested."""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Progress of a download, without files already in the cache.

    Attributes:
        name: "base" or the agent's name.
        source: the Hub id.
        done_bytes: bytes received.
        total_bytes: bytes to receive in all, known before the first one.
        seconds: since the download started.
    """

    name: str
    source: str
    done_bytes: int
    total_bytes: int
    seconds: float


ProgressCallback = Callable[[DownloadProgress], None]


@dataclass(frozen=True)
class Checkpoint:
    """A base model or an agent, known by its headers.

    Attributes:
        name: "base" or the agent's name.
        source: as the user gave it: a folder, or a Hub id.
        folder: where its files are (for a Hub id, the snapshot in the cache).
        tensors: by name, in file order (shards in name order).
        shards: the safetensors files, in name order.
        config: config.json, {} when there is none.
        fingerprint: see `fingerprint_of`.
        nbytes: bytes of all shards together.
        revision: the commit, for a Hub id.
        adapter: adapter_config.json of a LoRA adapter, whose tensors are its factors until it is
            applied to a base (see ``virtual.adapters``); None for whole models.
        delta: metadata of a file of changed elements, whose tensors are indices and values until
            applied to a base (see ``virtual.deltas``); None for whole models.
        is_local: False when only the headers were fetched and the shards are not on this disk.
        remote: the place of shards that are not on this disk, if they may be read.
    """

    name: str
    source: str
    folder: Path
    tensors: dict[str, TensorInfo]
    shards: tuple[Path, ...]
    config: dict[str, Any]
    fingerprint: str
    nbytes: int
    revision: str | None = None
    is_local: bool = True
    adapter: dict[str, Any] | None = None
    delta: dict[str, str] | None = None
    remote: Remote = field(default_factory=dict, compare=False, repr=False)

    @property
    def who(self) -> str:
        """Beginning of messages about it, see ``describe.who``."""
        return who(self.name)

    @property
    def at(self) -> str:
        """Beginning of messages about it as a whole: its name and its place."""
        return f"{self.who}{printable(self.folder)}"

    @property
    def is_readable(self) -> bool:
        """Whether a pass can read its tensors, from this disk or over the network."""
        return self.is_local or bool(self.remote)

    @property
    def dtypes(self) -> dict[str, int]:
        """Stored elements by dtype."""
        found: Counter[str] = Counter()
        for tensor in self.tensors.values():
            found[tensor.dtype] += tensor.numel
        return dict(found)

    @property
    def text_config(self) -> dict[str, Any]:
        """The config's part on the language model beside other towers; {} where it has none."""
        found = self.config.get("text_config")
        return found if isinstance(found, dict) else {}

    def on_base(self, base: Checkpoint, tensors: dict[str, TensorInfo]) -> Checkpoint:
        """Return the whole model of an adapter or a delta, with the base's tensors."""
        return replace(
            self,
            tensors=tensors,
            config=base.config,
            is_local=self.is_local and base.is_local,
            adapter=None,
            delta=None,
            remote={**base.remote, **self.remote},
        )

    def size_of(self, shard: Path) -> int:
        """Return the bytes of one of the shards, wherever it is."""
        place = self.remote.get(shard)
        return shard.stat().st_size if place is None else place.size(shard.name)

    def is_known_as(self, fingerprint: str | None) -> bool:
        """Return whether a fingerprint is of these files, local or still on the Hub."""
        return fingerprint is not None and fingerprint in (self.fingerprint, _as_on_hub(self))


def split_hub_id(source: str) -> tuple[str, str | None] | None:
    """Return (repository, revision or None) when `source` is spelled like a Hub id, else None."""
    match = _HUB_ID.fullmatch(source)
    if match is None or ".." in source or "--" in match["repository"]:
        return None
    return match["repository"], match["revision"]


def split_hf_url(source: str) -> tuple[tuple[str, str | None], str] | None:
    """Return the Hub id in the URL of a model on the Hub, and the folder in it as "runs/1/".

    None for anything else, also for data sets, spaces and buckets.
    """
    match = _HF_URL.fullmatch(source)
    found = match and split_hub_id(match["id"].replace("%2F", "/"))
    if not match or not found or match["id"].startswith(("datasets/", "spaces/", "buckets/")):
        return None
    folder = match["folder"].strip("/")
    if ".." in folder.split("/"):
        return None
    return found, f"{folder}/" if folder else ""


def hub_fingerprint(contents: list[str]) -> str:
    """Return the fingerprint of shards on the Hub; contents: name and hash of each."""
    return HUB_FINGERPRINT + hashlib.blake2b("\n".join(contents).encode()).hexdigest()[:60]


def _as_on_hub(checkpoint: Checkpoint) -> str | None:
    """Return the fingerprint that shards in the Hub's cache had before they were downloaded."""
    if not checkpoint.is_local or checkpoint.revision is None:
        return None
    blobs = [(path.name, blob_of(path)) for path in checkpoint.shards]
    return hub_fingerprint([f"{name}:{blob.name if blob else ''}" for name, blob in blobs])


def fingerprint_of(headers: list[Header], files: Files) -> str:
    """Return the fingerprint of a checkpoint: 64 hex digits that change when its weights do.

    BLAKE2b over each shard's file name, size and header, in name order, and over content: all data
    when the shards together take at most 16 MiB, else 1024 pages of 4 KiB spread evenly over the
    checkpoint's data. A change outside the sampled pages of a large checkpoint is not detected, so
    a fingerprint identifies an analysis but does not prove it: the merge pass counts again and
    refuses an analysis whose counts differ.

    Raises: CheckpointError when a shard cannot be read.
    """
    digest = hashlib.blake2b(digest_size=32, person=b"ram-studio-ckpt")
    sizes = [header.file_size - header.data_start for header in headers]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    total = sum(sizes)
    whole = sum(header.file_size for header in headers) <= WHOLE_FINGERPRINT_BYTES
    last = FINGERPRINT_PAGES - 1
    pages = [] if whole else [i * (total - PAGE_BYTES) // last for i in range(last + 1)]
    for header, start, size in zip(headers, starts, sizes, strict=True):
        name = header.path.name
        for part in (os.fsencode(name), str(header.file_size).encode(), header.raw):
            digest.update(len(part).to_bytes(8, "little") + part)
        # A page that begins in this shard does not go beyond its end.
        spans = [(page - start, PAGE_BYTES) for page in pages if start <= page < start + size]
        if whole:
            spans = [(at, WHOLE_CHUNK_BYTES) for at in range(0, size, WHOLE_CHUNK_BYTES)]
        spans = [(header.data_start + at, min(count, size - at)) for at, count in spans]
        for data in files.fetch_spans(name, spans):
            digest.update(data)
    return digest.hexdigest()
