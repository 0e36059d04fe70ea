"""Files that are not on this disk, read in ranges, each byte once.

`RemoteFiles` is a place with such files: the Hub in ``hub.ranges``, any file system of fsspec in
``url_folder``. `ReadAhead` fetches for the readers of a pass; a `FollowedHash` is the
content hash of such a file.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ram_studio.checkpoints.read.content_hash import make_hasher
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.files import Files, Span
from ram_studio.checkpoints.read.header import LENGTH_BYTES, Header, header_length, parse_header
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.errors import CheckpointError

FIRST_REQUEST_BYTES = 100_000
"""Nearly all headers fit into the first request."""

CHUNK_BYTES = 8 << 20
"""Bytes per request: large enough that a connection's start does not matter."""

AHEAD = 3
"""Chunks of a file that are fetched ahead."""

CONNECTIONS = 12
PARALLEL_HEADERS = 32
PARALLEL_SPANS = 16
MAX_BUFFERED_BYTES = 512 << 20
_WAIT_SECONDS = 0.2

FETCHES = 4
"""Chunks of a file that are fetched concurrently where only its hash is needed."""

MOST_AHEAD_BYTES = 64 << 20
"""Most bytes of one file that wait for hashing: chunks arrive in any order."""

BUSY = (408, 429, 500, 502, 503, 504)
TRIES = 6
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before another try, by number of failed tries."""

MOST_PAUSE = 120.0
"""Longest wait, in seconds, where a server gives a Retry-After."""

LOG_SECONDS = 30.0
_LOG = logging.getLogger(__name__)
_PASSING = (errno.EBUSY, errno.EAGAIN, errno.EPIPE, getattr(errno, "EREMOTEIO", errno.EIO))
# Of aiohttp and botocore, whose connection errors are not OSErrors.
_PASSING_NAMES = {
    *("ServerDisconnectedError", "ClientPayloadError", "ConnectionClosedError"),
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "IncompleteReadError"),
}

Fetch = Callable[[int, int], bytes]
"""Returns bytes of a file, from a start and a length."""


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of a storage library, else None."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        response = response.get("ResponseMetadata", {})
        found = [response.get("HTTPStatusCode")]
    else:
        found = [getattr(response, "status_code", None)]
    found += [getattr(error, "status", None), getattr(error, "code", None)]
    return next((status for status in found if type(status) is int), None)


def is_passing(error: BaseException | None) -> bool:
    """Return whether a failed request may succeed when it is repeated."""
    while error is not None:
        status = http_status(error)
        if status is not None:
            return status in BUSY
        if isinstance(error, ConnectionError | TimeoutError):
            return True
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        if type(error).__name__ in _PASSING_NAMES:
            return True
        error = error.__cause__
    return False


def _retry_after(error: BaseException | None) -> float:
    """Return the seconds of a server's Retry-After, 0 without one."""
    while error is not None:
        response = getattr(error, "response", None)
        headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
        if isinstance(response, Mapping):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        delay = headers.get("Retry-After") or headers.get("retry-after")
        if delay and str(delay).isdecimal():
            return float(delay)
        error = error.__cause__
    return 0.0


class Retries:
    """The pauses between repeated requests to a place, and log lines about them."""

    def __init__(self, place: str, check: Callable[[], None] = lambda: None) -> None:
        """Args: place: starts lines; check: raises to stop waiting."""
        self._place = place
        self._check = check
        self._count = 0
        self._logged_at = float("-inf")
        self._lock = threading.Lock()

    def pause(self, vain: int, failure: BaseException) -> bool:
        """Wait before another try; return False to give up.

        Args: vain: number of failed tries; failure: error of the last one.
        """
        seconds = max(_retry_after(failure), PAUSES[min(vain, TRIES) - 1])
        if vain >= TRIES or seconds > MOST_PAUSE:
            return False
        self._log_retry(failure, seconds)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _WAIT_SECONDS))
        return True

    def _log_retry(self, failure: BaseException, seconds: float) -> None:
        with self._lock:
            self._count += 1
            if time.monotonic() - self._logged_at < LOG_SECONDS:
                return
            self._logged_at = time.monotonic()
        status = http_status(failure) or http_status(failure.__cause__ or failure)
        reason = f"status {status}" if status else printable(failure, 80)
        again = "requests were" if self._count > 1 else "request was"
        _LOG.warning(
            f"{self._place} is busy or cannot be reached ({reason}); tries again in {seconds:.1f} "
            f"s ({self._count} {again} repeated)."
        )


