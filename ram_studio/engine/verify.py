"""Checks a merged checkpoint against its provenance and, on request, against its sources."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ram_studio._version import __version__
from ram_studio.algorithm import rounding
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.opening import open_files
from ram_studio.checkpoints.own_methods import own_record
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import (
    MERGED_NAME,
    plural,
    printable,
    quoted,
    shown_list,
    who,
)
from ram_studio.checkpoints.read.files import Files
from ram_studio.checkpoints.read.url_folder import files_at
from ram_studio.checkpoints.record.provenance import (
    PROVENANCE_FILE,
    Provenance,
    SourceRecord,
    provenance_of,
)
from ram_studio.engine.analyze import load_sources
from ram_studio.engine.events import CancelToken, ProgressCallback
from ram_studio.engine.job import AgentResult, MergeJob
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import VerificationError

SAMPLED_BLOCKS = 64

LAST_PLACES = 1
NEAR = 1e-9
"""Tolerance of a stored element against its recomputation by a method on whole matrices: this many
last places of its dtype, or this share of its tensor's largest. Matrix products and singular
vectors depend in their last digits on device, processor and libraries; other methods do not, and
are compared byte for byte."""

EDITABLE = ("README.md",)
"""Files that people edit before they publish a merge: a change is a note, not an error."""

_LOADED_SUFFIXES = (
    *(".json", ".jinja", ".model", ".txt", ".py"),
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".msgpack", ".h5"),
)
"""Files with such names that are not in the provenance may be loaded with the model."""


@dataclass(frozen=True)
class Verification:
    """Result of a successful check; on any difference `verify` raises.

    Attributes:
        folder: the merged checkpoint, or its URL.
        shards, tensors: files of weights whose content was checked, and their tensors.
        files: other files that were checked.
        notes: sentences on harmless changes since the merge (an edited model card).
        source_files: files of the sources whose content hash was checked.
        compared_bytes: stored bytes that were recomputed from the sources (0 without sources), of
            total_bytes.
    """

    folder: Path | str
    shards: int
    tensors: int
    files: int
    notes: tuple[str, ...]
    source_files: int
    compared_bytes: int
    total_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the ``verify --json`` answer."""
        found = vars(self) | {"notes": list(self.notes)}
        return {"folder": str(found.pop("folder")), "match": True, **found}


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
    """Check that a merged folder (or URL) matches its provenance; raise where it does not.

    The provenance's checksum, and size and BLAKE3 digest of every shard and other file are checked.
    With sources, their files' content hashes are compared with the provenance, lambda is counted
    again, and merged blocks are recomputed and compared byte for byte: all of them with ``full``
    (and then the provenance's numbers too), else 64 spread over the model. Whole
    matrices are compared within one last place; a note reports differences.

    Args:
        with_sources: open the sources at their places in the recipe, on the Hub at the commit
            that was merged.
        base, agents: their current places (imply with_sources; by default those of the recipe).

    Raises: VerificationError naming every file, or the tensor; CheckpointError when a file cannot
    be read; Stopped.
    """
    run = RunOptions.of("cpu", threads, on_progress=on_progress, cancel=cancel)
    files = files_at(folder)
    provenance = provenance_of(files)
    notes = check_files(files, provenance)
    checkpoint = open_files(files, name=MERGED_NAME, source=str(folder))
    source_files = compared = 0
    if with_sources or base is not None or agents:
        recorded = {name: record.place for name, record in provenance.agents.items()}
        places = {**recorded, **(agents or {})}
        sources = _open_sources(provenance, base or provenance.base.place, places, cancel)
        source_files = check_sources(provenance, sources, run)
        if not source_files:
            notes.append(
                "The provenance has no content hashes of the sources (--no-hash): they were "
                "identified by fingerprints, which read a sample of large files."
            )
        if (unknown := _unknown_method(provenance)) is not None:
            notes.append(unknown)
        else:
            comparison = _compare_with_sources(checkpoint, provenance, sources, run, full)
            compared = comparison.compared_bytes
            notes += comparison.notes
    return Verification(
        folder=checkpoint.source if checkpoint.remote else checkpoint.folder,
        shards=len(provenance.shards),
        tensors=len(checkpoint.tensors),
        files=len(provenance.files),
        notes=tuple(notes),
        source_files=source_files,
        compared_bytes=compared,
        total_bytes=sum(t.nbytes for t in checkpoint.tensors.values()),
    )


