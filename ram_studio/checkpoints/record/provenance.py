"""The provenance: `ram_studio.json` beside a merged checkpoint, which records how it was made.

Same merge, same bytes: nothing in it depends on the clock or the machine, except the sources
as given by the user, their folders, the versions of the libraries, and the device of formulas whose
last digits depend on it. `verify` checks a folder against it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ram_studio.checkpoints.fit.licenses import License, combine_licenses, license_of
from ram_studio.checkpoints.read.checkpoint import Checkpoint, split_hub_id
from ram_studio.checkpoints.read.content_hash import CONTENT_HASH, hash_bytes, hash_json
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.files import Files, Folder
from ram_studio.checkpoints.record.recipe import (
    AgentName,
    Recipe,
    at_places,
    describe_validation,
    load_recipe,
)
from ram_studio.errors import VerificationError

PROVENANCE_FILE = "ram_studio.json"
MAX_PROVENANCE_BYTES = 64_000_000

FORGETTING_TASKS = ("arc_easy", "hellaswag", "piqa", "winogrande")
"""Tasks of lm-eval on a model's knowledge from before its agent training."""
SKILL_CHECKS: Mapping[str, tuple[str, frozenset[str]]] = {
    "forgetting": ("knowledge from before the agents' training", frozenset(FORGETTING_TASKS)),
    "refusal": ("refusal behavior", frozenset({"refusal"})),
    "tool-loop": ("acting over several turns", frozenset({"tool-loop"})),
    "instructions": ("following instructions", frozenset({"instructions", "ifeval"})),
}
"""Possible losses besides skills: by suite, a description, and the suites or tasks that test it."""