@dataclass(eq=False)
class RemoteFiles(Files):
    """Remote files; safe to share among threads. `fetch` repeats failed requests where it can."""

    _followed: dict[str, FollowedHash] = field(default_factory=dict, init=False, repr=False)

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        return self.sizes()[name]

    def has(self, name: str) -> bool:
        return name in self.sizes()

    def read(self, name: str, limit: int) -> bytes:
        size = self.size(name)
        if size > limit:
            raise CheckpointError(
                f"{self.who}{printable(self.at(name))} is larger than {limit} bytes, the most a "
                "file of its kind may be."
            )
        return self.fetch(name, 0, size)

    def blake3(self, name: str, check: Callable[[], None] = lambda: None) -> str:
        """Return a file's BLAKE3; all of it is fetched, nothing is stored here."""
        hasher = make_hasher("blake3")
        for chunk in fetched(partial(self.fetch, name), 0, self.size(name)):
            check()
            hasher.update(memoryview(chunk))
        return hasher.hexdigest()

    def content_hash(self, name: str) -> str | None:
        """Return the place's content hash of a file ("sha256:..."), None if it has none.

        See ``content_hash``.
        """
        return None

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Raise SourceChangedError for a file that changed since it was opened.

        No request is made where files cannot change, as those of a commit.
        """

    def header(self, name: str) -> Header:
        """Return a shard's header, read with one or two requests."""
        size = self.size(name)
        start = self.fetch(name, 0, min(FIRST_REQUEST_BYTES, size))
        at = f"{self.who}{printable(self.at(name))}"
        end = LENGTH_BYTES + header_length(start[:LENGTH_BYTES], size, at)
        if len(start) < end:
            start += self.fetch(name, len(start), end - len(start))
        raw, path = start[LENGTH_BYTES:end], self.folder / name
        return parse_header(raw, self.who, file_size=size, path=path)

    def headers(self, names: Iterable[str]) -> list[Header]:
        """Return the headers of some shards, several at a time."""
        with ThreadPoolExecutor(PARALLEL_HEADERS) as pool:
            return list(pool.map(self.header, names))

    def fetch_spans(self, name: str, spans: Iterable[Span]) -> Iterator[bytes]:
        """Yield several spans of a file in order, some of them fetched ahead."""
        with ThreadPoolExecutor(PARALLEL_SPANS) as pool:
            yield from pool.map(lambda span: self.fetch(name, *span), spans)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return the bytes of `fetch`; a followed file is hashed on the way."""
        data = self.fetch(name, start, length)
        if (followed := self._followed.get(name)) is not None:
            followed.took(start, data)
        return data

    def follow(self, name: str, algorithm: str) -> FollowedHash:
        """Return a hash of a file that is fed by all later reads."""
        self._followed[name] = FollowedHash(partial(self.fetch, name), self.size(name), algorithm)
        return self._followed[name]


Remote = Mapping[Path, RemoteFiles]
"""The places of a checkpoint's remote files."""


@dataclass
class _Chunk:
    """A run of bytes of one request; left: bytes of it that are not yet read."""

    start: int
    end: int
    left: int
    future: Future[bytes] | None = None


@dataclass
class _File:
    place: RemoteFiles
    path: Path
    chunks: list[_Chunk]


