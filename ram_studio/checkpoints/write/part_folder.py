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
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.shard_files import INDEX_FILE, UNFINISHED
from ram_studio.checkpoints.write.output_folder import check_room, plain_words, reserved
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.checkpoints.write.shard_writer import ShardWriter, flush
from ram_studio.errors import OutputError

_PLAN = "plan-"


def receipt_path(out: Path, part: int) -> Path:
    """Return where the receipt of a part is, once it is merged."""
    return out / UNFINISHED / f"part-{part}.receipt"


def check_parts_folder(out: str | Path, digest: str, sources: Sequence[Path] = ()) -> Path:
    """Return `out` as an absolute path after making sure that parts of this plan may go there.

    Raises: OutputError when it holds something else, or parts of another plan, or lies in a source.
    """
    out = Path(os.path.abspath(Path(out).expanduser()))
    with plain_words(f"{printable(out)} cannot be used for the output"):
        names = os.listdir(out) if out.is_dir() else []
        if UNFINISHED not in names:
            check_room(out, needed_bytes=0, sources=sources, may_exist=False)
            return out
        plans = [n for n in os.listdir(out / UNFINISHED) if n.startswith(_PLAN)]
    if other := [name for name in plans if name != _PLAN + digest]:
        raise OutputError(
            f"{printable(out)} holds parts of another plan ({other[0][len(_PLAN) :][:12]}... "
            f"instead of {digest[:12]}...); finish that merge, remove the folder, or choose "
            "another one."
        )
    return out


class PartWriter:
    """Writes the shards of one part; a context manager, and the sink of its merge.

    What a killed run of the same part left is removed first. Leaving without `finish` leaves
    nothing of this part behind.

    Attributes:
        shards: of the part.
        nbytes: bytes of them.
    """

    def __init__(
        self,
        out: str | Path,
        shards: Sequence[Shard],
        *,
        plan: str,
        part: int,
        sources: Sequence[Path] = (),
    ) -> None:
        """Args: plan: its digest; part: its number; sources: folders the output must not lie in."""
        self.out = check_parts_folder(out, plan, sources)
        self.shards = shards
        self.nbytes = sum(shard.file_size for shard in shards)
        self._plan = plan
        self._part = part
        self._writer: ShardWriter | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            folder = undo.enter_context(reserved(self.out / UNFINISHED / f"part-{self._part}"))
            with plain_words(f"{printable(self.out)} cannot be prepared"):
                mark = self.out / UNFINISHED / (_PLAN + self._plan)
                if not mark.exists():
                    mark.touch()
                    undo.callback(self._forget, mark)
            check_parts_folder(self.out, self._plan)  # another plan may have come meanwhile
            check_room(self.out, needed_bytes=self.nbytes)
            self._writer = undo.enter_context(ShardWriter(folder, self.shards, self.out))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer = None
        self._undo.close()

    def _forget(self, mark: Path) -> None:
        """Take the plan's mark away again where no part of it was merged or is being."""
        with contextlib.suppress(OSError):
            own = f".part-{self._part}.partial-"
            if all(n == mark.name or n.startswith(own) for n in os.listdir(mark.parent)):
                mark.unlink()

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Write a piece of a tensor's data, see `ShardWriter.write`."""
        self._open_writer.write(name, byte_offset, buffer)

    def digests(self) -> dict[str, str]:
        """Return each shard's BLAKE3, see `ShardWriter.digests`."""
        return self._open_writer.digests()

    def finish(self, receipt: bytes, on_wait: Callable[[int], None] = lambda flushed: None) -> None:
        """Put the shards into the output folder, and then the receipt beside them."""
        with plain_words(f"{printable(self.out)} cannot be completed"):
            self._open_writer.place(self.out, on_wait)
            flush(self.out)
            _write_in_place(receipt_path(self.out, self._part), receipt)

    @property
    def _open_writer(self) -> ShardWriter:
        assert self._writer is not None, "the writer is used inside its with-block only"
        return self._writer


def complete_folder(out: Path, files: Mapping[str, bytes]) -> None:
    """Write the small files of a merge whose parts are all there; with the index it is finished.

    Doing it again, also after it was broken off, gives the same folder.

    Raises: OutputError when the disk fails.
    """
    with plain_words(f"{printable(out)} cannot be completed"):
        # Without config.json and the index nothing loads: they come last.
        for name in sorted(files, key=lambda n: (n == INDEX_FILE, n == CONFIG_FILE, n)):
            _write_in_place(out / name, files[name])
        flush(out)
        shutil.rmtree(out / UNFINISHED)


def _write_in_place(path: Path, data: bytes) -> None:
    """Write a file that appears whole, in place of an older one."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        temporary.write_bytes(data)
        flush(temporary)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
