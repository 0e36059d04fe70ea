"""Outputs of a merge, and the simplest kind: a folder that exists completely or not at all.

Everything goes into a temporary folder beside the output, whose shards have a `.partial` suffix
and which gets its index and config last; finishing flushes all of it to the disk and renames the
folder. A process killed at any moment leaves nothing that loads as a model (only between the last
two system calls is the hidden folder already complete), and the next writer for the same output
removes the leftovers. The layout is that of `save_pretrained`. Merges in parts: see ``parts``.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Self

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.files import Files, Folder
from ram_studio.checkpoints.write.output_folder import (
    SIDECAR_BYTES,
    absolute,
    check_output,
    flush,
    plain_words,
    reserved,
)
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.checkpoints.write.shard_writer import Receiver, ShardWriter
from ram_studio.errors import OutputError

DEFAULT_MAX_SHARD_BYTES = 5_000_000_000


class Output(abc.ABC):
    """The output of a merge; a context manager. Every method raises OutputError where it fails.

    A unit is written, and found again, as a whole: everything in a new folder, a part in a
    folder of parts, a shard at a URL. A unit is complete once its receipt exists.

    Attributes:
        out: the folder, absolute, or the URL.
        files: all files of the output, also while they are in a temporary folder.
        is_private: no other process has seen the files: they need not be read again.
        uploaded: shards that this process has uploaded completely.
    """

    out: Path | str
    files: Files
    is_private = False
    uploaded: Collection[str] = ()

    def __enter__(self) -> Self:
        return self

    @abc.abstractmethod
    def __exit__(self, *exception: object) -> None:
        """Drop unfinished files."""

    @abc.abstractmethod
    def check(self, sources: Sequence[Path] = ()) -> None:
        """Check, before any work, that it can be written to; sources: folders that are read."""

    @abc.abstractmethod
    def begin(self, plan: str, *, room: int = 0) -> None:
        """Check that units of a plan may be written here.

        Args: plan: its digest; room: bytes of the small files to come.
        """

    @abc.abstractmethod
    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        """Return the shards of a part by unit."""

    @abc.abstractmethod
    def receipt(self, unit: str) -> bytes | None:
        """Return a unit's receipt, None if missing."""

    @abc.abstractmethod
    def forget(self, unit: str) -> None:
        """Remove a unit's receipt, so that it is merged again."""

    @abc.abstractmethod
    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> ShardWriter:
        """Return the writer of a unit's shards; sources: folders it must not write into."""

    @abc.abstractmethod
    def keep(
        self, unit: str, writer: ShardWriter, receipt: bytes, on_wait: Callable[[int], None]
    ) -> None:
        """Finish a unit with complete shards: put them in place, then write the receipt."""

    @abc.abstractmethod
    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Wait until all finished units are in place; on_wait: gets bytes done and in total."""

    @abc.abstractmethod
    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files, which make it a model; may be repeated."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Remove the marks of an unfinished merge."""


class NewFolder(Output):
    """An output folder that is created by one rename: a single unit with everything."""

    out: Path
    files: Folder
    is_private = True

    def __init__(self, out: str | Path, receiver: Receiver | None = None) -> None:
        """Args: out: does not exist yet, or is empty; receiver: see ``open_output``."""
        self.out = absolute(out)
        self.files = Folder(self.out)
        self._receiver = receiver
        self._undo = contextlib.ExitStack()
        self._receipts: dict[str, bytes] = {}
        self._room = SIDECAR_BYTES

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def begin(self, plan: str, *, room: int = 0) -> None:
        """Store the space that the small files need."""
        self._room = room

    def check(self, sources: Sequence[Path] = ()) -> None:
        check_output(self.out, needed_bytes=0, sources=sources)

    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        return {"whole": list(shards)}

    def receipt(self, unit: str) -> bytes | None:
        return self._receipts.get(unit)

    def forget(self, unit: str) -> None:
        del self._receipts[unit]

    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> ShardWriter:
        """Return the shards' writer; sources: folders it must not write into."""
        nbytes = self._room + sum(shard.file_size for shard in shards)
        reserve = partial(self._reserve, sources, nbytes)
        return ShardWriter(self.out, shards, reserve, receiver=self._receiver)

    def _reserve(
        self, sources: Sequence[Path], needed_bytes: int, undo: contextlib.ExitStack
    ) -> Path:
        check_output(self.out, needed_bytes=0, sources=sources)
        folder = undo.enter_context(reserved(self.out))
        # Leftovers of a killed run are removed now, and their space is free again.
        check_output(self.out, needed_bytes=needed_bytes)
        return folder

    def keep(
        self, unit: str, writer: ShardWriter, receipt: bytes, on_wait: Callable[[int], None]
    ) -> None:
        """Flush the shards to the disk, in the folder that will be renamed."""
        with plain_words(f"{printable(self.out)} cannot be completed"):
            writer.place(writer.folder, on_wait)
        self._receipts[unit] = receipt
        self.files, self._undo = Folder(writer.folder), writer.detach()

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Do nothing: finished units are on the disk."""

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files and put the folder in place."""
        _put_in_place(self.files.folder, self.out, files)
        self.files = Folder(self.out)

    def clear(self) -> None:
        """Do nothing: a folder of this name is finished."""


def _put_in_place(folder: Path, out: Path, files: Mapping[str, bytes]) -> None:
    """Write the small files into a folder of finished shards, and rename it.

    files: by relative paths without `..`.

    Raises: OutputError when another process created the output, or the disk fails.
    """
    for name in files:
        parts = PurePosixPath(name).parts
        assert parts, "a file has a name"
        assert not {"/", ".."} & set(parts), f"{name}: not below the output folder"
    with plain_words(f"{printable(out)} cannot be completed"):
        # Without config.json nothing loads: it comes last.
        for name in sorted(files, key=lambda name: (name == CONFIG_FILE, name)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
            flush(path)
        flush(folder)
        try:
            os.rename(folder, out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise OutputError(
                f"{printable(out)} was created by another process during the merge; choose another "
                "folder and run again. Nothing was left behind."
            ) from error
    # The checkpoint is complete and in place: without this flush only its name can be lost, and
    # only if the power fails now. Some file systems refuse to flush folders.
    with contextlib.suppress(OSError):
        flush(out.parent)
