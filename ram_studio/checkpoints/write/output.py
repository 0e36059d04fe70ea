"""What a merge is written to: a new folder, a folder that machines fill together, or a URL."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from ram_studio.checkpoints.read.files import Files
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.checkpoints.write.shard_writer import ShardWriter


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
