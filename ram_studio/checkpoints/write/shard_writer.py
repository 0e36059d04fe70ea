"""Writes shards in chunks: allocated at full size, hashed while written, flushed at the end.

Shards have a `.partial` suffix until all of them are on the disk; then each is renamed into its
place. An ``Output`` decides where they are written and how they are finished.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol, Self

import blake3

from ram_studio.checkpoints.read.describe import printable, quoted, shown_list
from ram_studio.checkpoints.read.files import allow_open_files
from ram_studio.checkpoints.write.output_folder import NOTHING_LEFT, flush, plain_words
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.errors import OutputError

_PARTIAL = ".partial"

_WAIT_SECONDS = 0.1
_DIGEST_CHUNK_BYTES = 4 << 20

_EARLY_FLUSH_BYTES = 128 << 20
"""Bytes between flushes in the background: the disk works during the merge."""


class FollowingDigest:
    """The BLAKE3 of a file whose chunks are written by several threads, in any order.

    Chunks are mostly written in file order. The thread that writes the next one hashes it from the
    page cache, with all chunks that others wrote after it; no thread waits.
    """

    def __init__(self, head: bytes, size: int, read: Callable[[int, int], bytes]) -> None:
        """Begin with the file's first bytes.

        Args:
            head: the bytes already written; size: of the whole file; read: returns bytes of the
            file, from a position and a length.
        """
        self._hasher = blake3.blake3(head, max_threads=1)
        self._size = size
        self._read = read
        self._end = len(head)
        self._written: dict[int, int] = {}
        self._is_busy = False
        self._lock = threading.Lock()

    def wrote(self, start: int, chunk: memoryview) -> None:
        """Record a chunk that is now in the file; each byte is written once."""
        with self._lock:
            self._written[start] = start + len(chunk)
        while True:
            with self._lock:
                if self._is_busy or self._end not in self._written:
                    return
                begin, end = self._end, self._written.pop(self._end)
                self._is_busy = True
            # If this fails the writing ends; `_is_busy` then keeps other threads away.
            for position in range(begin, end, _DIGEST_CHUNK_BYTES):
                stop = min(position + _DIGEST_CHUNK_BYTES, end)
                if begin == start:
                    self._hasher.update(chunk[position - start : stop - start])
                else:
                    self._hasher.update(self._read(position, stop - position))
            with self._lock:
                self._end, self._is_busy = end, False

    def hexdigest(self) -> str:
        """Return the digest as 64 hex digits; call it after every chunk was recorded."""
        with self._lock:
            assert self._end == self._size, "some chunk of the file is missing"
            return self._hasher.hexdigest()


class Receiver(Protocol):
    """Receives every shard as soon as it is complete, while others are still written."""

    def take(self, shard: Shard, path: Path) -> None:
        """Take a complete shard at a path; returns immediately.

        Called once per shard, by the thread that wrote its last data; not for a shard without
        data.
        """

    def release(self, on_wait: Callable[[], None]) -> None:
        """Return once no path is in use: the shards are then renamed.

        on_wait: called about ten times a second; its errors end the wait.
        """


Reserve = Callable[[contextlib.ExitStack], Path]
"""Returns a new folder to write in, on the disk of the output; its removal goes to the stack.

