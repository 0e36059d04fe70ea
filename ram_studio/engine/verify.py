"""Checking a merged checkpoint against its passport and, if wanted, against its sources."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.checkpoint import Checkpoint, open_checkpoint
from ram_studio.checkpoints.describe import printable, quoted, shown_list
from ram_studio.checkpoints.header import TensorInfo
from ram_studio.checkpoints.passport import Passport, read_passport
from ram_studio.checkpoints.writer import shard_digest
from ram_studio.engine.analyse import load
from ram_studio.engine.blocks import Block
from ram_studio.engine.events import CancelToken, ProgressCallback
from ram_studio.engine.job import MergeJob
from ram_studio.errors import CheckpointError, VerificationError

SAMPLED_BLOCKS = 64


@dataclass(frozen=True)
class Verification:
    """What matched. shards: files whose content was checked; tensors: their tensors;
    compared_bytes: stored bytes that were recomputed from the sources (0 without sources),
    of total_bytes.
    """

    folder: Path
    shards: int
    tensors: int
    compared_bytes: int
    total_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the ``verify --json`` answer."""
        return {
            "folder": str(self.folder),
            "match": True,
            "shards": self.shards,
            "tensors": self.tensors,
            "compared_bytes": self.compared_bytes,
            "total_bytes": self.total_bytes,
        }


def verify(
    folder: str | Path,
    *,
    with_sources: bool = False,
    base: str | Path | None = None,
    agents: Mapping[str, str | Path] | None = None,
    full: bool = False,
    threads: int | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> Verification:
    """Check that a merged folder is what its passport says; raise at the first difference.

    Every shard's size and BLAKE3 digest are compared with the passport. With sources, lambda is
    counted anew and merged blocks are recomputed and compared byte for byte: all of them with
    ``full``, else SAMPLED_BLOCKS spread over the model.

    Args:
        with_sources: look for the sources where the recipe says they were.
        base, agents: where they are now (imply with_sources; those left out as in the recipe).

    Raises: VerificationError naming the shard or tensor; CheckpointError when a file cannot be
    read.
    """
    passport = read_passport(folder)
    checkpoint = open_checkpoint(str(folder), name="merged")
    _check_shards(checkpoint, passport)
    total = sum(t.nbytes for t in checkpoint.tensors.values())
    compared = 0
    if with_sources or base is not None or agents:
        compared = _compare_with_sources(
            checkpoint,
            passport,
            base or passport.recipe.base,
            {**passport.recipe.agents, **(agents or {})},
            full,
            threads,
            on_progress,
            cancel,
        )
    return Verification(
        checkpoint.folder, len(passport.shards), len(checkpoint.tensors), compared, total
    )


def _check_shards(checkpoint: Checkpoint, passport: Passport) -> None:
    found = {path.name: path for path in checkpoint.shards}
    if set(found) != set(passport.shards):
        different = sorted(set(found) ^ set(passport.shards))
        raise VerificationError(
            f"{printable(checkpoint.folder)}: its shards are not those of the passport "
            f"({shown_list([quoted(n) for n in different])}); merge again."
        )
    for name, record in passport.shards.items():
        size = found[name].stat().st_size
        if size != record.nbytes:
            raise VerificationError(
                f"{printable(found[name])} has {size} bytes, the passport says {record.nbytes}; "
                "the file was changed after the merge."
            )
        if shard_digest(found[name]) != record.blake3:
            raise VerificationError(
                f"{printable(found[name])} differs from its digest in the passport; the file was "
                "changed after the merge."
            )


def _compare_with_sources(
    checkpoint: Checkpoint,
    passport: Passport,
    base: str | Path,
    agents: dict[str, str | Path],
    full: bool,
    threads: int | None,
    on_progress: ProgressCallback | None,
    cancel: CancelToken | None,
) -> int:
    recipe = passport.recipe
    report = load(
        base,
        {name: agents[name] for name in recipe.agents},
        missing=recipe.missing,
        extra=recipe.extra,
        rows=recipe.rows,
        cancel=cancel,
    )
    for source in (report.base, *report.agents):
        record = passport.base if source.name == "base" else passport.agents[source.name]
        if source.fingerprint != record.fingerprint:
            raise VerificationError(
                f"{source.name}: {printable(source.folder)} is not the checkpoint that was merged "
                "(its fingerprint differs); give the one that was."
            )
    job = MergeJob(report, recipe, threads=threads)
    counts = job.counts(None, on_progress=on_progress, cancel=cancel)
    blocks = sum(t.numel for t in job.merged) // job.block_elements + len(job.merged)
    every = 1 if full else max(1, blocks // SAMPLED_BLOCKS)

    def keep(block: Block) -> bool:
        return block.index % every == 0

    plan = job.plan(counts, on_progress=on_progress, cancel=cancel)
    with _Comparison(checkpoint) as comparison:
        tally = job.run(plan, comparison, keep=keep, on_progress=on_progress, cancel=cancel)
    if every == 1:
        if counts is not None:
            job.check_counts(counts, tally, None)
        job.check_expected(plan, tally, is_from_sketch=False)
    return comparison.compared_bytes


class _Comparison:
    """A sink that compares what is merged with what is stored."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files: dict[Path, Any] = {}
        self._lock = threading.Lock()
        self.compared_bytes = 0

    def __enter__(self) -> _Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Compare a piece of a tensor's data.

        Raises: VerificationError that names the shard, the tensor and the first different byte.
        """
        expected = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
        tensor = self._checkpoint.tensors.get(name)
        if tensor is None:
            raise VerificationError(f"Tensor {quoted(name)} is missing from the merged checkpoint.")
        stored = self._read(tensor, byte_offset, len(expected))
        if stored != expected:
            first = next(i for i, (a, b) in enumerate(zip(stored, expected, strict=True)) if a != b)
            raise VerificationError(
                f"{printable(tensor.path)}: tensor {quoted(name)} differs from what its sources "
                f"give, first at byte {byte_offset + first} of its data."
            )
        with self._lock:
            self.compared_bytes += len(expected)

    def _read(self, tensor: TensorInfo, byte_offset: int, count: int) -> bytes:
        with self._lock:
            file = self._files.get(tensor.path)
            if file is None:
                file = self._files[tensor.path] = open(tensor.path, "rb")  # noqa: SIM115
            file.seek(tensor.offset + byte_offset)
            data = file.read(count)
        if len(data) != count:
            raise CheckpointError(
                f"{printable(tensor.path)}: ends inside tensor {quoted(tensor.name)}; merge again."
            )
        return data