def check_files(files: Files, provenance: Provenance) -> list[str]:
    """Check every file of a merge by its provenance; return notes on harmless differences.

    Raises: VerificationError that names every file that differs; CheckpointError.
    """
    records = {**provenance.shards, **provenance.files}
    differences, notes = [], []
    sizes = files.sizes()
    for name, record in records.items():
        at = printable(files.at(name))
        if name not in sizes:
            found = f"{at} is missing"
        elif sizes[name] != record.nbytes:
            found = f"{at} has {sizes[name]} bytes, expected {record.nbytes}"
        elif files.blake3(name) != record.blake3:
            found = f"{at} differs from its digest in the provenance"
        else:
            continue
        if name in EDITABLE:
            notes.append(f"{name} was edited after the merge.")
        else:
            differences.append(found)
    unknown = unknown_files(sizes, provenance)
    for name in sizes:
        if name in unknown:
            differences.append(
                f"{printable(files.at(name))} is not in the provenance and may be loaded with the "
                "model"
            )
        elif name not in records and name != PROVENANCE_FILE and not name.startswith("."):
            notes.append(f"{printable(name)} was added after the merge.")
    if differences:
        raise VerificationError(
            f"{plural(len(differences), 'file')} changed after the merge: "
            f"{shown_list(differences)}. Restore changed files, remove added ones, or merge "
            "again."
        )
    return notes


def unknown_files(names: Iterable[str], provenance: Provenance) -> set[str]:
    """Return a folder's files that may be loaded with the model and are not in the provenance."""
    records = {*provenance.shards, *provenance.files, PROVENANCE_FILE}
    suffixes = {name: PurePosixPath(name).suffix.lower() for name in names}
    return {
        name
        for name, suffix in suffixes.items()
        if name not in records
        and not name.startswith(".")
        and suffix in (_LOADED_SUFFIXES if provenance.files else (".safetensors",))
    }


def check_sources(provenance: Provenance, report: CompatibilityReport, run: RunOptions) -> int:
    """Compare the sources' files with the provenance's hashes; return how many were checked.

    Sources without hashes are compared by fingerprint, and not counted.

    Raises: VerificationError that names each file that differs; CheckpointError; Stopped.
    """
    differences = []
    expected: list[tuple[Checkpoint, str, str]] = []
    algorithms = {}
    for source in report.checkpoints:
        record = provenance.sources[source.name]
        if record.files is None:
            if source.fingerprint != record.fingerprint:
                differences.append(_other(source, "its fingerprint differs"))
            continue
        wrong = _other_sizes(source, record)
        differences += wrong
        for path in source.shards if not wrong else ():
            digest = record.files[path.name].hash
            expected.append((source, path.name, digest))
            algorithms[path] = digest.partition(":")[0]
    with SourceHasher(report, threads=run.threads, algorithms=algorithms) as hasher:
        found = hasher.finish(run.on_progress, run.cancel)
    differences += [
        _other(source, f"the content of {quoted(name)} differs")
        for source, name, digest in expected
        if found[source.name][name] != digest
    ]
    if differences:
        raise VerificationError(
            f"{shown_list(differences)}. Give the sources that were merged (--base, --agent)."
        )
    return len(expected)


def _other_sizes(source: Checkpoint, record: SourceRecord) -> list[str]:
    assert record.files is not None, "only of sources that were hashed"
    found = {path.name: source.size_of(path) for path in source.shards}
    expected = {name: file.nbytes for name, file in record.files.items()}
    return [
        _other(
            source,
            f"{quoted(name)} has "
            f"{'no' if found.get(name) is None else found[name]} bytes, expected "
            f"{'none' if expected.get(name) is None else expected[name]}",
        )
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]


def _other(source: Checkpoint, why: str) -> str:
    place = source.source if source.remote else source.folder
    return f"{source.who}{printable(place)} is not the merged checkpoint: {why}"


def _open_sources(
    provenance: Provenance,
    base: str | Path,
    agents: Mapping[str, str | Path],
    cancel: CancelToken | None,
) -> CompatibilityReport:
    recipe = provenance.recipe
    unknown = sorted(set(agents) - set(recipe.agents))
    if unknown:
        raise VerificationError(
            f"The merge has no agent {shown_list([quoted(n) for n in unknown])}; its agents are "
            f"{', '.join(recipe.agents)}."
        )
    places = {name: agents[name] for name in recipe.agents}
    here = recipe.model_copy(update={"base": base, "agents": places})
    return load_sources(here, None, cancel)


def _unknown_method(provenance: Provenance) -> str | None:
    """Return a note on the user method that is needed to merge again; None when it is loaded.

    Raises: VerificationError when another one of its name is loaded.
    """
    own, name = provenance.own_method, provenance.recipe.method
    if own is None:
        return None
    known = own_record(name)
    method = f"{name} ({printable(own.source)}, SHA-256 {own.sha256[:12]}...)"
    if known is None:
        return (
            f"The merge used a method of its own, {method}. Sources were checked, but nothing was "
            "merged again: give that file as --method FILE.py:NAME."
        )
    if known.sha256 != own.sha256:
        raise VerificationError(
            f"The merge used {method}; {printable(known.source)} has SHA-256 "
            f"{known.sha256[:12]}.... Give the file that was used."
        )
    return None


