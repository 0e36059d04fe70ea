"""Progress and cancellation of long jobs, independent of how they are shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ram_studio.errors import Stopped

GROUND_SECONDS = 1.0
"""Seconds of steady work after which the remaining time is estimated."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job.

    stage: "analyze", "count", "merge", "write" (a delta), "hash" (of sources), "flush" (the output
    to the disk, where that takes long) or "upload" (to a URL); tensor: the last tensor or file
    worked on; tensor_index: tensors or files begun, of tensor_count;
    done_bytes, total_bytes: bytes read from all checkpoints, or flushed; seconds: since the stage
    began. late_bytes, late_seconds: both at the first report, which may have waited for a compiler
    or a disk: the remaining time is estimated from later progress alone.
    """

    stage: str
    tensor: str
    tensor_index: int
    tensor_count: int
    done_bytes: int
    total_bytes: int
    seconds: float
    late_bytes: int = 0
    late_seconds: float = 0.0

    @property
    def fraction(self) -> float:
        """Share of the bytes that are done, 0 to 1."""
        return self.done_bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def rate(self) -> float:
        """Bytes read per second."""
        return self.done_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds left of this stage, at the rate since its first bytes; None if unknown.

        None in the first second of steady work, where an estimate would be far off.
        """
        left = self.total_bytes - self.done_bytes
        done, seconds = self.done_bytes - self.late_bytes, self.seconds - self.late_seconds
        if not left:
            return 0.0
        return left * seconds / done if done > 0 and seconds >= GROUND_SECONDS else None


ProgressCallback = Callable[[Progress], None]


class CancelToken:
    """Requests a running job to stop; safe to use from any thread.

    poll: also called, for requests found by polling.
    """

    def __init__(self, poll: Callable[[], bool] | None = None) -> None:
        self._event, self._poll = threading.Event(), poll

    def cancel(self) -> None:
        """Request a stop. The job raises Stopped within a block's time and leaves no files."""
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set() or bool(self._poll and self._poll())

    def raise_if_cancelled(self) -> None:
        """Raise Stopped after a stop was requested."""
        if self.is_cancelled:
            raise Stopped("Stopped; nothing was left behind.")


class Meter:
    """Counts bytes from many threads and reports them from one."""

    def __init__(self, stage: str, total_bytes: int, tensor_count: int) -> None:
        self._stage = stage
        self._total_bytes = total_bytes
        self._tensor_count = tensor_count
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._done_bytes = 0
        self._late: tuple[int, float] | None = None
        self._tensor = ""
        self._tensor_index = 0

    def add(self, nbytes: int, tensor: str, tensor_index: int) -> None:
        """Count bytes that were read for a tensor (0-based index)."""
        with self._lock:
            self._done_bytes += nbytes
            if self._late is None:
                self._late = self._done_bytes, time.monotonic() - self._start
            if tensor_index + 1 >= self._tensor_index:
                self._tensor, self._tensor_index = tensor, tensor_index + 1

    def read(self) -> Progress:
        """Return the current progress."""
        with self._lock:
            return Progress(
                self._stage,
                self._tensor,
                self._tensor_index,
                self._tensor_count,
                self._done_bytes,
                self._total_bytes,
                time.monotonic() - self._start,
                *(self._late or (0, 0.0)),
            )

    def report_progress(self, on_progress: ProgressCallback | None) -> None:
        """Report the current progress to the callback."""
        if on_progress:
            on_progress(self.read())
