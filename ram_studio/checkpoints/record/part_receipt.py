"""A receipt: the record of one part's merge, in a file beside its shards.

It holds the digests of the part's shards and source files, and the counts and exact sums of its
elements, so that the results of all parts equal those of a merge without parts. The file is
safetensors: the arrays, and JSON in its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.header import LENGTH_BYTES, header_length, parse_header
from ram_studio.checkpoints.record.provenance import Record, ShardRecord
from ram_studio.errors import CheckpointError, PlanError

_HEADER = "ram_studio_receipt"


class MergeFacts(Record):
    """Facts of a part's merge, the same in every part of one merge.

    Attributes:
        factors: requested lambda, by agent.
        rho_m: ratio by magnitude, by agent.
        shared: elements of the whole model that each agent changed with 0, 1, ... others, from
            the analysis; None where the method needs no counts.
        active: elements that each agent changed, of methods that predict it.
        fisher: fingerprints of the Fisher files by agent, of methods that read them.
        is_from_analysis: whether the facts are from an analysis, not a pass over the sources.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    factors: dict[str, float | None]
    rho_m: dict[str, float | None]
    shared: list[list[int]] | None
    active: list[int] | None
    fisher: dict[str, str] = Field(default_factory=dict)
    is_from_analysis: bool


class ReceiptHeader(Record):
    """The JSON part of a receipt.

    Attributes:
        plan: its digest.
        hashes: content hashes of source files, by checkpoint and file name.
        device: that merged the part, without its number.
        is_along: see ``engine.passes.plan.MergedBlock``.
        bytes_read: from the sources.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    format: Literal[3] = 3
    plan: str
    part: int
    facts: MergeFacts
    shards: dict[str, ShardRecord]
    hashes: dict[str, dict[str, str]]
    with_torch: bool
    device: str
    is_along: bool
    bytes_read: int


@dataclass(frozen=True)
class Receipt:
    """A part's receipt.

    patterns, sums: counts and measurements, see ``engine.passes.merging.MergeTally.total``;
    None where no agent changed anything.
    """

    header: ReceiptHeader
    patterns: np.ndarray | None = None
    sums: np.ndarray | None = None

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        arrays = {"patterns": self.patterns, "sums": self.sums}
        found = {name: array for name, array in arrays.items() if array is not None}
        # The format has no file without a tensor.
        found["format"] = np.array([1], dtype=np.int64)
        return save(found, metadata={_HEADER: self.header.model_dump_json()})


def read_receipt(data: bytes, where: str) -> Receipt:
    """Return the receipt in a file's bytes; where: its place in messages.

    Raises: PlanError when it is damaged.
    """
    try:
        end = LENGTH_BYTES + header_length(data[:LENGTH_BYTES], len(data), where)
        head = parse_header(data[LENGTH_BYTES:end], file_size=len(data), path=Path(where))
        arrays = load(data)
        header = ReceiptHeader.model_validate_json(head.metadata[_HEADER])
        return Receipt(header, arrays.get("patterns"), arrays.get("sums"))
    except (CheckpointError, KeyError, SafetensorError, ValidationError) as error:
        raise PlanError(
            f"The receipt {printable(where)} is damaged ({type(error).__name__}); merge its part "
            "again."
        ) from error
