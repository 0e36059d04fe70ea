"""Sparse deltas: an agent as its base and the elements it changed, exactly.

A stored element takes its value and an index of 4 bytes, so that a bfloat16 agent becomes smaller
where it changed less than a third.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import (
    CompatibilityReport,
    MergeTensor,
    NamesPolicy,
    check_compatibility,
)
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import DELTA_FORMAT, Checkpoint
from ram_studio.checkpoints.read.content_hash import make_hasher
from ram_studio.checkpoints.read.describe import BASE_NAME, printable, quoted, shown_bytes
from ram_studio.checkpoints.read.json_files import parse_json_object
from ram_studio.checkpoints.virtual.deltas import CONTENT, UNCHANGED, content_of
from ram_studio.checkpoints.virtual.expert_adapters import Packings
from ram_studio.checkpoints.write.output import DEFAULT_MAX_SHARD_BYTES, NewFolder
from ram_studio.checkpoints.write.output_folder import (
    absolute,
    check_file,
    check_output,
    whole_file,
)
from ram_studio.checkpoints.write.shard_plan import index_files, lay_out
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.engine.analyze import load
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CheckpointError, OutputError, SettingsError, raise_as

AGENT = "agent"
MOST_INT32 = 2**31
_ONE_FILE = 1 << 62


@dataclass(frozen=True)
class DeltaInfo:
    """Sizes of a delta: bytes of its file and of the agent's weights, and numbers of elements."""

    path: Path
    base: str
    agent: str
    nbytes: int
    whole_nbytes: int
    elements: int
    changed: int
    tensors: int

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, with `density`."""
        density = self.changed / self.elements if self.elements else 0.0
        return {**self.__dict__, "path": str(self.path), "density": density}


def make_delta(
    base: str | Path,
    agent: str | Path,
    out: str | Path,
    cancel: CancelToken | None = None,
    *,
    names: NamesPolicy = "exact",
    experts_packing: Packings = "ask",
    on_progress: ProgressCallback | None = None,
) -> DeltaInfo:
    """Write the delta of an agent, or of a merge, from its base.

    Reads both twice, in chunks; memory grows with the changed elements of one tensor.

    names, experts_packing: how to read the agent, see ``check_compatibility``.

    Raises: OutputError when ``out`` exists, cannot be written or is not named .safetensors;
    SettingsError when it would not be smaller than the agent, or a tensor has another dtype or
    other rows than the base; CheckpointError, CompatibilityError, Stopped. (NaN and -0.0 are
    stored: bits are compared.)
    """
    out = absolute(out)
    if out.exists():
        raise OutputError(f"{printable(out)} exists; choose another name or remove it first.")
    if out.suffix != ".safetensors":
        raise OutputError(f"{printable(out)} does not end in .safetensors; name the file so.")
    check_file(out)
    cancel = cancel or CancelToken()
    report = load(base, {AGENT: agent}, cancel=cancel, names=names, experts_packing=experts_packing)
    for tensor in report.tensors:
        own = tensor.agents[0]
        if (own.dtype, own.shape) != (tensor.dtype, tensor.shape):
            raise SettingsError(
                f"Tensor {quoted(tensor.name)} is {own.dtype} in the agent and {tensor.dtype} in "
                "the base; a delta needs one dtype. Store the agent in the base's dtype "
                "first (ram-studio merge --base BASE --agent a=FILE --method task-arithmetic --set "
                "scale=1 --out DIR)."
            )
    with Sources(*report.checkpoints) as sources:
        meter = _ReadMeter(report, "count", cancel, on_progress)
        counts, hashes, content = _count(report, sources, meter)
        specs = [spec for t in report.tensors for spec in _specs(t, counts[t.name])]
        elements = sum(t.numel for t in report.tensors)
        whole = sum(t.agents[0].nbytes for t in report.tensors)
        header = {
            "format": DELTA_FORMAT,
            "base": report.base.fingerprint,
            "agent": report.agents[0].fingerprint,
            "elements": str(elements),
            "nbytes": str(whole),
            "hashes": json.dumps(hashes, separators=(",", ":")),
            CONTENT: content,
        }
        [shard] = lay_out(specs or [(UNCHANGED, "U8", (0,))], _ONE_FILE, header)
        changed = sum(counts.values())
        if shard.file_size >= whole:
            raise SettingsError(
                f"A delta would take {shown_bytes(shard.file_size)}, the agent takes "
                f"{shown_bytes(whole)}: it changed {changed / max(1, elements):.1%} of all "
                "elements. Keep the agent as it is."
            )
        meter = _ReadMeter(report, "write", cancel, on_progress)
        _write(out, shard.head, shard.offsets, shard.file_size, _arrays(report, sources, meter))
        sources.check_unchanged()
    return read_info(out)


def apply_delta(
    base: str | Path,
    delta: str | Path,
    out: str | Path,
    cancel: CancelToken | None = None,
    *,
    on_progress: ProgressCallback | None = None,
) -> Path:
    """Write the agent of a delta, bit for bit, into the folder ``out``.

    Configuration and tokenizer are the base's.

    Raises: CheckpointError when the result is not the agent that the delta was made from;
    CompatibilityError for another base; OutputError, Stopped.
    """
    check_output(out, needed_bytes=0)
    opened, metadata = _open_delta(delta)
    expected = parse_json_object(metadata.get("hashes", "{}").encode(), delta, "Metadata of ")
    cancel = cancel or CancelToken()
    below = open_checkpoint(base, name=BASE_NAME, cancel=cancel)
    report = check_compatibility(below, [opened])
    specs = [(t.name, t.dtype, t.shape) for t in report.tensors]
    shards = lay_out(specs, DEFAULT_MAX_SHARD_BYTES)
    files = sidecar_files(report.base) | index_files(shards)
    meter = _ReadMeter(report, "write", cancel, on_progress)
    with (
        NewFolder(out) as output,
        output.writer("whole", shards, [report.base.folder]) as writer,
        Sources(*report.checkpoints) as sources,
    ):
        for tensor in report.tensors:
            digest = make_hasher("blake3")
            for start, chunk in sources.chunks(tensor.agents[0], tensor.agents[0].nbytes):
                meter.add(tensor, chunk.nbytes)
                digest.update(chunk.data)
                writer.write(tensor.name, start, chunk.data)
            if expected.get(tensor.name) != digest.hexdigest():
                raise CheckpointError(
                    f"Tensor {quoted(tensor.name)} differs from what {printable(delta)} was "
                    "made from: the base or the delta is damaged. Fetch both again."
                )
        output.keep("whole", writer, b"", lambda flushed: cancel.raise_if_cancelled())
        output.complete(files)
    return output.out


def read_info(path: str | Path) -> DeltaInfo:
    """Return the sizes of a delta, from its header.

    Raises: CheckpointError for any other file, or a damaged one.
    """
    opened, metadata = _open_delta(path)
    values = [t for t in opened.tensors.values() if t.name.endswith(".values")]
    try:
        return DeltaInfo(
            path=Path(path),
            base=metadata["base"],
            agent=metadata["agent"],
            nbytes=opened.nbytes,
            whole_nbytes=int(metadata["nbytes"]),
            elements=int(metadata["elements"]),
            changed=sum(t.numel for t in values),
            tensors=len(values),
        )
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"{printable(path)} is a damaged delta: its header lacks the source files or the "
            "number of elements. Make it again."
        ) from error


def _open_delta(path: str | Path) -> tuple[Checkpoint, dict[str, str]]:
    """Return a delta as it is stored, and its metadata."""
    opened = open_checkpoint(path, name=AGENT)
    if opened.delta is None:
        raise CheckpointError(f"{printable(path)} is not a delta; expected output of delta make.")
    return opened, opened.delta


def _bits(chunk: np.ndarray, dtype: str) -> np.ndarray:
    """Return bytes as unsigned integers of an element's width: -0.0 != 0.0, equal NaN are equal."""
    width = rounding.STORAGE[dtype].itemsize if dtype in rounding.STORAGE else 1
    return chunk.view(f"u{width}")


