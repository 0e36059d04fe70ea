"""The files of one folder, local or remote, as names and bytes."""

from __future__ import annotations

import abc
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.content_hash import blake3_of
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.header import Header, read_header
from ram_studio.checkpoints.read.json_files import check_link, read_bounded, read_json_object
from ram_studio.errors import CheckpointError, raise_as

Span = tuple[int, int]
"""Start and number of some bytes of a file."""

_SPARE_FILES = 64
"""Reserve for other open files of the process: sockets, libraries."""


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, as far as allowed, if ``count`` more exceed it.

    By default Linux lets a process open 1,024 files, and on request up to its hard limit: four
    models of 300 shards each need more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/dev/fd")) + count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


@dataclass(eq=False)
class Files(abc.ABC):
    """Files by their paths below a folder, with "/" between folders.

    Attributes:
        folder: where small files (config, index, tokenizer) are read; for remote files its paths
            also identify shards.
        who: starts messages.
        revision: the commit, for files of a repository on the Hub.
    """

    folder: Path
    who: str = ""
    revision: str | None = None

    @abc.abstractmethod
    def at(self, name: str) -> str:
        """Return a file's name in messages; "" is the folder."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Return the names directly in the folder, sorted."""

    @abc.abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return all files with their sizes, also those in subfolders."""

    @abc.abstractmethod
    def header(self, name: str) -> Header:
        """Return the header of a safetensors file, see ``header.read_header``."""

    @abc.abstractmethod
    def fetch(self, name: str, start: int, length: int) -> bytes:
        """Return exactly `length` bytes of a file from `start` on; raises CheckpointError."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Return whether a file exists."""

    @abc.abstractmethod
    def read(self, name: str, limit: int) -> bytes:
        """Return a small file; raises CheckpointError where it is larger, or cannot be read."""

    @abc.abstractmethod
    def blake3(self, name: str, check: Callable[[], None] = lambda: None) -> str:
        """Return a file's BLAKE3; check: raises to stop; raises CheckpointError."""

    def fetch_spans(self, name: str, spans: Iterable[Span]) -> Iterator[bytes]:
        """Yield several spans of a file in order."""
        return (self.fetch(name, *span) for span in spans)

    def headers(self, names: Iterable[str]) -> list[Header]:
        """Return the headers of some safetensors files."""
        return [self.header(name) for name in names]

    def json(self, name: str, *, limit: int, unique: bool = False) -> dict[str, Any]:
        """Return the JSON object in a small file, {} if it is missing."""
        path = self.folder / name
        return read_json_object(path, self.who, limit=limit, unique=unique) if path.exists() else {}

    def fingerprint(self, shards: Iterable[str]) -> str | None:
        """Return a fingerprint that is known without reading the shards, else None."""
        return None


class Folder(Files):
    """Files of this machine."""

    def at(self, name: str) -> str:
        return str(self.folder / name) if name else str(self.folder)

    def names(self) -> list[str]:
        with raise_as(CheckpointError, f"{self.who}{printable(self.folder)} cannot be listed"):
            return sorted(os.listdir(self.folder))

    def sizes(self) -> dict[str, int]:
        found = (p for p in self.folder.rglob("*") if p.is_file())
        return {p.relative_to(self.folder).as_posix(): p.stat().st_size for p in sorted(found)}

    def header(self, name: str) -> Header:
        path = check_link(self.folder / name, self.who, suffix=".safetensors")
        return read_header(path, self.who)

    def fetch(self, name: str, start: int, length: int) -> bytes:
        reading = raise_as(CheckpointError, f"{self.who}{printable(self.at(name))} cannot be read")
        with reading, open(self.folder / name, "rb", buffering=0) as file:
            file.seek(start)
            data = file.read(length)
            if len(data) < length:
                raise OSError("it ends too early")
        return data

    def has(self, name: str) -> bool:
        return os.path.isfile(self.folder / name)  # is_file raises for a name too long

    def read(self, name: str, limit: int) -> bytes:
        return read_bounded(self.folder / name, self.who, limit=limit)

    def blake3(self, name: str, check: Callable[[], None] = lambda: None) -> str:
        return blake3_of(self.folder / name)
