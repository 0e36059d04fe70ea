"""The list of merges made: one line of JSON each, beside the answers.

It outlives the merged folders: what is kept of a merge are its settings and numbers.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ram_studio.app.check.answers import memory_folder
from ram_studio.app.settings import Settings
from ram_studio.app.workspace import Loaded, Merged, Session
from ram_studio.errors import OutputError

_LOG = logging.getLogger(__name__)
_FILE = "merges.jsonl"
_MOST_BYTES = 4_000_000


@dataclass(frozen=True)
class PastMerge:
    """One merge of the past.

    fingerprint: as the engine's that answers with the merged folder. recipe: as it was run.
    agents: per agent rho, lambda and effective_lambda. example: the shipped set's link name.
    """

    id: str
    when: str
    name: str
    title: str
    example: str | None
    folder: str
    fingerprint: str
    method: str
    recipe: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    nbytes: int = 0

    @property
    def settings(self) -> Mapping[str, Any]:
        """The method's own settings."""
        found = self.recipe.get("settings")
        return found if isinstance(found, Mapping) else {}


def remember(merged: Merged, loaded: Loaded, session: Session, settings: Settings) -> None:
    """Add a finished merge to the list; a list that cannot be written is logged, no failure."""
    from ram_studio.checkpoints.read.checkpoint import open_checkpoint
    from ram_studio.evals.answering.local import model_fingerprint

    weights = open_checkpoint(str(merged.folder), name=merged.name).fingerprint
    result = merged.result
    past = PastMerge(
        secrets.token_hex(4),
        datetime.now(UTC).isoformat(timespec="seconds"),
        merged.name,
        loaded.title,
        loaded.example,
        str(merged.folder),
        model_fingerprint(merged.folder, weights),
        merged.method,
        yaml.safe_load(merged.recipe) or {},
        {
            name: {key: numbers.get(key) for key in ("rho", "lambda", "effective_lambda")}
            for name, numbers in result["agents"].items()
        },
        result["seconds"],
        result["bytes_written"],
    )
    try:
        _append(memory_folder(session, settings) / _FILE, json.dumps(asdict(past)))
    except OSError:
        _LOG.warning("The list of merges could not be written.", exc_info=True)


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One write to a file opened for appending: lines of several processes do not mix.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


def past_merges(session: Session, settings: Settings) -> list[PastMerge]:
    """Return the merges of this visitor, the newest first; lines that do not read are left out.

    Raises: OutputError when the list exists and cannot be read.
    """
    path = memory_folder(session, settings) / _FILE
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutputError(
            f"The list of merges {path} cannot be read: {error.strerror or error}."
        ) from error
    found = []
    for line in lines:
        try:
            found.append(PastMerge(**json.loads(line)))
        except (ValueError, TypeError):
            _LOG.warning("A line of the list of merges does not read; it is left out.")
    return found[::-1]
