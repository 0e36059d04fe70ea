"""A plan: one merge cut into parts for several machines, as one JSON file.

A part is some whole shards of the output. Everything in the plan follows from the recipe and the
sources' headers, so that the same recipe gives the same plan; its digest identifies the analyses
and receipts of its parts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ram_studio._version import __version__
from ram_studio.algorithm.partial import parts_text
from ram_studio.checkpoints.read.content_hash import hash_json
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.url_folder import KnownHeaders
from ram_studio.checkpoints.record.provenance import Count, Record
from ram_studio.checkpoints.record.recipe import Recipe, describe_validation
from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import OutputError, PlanError, raise_as

MAX_PLAN_BYTES = 64_000_000


class PlannedSource(Record):
    """A checkpoint as it was when the plan was made.

    Attributes:
        known: for a URL, its headers and listing, so that no part reads them again; the digest
            excludes them, as they follow from the files.
    """

    fingerprint: str
    nbytes: Count
    known: KnownHeaders | None = None


class PlannedPart(Record):
    """One part.

    Attributes:
        part: its number, from 1.
        shards: the output's files that it writes, with their bytes; may be empty if the plan has
            more parts than shards.
        nbytes: of them.
        hashes: by checkpoint, the source files that it hashes for the provenance.
    """

    part: Annotated[int, Field(ge=1)]
    shards: dict[str, Count]
    nbytes: Count
    hashes: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class PartPlan(Record):
    """A merge in parts.

    Attributes:
        format: of this file.
        ram_studio_version: required for all parts.
        recipe: everything that determines the merge.
        max_shard_bytes: the most bytes of tensor data in one file.
        sources: the base ("base") and the agents.
        parts: in order.
        digest: BLAKE3 of all other fields, without `known`.
    """

    format: Literal[1] = 1
    ram_studio_version: str
    recipe: Recipe
    max_shard_bytes: Annotated[int, Field(ge=1)]
    sources: dict[str, PlannedSource]
    parts: Annotated[tuple[PlannedPart, ...], Field(min_length=1)]
    digest: str = ""

    def with_digest(self) -> PartPlan:
        """Return the plan with its digest."""
        return self.model_copy(update={"digest": self.true_digest()})

    def true_digest(self) -> str:
        """Return the digest: BLAKE3 of JSON, keys sorted, no spaces, UTF-8."""
        left_out: Any = {"digest": True, "sources": {"__all__": {"known"}}}
        return hash_json(self.model_dump(mode="json", exclude=left_out))

    def part(self, number: int) -> PlannedPart:
        """Return a part by its number, from 1.

        Raises: PlanError for any other number.
        """
        if not 1 <= number <= len(self.parts):
            raise PlanError(
                f"part is {number}; expected 1 to {len(self.parts)}, the parts of the plan."
            )
        return self.parts[number - 1]

    def text(self, *numbers: int) -> str:
        """Return "part 2 of 3" for messages."""
        return parts_text(numbers, len(self.parts))


def save_plan(plan: PartPlan, path: str | Path) -> None:
    """Write a plan atomically, replacing an older one.

    Raises: OutputError when the file cannot be written.
    """
    with raise_as(OutputError, f"The plan {printable(path)} cannot be written"):
        write_whole(path, plan.to_json())


def load_plan(path: str | Path) -> PartPlan:
    """Read a plan.

    Raises: PlanError when the file is missing, damaged, was changed since it was made, or is of
    another version.
    """
    path = Path(os.path.expanduser(path))
    where = f"The plan {printable(path)}"
    advice = "make it with `ram-studio plan`"
    with raise_as(PlanError, f"{where} cannot be read", advice), open(path, "rb") as file:
        data = file.read(MAX_PLAN_BYTES + 1)
    try:
        plan = PartPlan.model_validate_json(data)
    except ValidationError as error:
        raise PlanError(
            f"{where} is damaged or is not a plan: {describe_validation(error)}; make it again "
            "with `ram-studio plan`."
        ) from error
    if plan.digest != plan.true_digest():
        raise PlanError(
            f"{where} was changed since it was made: its digest is {printable(plan.digest, 12)}, "
            f"its content gives {plan.true_digest()[:12]}. Change the recipe, and make the plan "
            "and all of its parts again."
        )
    if plan.ram_studio_version != __version__:
        raise PlanError(
            f"{where} is of version {printable(plan.ram_studio_version, 30)}, this is "
            f"{__version__}; use the version that made the plan for all parts."
        )
    return plan
