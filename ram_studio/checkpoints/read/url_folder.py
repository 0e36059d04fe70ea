"""A folder at an fsspec URL (s3://, gs://, hf://, memory://, ...): reads and writes its files.

fsspec finds the credentials (environment, profiles, tokens of the libraries): they are never
requested, stored or shown here, and URLs that contain one are refused.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.read.header import Header, parse_header
from ram_studio.checkpoints.read.json_files import parse_json_object
from ram_studio.checkpoints.read.remote import (
    PARALLEL_HEADERS,
    RemoteFiles,
    Retries,
    http_status,
    is_passing,
)
from ram_studio.checkpoints.read.shard_files import is_small_file
from ram_studio.errors import CheckpointError, RamStudioError, SourceChangedError, StorageError
from ram_studio.resources import user_folder

T = TypeVar("T")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.IGNORECASE)
_SECRET = re.compile(r"://[^/@]*:[^/@]*@|\?.*=")
# Keys of listings that identify a file's content, or its time.
_VERSIONS = (
    *("ETag", "etag", "generation", "md5Hash", "blob_id", "content_hash"),
    *("LastModified", "Last-Modified", "updated", "mtime", "created"),
)
_MOST_HEADERS_BYTES = 1 << 30
# Upload options for shards by scheme: size of the parts of a multipart upload, and how many
# run concurrently. By default s3fs holds half a gigabyte.
_UPLOADS: dict[str, dict[str, int]] = {"s3": {"chunksize": 16 << 20, "max_concurrency": 4}}


def is_url(source: object) -> bool:
    """Return whether a source is spelled as a URL."""
    return isinstance(source, str) and _URL.fullmatch(source) is not None


def local_path(url: str) -> Path | None:
    """Return the local folder of a file:// URL, None for all others."""
    if url.partition("://")[0].lower() not in ("file", "local"):
        return None
    import fsspec

    return Path(fsspec.core.url_to_fs(url)[1])


@contextlib.contextmanager
def url_errors(what: str) -> Iterator[None]:
    """Turn errors of file systems into a CheckpointError about a place."""
    try:
        yield
    except (RamStudioError, KeyboardInterrupt):
        raise
    except ImportError as error:
        cure = printable(error, 200)
        raise CheckpointError(f"{what} needs a package that is not installed: {cure}.") from error
    except Exception as error:  # storage libraries have their own exceptions
        reason = printable(str(error) or type(error).__name__, 200).rstrip(".")
        raise CheckpointError(
            f"{what}: {reason} ({type(error).__name__}). Check the address, your credentials, and "
            "your rights there."
        ) from error


@dataclass(frozen=True)
class KnownHeaders:
    """Headers of a URL's shards, valid as long as its listing is the same.

    versions: by shard, see ``StoredFile``; fingerprint: of the checkpoint; headers: of all shards,
    compressed, as text.
    """

    versions: dict[str, str]
    fingerprint: str
    headers: str


@dataclass(frozen=True)
class StoredFile:
    """A file in a store's listing.

    version: size, and values that change when it is overwritten; tag: its ETag, "" where it has
    none that a request can use.
    """

    size: int
    version: str
    tag: str = ""

    @classmethod
    def of(cls, info: dict[str, Any]) -> StoredFile:
        size = info.get("size") or 0
        versions = [f"{key}={info[key]}" for key in _VERSIONS if info.get(key) is not None]
        tag = str(info.get("ETag") or "")
        return cls(size, " ".join([str(size), *versions]), "" if tag.startswith("W/") else tag)


