"""A checkpoint: a folder of safetensors shards, opened by reading headers only.

Owns opening a local folder, and the fingerprint by which sketches and passports recognise their
sources. Which files make up a model is shard_files.py's business, the network that of hub/.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ram_studio.checkpoints.read.content_hash import blob_of
from ram_studio.checkpoints.read.describe import plural, printable, quoted, shown_list, who
from ram_studio.checkpoints.read.distributed import collect_boxes
from ram_studio.checkpoints.read.header import Header, TensorInfo, read_header
from ram_studio.checkpoints.read.json_files import MAX_CONFIG_BYTES, check_link, read_json_object
from ram_studio.checkpoints.read.remote import Remote
from ram_studio.checkpoints.read.shard_files import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    find_shards,
    is_distributed,
)
from ram_studio.errors import CheckpointError, told_as

CONFIG_FILE = "config.json"
QUANTIZATION = "quantization_config"
"""Key of a config under which codes that stand for weights are described."""
DELTA_FORMAT = "ram-studio delta 1"

# Small checkpoints are fingerprinted whole; of large ones this many pages are read.
WHOLE_FINGERPRINT_BYTES = 16 * 2**20
FINGERPRINT_PAGES = 1024
PAGE_BYTES = 4096
WHOLE_PIECE_BYTES = 2**20
REMOTE_READERS = 16

_HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}))?"
)


class CancelSignal(Protocol):
    """What a long step asks to learn whether the user pressed Stop."""

    def raise_if_cancelled(self) -> None:
        """Raise `Stopped` when the job was asked to stop."""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is. Bytes of files already in the cache are not counted.

    Attributes:
        name: "base" or the agent's name.
        source: the Hub id.
        done_bytes: bytes received so far.
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
            applied to a base (see ``fit.on_base``); None for whole models.
        delta: metadata of a file of changed elements, whose tensors are indices and values until it
            is put on a base (see ``fit.on_base``); None for whole models.
        is_local: False when only the headers were fetched and the shards are not on this disk.
        remote: where shards are read from that are not on this disk, if they may be.
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
        """How messages about it start, see ``describe.who``."""
        return who(self.name)

    @property
    def at(self) -> str:
        """How messages about it as a whole start: who it is, and where it lies."""
        return f"{self.who}{printable(self.folder)}"

    @property
    def is_readable(self) -> bool:
        """Whether a pass can read its tensors: from this disk, or from where they are."""
        return self.is_local or bool(self.remote)

    @property
    def dtypes(self) -> dict[str, int]:
        """Stored elements by dtype."""
        found: Counter[str] = Counter()
        for tensor in self.tensors.values():
            found[tensor.dtype] += tensor.numel
        return dict(found)

    def size_of(self, shard: Path) -> int:
        """Return the bytes of one of the shards, wherever it is."""
        place = self.remote.get(shard)
        return shard.stat().st_size if place is None else place.size(shard)

    def is_known_as(self, fingerprint: str | None) -> bool:
        """Say whether a fingerprint is of these files, made of them here or while on the Hub."""
        return fingerprint is not None and fingerprint in (self.fingerprint, _as_on_hub(self))


def split_hub_id(source: str) -> tuple[str, str | None] | None:
    """Return (repository, revision or None) when `source` is spelt like a Hub id, else None."""
    match = _HUB_ID.fullmatch(source)
    if match is None or ".." in source or "--" in match["repository"]:
        return None
    return match["repository"], match["revision"]


def is_local_source(source: str | Path, *, name: str) -> bool:
    """Say whether `source` is a folder here (True) or is to be asked from the Hub (False).

    Raises: CheckpointError when it is neither a folder that exists nor spelt like a Hub id.
    """
    text = str(source)
    try:
        if text and "\0" not in text and Path(text).expanduser().exists():
            return True
    except PermissionError as error:
        raise CheckpointError(
            f"{who(name)}{printable(text)} cannot be read: {error.strerror}; check its permissions."
        ) from error
    except (OSError, RuntimeError):  # a name too long, a `~user` who does not exist
        pass
    if isinstance(source, str) and split_hub_id(text) is not None:
        return False
    raise CheckpointError(
        f"{who(name)}{printable(text) or 'an empty path'} is neither a folder here nor a Hub id "
        "of the form owner/name[@revision]; check the spelling."
    )


def open_folder(
    folder: str | Path, *, name: str, source: str | None = None, revision: str | None = None
) -> Checkpoint:
    """Open a local folder of safetensors shards by reading its headers.

    Args:
        folder: the folder; a single file `model.safetensors`, or shards with or without an index.
            Or a delta, see `fit.on_base`: the file itself.
        name: "base" or the agent's name.
        source: what the user gave, when that is not the folder itself.
        revision: the commit, when the folder is a Hub snapshot.

    Raises: CheckpointError, one line naming the agent and the file.
    """
    at = who(name)
    source = str(folder) if source is None else source
    folder = Path(os.path.expanduser(folder))
    if folder.suffix == ".safetensors" and folder.is_file():
        header = read_header(folder, agent=name)
        if header.metadata.get("format") == DELTA_FORMAT:
            opened = assemble([header], folder, name=name, source=source)
            return replace(opened, delta=header.metadata)
    if not folder.is_dir():
        hint = " (a file: give the folder it lies in)" if folder.is_file() else ""
        raise CheckpointError(
            f"{at}{printable(folder)} is not a folder{hint}; expected a folder with safetensors "
            "files."
        )
    with told_as(CheckpointError, f"{at}{printable(folder)} cannot be listed"):
        names = sorted(os.listdir(folder))
    shard_names, weight_map = find_shards(names, folder, name=name)
    paths = [check_link(folder / shard, at, suffix=".safetensors") for shard in shard_names]
    headers = [read_header(path, agent=name) for path in paths]
    return assemble(
        headers, folder, name=name, source=source, revision=revision, weight_map=weight_map
    )


def assemble(
    headers: list[Header],
    folder: Path,
    *,
    name: str,
    source: str,
    revision: str | None = None,
    weight_map: dict[str, str] | None = None,
    fingerprint: str | None = None,
    remote: Remote | None = None,
) -> Checkpoint:
    """Build the checkpoint of these shards.

    Args:
        headers: one per shard, in name order.
        folder: where config.json and the tokenizer are.
        name, source, revision: see `Checkpoint`.
        weight_map: the index's, if there is one.
        fingerprint: where it is not made of what is in the files, see `hub_fingerprint`.
        remote: where the shards are read from, when they are elsewhere: it is then not local.

    Raises: CheckpointError.
    """
    at = who(name)
    config_path = folder / CONFIG_FILE
    return Checkpoint(
        name=name,
        source=source,
        folder=folder,
        tensors=collect_tensors(headers, weight_map, folder, name=name),
        shards=tuple(header.path for header in headers),
        config=read_json_object(config_path, at, limit=MAX_CONFIG_BYTES)
        if config_path.exists()
        else {},
        fingerprint=fingerprint or fingerprint_of(headers, name=name, remote=remote),
        nbytes=sum(header.file_size for header in headers),
        revision=revision,
        is_local=not remote,
        remote=remote or {},
        adapter=read_json_object(folder / ADAPTER_CONFIG, at, limit=MAX_CONFIG_BYTES)
        if [header.path.name for header in headers] == [ADAPTER_FILE]
        else None,
    )


def hub_fingerprint(contents: list[str]) -> str:
    """Return the fingerprint of shards on the Hub; contents: each one's name and hash there."""
    return "hub-" + hashlib.blake2b("\n".join(contents).encode()).hexdigest()[:60]


