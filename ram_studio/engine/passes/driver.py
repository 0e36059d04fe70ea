"""The driver of all passes: it gives blocks in order, on several threads, to a pass's work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.passes.cpu_backend import CpuBackend
from ram_studio.engine.passes.plan import Backend
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS, Block
from ram_studio.engine.reading.devices import choose_device, devices_of, one_torch_thread, settling
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.reading.residence import Residence, fitting_block, plan_residence
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from ram_studio.checkpoints.write.shard_writer import Receiver

REPORT_SECONDS = 0.1

FLAGS = 64
"""Blocks whose flags stay on their device until they are read together (a synchronization)."""


class RunKeywords(TypedDict, total=False):
    """Options of passes, as keyword arguments of the functions that run them.

    device: "auto", "cpu", "cuda" (all of them) or "cuda:N"; threads: default one per core;
    block_elements: a thread's block size, no result depends on it; on_progress: called
    about ten times a second in the caller's thread; cancel: stops within a block; receiver: gets
    each complete shard of a written merge.
    """

    device: str
    threads: int | None
    block_elements: int
    on_progress: ProgressCallback | None
    cancel: CancelToken | None
    receiver: Receiver | None


@dataclass(frozen=True)
class RunOptions:
    """Common options of the passes of one run, checked; see RunKeywords.

    devices: the torch devices that ``device`` selects; residence: stores blocks that stay in
    memory, and returns them once filled.
    """

    device: str
    devices: tuple[str, ...]
    threads: int
    block_elements: int
    on_progress: ProgressCallback | None
    cancel: CancelToken
    receiver: Receiver | None = None
    residence: Residence | None = None

    @classmethod
    def of(
        cls,
        device: str = "auto",
        threads: int | None = None,
        block_elements: int = BLOCK_ELEMENTS,
        on_progress: ProgressCallback | None = None,
        cancel: CancelToken | None = None,
        receiver: Receiver | None = None,
    ) -> RunOptions:
        """Return the options for these keywords.

        Raises: SettingsError for an unknown device or a wrong number of threads.
        """
        device = choose_device(device)
        devices, threads = devices_of(device), thread_count(threads)
        if device != "cpu" and block_elements == BLOCK_ELEMENTS:
            block_elements = fitting_block(devices, threads)
        return cls(
            device,
            devices,
            threads,
            block_elements,
            on_progress,
            cancel or CancelToken(),
            receiver,
        )

    def with_residence(self, tensors: Sequence[MergeTensor]) -> RunOptions:
        """Return options that keep these tensors on the device after reading, where they fit."""
        if self.residence is not None:
            return self
        stays = plan_residence(tensors, self.devices, self.threads, self.block_elements)
        return replace(self, residence=stays)


def thread_count(threads: int | None) -> int:
    """Return the number of threads: as requested, or one per core up to 16.

    Raises: SettingsError when fewer than one is requested.
    """
    if threads is None:
        return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    if threads < 1:
        raise SettingsError(f"threads is {threads}; give at least 1, or leave it out.")
    return threads


class Worker(Protocol):
    """One thread's share of a pass."""

    def block(self, block: Block, base: Any, agents: Any) -> Any:
        """Process a block from a reader; return False when some tau is not finite.

        The result may be a flag on a device, see ``Backend.count``.
        """

    def close(self) -> None:
        """Add the remaining results, after the last block."""


class Work(Protocol):
    """The task of a pass: counting, collecting, merging, comparing.

    stage: as in Progress; tensors: those that are read.
    """

    @property
    def stage(self) -> str: ...

    @property
    def tensors(self) -> Sequence[MergeTensor]: ...

    def blocks(self, block_elements: int) -> Iterator[Block]:
        """Yield the blocks to read, in order; a large model has millions, so none is stored."""

    def worker(self, backend: Backend) -> Worker:
        """Return one thread's worker; called once in each thread."""


def run_pass(report: CompatibilityReport, work: Work, run: RunOptions) -> int:
    """Read the work's blocks in order on the run's threads; return the bytes read.

    Progress is reported in this thread.

    Raises: the first error of a thread; NonFiniteError, SourceChangedError, CheckpointError;
    Stopped when cancelled; KeyboardInterrupt passes through. All threads have ended in each case.
    """
    read = sum(block.nbytes for block in work.blocks(run.block_elements))
    meter = Meter(work.stage, read, len(work.tensors))
    opened = Sources(*report.checkpoints, check=run.cancel.raise_if_cancelled)
    with opened as sources, settling(run.devices), one_torch_thread(run.device):
        _run_threads(_Thread(work, run, sources, meter, _Queue(work.blocks(run.block_elements))))
        sources.check_unchanged()
        if run.residence is not None:
            read -= run.residence.fill(work.blocks(run.block_elements), sources)
    meter.report_progress(run.on_progress)
    return read


@dataclass(frozen=True)
class _Thread:
    """The loop of each thread of a pass."""

    work: Work
    run: RunOptions
    sources: Sources
    meter: Meter
    queue: _Queue
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, number: int) -> None:
        buffers = (self.run.block_elements, self.run.residence)
        check = self.run.cancel.raise_if_cancelled
        if self.run.device == "cpu":
            reader: Any = BlockReader(self.sources, *buffers)
            backend: Backend = CpuBackend(self.run.block_elements, check)
        else:
            from ram_studio.engine.passes.torch_backend import TorchBackend
            from ram_studio.engine.reading.staging import DeviceReader

            reader = DeviceReader(self.sources, self.run.devices, *buffers, number=number)
            backend = TorchBackend(check)
        worker = self.work.worker(backend)
        flags: list[tuple[Block, Any]] = []
        for block in self.queue:
            if self.stop.is_set() or self.run.cancel.is_cancelled:
                return
            flag = worker.block(block, *reader.read(block))
            flags.append((block, flag))
            if isinstance(flag, bool) or len(flags) == FLAGS:
                self._check(flags, backend)
            self.meter.add(block.nbytes, block.tensor.name, block.tensor_index)
        self._check(flags, backend)
        worker.close()

    def _check(self, flags: list[tuple[Block, Any]], backend: Backend) -> None:
        """Read the flags of some blocks, and clear the list.

        Raises: NonFiniteError.
        """
        read = backend.read_flags([flag for _, flag in flags])
        for (block, _), is_finite in zip(flags, read, strict=True):
            if not is_finite:
                raise self.sources.non_finite_error(block)
        flags.clear()


def _run_threads(thread: _Thread) -> None:
    run = thread.run
    with ThreadPoolExecutor(run.threads, thread_name_prefix="block") as pool:
        futures = [pool.submit(thread, number) for number in range(run.threads)]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, REPORT_SECONDS, return_when=FIRST_EXCEPTION)
                if any(future.exception() for future in done):
                    break
                thread.meter.report_progress(run.on_progress)
        finally:
            thread.stop.set()
    run.cancel.raise_if_cancelled()
    for future in futures:
        future.result()


class _Queue:
    """An iterator that several threads may share."""

    def __init__(self, items: Iterator[Block]) -> None:
        self._items = items
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        with self._lock:
            return next(self._items)