@dataclass(eq=False)
class UrlFolder(RemoteFiles):
    """The files below a URL, which have no content hashes.

    url: as it was given; system, root: fsspec's file system, and the folder's path in it; check:
    raises to stop waiting; known: headers to use while the listing is the same.
    """

    url: str = ""
    system: Any = None
    root: str = ""
    check: Callable[[], None] = field(default=lambda: None, repr=False)
    known: KnownHeaders | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._retries = Retries(f"{self.who}{printable(self.url)}", lambda: self.check())
        self._headers: dict[str, bytes] = {}

    @classmethod
    def of(cls, url: str, who: str = "") -> UrlFolder:
        """Return the folder at a URL, without a request.

        Raises: CheckpointError for a scheme that fsspec does not know or lacks a package for, and
        for URLs that contain a password or a signature.
        """
        if _SECRET.search(url):
            shown = re.sub(r"://[^/@]*@", "://...@", url).partition("?")[0]
            raise CheckpointError(
                f"{who}{printable(shown)} contains a password or a signed query, which logs and "
                "provenance files would store. Give credentials by the environment or a profile."
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
    def listed(self) -> dict[str, StoredFile]:
        """Files directly in the folder at the first request; raises CheckpointError."""
        return self._list()

    def _list(self) -> dict[str, StoredFile]:
        def list_now() -> list[dict[str, Any]]:
            self.system.invalidate_cache()
            return list(self.system.ls(self.root, detail=True))

        with self._store_errors():
            named = ((self._name(f["name"]).rstrip("/"), f) for f in self._retry(list_now))
            found = {name: info for name, info in named if name and "?" not in name}
            # A plain web server lists names alone.
            bare = [n for n, f in found.items() if f["size"] is None and f["type"] == "file"]
            with ThreadPoolExecutor(PARALLEL_HEADERS) as pool:
                infos = pool.map(lambda n: self._retry(self.system.info, self._path(n)), bare)
                found |= dict(zip(bare, infos, strict=True))
        return {name: StoredFile.of(info) for name, info in found.items()}

    def check_unchanged(self, names: Iterable[str]) -> None:
        now = self._list()
        for name in names:
            if now.get(name) != self.listed.get(name):
                raise self._changed_error(name)

    def _changed_error(self, name: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self.who}{printable(self.at(name))} was overwritten or removed while it was read. "
            "Do not change the files during a run, and run again."
        )

    def _retry(self, call: Callable[..., T], *given: Any, **named: Any) -> T:
        """Return the result of a request, repeated while the store is busy.

        Raises: StorageError if it stays busy; other errors of the request.
        """
        vain = 0
        while True:
            self.check()
            try:
                return call(*given, **named)
            except Exception as error:
                if not is_passing(error):
                    raise
                vain += 1
                if not self._retries.pause(vain, error):
                    reason = printable(str(error) or type(error).__name__, 200).rstrip(".")
                    raise StorageError(
                        f"{self.who}{printable(self.url)} is busy or cannot be reached after "
                        f"{vain} {'try' if vain == 1 else 'tries'}: {reason}. Run again later; "
                        "finished work is kept."
                    ) from error

    @property
    def _is_opened(self) -> bool:
        """Whether its files are a source's, which must not change after the listing."""
        return "listed" in vars(self)

    def size(self, name: str) -> int:
        if self._is_opened and name in self.listed:
            return self.listed[name].size
        with self._store_errors(name):
            return int(self._retry(self.system.info, self._path(name))["size"])

    def has(self, name: str) -> bool:
        if self._is_opened and "/" not in name:
            return name in self.listed
        with self._store_errors(name):
            self.system.invalidate_cache()
            try:  # `isfile` returns False after any failure
                return bool(self._retry(self.system.info, self._path(name))["type"] == "file")
            except FileNotFoundError:
                return False

    def sizes(self) -> dict[str, int]:
        with self._store_errors():
            self.system.invalidate_cache()
            try:
                found = self._retry(self.system.find, self.root, detail=True)
            except FileNotFoundError:
                return {}
        names = ((self._name(path), info["size"] or 0) for path, info in found.items())
        return {name: size for name, size in sorted(names) if name and not name.endswith("/")}

    def fetch(self, name: str, start: int, length: int) -> bytes:
        if not length:
            return b""  # requests name the last byte, which cannot be -1
        tag = self.listed[name].tag if self._is_opened and name in self.listed else ""
        with self._store_errors(name):
            try:
                data = self._retry(self._cat, self._path(name), start, start + length, tag)
            except Exception as error:
                refusal = error if http_status(error) else error.__cause__ or error
                if http_status(refusal) == 412:
                    raise self._changed_error(name) from error
                raise
        if len(data) != length:
            raise CheckpointError(
                f"{self.who}{printable(self.at(name))} gave {len(data)} bytes from {start} on, "
                f"expected {length}; do not change the files during a run, and run again."
            )
        return data

    def _cat(self, path: str, start: int, end: int, tag: str) -> bytes:
        """Return bytes start..end of a file, only if it has this ETag."""
        if tag and self._scheme in ("http", "https"):
            headers = {"If-Match": tag, "Accept-Encoding": "identity"}
            return bytes(self.system.cat_file(path, start=start, end=end, headers=headers))
        if tag and self._scheme == "s3":
            import fsspec

            bucket, key, _ = self.system.split_path(path)
            request = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
            body = self.system.call_s3("get_object", **request, IfMatch=tag)["Body"]
            return bytes(fsspec.asyn.sync(self.system.loop, body.read))
        return bytes(self.system.cat_file(path, start=start, end=end))

    @property
    def _scheme(self) -> str:
        protocol = self.system.protocol
        return str(protocol if isinstance(protocol, str) else protocol[0])

    def header(self, name: str) -> Header:
        header = super().header(name)
        self._headers[name] = header.raw
        return header

    def headers(self, names: Iterable[str]) -> list[Header]:
        names = list(names)
        if not self._is_known(names):
            return super().headers(names)
        assert self.known is not None, "callers checked it"
        try:
            packed = base64.b64decode(self.known.headers)
            text = zlib.decompressobj().decompress(packed, _MOST_HEADERS_BYTES)
            self._headers = dict(zip(names, map(str.encode, json.loads(text)), strict=True))
        except (ValueError, TypeError, zlib.error) as error:
            raise CheckpointError(
                f"{self.who}{printable(self.url)}: its headers in the plan are damaged; make the "
                "plan again with `ram-studio plan`."
            ) from error
        return [
            parse_header(raw, self.who, file_size=self.size(name), path=self.folder / name)
            for name, raw in self._headers.items()
        ]

    def fingerprint(self, shards: Iterable[str]) -> str | None:
        """Return the known fingerprint if these files are unchanged, else None."""
        known = self.known
        return known.fingerprint if known is not None and self._is_known(shards) else None

    def _is_known(self, names: Iterable[str]) -> bool:
        return self.known is not None and self.known.versions == self._versions(names)

    def _versions(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.listed[name].version for name in names}

    def as_read(self, names: Iterable[str], fingerprint: str) -> KnownHeaders:
        """Return the headers of these files, after they were read, for other processes."""
        names = list(names)
        text = json.dumps([self._headers[name].decode() for name in names])
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        return KnownHeaders(self._versions(names), fingerprint, packed)

    def json(self, name: str, *, limit: int, unique: bool = False) -> dict[str, Any]:
        if not self.has(name):
            return {}
        data = self.read(name, limit)
        return parse_json_object(data, self.at(name), self.who, unique=unique)

    def fetch_small(self, write: Callable[[Path, bytes], None]) -> None:
        """Fetch config, tokenizer and index into `folder`, replacing those of an earlier opening.

        write: writes a whole file atomically: several processes may open the same URL.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        small = [name for name, file in self.listed.items() if is_small_file(name, file.size)]
        with ThreadPoolExecutor(PARALLEL_HEADERS) as pool:
            contents = pool.map(lambda name: self.fetch(name, 0, self.size(name)), small)
            for name, content in zip(small, contents, strict=True):
                write(self.folder / name, content)
        for old in self.folder.iterdir():
            if old.name not in self.listed and not old.name.startswith("."):  # another opening's
                old.unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, replacing an older one."""
        with self._store_errors(name, " cannot be written"):
            self._retry(self.system.pipe_file, self._path(name), data)

    def upload(self, path: Path, name: str, on_bytes: Callable[[int], None]) -> None:
        """Upload a file, large ones in several parts where the store supports it.

        on_bytes: called with the uploaded bytes during the upload; its errors end the upload.

        Raises: CheckpointError, also if the stored size is wrong.
        """
        import fsspec

        class ByteCounter(fsspec.callbacks.Callback):
            def relative_update(self, inc: int = 1) -> None:
                on_bytes(inc)

        with self._store_errors(name, " cannot be written"):
            more = _UPLOADS.get(self._scheme, {})
            self.system.put_file(str(path), self._path(name), callback=ByteCounter(), **more)
            self.system.invalidate_cache()
            arrived = self.system.info(self._path(name))["size"]
        if arrived != path.stat().st_size:
            raise CheckpointError(
                f"{printable(self.at(name))} has {arrived} bytes after its upload, expected "
                f"{path.stat().st_size}; run again."
            )

    def remove(self, names: Sequence[str]) -> None:
        """Remove files, or folders with their contents."""
        with self._store_errors("", " cannot be cleaned up"):
            self.system.invalidate_cache()
            for name in names:
                self.system.rm(self._path(name), recursive=True)

    def _store_errors(self, name: str = "", what: str = "") -> AbstractContextManager[None]:
        return url_errors(f"{self.who}{printable(self.at(name))}{what}")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _name(self, path: object) -> str:
        return str(path).lstrip("/").removeprefix(self.root.lstrip("/")).lstrip("/")


def files_at(place: str | Path, who: str = "") -> Folder | UrlFolder:
    """Return the files of a local folder, or at a URL; who: starts messages.

    Raises: CheckpointError for a URL that cannot be used.
    """
    here = local_path(str(place)) if is_url(place) else Path(os.path.expanduser(place))
    return UrlFolder.of(str(place), who) if here is None else Folder(here, who)
