"""The open files of a pass: reading from them, watching them, and saying what is wrong in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.derived import (
    LowRank,
    Microscaled,
    Run,
    Scaled,
    Sparse,
    Tiled,
    Transposed,
    stored_tensors,
)
from ram_studio.checkpoints.read.describe import who
from ram_studio.checkpoints.read.header import DTYPE_BITS, TensorInfo
from ram_studio.checkpoints.read.remote import ReadAhead, Remote
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS, Block
from ram_studio.engine.reading.codes import microscaled, scaled, transposed
from ram_studio.engine.reading.derived import Held, low_rank, overlay, put_together
from ram_studio.errors import CheckpointError, NonFiniteError, SourceChangedError

_PIECE_BYTES = 4 * BLOCK_ELEMENTS


class Sources:
    """The open shard files of some checkpoints, watched for changes while they are read.

    states: size and time of change of each, as it was opened.
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
            read_ahead: fetch such files in large pieces, for who reads all of them; else exactly
                what is asked for.
        """
        self._checkpoints = checkpoints
        self._check = check
        self._who: dict[Path, str] = {}
        for checkpoint in self._checkpoints:
            for shard in checkpoint.shards:
                self._who.setdefault(shard, checkpoint.name)
        self._handles: dict[Path, int] = {}
        self._held = Held()
        self._read_ahead = read_ahead
        self._direct: Remote = {}
        self._remote: ReadAhead | None = None
        self.states: dict[Path, tuple[int, int]] = {}

    def __enter__(self) -> Sources:
        remote = {path: place for c in self._checkpoints for path, place in c.remote.items()}
        if not self._read_ahead:
            self._direct = remote
        elif remote:
            known = (t for c in self._checkpoints for t in c.tensors.values())
            stored = itertools.chain.from_iterable(map(stored_tensors, known))
            self._remote = ReadAhead(remote, stored, self._check)
        try:
            for path in self._who.keys() - remote.keys():
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
        if source.derived is not None:
            self._derive(source, byte_start, buffer)
            return
        if self._remote is not None and source.path in self._remote:
            self._remote.read_into(source.path, source.offset + byte_start, buffer)
            return
        if source.path in self._direct:
            place, start = self._direct[source.path], source.offset + byte_start
            buffer[:] = place.read(source.path, start, len(buffer))
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
                    "complete when it was opened. Leave the files alone while they are read, "
                    "and run again."
                )
            done += got

    def _derive(self, source: TensorInfo, byte_start: int, buffer: memoryview) -> None:
        derived = source.derived
        if isinstance(derived, Sparse):
            overlay(derived, self.read_into, byte_start, buffer)
            return
        if isinstance(derived, Tiled):
            put_together(source, derived, self.read_into, byte_start, buffer)
            return
        if not len(buffer):
            return
        width = DTYPE_BITS[source.dtype] // 8
        if isinstance(derived, Run):
            self.read_into(derived.of, derived.start * width + byte_start, buffer)
            return
        span = byte_start // width, len(buffer) // width
        if isinstance(derived, Transposed):
            made = transposed(derived.of, np.dtype(f"u{width}"), *span, self._stored, self._held)
        elif isinstance(derived, LowRank):
            made = low_rank(derived, self.elements, self._held, *span)
        elif isinstance(derived, Scaled):
            made = scaled(derived, *span, self._stored, self._held)
        else:
            assert isinstance(derived, Microscaled), "no other derivation is made"
            made = microscaled(derived, *span, self._stored, self._held)
        buffer[:] = made.data.cast("B")

    def _stored(self, source: TensorInfo, byte_start: int, count: int) -> np.ndarray:
        stored = np.empty(count, dtype=np.uint8)
        if count:
            self.read_into(source, byte_start, stored.data)
        return stored

    def elements(self, source: TensorInfo, start: int, count: int) -> np.ndarray:
        """Return some elements of a tensor as float32."""
        stored = np.empty(count, dtype=rounding.STORAGE[source.dtype])
        if count:
            self.read_into(source, start * stored.itemsize, stored.data.cast("B"))
        return rounding.decode(stored, source.dtype)

    def pieces(self, source: TensorInfo, nbytes: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first bytes of a tensor in order: where a piece begins, and it (uint8)."""
        for start in range(0, nbytes, _PIECE_BYTES):
            piece = np.empty(min(_PIECE_BYTES, nbytes - start), dtype=np.uint8)
            self.read_into(source, start, piece.data)
            yield start, piece

    def check_unchanged(self) -> None:
        """Raise SourceChangedError when a file was written to since it was opened."""
        for path, handle in self._handles.items():
            state = os.fstat(handle)
            if (state.st_size, state.st_mtime_ns) != self.states[path]:
                raise SourceChangedError(
                    f"{self._label(path)} changed while it was read. Leave the files alone during "
                    "a run, and run again."
                )

    def non_finite_error(self, block: Block) -> NonFiniteError:
        """Return the error for a block with a task vector that is not finite.

        Reads the whole tensor of the first checkpoint at fault again, to count its NaN and Inf and
        to give the index of the first.
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
        storage = rounding.STORAGE[tensor.dtype]
        total, first = 0, -1
        for start, piece in self.pieces(tensor, tensor.nbytes):
            values = rounding.decode(piece.view(storage), tensor.dtype)
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad) and first < 0:
                first = start // storage.itemsize + int(bad[0])
            total += len(bad)
        return total, first
