"""Checkpoints at fsspec URLs (s3://, gs://, memory://, ...): shards are read there by byte ranges.

Small files (config, tokenizer) are fetched at each opening.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.hub.url_folder import UrlFolder, local_path
from ram_studio.checkpoints.read.checkpoint import Checkpoint, assemble, open_folder
from ram_studio.checkpoints.read.describe import who
from ram_studio.checkpoints.read.json_files import parse_json_object
from ram_studio.checkpoints.read.remote import RemoteFiles
from ram_studio.checkpoints.read.shard_files import find_shards, is_small_file
from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import CheckpointError
from ram_studio.resources import user_folder


@dataclass(eq=False)
class UrlShards(RemoteFiles):
    """The files of one folder; sizes: in bytes, by name; who: starts messages.

    They have no content hash of their own: what stores tell of it differs from one to the next.
    """

    folder: UrlFolder
    sizes: dict[str, int]
    who: str

    def fetch(self, path: Path, start: int, length: int) -> bytes:
        """Return a range of a file."""
        try:
            return self.folder.range(path.name, start, length)
        except CheckpointError as error:
            error.args = (f"{self.who}{error}",)
            raise

    def size(self, path: Path) -> int:
        """Return a file's bytes."""
        return self.sizes[path.name]

    def at(self, path: Path) -> str:
        """Return a file's URL."""
        return self.folder.at(path.name)


def open_url(source: str, *, name: str) -> Checkpoint:
    """Open a checkpoint at a URL by reading its headers and small files.

    It has the fingerprint that the same files have in a folder here.

    Raises: CheckpointError when there is none, or what fsspec needs for the URL is not installed.
    """
    if (local := local_path(source)) is not None:
        return open_folder(local, name=name, source=source)
    try:
        there = UrlFolder.of(source)
        sizes = there.listed()
    except CheckpointError as error:
        error.args = (f"{who(name)}{error}",)
        raise
    place = UrlShards(there, sizes, who(name))
    folder = user_folder() / "urls" / hashlib.sha256(source.encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    for file, size in sizes.items():
        if is_small_file(file, size):
            # Several processes may open the same URL.
            write_whole(folder / file, place.fetch(Path(file), 0, size))
    for old in folder.iterdir():
        if old.name not in sizes and not old.name.startswith("."):  # another opening's
            old.unlink(missing_ok=True)

    def read_index(file: str) -> dict[str, Any]:
        return parse_json_object((folder / file).read_bytes(), folder / file, who(name))

    shards, weight_map = find_shards(sorted(sizes), source, name=name, read_index=read_index)
    paths = [folder / shard for shard in shards]
    headers = [place.header(path, name=name) for path in paths]
    remote = dict.fromkeys(paths, place)
    return assemble(headers, folder, name=name, source=source, weight_map=weight_map, remote=remote)