Raises: OutputError when the output cannot be used, or does not fit on the disk.
"""


class ShardWriter:
    """Writes some shards; a context manager. Bytes do not depend on the order of the writes.

    Leaving the block removes shards that were not placed.

    Attributes:
        out: the output.
        shards: the layout, in file order.
        nbytes: bytes of all shards.
        folder: where they are written, from entering the block on.
    """

    folder: Path

    def __init__(
        self,
        out: Path | str,
        shards: Sequence[Shard],
        reserve: Reserve,
        *,
        receiver: Receiver | None = None,
        is_flushed: bool = True,
        left: str = NOTHING_LEFT,
    ) -> None:
        """Store the arguments; nothing is written yet.

        Args:
            receiver: gets each complete shard.
            is_flushed: False for shards that only wait here for their upload.
            left: state of the output after a failure, for messages.
        """
        self.out = out
        self.shards = shards
        self._reserve = reserve
        self._is_flushed = is_flushed
        self._left_there = left
        self.nbytes = sum(shard.file_size for shard in shards)
        self._receiver = receiver
        self._place = {
            name: (shard, *place) for shard in shards for name, place in shard.offsets.items()
        }
        self._written = dict.fromkeys(self._place, 0)
        self._left = {s.file_name: sum(n for _, n in s.offsets.values()) for s in shards}
        self._count_lock = threading.Lock()
        self._unflushed = 0
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flushes: list[Future[None]] = []
        self._handles: dict[str, int] = {}
        self._digests: dict[str, FollowingDigest] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            self.folder = self._reserve(undo)
            undo.callback(self._close_shards)
            allow_open_files(len(self.shards))
            for shard in self.shards:
                self._allocate(shard)
            # A flush cannot be interrupted: it may end after its writer was abandoned.
            undo.callback(self._flusher.shutdown, wait=False, cancel_futures=True)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def detach(self) -> contextlib.ExitStack:
        """Return the stack that removes the folder, for use of the shards after the block."""
        return self._undo.pop_all()

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Write a chunk of a tensor's data; safe from several threads.

        Args:
            name: the tensor.
            byte_offset: start of the chunk in the tensor's data.
            buffer: the chunk, little-endian as stored; anything C-contiguous with the buffer
                protocol (a numpy array).

        Raises: OutputError when the disk is full or fails.
        """
        shard, start, nbytes = self._place[name]
        view = memoryview(buffer)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        assert 0 <= byte_offset <= byte_offset + len(view) <= nbytes, f"{name}: outside the tensor"
        position = start + byte_offset
        what = f"tensor {quoted(name)} cannot be written to {printable(self.out)}"
        with plain_words(what, self._left_there):
            _write_fully(self._handles[shard.file_name], view, position)
            self._digests[shard.file_name].wrote(position, view)
        with self._count_lock:
            self._written[name] += len(view)
            self._left[shard.file_name] -= len(view)
            is_complete = not self._left[shard.file_name]
            self._unflushed += len(view)
            if self._unflushed >= _EARLY_FLUSH_BYTES and all(f.done() for f in self._flushes):
                self._flush_soon(shard)
        if is_complete and self._receiver is not None:
            self._receiver.take(shard, self.partial(shard))

    def digests(self) -> dict[str, str]:
        """Return each shard's BLAKE3 by its final name.

        Call it after the last write and before finishing, so that the provenance can hold them.

        Raises: OutputError when a tensor was not written in full.
        """
        self._check_complete()
        for shard in self.shards:
            self._flush_soon(shard)
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def place(self, folder: Path, on_wait: Callable[[int], None]) -> None:
        """Flush all shards to the disk, then move them to a folder there under their final names.

        on_wait: called about ten times a second during the flush, with the bytes of flushed
        shards; its errors end the writing.

        Raises: OutputError when a tensor was not written in full; OSError when the disk fails.
        """
        self._check_complete()
        self._flush_all(on_wait)
        if self._receiver is not None:
            self._receiver.release(lambda: on_wait(self.nbytes))
        for shard in self.shards:
            os.replace(self.partial(shard), folder / shard.file_name)

    def partial(self, shard: Shard) -> Path:
        """Return the path of a shard while it is written."""
        return self.folder / (shard.file_name + _PARTIAL)

    def _close_shards(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def _flush_all(self, on_wait: Callable[[int], None]) -> None:
        sizes: dict[Future[None], int] = dict.fromkeys(self._flushes, 0)
        for shard in self.shards:
            sizes[self._flusher.submit(flush, self.partial(shard))] = shard.file_size
        flushed, waiting = 0, set(sizes)
        while waiting:
            done, waiting = wait(waiting, _WAIT_SECONDS, return_when=FIRST_COMPLETED)
            for ended in done:
                ended.result()
                flushed += sizes[ended]
            if not done:
                on_wait(flushed)

    def _flush_soon(self, shard: Shard) -> None:
        self._unflushed = 0
        if not self._is_flushed:
            return
        self._flushes.append(self._flusher.submit(flush, self.partial(shard)))

    def _allocate(self, shard: Shard) -> None:
        """Create a shard at its final size with its header, to detect a full disk early."""
        with plain_words(f"{printable(self.out)} cannot be prepared", self._left_there):
            handle = os.open(
                self.partial(shard), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            self._handles[shard.file_name] = handle
            _reserve_space(handle, shard.file_size)
            _write_fully(handle, memoryview(shard.head), 0)
        self._digests[shard.file_name] = FollowingDigest(
            shard.head,
            shard.file_size,
            lambda position, count: _read_fully(handle, position, count),
        )

    def _check_complete(self) -> None:
        # A preallocated file has zeros where nothing was written: never publish these.
        short = [
            f"{quoted(name)} {count} of {self._place[name][2]} bytes"
            for name, count in self._written.items()
            if count != self._place[name][2]
        ]
        if short:
            raise OutputError(
                f"{printable(self.out)} is incomplete: {shown_list(short)} written; run again."
            )


def _reserve_space(handle: int, size: int) -> None:
    """Give a file its size and, where the file system can, its blocks on the disk."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        try:
            os.posix_fallocate(handle, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    os.ftruncate(handle, size)


def _read_fully(handle: int, position: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = os.pread(handle, count - len(found), position + len(found))
        if not chunk:
            raise OSError(errno.EIO, "the file ends too early")
        found += chunk
    return found


def _write_fully(handle: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.pwrite(handle, view, offset)
        view, offset = view[count:], offset + count
