"""A merge in parts to object storage: every shard goes up when it is complete, the index last.

    URL/model-00001-of-00003.safetensors                            a shard, whole
    URL/.ram-studio-parts/plan-<digest>                             whose shards these are
    URL/.ram-studio-parts/model-00001-of-00003.safetensors.receipt  the shard is done

Nothing is renamed, which stores cannot do. The disk here holds two shards: one being written, and
one that goes up meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from pathlib import Path
from typing import Self

from ram_studio.checkpoints.hub.url_folder import UrlFolder, is_url, local_path
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.shard_files import UNFINISHED
from ram_studio.checkpoints.write.output_folder import check_output, plain_words, reserved
from ram_studio.checkpoints.write.part_folder import (
    PLAN_MARK,
    RECEIPT,
    PartsFolder,
    in_order,
    refuse_other_plans,
)
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.checkpoints.write.shard_writer import ShardWriter
from ram_studio.errors import CheckpointError, OutputError, Stopped
from ram_studio.resources import user_folder

MAX_RECEIPT_BYTES = 1 << 30
_WAIT_SECONDS = 0.2


class PartsUrl:
    """An output at a URL, see ``PartsPlace``: every shard is a unit of its own.

    Attributes:
        out: the URL. files: all files there.
        uploaded: shards that this process has put there itself, and the store has taken whole.
    """

    def __init__(self, url: str) -> None:
        """Raises: OutputError for a URL that cannot be used."""
        with _as_output_error():
            self.files = UrlFolder.of(url)
        self.out = self.files.url
        self.uploaded: set[str] = set()
        self._plan: str | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._upload: Future[None] | None = None
        self._given_up = threading.Event()
        self._done_bytes = self._begun_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._given_up.set()  # an upload under way ends at its next piece
        self._pool.shutdown(wait=True)
        if self._plan is not None and any(exception):
            # Where no shard is there the plan's mark would only refuse other merges.
            with contextlib.suppress(CheckpointError):
                if list(self.files.sizes()) == [_mark(self._plan)]:
                    self.files.remove([_mark(self._plan)])

    def begin(self, plan: str) -> None:
        """Make sure that parts of this plan may go here, and can be written."""
        with _as_output_error():
            names = self.files.sizes()
            marks = [name for name in names if name.startswith(_mark(""))]
            plans = [name.removeprefix(_mark("")) for name in marks]
            refuse_other_plans(self.out, plans, plan)
            if names and not plans:
                raise OutputError(
                    f"{printable(self.out)} exists and is not empty; choose another place, or "
                    "remove what is there first."
                )
            if not plans:
                self.files.write(_mark(plan), b"")
        self._plan = plan

    def units(self, part: int, shards: Sequence[str]) -> dict[str, list[str]]:
        """Return a unit for each shard."""
        return {name: [name] for name in shards}

    def receipt(self, unit: str) -> bytes | None:
        """Return a unit's receipt, None where there is none."""
        name = _receipt(unit)
        with _as_output_error():
            return self.files.read(name, MAX_RECEIPT_BYTES) if self.files.has(name) else None

    def forget(self, unit: str) -> None:
        """Remove a unit's receipt, so that it is merged again."""
        with _as_output_error():
            self.files.remove([_receipt(unit)])

    def writer(self, unit: str, shards: Sequence[Shard], sources: Sequence[Path]) -> UrlWriter:
        """Return what writes the shard of a unit here, and sends it up when it is finished.

        No more than one shard waits for its upload: the next one is begun when it is there.
        """
        return UrlWriter(self, unit, shards)

    def send(self, upload: Callable[[], None], nbytes: int) -> None:
        """Have an upload of so many bytes done behind what goes on here; the one before is."""
        self._begun_bytes += nbytes
        self._upload = self._pool.submit(upload)

    def sent(self, nbytes: int) -> None:
        """Count bytes of an upload; raises Stopped when it is to end."""
        self._done_bytes += nbytes
        if self._given_up.is_set():
            raise Stopped("Stopped as asked; what was uploaded is kept.")

    def note(self, unit: str, receipt: bytes) -> None:
        """Write a unit's receipt."""
        assert self._plan is not None, "begun before anything is sent"
        # Another machine that had nothing here yet may have failed, and taken the mark away.
        self.files.write(_mark(self._plan), b"")
        self.files.write(_receipt(unit), receipt)

    def wait(self, on_wait: Callable[[int, int], None]) -> None:
        """Wait until all that was sent is there; on_wait: told bytes that are, and bytes in all."""
        while self._upload is not None:
            try:
                self._upload.result(_WAIT_SECONDS)
            except NotYet:
                if not self._upload.done():
                    on_wait(self._done_bytes, self._begun_bytes)
                    continue
                raise
            self._upload = None

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write the small files, then remove what says that the merge is not finished."""
        with _as_output_error():
            for name in in_order(files):
                self.files.write(name, files[name])
        self.clear()

    def clear(self) -> None:
        """Remove what says that the merge is not finished."""
        with _as_output_error():
            if any(name.startswith(UNFINISHED) for name in self.files.sizes()):
                self.files.remove([UNFINISHED])


class UrlWriter(ShardWriter):
    """Writes the shards of one unit here; leaving without `finish` removes them."""

    is_kept = False

    def __init__(self, place: PartsUrl, unit: str, shards: Sequence[Shard]) -> None:
        super().__init__(place.out, shards)
        self._to = place
        self._unit = unit

    def _reserve(self, undo: contextlib.ExitStack) -> Path:
        # By URL and shard: two runs of one merge on this machine do not write the same file.
        key = hashlib.sha256(f"{self.out}/{self._unit}".encode()).hexdigest()[:32]
        home = user_folder() / "uploads"
        with plain_words(f"{printable(home)} cannot be prepared"):
            home.mkdir(parents=True, exist_ok=True)  # it stays: others may just be using it
        folder = undo.enter_context(reserved(home / key))
        check_output(folder, needed_bytes=self.nbytes)
        return folder

    def finish(self, receipt: bytes, on_wait: Callable[[int], None]) -> None:
        """Have the shards sent, once those before them are there."""
        self._to.wait(lambda done, total: on_wait(0))
        self._to.send(partial(self._send, receipt, self._undo.pop_all()), self.nbytes)

    def _send(self, receipt: bytes, undo: contextlib.ExitStack) -> None:
        with undo, _as_output_error():
            self._to.sent(0)
            for shard in self.shards:
                self._to.files.upload(self.partial(shard), shard.file_name, self._to.sent)
                self._to.uploaded.add(shard.file_name)
            self._to.note(self._unit, receipt)


def _mark(plan: str) -> str:
    return f"{UNFINISHED}/{PLAN_MARK}{plan}"


def _receipt(unit: str) -> str:
    return f"{UNFINISHED}/{unit}{RECEIPT}"


@contextlib.contextmanager
def _as_output_error() -> Iterator[None]:
    """Tell what a place says of reading as what it means for the output."""
    try:
        yield
    except CheckpointError as error:
        raise OutputError(f"The output {error}") from error


PartsPlace = PartsFolder | PartsUrl
"""Where the parts of a merge come together: a folder that all machines see, or object storage.

Both have the same methods, and all of them raise OutputError where the place fails. What is
written, and found again, as a whole is called a unit: a part in a folder, a shard at a URL. Use a
place in a with-block.
"""


def parts_place(out: str | Path) -> PartsPlace:
    """Return the place that a folder or URL means; nothing is touched.

    Raises: CheckpointError for a URL that cannot be used.
    """
    if is_url(out):
        here = local_path(str(out))
        return PartsUrl(str(out)) if here is None else PartsFolder(here)
    return PartsFolder(out)
