"""Hashes every source file right behind the readers of a pass, without a separate pass.

Separate threads read each file in order up to the pass's position, while its pages are still in
memory, and hash them. They never delay the pass; the rest is hashed after its end.
Memory is one chunk per thread, for any models.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.content_hash import CHUNK_BYTES, Hasher, known_hash, make_hasher
from ram_studio.checkpoints.read.describe import printable, who
from ram_studio.checkpoints.read.remote import FollowedHash, RemoteFiles
from ram_studio.engine.events import CancelToken, Meter, Progress, ProgressCallback
from ram_studio.errors import CheckpointError, SourceChangedError

MAX_THREADS = 4
CORES_PER_THREAD = 4
_IDLE_SECONDS = 0.02
REPORT_SECONDS = 0.1


class _File:
    """One file being hashed: its position, and its state at the start. Open only while hashed.

    A model has hundreds of shards, and a process may not be able to open all of them twice.
    """

    def __init__(
        self, path: Path, name: str, span: tuple[float, float], algorithm: str = "blake3"
    ) -> None:
        """Args: span: its range in its checkpoint's bytes, as fractions."""
        self.path = path
        self.label = f"{who(name)}{printable(path)}"
        self.starts_at, self.ends_at = span
        self.algorithm = algorithm
        self.state = _state(os.stat(path))
        self.size = self.state[0]
        self.done = 0
        self.is_busy = False  # a thread has it
        self.hasher: Hasher = make_hasher(algorithm)
        self._handle: int | None = None

    @property
    def is_done(self) -> bool:
        return self.done >= self.size

    def bytes_reached(self, fraction: float) -> int:
        """Return how many of its bytes a pass has read at this fraction of the model."""
        if fraction >= self.ends_at:
            return self.size
        width = self.ends_at - self.starts_at
        return int(self.size * max(0.0, fraction - self.starts_at) / width) if width else 0

    def hash_chunk(self, buffer: memoryview, limit: int) -> int:
        """Hash one chunk up to byte `limit`; return its bytes."""
        count = min(len(buffer), limit - self.done)
        try:
            if self._handle is None:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._compare(os.fstat(self._handle))
            got = os.preadv(self._handle, [buffer[:count]], self.done)
        except FileNotFoundError as error:
            raise self._changed_error(f"vanished while it was read ({error.strerror})") from error
        except OSError as error:
            raise CheckpointError(
                f"{self.label} cannot be read: {error.strerror}. Check the disk, or fetch the file "
                "again."
            ) from error
        if got == 0:
            raise self._changed_error()
        self.hasher.update(buffer[:got])
        self.done += got
        if self.is_done:
            self.close()
        return got

    def close(self) -> None:
        """Close the handle, if there is one."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def check_unchanged(self) -> None:
        """Raise SourceChangedError when the file is not the one that was opened, or was changed."""
        try:
            self._compare(os.stat(self.path))
        except OSError as error:
            raise self._changed_error(f"vanished while it was read ({error.strerror})") from error

    def _compare(self, now: os.stat_result) -> None:
        if _state(now) != self.state:
            raise self._changed_error()

    def _changed_error(self, how: str = "changed while it was read") -> SourceChangedError:
        return SourceChangedError(
            f"{self.label} {how}. Do not change the files during a run, and run again."
        )


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


class SourceHasher:
    """Content hashes of all shards of a merge's sources; a context manager.

    Also watches the files from entering to `finish`: one that changed, was replaced or vanished in
    between, even between two passes, is an error.
    """

    def __init__(
        self,
        report: CompatibilityReport,
        *,
        threads: int | None = None,
        algorithms: Mapping[Path, str] | None = None,
    ) -> None:
        """Store the checkpoints; no file is opened before the with-block.

        algorithms: hash only these files, by "blake3" or "sha256", even if a hash is known here;
            "" accepts a known hash.
        """
        self._checkpoints = report.checkpoints
        self._algorithms = algorithms
        self._order = {t.name: i for i, t in enumerate(report.tensors)}
        cores = os.cpu_count() or 1
        self._threads = threads or max(1, min(MAX_THREADS, cores // CORES_PER_THREAD))
        self._files: dict[Path, _File] = {}
        self._digests: dict[Path, str] = {}
        self._followed: dict[Path, FollowedHash] = {}
        self._elsewhere: dict[RemoteFiles, list[str]] = {}
        self._waiting: list[_File] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._fraction = 0.0
        self._error: BaseException | None = None
        self._workers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        try:
            for checkpoint in self._checkpoints:
                self._open_files(checkpoint)
        except OSError as error:
            self._close()
            raise CheckpointError(
                f"{checkpoint.who}{printable(error.filename)} cannot be opened: "
                f"{error.strerror}. Check that the file is there and readable, and run again."
            ) from error
        self._waiting = sorted(
            (f for f in self._files.values() if not f.is_done), key=lambda f: f.starts_at
        )
        for _ in range(self._threads):
            worker = threading.Thread(target=self._work, name="hash", daemon=True)
            self._workers.append(worker)
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        for worker in self._workers:
            worker.join()
        self._close()

    def _open_files(self, checkpoint: Checkpoint) -> None:
        total = max(1, checkpoint.nbytes)
        first: dict[Path, int] = {}
        for tensor in checkpoint.tensors.values():
            place = self._order.get(tensor.name, len(self._order))
            first[tensor.path] = min(first.get(tensor.path, place), place)
        start = 0
        for path in sorted(checkpoint.shards, key=lambda p: (first.get(p, len(self._order)), p)):
            if (remote := checkpoint.remote.get(path)) is not None:
                self._follow(path, remote)
                continue
            size = path.stat().st_size
            span = (start / total, (start + size) / total)
            start += size
            algorithm = self._algorithm(path)
            if path in self._files or algorithm is None:
                continue
            self._files[path] = file = _File(path, checkpoint.name, span, algorithm or "blake3")
            if not algorithm and (known := known_hash(path)):
                self._digests[path] = known
                file.done = size

    def _follow(self, path: Path, remote: RemoteFiles) -> None:
        """Hash a remote file from the bytes that the pass reads, unless its hash is known there."""
        algorithm = self._algorithm(path)
        if algorithm is None:
            return
        self._elsewhere.setdefault(remote, []).append(path.name)
        # Pinned to a commit, and of known content where the Hub keeps it as a large file.
        known = remote.content_hash(path.name)
        if known is not None and known.startswith(f"{algorithm}:" if algorithm else ""):
            self._digests[path] = known
        elif path not in self._followed:
            self._followed[path] = remote.follow(path.name, algorithm or "blake3")

    def _algorithm(self, path: Path) -> str | None:
        """Return the hash algorithm for a file, "" for any, None for files not to hash."""
        return "" if self._algorithms is None else self._algorithms.get(path)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def watch(self, on_progress: ProgressCallback | None) -> ProgressCallback:
        """Return a progress callback that also advances the hasher."""

        def report_progress(progress: Progress) -> None:
            self.advance(progress.fraction)
            if on_progress:
                on_progress(progress)

        return report_progress

    def advance(self, fraction: float) -> None:
        """Hash the files up to the fraction that a pass has read, 0 to 1."""
        if fraction > self._fraction:
            self._fraction = fraction
            self._wake.set()

    def _work(self) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while not self._stop.is_set():
                file, limit = self._take()
                if file is not None:
                    file.hash_chunk(buffer, limit)
                    file.is_busy = False
                elif not self._waiting:
                    return
                else:
                    self._wake.clear()
                    self._wake.wait(_IDLE_SECONDS)
        except BaseException as error:
            self._error = error
            self._stop.set()  # stop the other threads
            self._wake.set()

    def _take(self) -> tuple[_File | None, int]:
        """Return the first file, in the order of the pass, with a chunk to hash."""
        fraction = self._fraction
        with self._lock:
            self._waiting = [f for f in self._waiting if not f.is_done or f.is_busy]
            for file in self._waiting:
                limit = file.bytes_reached(fraction)
                is_behind = limit - file.done >= CHUNK_BYTES or limit == file.size
                if is_behind and not file.is_busy:
                    file.is_busy = True
                    return file, limit
        return None, 0

    def finish(
        self, on_progress: ProgressCallback | None = None, cancel: CancelToken | None = None
    ) -> dict[str, dict[str, str]]:
        """Hash the rest; return checkpoint name -> file name -> content hash.

        Raises: SourceChangedError naming a file that changed since the start;
        CheckpointError when one cannot be read; Stopped.
        """
        total = sum(f.size for f in self._files.values())
        meter = Meter("hash", total, len(self._files))
        meter.add(sum(f.done for f in self._files.values()), "", -1)
        self.advance(1.0)
        cancel = cancel or CancelToken()
        for worker in self._workers:
            while worker.is_alive():
                worker.join(REPORT_SECONDS)
                cancel.raise_if_cancelled()
                if worker.is_alive():
                    done = sum(f.done for f in self._files.values())
                    index = sum(f.is_done for f in self._files.values())
                    meter.add(done - meter.read().done_bytes, "", max(0, index - 1))
                    meter.report_progress(on_progress)
        if self._error is not None:
            raise self._error
        for file in self._files.values():
            file.check_unchanged()
        self._finish_elsewhere(on_progress, cancel)
        for place, names in self._elsewhere.items():
            place.check_unchanged(names)
        digests = {
            path: f"{file.algorithm}:{file.hasher.hexdigest()}"
            for path, file in self._files.items()
        } | self._digests
        return {
            c.name: {path.name: digests[path] for path in c.shards if path in digests}
            for c in self._checkpoints
        }

    def _finish_elsewhere(self, on_progress: ProgressCallback | None, cancel: CancelToken) -> None:
        """Fetch the bytes of remote files that no pass read."""
        left = sum(file.size - file.done for file in self._followed.values())
        meter = Meter("hash", left, len(self._followed))
        for index, (path, file) in enumerate(self._followed.items()):

            def check(file: FollowedHash = file, path: Path = path, index: int = index) -> None:
                cancel.raise_if_cancelled()
                meter.add(0, path.name, index)
                meter.report_progress(on_progress)

            before = file.done
            self._digests[path] = file.finish(check)
            meter.add(file.size - before, path.name, index)
