"""Outputs of merges in parts: shards with their final names, and a folder of unfinished work.

Until the merge is finished the folder UNFINISHED exists, so that it is not read as a model:

    OUT/model-00001-of-00003.safetensors     a complete shard
    OUT/.ram-studio-parts/plan-<digest>      mark of the plan
    OUT/.ram-studio-parts/UNIT.receipt       record of a unit, which is merged once this exists
    OUT/.ram-studio-parts/.part-2.partial-*  in a folder: part 2, being written

Parts do not depend on each other, so any number of machines may write concurrently. At a URL
nothing is renamed, which stores cannot do; the local disk holds two shards: one being written, and
one being uploaded.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.read.shard_files import INDEX_FILE, UNFINISHED
from ram_studio.checkpoints.read.url_folder import UrlFolder, is_url, local_path
from ram_studio.checkpoints.write.output import NewFolder, Output
from ram_studio.checkpoints.write.output_folder import (
    absolute,
    check_output,
    flush,
    hidden_name,
    plain_words,
    reserved,
    write_whole,
)
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.checkpoints.write.shard_writer import Receiver, ShardWriter
from ram_studio.errors import CheckpointError, OutputError, Stopped
from ram_studio.resources import user_folder

MAX_RECEIPT_BYTES = 1 << 30
_LEFT = "Finished parts stay there."
_WAIT_SECONDS = 0.2


class _WritableFolder(Folder):
    """A folder's files, each written atomically and flushed to the disk."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, replacing an older one."""
        write_whole(self.folder / name, data, flushed=True)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files, or folders with their contents."""
        for path in (self.folder / name for name in names):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class _PartsOutput(Output):
    """Common code of folders and URLs: marks of plans, receipts, and the order at the end."""

    files: Any  # with `write` and `remove`
    plan = ""

    @abc.abstractmethod
    def _output_errors(self) -> AbstractContextManager[None]:
        """Turn errors in the block into an OutputError about the output."""

    def receipt(self, unit: str) -> bytes | None:
        name = _receipt(unit)
        with self._output_errors():
            return self.files.read(name, MAX_RECEIPT_BYTES) if self.files.has(name) else None

    def forget(self, unit: str) -> None:
        with self._output_errors():
            self.files.remove([_receipt(unit)])

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files, then remove the marks of an unfinished merge.

        Without config and index nothing loads: they are written last. It is idempotent.
        """
        with self._output_errors():
            for name in sorted(files, key=lambda n: (n == INDEX_FILE, n == CONFIG_FILE, n)):
                self.files.write(name, files[name])
            self._flush()
        self.clear()

    def _flush(self) -> None:
        """Flush the names of written files, too."""

    def clear(self) -> None:
        with self._output_errors():
            if any(name.startswith(UNFINISHED) for name in self.files.sizes()):
                self.files.remove([UNFINISHED])

    def _is_begun(self, names: Iterable[str]) -> bool:
        """Return whether parts of the plan are among the files.

        Raises: OutputError for parts of another plan.
        """
        found = [n.removeprefix(_mark("")) for n in names if n.startswith(_mark(""))]
        if other := [plan for plan in found if plan != self.plan]:
            raise OutputError(
                f"{printable(self.out)} holds parts of another plan ({other[0][:12]}... instead of "
                f"{self.plan[:12]}...); finish that merge, remove its files, or choose another "
                "place."
            )
        return bool(found)


