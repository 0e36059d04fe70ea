"""Writing a checkpoint so that it either exists whole or not at all.

Everything goes into a temporary folder beside the output, whose shards carry a `.partial` suffix
and which gets its index and config last; finishing flushes all of it to the disk and renames the
folder. A process killed at any moment leaves nothing that loads as a model (only between the last
two system calls is the hidden folder already complete), and the next writer for the same output
removes what it left. The layout is that of `save_pretrained`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.shard_files import INDEX_FILE
from ram_studio.checkpoints.write.output_folder import (
    SIDECAR_BYTES,
    absolute,
    check_output,
    flush,
    plain_words,
    reserved,
)
from ram_studio.checkpoints.write.shard_plan import METADATA, TensorSpec, index_json, lay_out
from ram_studio.checkpoints.write.shard_writer import Receiver, ShardWriter
from ram_studio.errors import OutputError

DEFAULT_MAX_SHARD_BYTES = 5_000_000_000


class CheckpointWriter(ShardWriter):
    """Writes one sharded checkpoint; a context manager.

    Entering refuses an output that exists, is not writable or does not fit on the disk, takes the
    output's lock, and allocates every shard at its final size. Leaving without `finish` removes
    everything.

    Example:
        with CheckpointWriter(out, [("weight", "BF16", (2, 2))]) as writer:
            writer.write("weight", 0, bytes(8))
            writer.finish({"config.json": b"{}"})
    """

    out: Path

    def __init__(
        self,
        out: str | Path,
        tensors: Sequence[TensorSpec],
        *,
        max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
        sources: Sequence[Path] = (),
        sidecar_bytes: int = SIDECAR_BYTES,
        receiver: Receiver | None = None,
    ) -> None:
        """Lay the shards out; nothing is touched before the with-block is entered.

        Args:
            out: a folder that does not exist yet, or an empty one.
            tensors: (name, safetensors dtype, shape) in file order.
            max_shard_bytes: the most bytes of tensor data in one shard.
            sources: folders the output must not lie in.
            sidecar_bytes: room that the disk must have for files beside the shards.
            receiver: gets each shard once it is complete, see `Receiver`.

        Raises: SettingsError when max_shard_bytes is below 1.
        """
        super().__init__(absolute(out), lay_out(tensors, max_shard_bytes, METADATA), receiver)
        self._needed_bytes = self.nbytes + sidecar_bytes
        self._sources = tuple(sources)

    def _reserve(self, undo: contextlib.ExitStack) -> Path:
        check_output(self.out, needed_bytes=0, sources=self._sources)
        folder = undo.enter_context(reserved(self.out))
        # Leftovers of a killed run are gone now, and their space is free again.
        check_output(self.out, needed_bytes=self._needed_bytes)
        return folder

    def finish(
        self,
        files: Mapping[str, bytes] = MappingProxyType({}),
        on_wait: Callable[[int], None] = lambda flushed: None,
    ) -> Path:
        """Complete the checkpoint and put it in place with one rename; returns the output folder.

        Args:
            files: small files beside the shards: relative paths without `..`, none of them that
                of a shard or the index.
            on_wait: called about ten times a second while the shards go to the disk, with the bytes
                of those that are there; what it raises ends the writing.

        Raises: OutputError when a tensor was not written in full, something appeared in the
        output's place, or the disk fails. Nothing is left behind then.
        """
        own = {shard.file_name for shard in self.shards} | {INDEX_FILE}
        for name in files:
            parts = PurePosixPath(name).parts
            assert parts, "a file has a name"
            assert not {"/", ".."} & set(parts), f"{name}: not below the output folder"
            assert name not in own, f"{name}: written by the writer itself"
        folder = self.folder
        with plain_words(f"{printable(self.out)} cannot be completed"):
            self.place(folder, on_wait)
            contents = dict(files)
            if len(self.shards) > 1:
                contents[INDEX_FILE] = index_json(self.shards)
            # Without config.json nothing loads: it comes last.
            for name in sorted(contents, key=lambda name: (name == CONFIG_FILE, name)):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(contents[name])
                flush(path)
            flush(folder)
            try:
                os.rename(folder, self.out)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                raise OutputError(
                    f"{printable(self.out)} was created by somebody else during the merge; "
                    "choose another folder and run again. Nothing was left behind."
                ) from error
        # The checkpoint is whole and in place: all that is lost without this flush is its name, and
        # only if the power fails now. Some file systems refuse to flush folders.
        with contextlib.suppress(OSError):
            flush(self.out.parent)
        return self.out