class _ReadMeter:
    """Reports how much of the agent a pass has read, and stops it on request."""

    def __init__(
        self,
        report: CompatibilityReport,
        stage: str,
        cancel: CancelToken,
        on_progress: ProgressCallback | None,
    ) -> None:
        self._cancel, self._on_progress = cancel, on_progress
        self._places = {t.name: place for place, t in enumerate(report.tensors)}
        nbytes = sum(t.agents[0].nbytes for t in report.tensors)
        self._meter = Meter(stage, nbytes, len(self._places))

    def add(self, tensor: MergeTensor, nbytes: int) -> None:
        """Count bytes of a tensor of the agent.

        Raises: Stopped.
        """
        self._cancel.raise_if_cancelled()
        self._meter.add(nbytes, tensor.name, self._places[tensor.name])
        self._meter.report_progress(self._on_progress)


def _chunks(
    tensor: MergeTensor, sources: Sources, meter: _ReadMeter
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield first element, base and agent of each chunk of a tensor, as unsigned integers."""
    own = tensor.agents[0]
    both = zip(
        sources.chunks(tensor.base, own.nbytes), sources.chunks(own, own.nbytes), strict=True
    )
    for (start, below), (_, above) in both:
        meter.add(tensor, above.nbytes)
        before, after = _bits(below, tensor.dtype), _bits(above, tensor.dtype)
        yield start // after.itemsize, before, after


def _count(
    report: CompatibilityReport, sources: Sources, meter: _ReadMeter
) -> tuple[dict[str, int], dict[str, str], str]:
    """Return by tensor changed elements and the agent's content hash, and the base's content."""
    counts, hashes, below = {}, {}, {}
    for tensor in report.tensors:
        own, base, changed = make_hasher("blake3"), make_hasher("blake3"), 0
        for _, before, after in _chunks(tensor, sources, meter):
            changed += int(np.count_nonzero(before != after))
            base.update(before.data.cast("B"))
            own.update(after.data.cast("B"))
        counts[tensor.name], hashes[tensor.name] = changed, own.hexdigest()
        below[tensor.name] = base.hexdigest()
    return counts, hashes, content_of(below)


def _specs(tensor: MergeTensor, changed: int) -> list[tuple[str, str, tuple[int, ...]]]:
    if not changed:
        return []
    index = "I32" if tensor.numel <= MOST_INT32 else "I64"
    return [
        (f"{tensor.name}.indices", index, (changed,)),
        (f"{tensor.name}.values", tensor.dtype, (changed,)),
    ]


def _arrays(
    report: CompatibilityReport, sources: Sources, meter: _ReadMeter
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the changed tensors' indices and values."""
    for tensor in report.tensors:
        places, values = [], []
        for first, before, after in _chunks(tensor, sources, meter):
            changed = np.flatnonzero(before != after)
            places.append(changed + first)
            values.append(after[changed])
        if places and (indices := np.concatenate(places)).size:
            width = np.int32 if tensor.numel <= MOST_INT32 else np.int64
            yield f"{tensor.name}.indices", indices.astype(width)
            yield f"{tensor.name}.values", np.concatenate(values)


def _write(
    out: Path,
    head: bytes,
    offsets: dict[str, tuple[int, int]],
    size: int,
    arrays: Iterator[tuple[str, np.ndarray]],
) -> None:
    """Write the file under a temporary name beside ``out``, then move it there."""
    with (
        raise_as(OutputError, f"{printable(out)} ({shown_bytes(size)}) cannot be written"),
        whole_file(out, flushed=True, replaces=False) as place,
        open(place, "xb") as file,
    ):
        file.truncate(size)
        file.write(head)
        for name, array in arrays:
            start, nbytes = offsets[name]
            assert array.nbytes == nbytes, "both passes saw the same elements"
            file.seek(start)
            file.write(array.data)