def _compare_with_sources(
    checkpoint: Checkpoint,
    provenance: Provenance,
    report: CompatibilityReport,
    run: RunOptions,
    full: bool,
) -> _Comparison:
    job = MergeJob(report, provenance.recipe, run)
    plan = job.plan()
    blocks = sum(t.numel for t in job.merged) // run.block_elements + len(job.merged)
    every = 1 if full else max(1, blocks // SAMPLED_BLOCKS)

    def is_sampled(block: Block) -> bool:
        return block.index % every == 0

    comparison = _Comparison(checkpoint, provenance, job)
    with comparison.files:
        found = job.run(plan, comparison, keep=None if every == 1 else is_sampled)
    if every == 1:
        _check_numbers(provenance, found)
    return comparison


def _check_numbers(provenance: Provenance, results: Mapping[str, AgentResult]) -> None:
    """Compare the new counts and measurements with the provenance's numbers."""
    for name, result in results.items():
        record = provenance.agents[name]
        pairs = {
            "changed": (record.changed, result.changed),
            "unique": (record.unique, result.unique),
            "rho": (record.rho, result.rho),
            "lambda": (record.scaling_factor, result.scaling_factor),
            "effective lambda": (record.effective_scaling_factor, result.effective_scaling_factor),
        }
        if record.retained is not None and result.retained is not None:
            pairs["retained"] = record.retained.total, result.retained.retained
        for what, (stored, found) in pairs.items():
            is_sum = what in ("effective lambda", "retained")
            if not _is_same(stored, found, 1e-5 if is_sum else 1e-9):
                raise VerificationError(
                    f"{who(name)}{what} is {stored} in the provenance, {found} by the sources; "
                    "the provenance does not belong to this merge."
                )


def _is_same(stored: float | None, found: float | None, tolerance: float) -> bool:
    # The effective lambda and retained are ratios of float32 sums, whose order is the processor's.
    if found is not None and not math.isfinite(found):
        found = None  # as in JSON
    if stored is None or found is None:
        return stored is found
    return math.isclose(stored, found, rel_tol=tolerance, abs_tol=1e-12)


_DIGITS = {"F32": 24, "F16": 11, "BF16": 8}
"""Binary digits of each output dtype."""


class _Comparison:
    """A sink that compares merged with stored bytes."""

    def __init__(self, checkpoint: Checkpoint, provenance: Provenance, job: MergeJob) -> None:
        self._checkpoint = checkpoint
        self._provenance = provenance
        self._arithmetic = job.arithmetic
        self._device = job.options.device
        self._whole = {t.name for t in job.merged if job.is_whole(t)}
        self._near = self._elements = 0
        self._lock = threading.Lock()
        self.files = Sources(checkpoint)
        self.compared_bytes = 0

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Compare a chunk of a tensor's data.

        Raises: VerificationError that names the shard, the tensor and the first different byte.
        """
        expected = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
        tensor = self._checkpoint.tensors.get(name)
        if tensor is None:
            raise VerificationError(f"Tensor {quoted(name)} is missing from the merged checkpoint.")
        stored = bytearray(len(expected))
        self.files.read_into(tensor, byte_offset, memoryview(stored))
        near = self._near_elements(name, tensor.dtype, stored, expected)
        if stored != expected and not near:
            first = next(i for i, (a, b) in enumerate(zip(stored, expected, strict=True)) if a != b)
            raise VerificationError(
                f"{printable(tensor.path)}: tensor {quoted(name)} differs from the merge of its "
                f"sources, first at byte {byte_offset + first} of its data.{self._reason()}"
            )
        with self._lock:
            self.compared_bytes += len(expected)
            self._near += near

    def _near_elements(self, name: str, dtype: str, stored: bytearray, expected: memoryview) -> int:
        """Return how many elements of a whole matrix differ; 0 also if one differs by too much."""
        if name not in self._whole or stored == expected:
            return 0
        ours, theirs = (
            rounding.decode(np.frombuffer(data, np.uint8), dtype).astype(np.float64)
            for data in (expected, stored)
        )
        # The last place of the larger number in the dtype.
        size = np.maximum(np.abs(ours), np.abs(theirs))
        place = np.ldexp(1.0, np.frexp(size)[1] - _DIGITS[dtype])
        allowed = np.maximum(LAST_PLACES * place, NEAR * size.max())
        differs = np.abs(ours - theirs)
        return int((differs > 0).sum()) if (differs <= allowed).all() else 0

    @property
    def notes(self) -> list[str]:
        """Notes on elements that are not the same bytes."""
        if not self._near:
            return []
        return [
            f"{self._near:,} elements of whole matrices differ from the recomputed ones by at most "
            f"{LAST_PLACES} last place (or {NEAR:g} of the largest): they were computed on "
            f"{self._provenance.device}, these on {self._device}."
        ]

    def _reason(self) -> str:
        """Return a possible reason for a difference: another version, or its arithmetic."""
        version = self._provenance.ram_studio_version
        if self._provenance.arithmetic == self._arithmetic:
            if version == __version__:
                return ""
            return f" It was merged by version {version}, this is {__version__}."
        return (
            f" This may not be damage; the files are as the merge wrote them: version {version} "
            f"computed in {self._provenance.arithmetic}, this version ({__version__}) in "
            f"{self._arithmetic}, and the last digits of both differ. Verify it with version "
            f"{version}, or merge again."
        )