class PartsFolder(_PartsOutput):
    """A folder that all machines see: a part's shards are written together.

    Leftovers of a killed run of the same part are removed when it is written again.
    """

    out: Path

    def __init__(self, out: str | Path) -> None:
        """Args: out: need not exist."""
        self.out = absolute(out)
        self.files = _WritableFolder(self.out)

    def __exit__(self, *exception: object) -> None:
        pass

    def _output_errors(self) -> AbstractContextManager[None]:
        return plain_words(f"{printable(self.out)} cannot be completed", _LEFT)

    def begin(self, plan: str, *, room: int = 0) -> None:
        self.plan = plan
        self.check()

    def check(self, sources: Sequence[Path] = ()) -> None:
        """Raise OutputError where it now has other content, or is inside one of the sources."""
        with plain_words(f"{printable(self.out)} cannot be used for the output", _LEFT):
            if not (self.out / UNFINISHED).is_dir():
                try:
                    check_output(self.out, needed_bytes=0, sources=sources)
                except OutputError:
                    if (self.out / UNFINISHED).is_dir():  # another part was begun meanwhile
                        return self.check(sources)
                    raise
            else:
                self._is_begun(f"{UNFINISHED}/{name}" for name in os.listdir(self.out / UNFINISHED))

    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        return {f"part-{part}": list(shards)}

    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> ShardWriter:
        """Return the writer of a part's shards; sources: folders it must not write into."""
        self.check(sources)
        nbytes = sum(shard.file_size for shard in shards)
        return ShardWriter(self.out, shards, partial(self._reserve, unit, nbytes), left=_LEFT)

    def _reserve(self, unit: str, nbytes: int, undo: ExitStack) -> Path:
        folder = undo.enter_context(reserved(self.out / UNFINISHED / unit))
        with plain_words(f"{printable(self.out)} cannot be prepared", _LEFT):
            mark = self.out / _mark(self.plan)
            if not mark.exists():
                # A finish that ended meanwhile removed the mark; no part may then be written.
                if set(os.listdir(self.out)) > {UNFINISHED}:
                    raise OutputError(
                        f"{printable(self.out)} was finished by another run meanwhile, or holds "
                        "other files now; run again to see which."
                    )
                mark.touch()
                undo.callback(_remove_mark, mark, hidden_name(unit, "partial-"))
        self.check()  # another plan may have come meanwhile
        check_output(self.out, needed_bytes=nbytes, may_exist=True)
        return folder

    def keep(
        self, unit: str, writer: ShardWriter, receipt: bytes, on_wait: Callable[[int], None]
    ) -> None:
        with self._output_errors():
            writer.place(self.out, on_wait)
            self._flush()
            self.files.write(_receipt(unit), receipt)

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Do nothing: finished units are on the disk."""

    def _flush(self) -> None:
        flush(self.out)


class PartsUrl(_PartsOutput):
    """Object storage: every shard is a unit, and is uploaded when complete."""

    out: str
    files: UrlFolder

    def __init__(self, url: str) -> None:
        """Raises: OutputError for a URL that cannot be used."""
        with self._output_errors():
            self.files = UrlFolder.of(url)
        self.out = self.files.url
        self.uploaded: set[str] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[None] | None = None
        self._given_up = threading.Event()
        self._done_bytes = self._begun_bytes = 0

    def __exit__(self, *exception: object) -> None:
        self._given_up.set()  # a running upload ends at its next chunk
        self._pool.shutdown(wait=True)
        if self.plan and any(exception):
            # Without shards the plan's mark would only refuse other merges.
            with contextlib.suppress(CheckpointError):
                if list(self.files.sizes()) == [_mark(self.plan)]:
                    self.files.remove([_mark(self.plan)])

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            refused = OutputError(f"The output {error}")
            refused.exit_code, refused.can_retry = error.exit_code, error.can_retry
            raise refused from error

    def check(self, sources: Sequence[Path] = ()) -> None:
        """Request a file that may exist, so that a refusal of the store is reported early."""
        self.receipt("none")

    def begin(self, plan: str, *, room: int = 0) -> None:
        """Check that parts of this plan may be written here."""
        with self._output_errors():
            names = self.files.sizes()
            self.plan = plan
            if self._is_begun(names):
                return
            if names:
                self.plan = ""
                raise OutputError(
                    f"{printable(self.out)} exists and is not empty; choose another place, or "
                    "remove its files first."
                )
            self.files.write(_mark(plan), b"")
            try:
                self._is_begun(self.files.sizes())  # another plan may have come meanwhile
            except OutputError:
                self.files.remove([_mark(plan)])
                raise

    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        return {name: [name] for name in shards}

    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> ShardWriter:
        """Return the writer of a unit's shards on the local disk.

        At most one unit waits for its upload: the next one begins when it is uploaded.
        """
        nbytes = sum(shard.file_size for shard in shards)
        reserve = partial(self._reserve, unit, nbytes)
        return ShardWriter(self.out, shards, reserve, is_flushed=False, left=_LEFT)

    def _reserve(self, unit: str, nbytes: int, undo: ExitStack) -> Path:
        # By URL and shard: two runs of one merge on this machine do not write the same file.
        key = hashlib.sha256(f"{self.out}/{unit}".encode()).hexdigest()[:32]
        home = user_folder() / "uploads"
        with plain_words(f"{printable(home)} cannot be prepared"):
            home.mkdir(parents=True, exist_ok=True)  # it stays: other runs may be using it
        folder = undo.enter_context(reserved(home / key))
        check_output(folder, needed_bytes=nbytes)
        return folder

    def keep(
        self, unit: str, writer: ShardWriter, receipt: bytes, on_wait: Callable[[int], None]
    ) -> None:
        """Upload the shards in the background, after the shards before them."""
        self.wait(lambda done, total: on_wait(0))
        self._begun_bytes += writer.nbytes
        self._upload = self._pool.submit(self._send, unit, writer, receipt, writer.detach())

    def _send(self, unit: str, writer: ShardWriter, receipt: bytes, undo: ExitStack) -> None:
        with undo, self._output_errors():
            self._count(0)
            for shard in writer.shards:
                self.files.upload(writer.partial(shard), shard.file_name, self._count)
                self.uploaded.add(shard.file_name)
            # Another machine without shards here may have failed, and removed the mark.
            self.files.write(_mark(self.plan), b"")
            self.files.write(_receipt(unit), receipt)

    def _count(self, nbytes: int) -> None:
        """Count bytes of an upload; raises Stopped after a request to stop."""
        self._done_bytes += nbytes
        if self._given_up.is_set():
            raise Stopped("Stopped; uploaded files are kept.")

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        if self._upload is not None:
            while not wait([self._upload], _WAIT_SECONDS).done:
                on_wait(self._done_bytes, self._begun_bytes)
            self._upload.result()
            self._upload = None


def open_output(
    out: str | Path, *, in_parts: bool, receiver: Receiver | None = None
) -> NewFolder | PartsFolder | PartsUrl:
    """Return the output at a folder or URL, without writing anything.

    Args:
        in_parts: a folder may already hold parts of the merge; a URL always may.
        receiver: gets each complete shard of a new folder.

    Raises: OutputError for a URL that cannot be used.
    """
    if is_url(out):
        here = local_path(str(out))
        if here is None:
            return PartsUrl(str(out))
        out = here
    return PartsFolder(out) if in_parts else NewFolder(out, receiver)


def _remove_mark(mark: Path, own: str) -> None:
    """Remove a plan's mark where no part of it was or is being merged.

    Beside shards it stays: without their receipts they are not a model.
    """
    with contextlib.suppress(OSError):
        is_alone = all(n == mark.name or n.startswith(own) for n in os.listdir(mark.parent))
        if is_alone and os.listdir(mark.parent.parent) == [UNFINISHED]:
            mark.unlink()


def _mark(plan: str) -> str:
    return f"{UNFINISHED}/plan-{plan}"


def _receipt(unit: str) -> str:
    return f"{UNFINISHED}/{unit}.receipt"
