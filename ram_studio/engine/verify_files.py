"""Comparing files with a passport: those of a merged folder, and those of its sources."""

from __future__ import annotations

from pathlib import Path

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.content_hash import blake3_of
from ram_studio.checkpoints.read.describe import plural, printable, quoted, shown_list, who
from ram_studio.checkpoints.record.passport import PASSPORT_FILE, Passport, SourceRecord
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.source_hashes import SourceHasher
from ram_studio.errors import VerificationError

EDITABLE = ("README.md",)
"""Files people change before they publish a merge: a change is told and is no failure."""

_LOADED_SUFFIXES = (
    *(".json", ".jinja", ".model", ".txt", ".py"),
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".msgpack", ".h5"),
)
"""A file with such a name that is not in the passport may be loaded with the model."""


def check_files(folder: Path, passport: Passport) -> list[str]:
    """Check every file of the folder by the passport; return notes on harmless differences.

    Raises: VerificationError that names every file that differs; CheckpointError.
    """
    records = {**passport.shards, **passport.files}
    differences, notes = [], []
    for name, record in records.items():
        path = folder / name
        if not path.is_file():
            found = f"{printable(path)} is missing"
        elif path.stat().st_size != record.nbytes:
            found = (
                f"{printable(path)} has {path.stat().st_size} bytes, the passport says "
                f"{record.nbytes}"
            )
        elif blake3_of(path) != record.blake3:
            found = f"{printable(path)} differs from its digest in the passport"
        else:
            continue
        if name in EDITABLE:
            notes.append(f"{name} is not as the merge wrote it.")
        else:
            differences.append(found)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name in records or name == PASSPORT_FILE or name.startswith("."):
            continue
        if path.suffix.lower() not in _LOADED_SUFFIXES:
            notes.append(f"{printable(name)} was added after the merge.")
        elif passport.files or path.suffix == ".safetensors":
            differences.append(
                f"{printable(path)} is not in the passport and may be loaded with the model"
            )
    if differences:
        raise VerificationError(
            f"{plural(len(differences), 'file')} changed after the merge: "
            f"{shown_list(differences)}. Restore {'it' if len(differences) == 1 else 'them'}, or "
            "merge again."
        )
    return notes


def check_sources(passport: Passport, report: CompatibilityReport, run: RunOptions) -> int:
    """Compare the sources' files with the passport's hashes; return how many were checked.

    Of sources that were not hashed the fingerprints are compared, and none is counted.

    Raises: VerificationError that names each file that differs; CheckpointError; Stopped.
    """
    differences = []
    expected: dict[tuple[str, str], str] = {}
    algorithms = {}
    for source in report.checkpoints:
        record = passport.sources[source.name]
        if record.files is None:
            if source.fingerprint != record.fingerprint:
                differences.append(_other(source, "its fingerprint differs"))
            continue
        wrong = _other_sizes(source, record)
        differences += wrong
        for path in source.shards if not wrong else ():
            expected[source.name, path.name] = record.files[path.name].hash
            algorithms[path] = record.files[path.name].hash.partition(":")[0]
    with SourceHasher(report, threads=run.threads, algorithms=algorithms) as hasher:
        found = hasher.finish(run.on_progress, run.cancel)
    for source in report.checkpoints:
        differences += [
            _other(source, f"{quoted(name)} has another content")
            for name, digest in found[source.name].items()
            if digest != expected[source.name, name]
        ]
    if differences:
        raise VerificationError(
            f"{shown_list(differences)}. Give the sources that were merged (--base, --agent)."
        )
    return len(expected)


def _other_sizes(source: Checkpoint, record: SourceRecord) -> list[str]:
    assert record.files is not None, "only of sources that were hashed"
    found = {path.name: path.stat().st_size for path in source.shards}
    expected = {name: file.nbytes for name, file in record.files.items()}
    return [
        _other(
            source,
            f"{quoted(name)} has "
            f"{'no' if found.get(name) is None else found[name]} bytes, the passport says "
            f"{'none' if expected.get(name) is None else expected[name]}",
        )
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]


def _other(source: Checkpoint, why: str) -> str:
    return f"{who(source.name)}{printable(source.folder)} is not the checkpoint merged: {why}"
