"""The files below a folder, as names and bytes: what is checked of a merge, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ram_studio.checkpoints.read.content_hash import blake3_of
from ram_studio.checkpoints.read.json_files import read_bounded


class Files(Protocol):
    """Files by their paths below a root, with "/" between folders."""

    def at(self, name: str) -> str:
        """Return how messages call a file."""

    def has(self, name: str) -> bool:
        """Say whether a file is there."""

    def sizes(self) -> dict[str, int]:
        """Return all files with their bytes."""

    def read(self, name: str, limit: int) -> bytes:
        """Return a file; raises CheckpointError where it is larger, or cannot be read."""

    def blake3(self, name: str, check: Callable[[], None] = lambda: None) -> str:
        """Return a file's BLAKE3; check: raises to stop; raises CheckpointError."""


@dataclass(frozen=True)
class Folder:
    """Files of this machine, see `Files`."""

    path: Path

    def at(self, name: str) -> str:
        """Return a file's path."""
        return str(self.path / name)

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return (self.path / name).is_file()

    def sizes(self) -> dict[str, int]:
        """Return all files with their bytes; none where there is no folder."""
        found = (p for p in self.path.rglob("*") if p.is_file())
        return {p.relative_to(self.path).as_posix(): p.stat().st_size for p in sorted(found)}

    def read(self, name: str, limit: int) -> bytes:
        """Return a file."""
        return read_bounded(self.path / name, "", limit=limit)

    def blake3(self, name: str, check: Callable[[], None] = lambda: None) -> str:
        """Return a file's BLAKE3, hashed by all cores."""
        return blake3_of(self.path / name)
