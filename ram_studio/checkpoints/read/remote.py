"""Files that are not on this disk, read a range at a time, each byte once.

`RemoteFiles` is a place with such files: the Hub in ``hub.ranges``, any file system of fsspec in
``url_folder``. `ReadAhead` stands between it and the readers of a pass; a `FollowedHash` is the
content hash of a file that is read so.
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

PIECE_BYTES = 8 << 20
"""What is asked for at a time: large enough that a connection's start does not matter."""

AHEAD = 3
"""Pieces of a file that are fetched before they are asked for."""

CONNECTIONS = 12
PARALLEL_HEADERS = 32
PARALLEL_SPANS = 16
MAX_BUFFERED_BYTES = 512 << 20
_WAIT_SECONDS = 0.2

FETCHES = 4
"""Pieces of a file that are fetched at a time where nothing but its hash is wanted."""

MOST_AHEAD_BYTES = 64 << 20
"""Of one file, held until it is hashed: pieces arrive a few at a time, in any order."""

BUSY = (408, 429, 500, 502, 503, 504)
TRIES = 6
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before another try, by how many were in vain."""

MOST_PAUSE = 120.0
"""So long is waited where a server says for how long it is busy."""

LOG_SECONDS = 30.0
_LOG = logging.getLogger(__name__)
_PASSING = (errno.EBUSY, errno.EAGAIN, errno.EPIPE, getattr(errno, "EREMOTEIO", errno.EIO))
# Of aiohttp and botocore, whose failures to connect are no OSError.
_PASSING_NAMES = {
    *("ServerDisconnectedError", "ClientPayloadError", "ConnectionClosedError"),
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "IncompleteReadError"),
}

Fetch = Callable[[int, int], bytes]
"""Returns a file's bytes from a position on, by their number."""


def http_status(error: BaseException) -> int | None:
    """Return the status that a server refused with, as the libraries of stores keep it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        response = response.get("ResponseMetadata", {})
        found = [response.get("HTTPStatusCode")]
    else:
        found = [getattr(response, "status_code", None)]
    found += [getattr(error, "status", None), getattr(error, "code", None)]
    return next((status for status in found if type(status) is int), None)


def is_passing(error: BaseException | None) -> bool:
    """Say whether a request that failed so may succeed when it is made again."""
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
    """Return the seconds that a server asked to wait (Retry-After), 0 where it did not."""
    while error is not None:
        response = getattr(error, "response", None)
        headers = getattr(error, "headers", None) or getattr(response, "headers", None) or {}
        if isinstance(response, Mapping):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        asked = headers.get("Retry-After") or headers.get("retry-after")
        if asked and str(asked).isdecimal():
            return float(asked)
        error = error.__cause__
    return 0.0


class Retries:
    """The pauses between the tries of a place's requests, and a line about them now and then."""

    def __init__(self, place: str, check: Callable[[], None] = lambda: None) -> None:
        """Args: place: starts lines; check: raises to stop waiting."""
        self._place = place
        self._check = check
        self._count = 0
        self._logged_at = float("-inf")
        self._lock = threading.Lock()

    def pause(self, vain: int, failure: BaseException) -> bool:
        """Wait before another try; False where there is to be none.

        Args: vain: how many tries failed; failure: how the last one did.
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
            f"s ({self._count} {again} tried again so far)."
        )


@dataclass(eq=False)
class RemoteFiles(Files):
    """Files that are elsewhere; safe to share among threads. `fetch` tries again where it can."""

    _followed: dict[str, FollowedHash] = field(default_factory=dict, init=False, repr=False)

    def size(self, name: str) -> int:
        """Return a file's bytes."""
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
        for piece in fetched(partial(self.fetch, name), 0, self.size(name)):
            check()
            hasher.update(memoryview(piece))
        return hasher.hexdigest()

    def content_hash(self, name: str) -> str | None:
        """Return a file's content hash as the place knows it ("sha256:..."), None if it does not.

        See ``content_hash``.
        """
        return None

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Raise SourceChangedError for a file that is not the one that was opened.

        Nothing is asked where files cannot change, as those of a commit.
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
        """Return what `fetch` does; a file that is followed is hashed on the way."""
        data = self.fetch(name, start, length)
        if (followed := self._followed.get(name)) is not None:
            followed.took(start, data)
        return data

    def follow(self, name: str, algorithm: str) -> FollowedHash:
        """Return what hashes a file behind those who read it from now on."""
        self._followed[name] = FollowedHash(partial(self.fetch, name), self.size(name), algorithm)
        return self._followed[name]


