"""The passport: `ram_studio.json` beside a merged checkpoint, telling how it came to be.

Same merge, same bytes: nothing in it depends on the clock or the machine, except the sources as the
user spelt them. `verify` checks a folder against it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ram_studio.checkpoints.checkpoint import Checkpoint
from ram_studio.checkpoints.describe import printable
from ram_studio.checkpoints.json_files import read_bounded
from ram_studio.checkpoints.recipe import AgentName, Recipe, describe_validation
from ram_studio.errors import VerificationError

PASSPORT_FILE = "ram_studio.json"
MAX_PASSPORT_BYTES = 64_000_000


def _finite_or_none(value: object) -> object:
    """JSON has no infinity: an unbounded rho is stored as null, as in the command line's output."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Ratio = Annotated[float | None, BeforeValidator(_finite_or_none)]
Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceRecord(_Record):
    """A checkpoint that went into the merge.

    Attributes:
        source: as the user gave it.
        revision: the commit, for a Hub id.
        fingerprint: see `fingerprint_of`.
        nbytes: of its shards.
    """

    source: str
    revision: str | None = None
    fingerprint: str
    nbytes: Count


class AgentRecord(SourceRecord):
    """An agent, and the numbers of its merge. Those a method does not have are null.

    Attributes:
        rho: overlap-unique ratio; null when infinite (`unique` is then 0 and `shared` is not) or
            when the method has none.
        scaling_factor: lambda as asked for.
        effective_scaling_factor: lambda as stored after rounding; null without unique elements.
        total: elements compared (a tied matrix once).
        changed: elements with |tau| above epsilon; `unique` plus `shared`.
        unique, shared: elements changed by this agent alone, and by others too.
        overlap: changed elements shared with exactly 0, 1, 2, ... other agents.
    """

    rho: Ratio = None
    scaling_factor: Ratio = None
    effective_scaling_factor: Ratio = None
    total: Count | None = None
    changed: Count | None = None
    unique: Count | None = None
    shared: Count | None = None
    overlap: tuple[Count, ...] | None = None


class ShardRecord(_Record):
    """A file of the merged checkpoint: its size and BLAKE3 digest."""

    nbytes: Count
    blake3: Digest


class Passport(_Record):
    """How a merged checkpoint came to be.

    Attributes:
        format: of this file.
        ram_studio_version: of the package that merged.
        recipe: everything that was asked for.
        base, agents: the sources; agents by name in the recipe's order.
        dtype: of the merged tensors, as safetensors spells it; "mixed" where they follow a base
            of several dtypes.
        rounding, seed: as used.
        elements: of all merged tensors, a tied matrix once.
        shards: by file name.
        warnings: what the user was told about the sources.
        license: stated by the sources, where all state the same one.
    """

    format: Literal[1] = 1
    ram_studio_version: str
    recipe: Recipe
    base: SourceRecord
    agents: dict[AgentName, AgentRecord]
    dtype: str
    rounding: Literal["nearest", "stochastic"]
    seed: Count
    elements: Count
    shards: dict[str, ShardRecord]
    warnings: tuple[str, ...] = ()
    license: str | None = None

    def to_json(self) -> bytes:
        """Return the file's content; equal passports give equal bytes."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def source_record(checkpoint: Checkpoint) -> SourceRecord:
    """Return what a passport keeps of a base."""
    return SourceRecord(
        source=checkpoint.source,
        revision=checkpoint.revision,
        fingerprint=checkpoint.fingerprint,
        nbytes=checkpoint.nbytes,
    )


def agent_record(checkpoint: Checkpoint, **numbers: object) -> AgentRecord:
    """Return what a passport keeps of an agent; `numbers` are the fields of `AgentRecord`."""
    return AgentRecord.model_validate({**source_record(checkpoint).model_dump(), **numbers})


def read_passport(folder: str | Path) -> Passport:
    """Return the passport of a merged checkpoint.

    Raises: VerificationError when there is none or it is damaged, CheckpointError when it cannot
    be read.
    """
    path = Path(folder).expanduser() / PASSPORT_FILE
    if not path.is_file():
        raise VerificationError(
            f"{printable(path)} is missing; expected the folder of a checkpoint that RAM Studio "
            "merged."
        )
    try:
        return Passport.model_validate_json(read_bounded(path, "", limit=MAX_PASSPORT_BYTES))
    except ValidationError as error:
        raise VerificationError(
            f"{printable(path)} is damaged: {describe_validation(error)}; merge again."
        ) from error
