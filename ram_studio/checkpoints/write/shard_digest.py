"""The digest of a shard that is still being written.

A shard's pieces are mostly written in file order. Hashing each as soon as all before it are there
finds it in the cache, and leaves nothing to read back at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import blake3

_PIECE_BYTES = 4 << 20


class FollowingDigest:
    """The BLAKE3 of a file whose pieces are written by several threads, in any order.

    The thread that writes the next piece in file order hashes it, and reads back what others wrote
    ahead of it; nobody waits.
    """

    def __init__(self, head: bytes, size: int, read: Callable[[int, int], bytes]) -> None:
        """Begin with the file's first bytes.

        Args:
            head: what is written already; size: bytes of the whole file; read: returns what is in
            the file from a position on, by its number of bytes.
        """
        self._hasher = blake3.blake3(head, max_threads=1)
        self._size = size
        self._read = read
        self._end = len(head)
        self._written: dict[int, int] = {}
        self._is_busy = False
        self._lock = threading.Lock()

    def wrote(self, start: int, piece: memoryview) -> None:
        """Take note of a piece that is in the file now; each byte is written once."""
        with self._lock:
            self._written[start] = start + len(piece)
        while True:
            with self._lock:
                if self._is_busy or self._end not in self._written:
                    return
                begin, end = self._end, self._written.pop(self._end)
                self._is_busy = True
            # If this fails the writing ends; others then find it busy and leave it alone.
            for position in range(begin, end, _PIECE_BYTES):
                stop = min(position + _PIECE_BYTES, end)
                if begin == start:
                    self._hasher.update(piece[position - start : stop - start])
                else:
                    self._hasher.update(self._read(position, stop - position))
            with self._lock:
                self._end, self._is_busy = end, False

    def hexdigest(self) -> str:
        """Return the digest as 64 hex digits; call it when every piece was taken note of."""
        with self._lock:
            assert self._end == self._size, "some piece of the file is missing"
            return self._hasher.hexdigest()
