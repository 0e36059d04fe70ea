"""Checkpoints at fsspec URLs (s3://, gs://, memory://, ...): shards are read there by byte ranges.

The `RemoteFiles` of any file system that fsspec knows, see ``read.remote``. Small files (config,
tokenizer) are fetched at each opening. Credentials are fsspec's own business: nothing of them is
asked for, stored or shown here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.checkpoint import Checkpoint, assemble, open_folder
from ram_studio.checkpoints.read.describe import printable, who
from ram_studio.checkpoints.read.header import LENGTH_BYTES, Header, header_length, parse_header
from ram_studio.checkpoints.read.json_files import parse_json_object
from ram_studio.checkpoints.read.shard_files import find_shards
from ram_studio.errors import CheckpointError
from ram_studio.resources import user_folder

MAX_SMALL_BYTES = 256_000_000

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.IGNORECASE)
_SMALL = re.compile(
    r"[^/]+\.(json|jinja|txt|model)|README\.md|(LICEN[CS]E|NOTICE|USE_POLICY)(\.(txt|md))?",
    re.IGNORECASE,
)


def is_url(source: object) -> bool:
    """Say whether a source is spelt as a URL."""
    return isinstance(source, str) and _URL.fullmatch(source) is not None


@dataclass(frozen=True)
class UrlShards:
    """The files of one folder of a file system, as `RemoteFiles`; sizes: in bytes, by name."""

    system: Any
    root: str
    sizes: dict[str, int]
    at: str

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Return a range of a file; see `RemoteFiles`."""
        with _told(f"{self.at}{path.name}"):
            data = bytes(self.system.cat_file(self._place(path), start=start, end=start + length))
        if len(data) != length:
            raise CheckpointError(
                f"{self.at}{path.name} gave {len(data)} bytes from {start} on, expected {length}; "
                "leave the files alone during a run, and run again."
            )
        return data

    def size(self, path: Path) -> int:
        """Return a file's bytes."""
        return self.sizes[path.name]

    def content_hash(self, path: Path) -> str | None:
        """Return None: what stores tell of a file's content differs from one to the next."""
        return None

    def header(self, path: Path, name: str) -> Header:
        """Return a shard's header; name: "base" or the agent's."""
        size = self.sizes[path.name]
        prefix = self.read(path, 0, min(LENGTH_BYTES, size))
        length = header_length(prefix, size, f"{self.at}{path.name}")
        raw = self.read(path, LENGTH_BYTES, length)
        return parse_header(raw, file_size=size, path=path, agent=name)

    def _place(self, path: Path) -> str:
        return f"{self.root}/{path.name}"


def open_url(source: str, *, name: str) -> Checkpoint:
    """Open a checkpoint at a URL by reading its headers and small files.

    It has the fingerprint that the same files have in a folder here.

    Raises: CheckpointError when there is none, or what fsspec needs for the URL is not installed.
    """
    import fsspec

    at = f"{who(name)}{printable(source)}/"
    with _told(f"{who(name)}{printable(source)}"):
        system, root = fsspec.core.url_to_fs(source)
        if "file" in (system.protocol if isinstance(system.protocol, tuple) else ()):
            return open_folder(root, name=name, source=source)
        root = root.rstrip("/")
        found = system.ls(root, detail=True)
        sizes = {str(f["name"]).rsplit("/", 1)[-1]: f["size"] or 0 for f in found}
    place = UrlShards(system, root, sizes, at)
    folder = user_folder() / "urls" / hashlib.sha256(source.encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    for file, size in sizes.items():
        if _SMALL.fullmatch(file) and size <= MAX_SMALL_BYTES:
            (folder / file).write_bytes(place.read(Path(file), 0, size))
    for old in folder.iterdir():
        if old.name not in sizes:
            old.unlink()

    def read_index(file: str) -> dict[str, Any]:
        return parse_json_object((folder / file).read_bytes(), folder / file, who(name))

    shards, weight_map = find_shards(sorted(sizes), Path(source), name=name, read_index=read_index)
    paths = [folder / shard for shard in shards]
    headers = [place.header(path, name) for path in paths]
    remote = dict.fromkeys(paths, place)
    return assemble(headers, folder, name=name, source=source, weight_map=weight_map, remote=remote)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what file systems raise into a CheckpointError about a place."""
    try:
        yield
    except CheckpointError:
        raise
    except ImportError as error:
        raise CheckpointError(
            f"{what} needs a package that is not installed: {printable(error, 200)}."
        ) from error
    except (OSError, ValueError, json.JSONDecodeError) as error:
        reason = printable(str(error) or type(error).__name__, 200)
        raise CheckpointError(
            f"{what} cannot be read: {reason}. Check the address, and your rights there."
        ) from error
