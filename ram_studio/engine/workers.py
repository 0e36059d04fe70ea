"""Running a pass over blocks on several threads, with progress, cancelling and the first error."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from ram_studio.engine.blocks import Block
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.errors import SettingsError

REPORT_SECONDS = 0.1


def thread_count(threads: int | None) -> int:
    """Return how many threads to use: as asked, or one per core up to 16.

    Raises: SettingsError when fewer than one is asked for.
    """
    if threads is None:
        return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    if threads < 1:
        raise SettingsError(f"threads is {threads}; give at least 1, or leave it out.")
    return threads


def run_blocks(
    blocks: Iterable[Block],
    make_worker: Callable[[], Callable[[Block], None]],
    *,
    threads: int,
    meter: Meter,
    on_progress: ProgressCallback | None,
    cancel: CancelToken | None,
    finish: Callable[[Callable[[Block], None]], None] = lambda worker: None,
) -> None:
    """Hand blocks in order to ``threads`` workers and wait for them.

    make_worker runs once in each thread and returns what handles a block; finish is called with
    each worker at its end, in its thread. ``on_progress`` is called in the caller's thread.

    Raises: the first error of a worker; Stopped when cancelled; KeyboardInterrupt passes through.
    In each case all threads have ended.
    """
    cancel = cancel or CancelToken()
    queue = _Locked(blocks)
    stop = threading.Event()

    def work() -> None:
        worker = make_worker()
        for block in queue:
            if stop.is_set() or cancel.is_cancelled:
                return
            worker(block)
            meter.add(block.nbytes, block.tensor.name, block.tensor_index)
        finish(worker)

    with ThreadPoolExecutor(threads, thread_name_prefix="block") as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, REPORT_SECONDS, return_when=FIRST_EXCEPTION)
                if any(f.exception() for f in done):
                    break
                if on_progress:
                    on_progress(meter.read())
        finally:
            stop.set()
    cancel.raise_if_cancelled()
    for future in futures:
        future.result()


class _Locked:
    """An iterator that several threads may share."""

    def __init__(self, items: Iterable[Block]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        with self._lock:
            return next(self._items)