def _as_on_hub(checkpoint: Checkpoint) -> str | None:
    """Return the fingerprint that shards in the Hub's cache had before they were downloaded."""
    if not checkpoint.is_local or checkpoint.revision is None:
        return None
    blobs = [(path.name, blob_of(path)) for path in checkpoint.shards]
    return hub_fingerprint([f"{name}:{blob.name if blob else ''}" for name, blob in blobs])


def collect_tensors(
    headers: list[Header], weight_map: dict[str, str] | None, folder: Path, *, name: str
) -> dict[str, TensorInfo]:
    """Return all tensors of the shards by name, in file order.

    With an index, a tensor is taken from the shard the index names; tensors that lie in a shard
    without being in the index are part of the model too (transformers loads them).

    Of a distributed checkpoint tensors may lie in parts in several shards, see ``distributed``.

    Raises: CheckpointError when a shard lacks a tensor that the index promises, when a name lies
    in two shards and no index decides, or when there is no tensor at all.
    """
    at = who(name)
    if weight_map is None and is_distributed(header.path.name for header in headers):
        return collect_boxes(headers, folder, name=name)
    if weight_map is not None:
        held = {header.path.name: header.tensors for header in headers}
        lost = [tensor for tensor, shard in weight_map.items() if tensor not in held[shard]]
        if lost:
            raise CheckpointError(
                f"{at}{printable(folder / weight_map[lost[0]])} lacks "
                f"{plural(len(lost), 'tensor')} that the index says it holds: "
                f"{shown_list(lost, show=quoted)}; download or copy the checkpoint again."
            )
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors.values():
            chosen = weight_map.get(tensor.name) if weight_map else None
            if chosen is not None and chosen != header.path.name:
                continue
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise CheckpointError(
                    f"{at}tensor {quoted(tensor.name)} lies in both {printable(other)} and "
                    f"{printable(header.path.name)} of {printable(folder)}; remove the file that "
                    "does not belong there."
                )
            tensors[tensor.name] = tensor
    if not tensors:
        raise CheckpointError(f"{at}{printable(folder)} holds no tensor at all.")
    return tensors


def fingerprint_of(headers: list[Header], *, name: str, remote: Remote | None = None) -> str:
    """Return the fingerprint of a checkpoint: 64 hex digits that change when its weights do.

    BLAKE2b over each shard's file name, size and header, in name order, and over content: all data
    when the shards together take at most 16 MiB, else 1024 pages of 4 KiB spread evenly over the
    checkpoint's data. A change outside the pages read of a large checkpoint goes unseen, so a
    fingerprint finds a sketch again but does not prove it: the merge pass counts anew and refuses a
    sketch whose counts differ.

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
        for part in (header.path.name.encode(), str(header.file_size).encode(), header.raw):
            digest.update(len(part).to_bytes(8, "little") + part)
        # A page that begins in this shard ends with it at the latest.
        spans = [(page - start, PAGE_BYTES) for page in pages if start <= page < start + size]
        if whole:
            spans = [(at, WHOLE_PIECE_BYTES) for at in range(0, size, WHOLE_PIECE_BYTES)]
        spans = [(header.data_start + at, min(count, size - at)) for at, count in spans]
        if remote:
            place = remote[header.path]
            with ThreadPoolExecutor(REMOTE_READERS) as pool:
                for data in pool.map(lambda s: place.read(header.path, *s), spans):  # noqa: B023
                    digest.update(data)
            continue
        told = told_as(CheckpointError, f"{who(name)}{printable(header.path)} cannot be read")
        with told, open(header.path, "rb", buffering=0) as file:
            for at, count in spans:
                file.seek(at)
                digest.update(file.read(count))
    return digest.hexdigest()
