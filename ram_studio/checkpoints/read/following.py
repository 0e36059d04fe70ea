"""The content hash of a file that is read elsewhere by ranges, from what passes read anyway."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ram_studio.checkpoints.read.content_hash import make_hasher

FETCH_BYTES = 8 << 20
FETCHES = 4
MOST_HELD_BYTES = 64 << 20
"""Of one file, ahead of what was hashed: pieces arrive a few at a time, in any order."""

Fetch = Callable[[int, int], bytes]
"""Returns a file's bytes from a position on, by their number."""


def fetched(fetch: Fetch, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from start to end in order, fetching some pieces ahead."""
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="fetch") as pool:
        spans = ((at, min(FETCH_BYTES, end - at)) for at in range(start, end, FETCH_BYTES))
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

    Memory is bounded by `MOST_HELD_BYTES`: beyond it the gap before what is held is fetched.
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
            if self._is_filling and self._held_bytes() > MOST_HELD_BYTES:
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
            if self._is_filling or self._held_bytes() <= MOST_HELD_BYTES:
                return False
            self._is_filling = True
            start, count = self.done, min(FETCH_BYTES, min(self._held) - self.done)
        try:
            piece = self._fetch(start, count)
            with self._lock:
                self._hold(start, piece)
        finally:
            self._is_filling = False
        return True


class Follows:
    """What a place of remote files needs for the hashes of those that it does not know."""

    def __init__(self) -> None:
        self._followed: dict[Path, FollowedHash] = {}

    def follow(self, path: Path, fetch: Fetch, size: int, algorithm: str) -> FollowedHash:
        """Hash a file from now on; `tell` it what is read."""
        self._followed[path] = FollowedHash(fetch, size, algorithm)
        return self._followed[path]

    def tell(self, path: Path, start: int, data: bytes) -> None:
        """Take note of a range that was read."""
        if (followed := self._followed.get(path)) is not None:
            followed.took(start, data)