def not_checked(suites: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the `SKILL_CHECKS` that none of these suites, or tasks "lm-eval:NAME", tests."""
    names = {name.removeprefix("lm-eval:") for name in suites}
    return tuple(check for check, (_, own) in SKILL_CHECKS.items() if names.isdisjoint(own))


def _finite_or_none(value: object) -> object:
    """JSON has no infinity: an unbounded rho is stored as null, as in the command line's output."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_below(name: str) -> str:
    # A provenance file is untrusted, and the files that it names are read, and uploaded.
    parts = PurePosixPath(name).parts
    if not parts or {"/", ".."} & set(parts):
        raise ValueError("expected the name of a file below the folder")
    return name


Ratio = Annotated[float | None, BeforeValidator(_finite_or_none)]
Count = Annotated[int, Field(ge=0)]
FileName = Annotated[str, AfterValidator(_check_below)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """Base of the records in our files: frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> bytes:
        """Return a file's content; equal records give equal bytes."""
        return (self.model_dump_json(indent=2) + "\n").encode()


class SourceFile(Record):
    """A source's shard: its size and content hash, "sha256:<hex>" or "blake3:<hex>"."""

    nbytes: Count
    hash: Annotated[str, Field(pattern=CONTENT_HASH)]


class SourceRecord(Record):
    """A checkpoint that went into the merge.

    Attributes:
        source: as the user gave it.
        folder: where it was, absolute; None for a Hub id.
        revision: the commit, for a Hub id.
        fingerprint: see `fingerprint_of`.
        nbytes: of its shards.
        files: its shards by name; None when they were not hashed.
        license: from its model card.
    """

    source: str
    folder: str | None = None
    revision: str | None = None
    fingerprint: str
    nbytes: Count
    files: dict[str, SourceFile] | None = None
    license: License = License()

    @property
    def repository(self) -> str | None:
        """The repository of a source from the Hub; only those have a revision."""
        parts = split_hub_id(self.source) if self.revision is not None else None
        return None if parts is None else parts[0]

    @property
    def place(self) -> str:
        """Its place: a folder, or a Hub id with the merged commit."""
        here = self.folder or self.source
        return here if self.repository is None else f"{self.repository}@{self.revision}"


class RetainedRecord(Record):
    """Shares of an agent's |tau|^2, measured in the stored merge, see `meters.retained`."""

    total: float
    unique: float
    boost: float
    shared: float
    rounding: float
    lost_to_averaging: float
    lost_to_epsilon: float


class AgentRecord(SourceRecord):
    """An agent, and the numbers of its merge. Those a method does not have are null.

    Attributes:
        rho: overlap-unique ratio; null when infinite (`unique` is then 0 and `shared` is not) or
            when the method has none.
        rho_m: the ratio by magnitude, for methods that use it; null also when infinite.
        is_rho_m_infinite: whether rho_m is infinite.
        scaling_factor: requested lambda.
        effective_scaling_factor: lambda as stored after rounding; null without unique elements.
        effective_interval: its 95 % interval, wide where few large weights dominate; null with
            too few elements.
        total: elements compared (a tied matrix once).
        changed: elements with |tau| above epsilon; `unique` plus `shared`.
        unique, shared: elements changed by this agent alone, and by others too.
        overlap: changed elements shared with exactly 0, 1, 2, ... other agents.
        retained, interference: share of the agent's update in the stored merge, and the other
            changes as a multiple of the update; null when it changed nothing.
        interference_rounding: effect of rounding to the output's dtype on `interference`, of
            either sign.
    """

    rho: Ratio = None
    rho_m: Ratio = None
    is_rho_m_infinite: bool = False
    scaling_factor: Ratio = None
    effective_scaling_factor: Ratio = None
    effective_interval: tuple[float, float] | None = None
    total: Count | None = None
    changed: Count | None = None
    unique: Count | None = None
    shared: Count | None = None
    overlap: tuple[Count, ...] | None = None
    retained: RetainedRecord | None = None
    interference: float | None = None
    interference_rounding: float | None = None


class ShardRecord(Record):
    """A file of the merged checkpoint: its size and BLAKE3 digest."""

    nbytes: Count
    blake3: Digest


class OwnMethodRecord(Record):
    """A user's method: its source, and the SHA-256 of its file."""

    source: str
    sha256: Digest


class Provenance(Record):
    """How a merged checkpoint was made.

    Attributes:
        format: of this file.
        ram_studio_version: of the package that merged.
        recipe: everything that was requested.
        base, agents: the sources; agents by name in the recipe's order.
        dtype: of the merged tensors, by its safetensors name; "mixed" where they follow a base
            of several dtypes.
        rounding, seed: as used.
        arithmetic: dtype of the numbers before rounding.
        device: of a method's formulas, "cpu", "cuda" or "torch" (the CUDA code on the CPU);
            several with commas. Null for methods whose bytes are the same everywhere.
        own_method: the file of a method that is not built in.
        elements: of all merged tensors, a tied matrix once.
        shards: by file name.
        files: all other files of the folder, the model card included, by name; only the provenance
            itself is not among them.
        libraries: versions of Python and of the libraries that computed.
        warnings: on the sources, as shown to the user.
        not_checked: `SKILL_CHECKS` without an answer at the time of the merge: all of them.
        checksum: BLAKE3 of everything else in the provenance, see `checksum_of`.
    """

    format: Literal[1] = 1
    ram_studio_version: str
    recipe: Recipe
    base: SourceRecord
    agents: dict[AgentName, AgentRecord]
    dtype: str
    rounding: Literal["nearest", "stochastic"]
    seed: Count
    arithmetic: Literal["float32", "float64"]
    device: str | None = None
    own_method: OwnMethodRecord | None = None
    elements: Count
    shards: dict[FileName, ShardRecord]
    files: dict[FileName, ShardRecord] = Field(default_factory=dict)
    libraries: dict[str, str] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    checksum: Digest | None = None

    @model_validator(mode="after")
    def _agents_are_the_recipes(self) -> Provenance:
        ours, theirs = (", ".join(names) for names in (self.agents, self.recipe.agents))
        if self.agents.keys() != self.recipe.agents.keys():
            raise ValueError(f"agents are {printable(ours)}, the recipe's {printable(theirs)}")
        return self

    def renamed(self, names: Mapping[str, str]) -> Provenance:
        """Return the provenance with other names of sources, and without their folders."""

        def record(own: SourceRecord) -> dict[str, Any]:
            name = names.get(own.source, own.source)
            return {} if name == own.source else {"source": name, "folder": None}

        renamed = {n: names[r.source] for n, r in self.sources.items() if r.source in names}
        return self.model_copy(
            update={
                "recipe": at_places(self.recipe, renamed),
                "base": self.base.model_copy(update=record(self.base)),
                "agents": {
                    name: agent.model_copy(update=record(agent))
                    for name, agent in self.agents.items()
                },
            }
        )

    @property
    def sources(self) -> dict[str, SourceRecord]:
        """The base ("base") and the agents by name."""
        return {"base": self.base, **self.agents}

    @property
    def license(self) -> License:
        """The combined license of the sources, see ``combine_licenses``."""
        return combine_licenses(source.license for source in self.sources.values())

    @property
    def placed_recipe(self) -> Recipe:
        """The recipe with the place of every source, to merge again from any working directory."""
        return at_places(self.recipe, {name: s.place for name, s in self.sources.items()})

    def with_checksum(self, files: Mapping[str, bytes]) -> Provenance:
        """Return the provenance of a folder that also holds these files, with its checksum."""
        records = {
            name: ShardRecord(nbytes=len(data), blake3=hash_bytes(data))
            for name, data in sorted(files.items())
        }
        covered = self.model_copy(update={"files": records, "checksum": None})
        checksum = checksum_of(json.loads(covered.to_json()))
        return covered.model_copy(update={"checksum": checksum})


def checksum_of(provenance: Mapping[str, Any]) -> str:
    """Return the BLAKE3 of a provenance file's JSON without its `checksum`: keys sorted, no spaces,
    UTF-8.
    """
    rest = {key: value for key, value in provenance.items() if key != "checksum"}
    return hash_json(rest)


def source_record(checkpoint: Checkpoint, hashes: Mapping[str, str] | None = None) -> SourceRecord:
    """Return a provenance file's record of a base.

    hashes: content hashes of its shards by file name, where they were computed.
    """
    files = None
    if hashes is not None and all(path.name in hashes for path in checkpoint.shards):
        files = {
            path.name: SourceFile(nbytes=checkpoint.size_of(path), hash=hashes[path.name])
            for path in checkpoint.shards
        }
    return SourceRecord(
        source=checkpoint.source,
        folder=None
        if checkpoint.revision or checkpoint.remote
        else os.path.abspath(checkpoint.folder),
        revision=checkpoint.revision,
        fingerprint=checkpoint.fingerprint,
        nbytes=checkpoint.nbytes,
        files=files,
        license=license_of(checkpoint),
    )


def agent_record(
    checkpoint: Checkpoint, hashes: Mapping[str, str] | None = None, **numbers: object
) -> AgentRecord:
    """Return a provenance file's record of an agent; `numbers`: fields of `AgentRecord`."""
    source = source_record(checkpoint, hashes)
    return AgentRecord.model_validate({**source.model_dump(), **numbers})


def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a file: a recipe's YAML, or the one in a provenance file.

    The sources of a provenance file (`ram_studio.json`) have absolute places, for any working
    directory.

    Raises: SettingsError for a recipe, VerificationError for a provenance file; CheckpointError.
    """
    path = Path(os.path.expanduser(path))
    if not is_provenance(path):
        return load_recipe(path)
    return provenance_of(Folder(path.parent), path.name).placed_recipe


def is_provenance(path: Path) -> bool:
    """Return whether a file is a provenance file: by its name, or by its first bytes."""
    if path.name == PROVENANCE_FILE:
        return True
    try:
        with open(path, "rb") as file:
            return path.suffix == ".json" and b'"ram_studio_version"' in file.read(200)
    except OSError:
        return False  # reading it reports the error


def read_provenance(folder: str | Path) -> Provenance:
    """Return the provenance of a merged checkpoint.

    Raises: VerificationError when it is missing, damaged or was changed after the merge;
    CheckpointError when it cannot be read.
    """
    return provenance_of(Folder(Path(os.path.expanduser(folder))))


def provenance_of(files: Files, name: str = PROVENANCE_FILE) -> Provenance:
    """Return the provenance among some files, see ``read_provenance``."""
    at = printable(files.at(name))
    if not files.has(name):
        raise VerificationError(
            f"{printable(files.at(''))} has no {name}; expected the folder of a checkpoint that "
            "RAM Studio merged."
        )
    data = files.read(name, MAX_PROVENANCE_BYTES)
    try:
        provenance = Provenance.model_validate_json(data)
    except ValidationError as error:
        raise VerificationError(
            f"{at} is damaged: {describe_validation(error)}; merge again."
        ) from error
    if provenance.checksum != checksum_of(json.loads(data)):
        raise VerificationError(
            f"{at} differs from its checksum: the provenance was changed after the merge. "
            "Restore it, or merge again."
        )
    return provenance
