"""The output folder of a merge in parts: shards under their final names, and what is not finished.

Until the merge is finished the folder holds UNFINISHED, by which nobody takes it for a model:

    out/model-00001-of-00003.safetensors     a shard, once its part is merged
    out/.ram-studio-parts/plan-<digest>      whose parts these are
    out/.ram-studio-parts/part-1.receipt     what part 1 wrote: it is merged once this is there
    out/.ram-studio-parts/.part-2.partial-*  part 2, being written

Parts need nothing of one another, so any number of machines may write at the same time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.folder import Folder
from ram_studio.checkpoints.read.shard_files import INDEX_FILE, UNFINISHED
from ram_studio.checkpoints.write.output_folder import (
    absolute,
    check_output,
    flush,
    plain_words,
    reserved,
    write_whole,
)
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.checkpoints.write.shard_writer import ShardWriter
from ram_studio.errors import OutputError

PLAN_MARK = "plan-"
RECEIPT = ".receipt"


class PartsFolder:
    """An output folder, see ``part_url.PartsPlace``: a part's shards are written together.

    Attributes:
        out: the folder, absolute. files: all of its files.
        uploaded: shards that this process has put there itself, and a store has taken whole: none.
    """

    def __init__(self, out: str | Path) -> None:
        """Args: out: need not exist."""
        self.out = absolute(out)
        self.files = Folder(self.out)
        self.uploaded: Collection[str] = ()
        self.plan = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, plan: str) -> None:
        """Make sure that parts of this plan may go here."""
        self.plan = plan
        self.check()

    def check(self, sources: Sequence[Path] = ()) -> None:
        """Make sure that parts of its plan may still go here.

        Raises: OutputError when it holds something else, or parts of another plan, or lies in one
        of the sources.
        """
        with plain_words(f"{printable(self.out)} cannot be used for the output"):
            names = os.listdir(self.out) if self.out.is_dir() else []
            if UNFINISHED not in names:
                check_output(self.out, needed_bytes=0, sources=sources)
                return
            marks = [n for n in os.listdir(self.out / UNFINISHED) if n.startswith(PLAN_MARK)]
        refuse_other_plans(self.out, [n.removeprefix(PLAN_MARK) for n in marks], self.plan)

    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        """Return one unit: the part."""
        return {f"part-{part}": list(shards)}

    def receipt(self, unit: str) -> bytes | None:
        """Return a unit's receipt, None where there is none."""
        path = self._receipt_path(unit)
        return path.read_bytes() if path.is_file() else None

    def forget(self, unit: str) -> None:
        """Remove a unit's receipt, so that it is merged again."""
        self._receipt_path(unit).unlink()

    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> PartWriter:
        """Return what writes the shards of a unit; sources: folders it must not write into."""
        return PartWriter(self, unit, shards, sources)

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Do nothing: what a writer finished is on the disk."""

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files, then remove what says that the merge is not finished.

        Doing it again, also after it was broken off, gives the same.
        """
        with plain_words(f"{printable(self.out)} cannot be completed"):
            for name in in_order(files):
                write_whole(self.out / name, files[name], flushed=True)
            flush(self.out)
        self.clear()

    def clear(self) -> None:
        """Remove what says that the merge is not finished."""
        with plain_words(f"{printable(self.out)} cannot be completed"):
            if (self.out / UNFINISHED).exists():
                shutil.rmtree(self.out / UNFINISHED)

    def _receipt_path(self, unit: str) -> Path:
        return self.out / UNFINISHED / (unit + RECEIPT)


def in_order(names: Iterable[str]) -> list[str]:
    """Return small files as they are written: without config and index nothing loads."""
    return sorted(names, key=lambda n: (n == INDEX_FILE, n == CONFIG_FILE, n))


def refuse_other_plans(out: Path | str, found: Iterable[str], digest: str) -> None:
    """Raise OutputError when one of the plans whose parts are there is not this one."""
    if other := [plan for plan in found if plan != digest]:
        raise OutputError(
            f"{printable(out)} holds parts of another plan ({other[0][:12]}... instead of "
            f"{digest[:12]}...); finish that merge, remove what is there, or choose another place."
        )


class PartWriter(ShardWriter):
    """Writes the shards of one part; a context manager, and the sink of its merge.

    What a killed run of the same part left is removed first. Leaving without `finish` leaves
    nothing of this part behind.
    """

    out: Path

    def __init__(
        self, place: PartsFolder, unit: str, shards: Sequence[Shard], sources: Sequence[Path]
    ) -> None:
        """See `PartsFolder.writer`."""
        super().__init__(place.out, shards)
        place.check(sources)
        self._in = place
        self._unit = unit

    def _reserve(self, undo: contextlib.ExitStack) -> Path:
        folder = undo.enter_context(reserved(self.out / UNFINISHED / self._unit))
        with plain_words(f"{printable(self.out)} cannot be prepared"):
            mark = self.out / UNFINISHED / (PLAN_MARK + self._in.plan)
            if not mark.exists():
                mark.touch()
                undo.callback(self._forget, mark)
        self._in.check()  # another plan may have come meanwhile
        check_output(self.out, needed_bytes=self.nbytes, may_exist=True)
        return folder

    def _forget(self, mark: Path) -> None:
        """Take the plan's mark away again where no part of it was merged or is being."""
        with contextlib.suppress(OSError):
            own = f".{self._unit}.partial-"
            if all(n == mark.name or n.startswith(own) for n in os.listdir(mark.parent)):
                mark.unlink()

    def finish(self, receipt: bytes, on_wait: Callable[[int], None]) -> None:
        """Put the shards into the output folder, and then the receipt beside them."""
        with plain_words(f"{printable(self.out)} cannot be completed"):
            self.place(self.out, on_wait)
            flush(self.out)
            path = self.out / UNFINISHED / (self._unit + RECEIPT)
            write_whole(path, receipt, flushed=True)
