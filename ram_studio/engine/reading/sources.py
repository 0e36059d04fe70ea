"""The open files of a pass: reads them, watches them for changes, and reports their errors."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import who
from ram_studio.checkpoints.read.files import allow_open_files
from ram_studio.checkpoints.read.remote import ReadAhead, Remote, RemoteFiles
from ram_studio.checkpoints.read.tensors import TensorCache, TensorInfo
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS, Block
from ram_studio.errors import CheckpointError, NonFiniteError, SourceChangedError

_CHUNK_BYTES = 4 * BLOCK_ELEMENTS


class Sources:
    """The open shard files of some checkpoints, watched for changes while they are read.

    A ``TensorReader``, whose cache lives as long as the files are open. states: size and
    modification time of each file when it was opened.
    """

    def __init__(
        self,
        *checkpoints: Checkpoint,
        check: Callable[[], None] = lambda: None,
        read_ahead: bool = True,
    ) -> None:
        """Open nothing yet.

        Args:
            check: raises to stop waiting for files that are not on this disk.
            read_ahead: fetch such files in large chunks, to read all of them; else exactly the
                requested bytes.
        """
        self._checkpoints = checkpoints
        self._check = check
        self._who: dict[Path, str] = {}
        for checkpoint in self._checkpoints:
            for shard in checkpoint.shards:
                self._who.setdefault(shard, checkpoint.name)
        self._handles: dict[Path, int] = {}
        self.cache = TensorCache()
        self._read_ahead = read_ahead
        self._direct: Remote = {}
        self._remote: ReadAhead | None = None
        self.states: dict[Path, tuple[int, int]] = {}

    def __enter__(self) -> Sources:
        remote = {path: place for c in self._checkpoints for path, place in c.remote.items()}
        if not self._read_ahead:
            self._direct = remote
        elif remote:
            tensors = (t for c in self._checkpoints for t in c.tensors.values())
            stored = itertools.chain.from_iterable(t.stored_parts() for t in tensors)
            self._remote = ReadAhead(remote, stored, self._check)
        here = self._who.keys() - remote.keys()
        allow_open_files(len(here))
        try:
            for path in here:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._handles[path] = handle
                state = os.fstat(handle)
                self.states[path] = (state.st_size, state.st_mtime_ns)
        except OSError as error:
            self.__exit__()
            raise CheckpointError(
                f"{self._label(path)} cannot be opened: {error.strerror}. Check that the file is "
                "there and readable, and run again."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
        if self._remote is not None:
            self._remote.close()

    def _label(self, path: Path) -> str:
        return f"{who(self._who[path])}{path}"

    def read_into(self, source: TensorInfo, byte_start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the tensor's bytes from ``byte_start`` on.

        Raises: SourceChangedError when the file ends before, CheckpointError when reading fails.
        """
        if source.virtual is not None:
            source.virtual.read_into(source, self, byte_start, buffer)
            return
        if self._remote is not None and source.path in self._remote:
            self._remote.read_into(source.path, source.offset + byte_start, buffer)
            return
        if source.path in self._direct:
            place, start = self._direct[source.path], source.offset + byte_start
            buffer[:] = place.read_range(source.path.name, start, len(buffer))
            return
        handle = self._handles[source.path]
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(handle, [buffer[done:]], source.offset + byte_start + done)
            except OSError as error:
                raise CheckpointError(
                    f"{self._label(source.path)}: tensor `{source.name}` cannot be read: "
                    f"{error.strerror}. Check the disk, or fetch the file again."
                ) from error
            if got == 0:
                raise SourceChangedError(
                    f"{self._label(source.path)}: ends inside tensor `{source.name}`; it was "
                    "complete when it was opened. Do not change the files while they are read, "
                    "and run again."
                )
            done += got

    def stored(self, source: TensorInfo, byte_start: int, count: int) -> np.ndarray:
        """Return some of a tensor's bytes (uint8)."""
        stored = np.empty(count, dtype=np.uint8)
        if count:
            self.read_into(source, byte_start, stored.data)
        return stored

    def decoded(self, source: TensorInfo, start: int, count: int) -> np.ndarray:
        """Return some elements of a tensor as float32."""
        width = source.element_bytes
        return rounding.decode(self.stored(source, start * width, count * width), source.dtype)

    def chunks(self, source: TensorInfo, nbytes: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first bytes of a tensor in chunks: each one's start and bytes (uint8)."""
        for start in range(0, nbytes, _CHUNK_BYTES):
            yield start, self.stored(source, start, min(_CHUNK_BYTES, nbytes - start))

    def check_unchanged(self) -> None:
        """Raise SourceChangedError when a file was written to since it was opened."""
        elsewhere: dict[RemoteFiles, list[str]] = {}
        for checkpoint in self._checkpoints:
            for path, place in checkpoint.remote.items():
                elsewhere.setdefault(place, []).append(path.name)
        for place, names in elsewhere.items():
            place.check_unchanged(names)
        for path, handle in self._handles.items():
            state = os.fstat(handle)
            if (state.st_size, state.st_mtime_ns) != self.states[path]:
                raise SourceChangedError(
                    f"{self._label(path)} changed while it was read. Do not change the files "
                    "during a run, and run again."
                )

    def non_finite_error(self, block: Block) -> NonFiniteError:
        """Return the error for a block with a task vector that is not finite.

        Reads the whole tensor of the first faulty checkpoint again, to count its NaN and Inf and
        to find the index of the first.
        """
        for checkpoint, tensor in zip(self._checkpoints, block.sources, strict=True):
            count, first = self._count_non_finite(tensor)
            if count:
                index = tuple(int(i) for i in np.unravel_index(first, tensor.shape))
                return NonFiniteError(
                    f"{checkpoint.who}{tensor.path}: tensor `{tensor.name}` has {count} "
                    f"NaN or Inf {'element' if count == 1 else 'elements'}, the first at index "
                    f"{index}; every element must be finite. Fetch or export this checkpoint again."
                )
        return NonFiniteError(
            f"Tensor `{block.tensor.name}`: base and agents differ by more than float32 can hold; "
            "check that the agents were trained from this base."
        )

    def _count_non_finite(self, tensor: TensorInfo) -> tuple[int, int]:
        total, first = 0, -1
        for start, chunk in self.chunks(tensor, tensor.nbytes):
            bad = np.flatnonzero(~np.isfinite(rounding.decode(chunk, tensor.dtype)))
            if len(bad) and first < 0:
                first = start // tensor.element_bytes + int(bad[0])
            total += len(bad)
        return total, first
