"""Pickles described by a sealed process (``inside``); nothing here opens one."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import CheckpointError, EvaluationError
from ram_studio.evals.sandbox import Limits, is_sealed, run_program

MOST_PICKLE_BYTES = 256_000_000
_BATCH_BYTES = 16_000_000
# Enough for the metadata of a hundred thousand tensors in many parts.
_LIMITS = Limits(seconds=600.0, memory_bytes=8 << 30, output_bytes=1 << 30)
_INSIDE = Path(__file__).with_name("inside.py")


def describe_pickles(
    kind: Literal["torch", "metadata"], pickles: Sequence[bytes], at: str
) -> list[Any]:
    """Return the descriptions of pickles, in order; see ``inside`` for the form.

    Args:
        kind: of files of torch.save, or of a distributed checkpoint's metadata.
        at: starts messages: the file or folder.

    Raises: CheckpointError when a pickle names anything but tensors, is damaged, or when this
    machine cannot seal a process.
    """
    if os.environ.get("SPACE_ID") or not is_sealed():
        raise CheckpointError(
            f"{at} is a pickle, which is opened only in a sealed process; this machine has none. "
            "Convert it on Linux with Landlock and seccomp, not on a public Space."
        )
    return [found for batch in _batches(pickles) for found in _describe_locked(kind, batch, at)]


def _describe_locked(kind: str, pickles: list[bytes], at: str) -> list[Any]:
    request = {"kind": kind, "pickles": [base64.b64encode(one).decode() for one in pickles]}
    try:
        ended = run_program(_INSIDE.read_text("utf-8"), json.dumps(request), limits=_LIMITS)
    except EvaluationError as error:
        raise CheckpointError(f"{at} cannot be opened: {error}") from error
    try:
        answer = json.loads(ended.output)
    except ValueError:
        answer = {"refused": f"cannot be read ({ended.reason})"}
    if "refused" in answer:
        why = printable(answer["refused"], 400)
        raise CheckpointError(
            f"{at} {why}. Only tensors are read from pickles, and nothing in it was run; save the "
            "model's state dict alone, and convert that."
        )
    found: list[Any] = answer["found"]
    return found


def _batches(pickles: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for one in pickles:
        if batch and size + len(one) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one)
    if batch:
        yield batch
