"""A folder at an fsspec URL (s3://, gs://, hf://, memory://, ...): its files, read and written.

Credentials are fsspec's own business (environment, profiles, tokens of the libraries): nothing of
them is asked for, stored or shown here, and URLs that carry one are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.read.json_files import parse_json_object
from ram_studio.checkpoints.read.remote import RemoteFiles
from ram_studio.checkpoints.read.shard_files import is_small_file
from ram_studio.errors import CheckpointError, RamStudioError
from ram_studio.resources import user_folder

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.IGNORECASE)
_SECRET = re.compile(r"://[^/@]*:[^/@]*@|\?.*=")
# Of shards, by a scheme's own options: pieces of a multipart upload, and how many at a time. By
# default s3fs holds half a gigabyte.
_UPLOADS: dict[str, dict[str, int]] = {"s3": {"chunksize": 16 << 20, "max_concurrency": 4}}


def is_url(source: object) -> bool:
    """Say whether a source is spelt as a URL."""
    return isinstance(source, str) and _URL.fullmatch(source) is not None


def local_path(url: str) -> Path | None:
    """Return the folder here that a URL means (file://), None for all others."""
    if url.partition("://")[0].lower() not in ("file", "local"):
        return None
    import fsspec

    return Path(fsspec.core.url_to_fs(url)[1])


@contextlib.contextmanager
def url_errors(what: str) -> Iterator[None]:
    """Turn what file systems raise into a CheckpointError about a place."""
    try:
        yield
    except (RamStudioError, KeyboardInterrupt):
        raise
    except ImportError as error:
        cure = printable(error, 200)
        raise CheckpointError(f"{what} needs a package that is not installed: {cure}.") from error
    except Exception as error:  # the libraries of stores have exceptions of their own
        reason = printable(str(error) or type(error).__name__, 200).rstrip(".")
        raise CheckpointError(
            f"{what}: {reason} ({type(error).__name__}). Check the address, your credentials, and "
            "your rights there."
        ) from error


@dataclass(eq=False)
class UrlFolder(RemoteFiles):
    """The files below a URL, which have no content hash of their own.

    url: as it was given; system, root: fsspec's file system, and the folder's path in it.
    """

    url: str = ""
    system: Any = None
    root: str = ""

    @classmethod
    def of(cls, url: str, who: str = "") -> UrlFolder:
        """Return the folder at a URL; nothing is asked of it yet.

        Raises: CheckpointError for a scheme that fsspec does not know or lacks a package for, and
        for URLs that hold a password or a signature.
        """
        if _SECRET.search(url):
            shown = re.sub(r"://[^/@]*@", "://...@", url).partition("?")[0]
            raise CheckpointError(
                f"{who}{printable(shown)} holds a password or a signed query, which would be kept "
                "in logs and provenance files. Give credentials by the environment or a profile."
            )
        with url_errors(f"{who}{printable(url)}"):
            import fsspec

            system, root = fsspec.core.url_to_fs(url)
            folder = user_folder() / "urls" / hashlib.sha256(url.encode()).hexdigest()[:32]
            return cls(folder, who, url=url.rstrip("/"), system=system, root=str(root).rstrip("/"))

    def at(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def names(self) -> list[str]:
        return sorted(self.listed)

    @cached_property
    def listed(self) -> dict[str, int]:
        """What lies right below the folder, with its bytes; raises CheckpointError for nothing."""
        with self._told():
            self.system.invalidate_cache()
            found = self.system.ls(self.root, detail=True)
        names = ((self._name(f["name"]).rstrip("/"), f["size"] or 0) for f in found)
        return {name: size for name, size in names if name}

    def size(self, name: str) -> int:
        with self._told(name):
            return int(self.system.info(self._path(name))["size"])

    def has(self, name: str) -> bool:
        with self._told(name):
            self.system.invalidate_cache()
            try:  # `isfile` takes every failure for an absence
                return bool(self.system.info(self._path(name))["type"] == "file")
            except FileNotFoundError:
                return False

    def sizes(self) -> dict[str, int]:
        with self._told():
            self.system.invalidate_cache()
            try:
                found = self.system.find(self.root, detail=True)
            except FileNotFoundError:
                return {}
        names = ((self._name(path), info["size"] or 0) for path, info in found.items())
        return {name: size for name, size in sorted(names) if name and not name.endswith("/")}

    def fetch(self, name: str, start: int, length: int) -> bytes:
        if not length:
            return b""  # stores are asked for the last byte, and none has a number below 0
        with self._told(name):
            data = bytes(self.system.cat_file(self._path(name), start=start, end=start + length))
        if len(data) != length:
            raise CheckpointError(
                f"{self.who}{printable(self.at(name))} gave {len(data)} bytes from {start} on, "
                f"expected {length}; leave the files alone during a run, and run again."
            )
        return data

    def json(self, name: str, *, limit: int, unique: bool = False) -> dict[str, Any]:
        if not self.has(name):
            return {}
        data = self.read(name, limit)
        return parse_json_object(data, self.at(name), self.who, unique=unique)

    def fetch_small(self, write: Callable[[Path, bytes], None]) -> None:
        """Bring config, tokenizer and index into `folder`, in place of what an opening left there.

        write: puts a file there whole: several processes may open the same URL.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, size in self.listed.items():
            if is_small_file(name, size):
                write(self.folder / name, self.fetch(name, 0, size))
        for old in self.folder.iterdir():
            if old.name not in self.listed and not old.name.startswith("."):  # another opening's
                old.unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, in place of an older one."""
        with self._told(name, " cannot be written"):
            self.system.pipe_file(self._path(name), data)

    def upload(self, path: Path, name: str, on_bytes: Callable[[int], None]) -> None:
        """Upload a file, large ones in several pieces where the store knows that.

        on_bytes: called with bytes that are there, while it goes; what it raises ends the upload.

        Raises: CheckpointError, also where it arrived in another size.
        """
        import fsspec

        class Told(fsspec.callbacks.Callback):
            def relative_update(self, inc: int = 1) -> None:
                on_bytes(inc)

        protocol = self.system.protocol
        scheme = protocol if isinstance(protocol, str) else protocol[0]
        with self._told(name, " cannot be written"):
            more = _UPLOADS.get(scheme, {})
            self.system.put_file(str(path), self._path(name), callback=Told(), **more)
            self.system.invalidate_cache()
            arrived = self.system.info(self._path(name))["size"]
        if arrived != path.stat().st_size:
            raise CheckpointError(
                f"{printable(self.at(name))} has {arrived} bytes after its upload, expected "
                f"{path.stat().st_size}; run again."
            )

    def remove(self, names: Sequence[str]) -> None:
        """Remove files, or folders with all that is in them."""
        with self._told("", " cannot be cleaned up"):
            self.system.invalidate_cache()
            for name in names:
                self.system.rm(self._path(name), recursive=True)

    def _told(self, name: str = "", what: str = "") -> AbstractContextManager[None]:
        return url_errors(f"{self.who}{printable(self.at(name))}{what}")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _name(self, path: object) -> str:
        return str(path).lstrip("/").removeprefix(self.root.lstrip("/")).lstrip("/")


def files_at(place: str | Path, who: str = "") -> Folder | UrlFolder:
    """Return the files of a folder here, or at a URL; who: starts messages.

    Raises: CheckpointError for a URL that cannot be used.
    """
    here = local_path(str(place)) if is_url(place) else Path(os.path.expanduser(place))
    return UrlFolder.of(str(place), who) if here is None else Folder(here, who)