class ReadAhead:
    """Fetches chunks of some tensors' files in order, a few before they are needed.

    A chunk is dropped after all of it was read, so that a pass that reads every byte once also
    fetches it once. Memory is bounded by `MAX_BUFFERED_BYTES`; chunks that were dropped before
    they were read are fetched again.
    """

    def __init__(
        self,
        remote: Remote,
        tensors: Iterable[TensorInfo],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Args: tensors: stored ones, of any files; check: raises to stop waiting."""
        self._check = check
        self._lock = threading.Lock()
        self._buffered: OrderedDict[tuple[Path, int], _Chunk] = OrderedDict()
        self._files: dict[Path, _File] = {}
        spans: dict[Path, set[tuple[int, int]]] = {}
        for tensor in tensors:
            if tensor.path in remote and tensor.nbytes:
                spans.setdefault(tensor.path, set()).add((tensor.offset, tensor.nbytes))
        for path, found in spans.items():
            self._files[path] = _File(remote[path], path, list(_chunks(sorted(found))))
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fetch")

    def __contains__(self, path: Path) -> bool:
        return path in self._files

    def close(self) -> None:
        """Drop everything, without waiting for running requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._buffered.clear()

    def read_into(self, path: Path, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with a file's bytes from `start` on.

        Raises: errors of the place, and those of `check`.
        """
        file = self._files[path]
        done = 0
        while done < len(buffer):
            number = bisect.bisect_right(file.chunks, start + done, key=lambda p: p.start) - 1
            chunk = file.chunks[number]
            data = self._wait(self._request(file, number))
            first = start + done - chunk.start
            count = min(len(buffer) - done, chunk.end - chunk.start - first)
            buffer[done : done + count] = memoryview(data)[first : first + count]
            done += count
            self._count(file, chunk, count)

    def _request(self, file: _File, number: int) -> Future[bytes]:
        """Return a future of a chunk's bytes, and start fetching the next chunks."""
        with self._lock:
            for chunk in file.chunks[number : number + 1 + AHEAD]:
                if chunk.future is None and (chunk.left or chunk is file.chunks[number]):
                    size = chunk.end - chunk.start
                    chunk.left = chunk.left or size
                    read = file.place.read_range
                    chunk.future = self._pool.submit(read, file.path.name, chunk.start, size)
                if chunk.future is not None:
                    self._buffered[file.path, chunk.start] = chunk
            self._buffered.move_to_end((file.path, file.chunks[number].start))
            self._bound()
            future = file.chunks[number].future
        assert future is not None, "the newest is never dropped"
        return future

    def _bound(self) -> None:
        total = sum(chunk.end - chunk.start for chunk in self._buffered.values())
        for key in list(self._buffered)[:-1]:
            if total <= MAX_BUFFERED_BYTES:
                return
            chunk = self._buffered.pop(key)
            chunk.future = None
            total -= chunk.end - chunk.start

    def _wait(self, future: Future[bytes]) -> bytes:
        while not wait([future], _WAIT_SECONDS).done:
            self._check()
        return future.result()

    def _count(self, file: _File, chunk: _Chunk, count: int) -> None:
        with self._lock:
            chunk.left = max(0, chunk.left - count)
            if not chunk.left:
                self._buffered.pop((file.path, chunk.start), None)
                chunk.future = None


def _chunks(spans: list[tuple[int, int]]) -> Iterable[_Chunk]:
    """Yield chunks of tensors in file order: small neighbors together, large ones cut."""
    begin = end = 0
    for offset, nbytes in spans:
        if offset != end or end - begin + nbytes > CHUNK_BYTES:
            if end > begin:
                yield _Chunk(begin, end, end - begin)
            begin = end = offset
        if nbytes <= CHUNK_BYTES:
            end += nbytes
            continue
        cuts = [*range(offset, offset + nbytes, CHUNK_BYTES), offset + nbytes]
        for first, last in itertools.pairwise(cuts):
            yield _Chunk(first, last, last - first)
        begin = end = offset + nbytes
    if end > begin:
        yield _Chunk(begin, end, end - begin)


def fetched(fetch: Fetch, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from start to end in order, fetching some chunks ahead."""
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="fetch") as pool:
        spans = ((at, min(CHUNK_BYTES, end - at)) for at in range(start, end, CHUNK_BYTES))
        waiting = [pool.submit(fetch, *span) for span in itertools.islice(spans, FETCHES)]
        try:
            while waiting:
                chunk = waiting.pop(0).result()
                waiting += [pool.submit(fetch, *span) for span in itertools.islice(spans, 1)]
                yield chunk
        finally:
            for future in waiting:
                future.cancel()


class FollowedHash:
    """Hashes a file in order while its ranges are read in any order; unread ranges are fetched.

    At most `MOST_AHEAD_BYTES` are held: beyond it the gap before them is fetched.
    """

    def __init__(self, fetch: Fetch, size: int, algorithm: str = "blake3") -> None:
        """Args: size: of the file; algorithm: "blake3" or "sha256"."""
        self.size = size
        self.done = 0
        self._fetch = fetch
        self._algorithm = algorithm
        self._hasher = make_hasher(algorithm)
        self._buffered: dict[int, bytes] = {}
        self._is_filling = False
        self._lock = threading.Lock()

    def took(self, start: int, data: bytes) -> None:
        """Take a range that was read; safe from several threads."""
        with self._lock:
            self._store(start, data)
            if self._is_filling and self._buffered_bytes() > MOST_AHEAD_BYTES:
                self._buffered.pop(start, None)  # it is fetched again later
                return
        while self._fill_one():
            pass

    def finish(self, check: Callable[[], None] = lambda: None) -> str:
        """Fetch the rest and return the content hash; check: raises to stop.

        Raises: errors of fetching.
        """
        while self.done < self.size:
            with self._lock:
                start, end = self.done, min(self._buffered, default=self.size)
            for chunk in fetched(self._fetch, start, end):
                check()
                with self._lock:
                    self._store(start, chunk)
                start += len(chunk)
        return f"{self._algorithm}:{self._hasher.hexdigest()}"

    def _buffered_bytes(self) -> int:
        return sum(map(len, self._buffered.values()))

    def _store(self, start: int, data: bytes) -> None:
        """Store a range until all before it is hashed; hash all ranges that can be."""
        if start + len(data) > self.done and len(data) > len(self._buffered.get(start, b"")):
            self._buffered[start] = data
        for first in sorted(self._buffered):
            if first > self.done:
                return
            rest = memoryview(self._buffered.pop(first))[self.done - first :]
            self._hasher.update(rest)
            self.done += len(rest)

    def _fill_one(self) -> bool:
        """Fetch a chunk of the gap if too much is stored behind it; return whether it was."""
        with self._lock:
            if self._is_filling or self._buffered_bytes() <= MOST_AHEAD_BYTES:
                return False
            self._is_filling = True
            start, count = self.done, min(CHUNK_BYTES, min(self._buffered) - self.done)
        try:
            chunk = self._fetch(start, count)
            with self._lock:
                self._store(start, chunk)
        finally:
            self._is_filling = False
        return True
