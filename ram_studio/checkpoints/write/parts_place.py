"""Where the parts of a merge come together: a folder that all machines see, or object storage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

from ram_studio.checkpoints.hub.url_folder import is_url, local_path
from ram_studio.checkpoints.read.folder import Files
from ram_studio.checkpoints.write.part_folder import PartsFolder
from ram_studio.checkpoints.write.part_url import PartsUrl
from ram_studio.checkpoints.write.shard_plan import Shard


class UnitWriter(Protocol):
    """The sink of a unit's merge."""

    nbytes: int

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Write a piece of a tensor's data, see `ShardWriter.write`."""

    def digests(self) -> dict[str, str]:
        """Return each shard's BLAKE3, see `ShardWriter.digests`."""

    def finish(self, receipt: bytes, on_wait: Callable[[int], None]) -> None:
        """Put the shards where they belong (or begin to), and then the receipt beside them."""


class PartsPlace(Protocol):
    """An output in parts. A unit is what is written, and found again, as a whole.

    Use it in a with-block. All methods raise OutputError where the place fails.

    Attributes:
        out: as users are told.
        files: all of its files.
        uploaded: shards that this process has put there itself, and the store has taken whole.
    """

    @property
    def out(self) -> Path | str: ...

    @property
    def files(self) -> Files: ...

    @property
    def uploaded(self) -> Collection[str]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def begin(self, plan: str) -> None:
        """Make sure that parts of this plan may go here: nothing else is there."""

    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        """Return the units of a part by name, with their shards."""

    def receipt(self, unit: str) -> bytes | None:
        """Return a unit's receipt, None where there is none."""

    def forget(self, unit: str) -> None:
        """Remove a unit's receipt, so that it is merged again."""

    def writer(
        self, unit: str, shards: Sequence[Shard], *, plan: str, sources: Sequence[Path] = ()
    ) -> AbstractContextManager[UnitWriter]:
        """Return what writes the shards of a unit."""

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Wait until all is there; on_wait: told bytes that are, and bytes in all."""

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files of a merge whose parts are all there; the index comes last.

        Doing it again, also after it was broken off, gives the same.
        """

    def clear(self) -> None:
        """Remove what says that the merge is not finished."""


def parts_place(out: str | Path) -> PartsPlace:
    """Return the place that a folder or URL means; nothing is touched.

    Raises: CheckpointError for a URL that cannot be used.
    """
    if is_url(out):
        here = local_path(str(out))
        return PartsUrl(str(out)) if here is None else PartsFolder(here)
    return PartsFolder(out)
