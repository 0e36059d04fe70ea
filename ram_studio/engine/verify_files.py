"""Comparing files with a passport: those of a merged folder, and those of its sources."""

from __future__ import annotations

from pathlib import PurePosixPath

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import plural, printable, quoted, shown_list
from ram_studio.checkpoints.read.folder import Files
from ram_studio.checkpoints.record.passport import PASSPORT_FILE, Passport, SourceRecord
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.errors import VerificationError

EDITABLE = ("README.md",)
"""Files people change before they publish a merge: a change is told and is no failure."""

_LOADED_SUFFIXES = (
    *(".json", ".jinja", ".model", ".txt", ".py"),
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".msgpack", ".h5"),
)
"""A file with such a name that is not in the passport may be loaded with the model."""


def check_files(files: Files, passport: Passport) -> list[str]:
    """Check every file of a merge by its passport; return notes on harmless differences.

    Raises: VerificationError that names every file that differs; CheckpointError.
    """
    records = {**passport.shards, **passport.files}
    differences, notes = [], []
    sizes = files.sizes()
    for name, record in records.items():
        at = printable(files.at(name))
        if name not in sizes:
            found = f"{at} is missing"
        elif sizes[name] != record.nbytes:
            found = f"{at} has {sizes[name]} bytes, the passport says {record.nbytes}"
        elif files.blake3(name) != record.blake3:
            found = f"{at} differs from its digest in the passport"
        else:
            continue
        if name in EDITABLE:
            notes.append(f"{name} is not as the merge wrote it.")
        else:
            differences.append(found)
    for name in sizes:
        suffix = PurePosixPath(name).suffix
        if name in records or name == PASSPORT_FILE or name.startswith("."):
            continue
        if suffix.lower() not in _LOADED_SUFFIXES:
            notes.append(f"{printable(name)} was added after the merge.")
        elif passport.files or suffix == ".safetensors":
            differences.append(
                f"{printable(files.at(name))} is not in the passport and may be loaded with the "
                "model"
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
    found = {path.name: source.size_of(path) for path in source.shards}
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
    place = source.source if source.remote else source.folder
    return f"{source.who}{printable(place)} is not the checkpoint merged: {why}"
