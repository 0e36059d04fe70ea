"""What a merge is written to, and the plainest kind: a folder that exists whole or not at all.

Everything goes into a temporary folder beside the output, whose shards carry a `.partial` suffix
and which gets its index and config last; finishing flushes all of it to the disk and renames the
folder. A process killed at any moment leaves nothing that loads as a model (only between the last
two system calls is the hidden folder already complete), and the next writer for the same output
removes what it left. The layout is that of `save_pretrained`. Merges in parts: see ``parts``.
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

    What is written, and found again, as a whole is a unit: everything in a new folder, a part in a
    folder of parts, a shard at a URL. A unit is there once its receipt is.

    Attributes:
        out: the folder, absolute, or the URL.
        files: all files that are there, wherever they are by now.
        is_private: nobody else saw what this process wrote: it need not be read again.
        uploaded: shards that this process has put there itself, and a store has taken whole.
    """

    out: Path | str
    files: Files
    is_private = False
    uploaded: Collection[str] = ()

    def __enter__(self) -> Self:
        return self

    @abc.abstractmethod
    def __exit__(self, *exception: object) -> None:
        """Let go of what was not finished."""

    @abc.abstractmethod
    def check(self, sources: Sequence[Path] = ()) -> None:
        """Make sure, before any work, that it can be written to; sources: folders that are read."""

    @abc.abstractmethod
    def begin(self, plan: str, *, room: int = 0) -> None:
        """Make sure that units of a plan may go here.

        Args: plan: its digest; room: bytes of the small files to come.
        """

    @abc.abstractmethod
    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        """Return the shards of a part by unit."""

    @abc.abstractmethod
    def receipt(self, unit: str) -> bytes | None:
        """Return a unit's receipt, None where there is none."""

    @abc.abstractmethod
    def forget(self, unit: str) -> None:
        """Remove a unit's receipt, so that it is merged again."""

    @abc.abstractmethod
    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> ShardWriter:
        """Return what writes the shards of a unit; sources: folders it must not write into."""

    @abc.abstractmethod
    def keep(
        self, unit: str, writer: ShardWriter, receipt: bytes, on_wait: Callable[[int], None]
    ) -> None:
        """Finish a unit whose shards are written in full: put them in place, then the receipt."""

    @abc.abstractmethod
    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Wait until all that was kept is there; on_wait: told bytes that are, and bytes in all."""

    @abc.abstractmethod
    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files, and make a model of it all; may be done again."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Remove what says that the merge is not finished."""


class NewFolder(Output):
    """An output folder that appears whole or not at all, by one rename: one unit, everything."""

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
        """Take note of the room that the small files need."""
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
        """Return what writes the shards; sources: folders it must not write into."""
        nbytes = self._room + sum(shard.file_size for shard in shards)
        reserve = partial(self._reserve, sources, nbytes)
        return ShardWriter(self.out, shards, reserve, receiver=self._receiver)

    def _reserve(
        self, sources: Sequence[Path], needed_bytes: int, undo: contextlib.ExitStack
    ) -> Path:
        check_output(self.out, needed_bytes=0, sources=sources)
        folder = undo.enter_context(reserved(self.out))
        # Leftovers of a killed run are gone now, and their space is free again.
        check_output(self.out, needed_bytes=needed_bytes)
        return folder

    def keep(
        self, unit: str, writer: ShardWriter, receipt: bytes, on_wait: Callable[[int], None]
    ) -> None:
        """Have the shards on the disk, in the folder that will be renamed."""
        with plain_words(f"{printable(self.out)} cannot be completed"):
            writer.place(writer.folder, on_wait)
        self._receipts[unit] = receipt
        self.files, self._undo = Folder(writer.folder), writer.detach()

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Do nothing: what was kept is on the disk."""

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files and put the folder in place."""
        _put_in_place(self.files.folder, self.out, files)
        self.files = Folder(self.out)

    def clear(self) -> None:
        """Do nothing: a folder of this name is finished."""


def _put_in_place(folder: Path, out: Path, files: Mapping[str, bytes]) -> None:
    """Write the small files into a folder of finished shards, and rename it.

    files: by relative paths without `..`.

    Raises: OutputError when something appeared in the output's place, or the disk fails.
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
                f"{printable(out)} was created by somebody else during the merge; choose another "
                "folder and run again. Nothing was left behind."
            ) from error
    # The checkpoint is whole and in place: all that is lost without this flush is its name, and
    # only if the power fails now. Some file systems refuse to flush folders.
    with contextlib.suppress(OSError):
        flush(out.parent)