Remote = Mapping[Path, RemoteFiles]
"""Where the files of a checkpoint are that are not here."""


@dataclass
class _Piece:
    """A run of bytes that is fetched at once; left: bytes of it that nobody has read yet."""

    start: int
    end: int
    left: int
    future: Future[bytes] | None = None


@dataclass
class _File:
    place: RemoteFiles
    path: Path
    pieces: list[_Piece]


class ReadAhead:
    """Fetches the pieces of some tensors' files in their order, a few before they are needed.

    A piece is let go once all of it was read, so that every byte is fetched once by a pass that
    reads every byte once. Memory is bounded by `MAX_BUFFERED_BYTES`; what had to be let go before
    it was read is fetched again.
    """

    def __init__(
        self,
        remote: Remote,
        tensors: Iterable[TensorInfo],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Args: tensors: stored ones, whatever file they are in; check: raises to stop waiting."""
        self._check = check
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Path, int], _Piece] = OrderedDict()
        self._files: dict[Path, _File] = {}
        spans: dict[Path, set[tuple[int, int]]] = {}
        for tensor in tensors:
            if tensor.path in remote and tensor.nbytes:
                spans.setdefault(tensor.path, set()).add((tensor.offset, tensor.nbytes))
        for path, found in spans.items():
            self._files[path] = _File(remote[path], path, list(_pieces(sorted(found))))
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fetch")

    def __contains__(self, path: Path) -> bool:
        return path in self._files

    def close(self) -> None:
        """Let everything go; what is under way is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._held.clear()

    def read_into(self, path: Path, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with a file's bytes from `start` on.

        Raises: whatever the place raises, and what `check` does.
        """
        file = self._files[path]
        done = 0
        while done < len(buffer):
            number = bisect.bisect_right(file.pieces, start + done, key=lambda p: p.start) - 1
            piece = file.pieces[number]
            data = self._wait(self._request(file, number))
            first = start + done - piece.start
            count = min(len(buffer) - done, piece.end - piece.start - first)
            buffer[done : done + count] = memoryview(data)[first : first + count]
            done += count
            self._count(file, piece, count)

    def _request(self, file: _File, number: int) -> Future[bytes]:
        """Return a piece's bytes to come, and have the next ones fetched too."""
        with self._lock:
            for piece in file.pieces[number : number + 1 + AHEAD]:
                if piece.future is None and (piece.left or piece is file.pieces[number]):
                    size = piece.end - piece.start
                    piece.left = piece.left or size
                    read = file.place.read_range
                    piece.future = self._pool.submit(read, file.path.name, piece.start, size)
                if piece.future is not None:
                    self._held[file.path, piece.start] = piece
            self._held.move_to_end((file.path, file.pieces[number].start))
            self._bound()
            future = file.pieces[number].future
        assert future is not None, "the newest is never let go"
        return future

    def _bound(self) -> None:
        total = sum(piece.end - piece.start for piece in self._held.values())
        for key in list(self._held)[:-1]:
            if total <= MAX_BUFFERED_BYTES:
                return
            piece = self._held.pop(key)
            piece.future = None
            total -= piece.end - piece.start

    def _wait(self, future: Future[bytes]) -> bytes:
        while not wait([future], _WAIT_SECONDS).done:
            self._check()
        return future.result()

    def _count(self, file: _File, piece: _Piece, count: int) -> None:
        with self._lock:
            piece.left = max(0, piece.left - count)
            if not piece.left:
                self._held.pop((file.path, piece.start), None)
                piece.future = None


def _pieces(spans: list[tuple[int, int]]) -> Iterable[_Piece]:
    """Yield pieces of tensors in file order: small neighbors together, large ones cut."""
    begin = end = 0
    for offset, nbytes in spans:
        if offset != end or end - begin + nbytes > PIECE_BYTES:
            if end > begin:
                yield _Piece(begin, end, end - begin)
            begin = end = offset
        if nbytes <= PIECE_BYTES:
            end += nbytes
            continue
        cuts = [*range(offset, offset + nbytes, PIECE_BYTES), offset + nbytes]
        for first, last in itertools.pairwise(cuts):
            yield _Piece(first, last, last - first)
        begin = end = offset + nbytes
    if end > begin:
        yield _Piece(begin, end, end - begin)


def fetched(fetch: Fetch, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from start to end in order, fetching some pieces ahead."""
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="fetch") as pool:
        spans = ((at, min(PIECE_BYTES, end - at)) for at in range(start, end, PIECE_BYTES))
        waiting = [pool.submit(fetch, *span) for span in itertools.islice(spans, FETCHES)]
        try:
            while waiting:
                piece = waiting.pop(0).result()
                waiting += [pool.submit(fetch, *span) for span in itertools.islice(spans, 1)]
                yield piece
        finally:
            for future in waiting:
                future.cancel()


class FollowedHash:
    """Hashes a file in order while its ranges are read in another; what nobody reads is fetched.

    At most `MOST_AHEAD_BYTES` are held: beyond it the gap before them is fetched.
    """

    def __init__(self, fetch: Fetch, size: int, algorithm: str = "blake3") -> None:
        """Args: size: of the file; algorithm: "blake3" or "sha256"."""
        self.size = size
        self.done = 0
        self._fetch = fetch
        self._algorithm = algorithm
        self._hasher = make_hasher(algorithm)
        self._held: dict[int, bytes] = {}
        self._is_filling = False
        self._lock = threading.Lock()

    def took(self, start: int, data: bytes) -> None:
        """Take a range that somebody read; safe from several threads."""
        with self._lock:
            self._hold(start, data)
            if self._is_filling and self._held_bytes() > MOST_AHEAD_BYTES:
                self._held.pop(start, None)  # it is fetched again when its turn comes
                return
        while self._fill_one():
            pass

    def finish(self, check: Callable[[], None] = lambda: None) -> str:
        """Fetch what is left and return the content hash; check: raises to stop.

        Raises: what fetching raises.
        """
        while self.done < self.size:
            with self._lock:
                start, end = self.done, min(self._held, default=self.size)
            for piece in fetched(self._fetch, start, end):
                check()
                with self._lock:
                    self._hold(start, piece)
                start += len(piece)
        return f"{self._algorithm}:{self._hasher.hexdigest()}"

    def _held_bytes(self) -> int:
        return sum(map(len, self._held.values()))

    def _hold(self, start: int, data: bytes) -> None:
        """Keep a range until all before it is hashed; hash what can be."""
        if start + len(data) > self.done and len(data) > len(self._held.get(start, b"")):
            self._held[start] = data
        for first in sorted(self._held):
            if first > self.done:
                return
            rest = memoryview(self._held.pop(first))[self.done - first :]
            self._hasher.update(rest)
            self.done += len(rest)

    def _fill_one(self) -> bool:
        """Fetch a piece of the gap where too much is held behind it; say whether that was so."""
        with self._lock:
            if self._is_filling or self._held_bytes() <= MOST_AHEAD_BYTES:
                return False
            self._is_filling = True
            start, count = self.done, min(PIECE_BYTES, min(self._held) - self.done)
        try:
            piece = self._fetch(start, count)
            with self._lock:
                self._hold(start, piece)
        finally:
            self._is_filling = False
        return True
