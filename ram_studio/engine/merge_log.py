"""The list of past merges: one line of JSON each, in the folder of stored answers.

It outlives the merged folders: of a merge it stores the settings and numbers. The caller chooses
the folder: the user's own, or that of one user of a server.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.checkpoints.read.url_folder import is_url
from ram_studio.checkpoints.record.strict_yaml import parse_yaml
from ram_studio.errors import CheckpointError, OutputError, SettingsError, raise_as

_LOG = logging.getLogger(__name__)
MERGE_LOG_FILE = "merges.jsonl"
_NUMBERS = (
    "rho",
    "lambda",
    "effective_lambda",
    "retained",
    "interference",
    "interference_rounding",
)
_MOST_BYTES = 4_000_000


@dataclass(frozen=True)
class PastMerge:
    """One past merge.

    when: UTC, ISO 8601. title: of the set that was merged. set_name: the shipped set.
    fingerprint: that of the merged folder in evaluations. recipe: as it was run.
    agents: per agent the numbers in ``_NUMBERS``.
    """

    id: str
    when: str
    name: str
    title: str
    set_name: str | None
    folder: str
    fingerprint: str
    method: str
    recipe: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    nbytes: int = 0

    @property
    def settings(self) -> Mapping[str, Any]:
        found = self.recipe.get("settings")
        return found if isinstance(found, Mapping) else {}


def remember_merge(
    store: Path,
    result: Mapping[str, Any],
    recipe: str,
    *,
    name: str,
    title: str,
    set_name: str | None = None,
) -> None:
    """Add a finished merge to the list; a write error is logged, not raised.

    Args:
        store: the folder of the list; created when missing.
        result: what ``merge --json`` prints; its "out" holds the merged checkpoint.
        recipe: as YAML.
    """
    try:
        out = result["out"] if is_url(result["out"]) else str(Path(result["out"]).absolute())
        opened = open_checkpoint(out, name=name)
        past = PastMerge(
            id=secrets.token_hex(4),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            name=name,
            title=title,
            set_name=set_name,
            folder=out,
            fingerprint=model_fingerprint(opened.folder, opened.fingerprint),
            method=result["method"],
            recipe=parse_yaml(recipe.encode(), "The recipe"),
            agents={
                agent: {key: numbers.get(key) for key in _NUMBERS}
                for agent, numbers in result["agents"].items()
            },
            seconds=result["seconds"],
            nbytes=result["bytes_written"],
        )
        _append(store / MERGE_LOG_FILE, json.dumps(asdict(past)))
    except (OSError, CheckpointError, SettingsError):
        _LOG.warning("The list of merges could not be written.", exc_info=True)


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One write to a file opened for appending: lines of several processes do not mix.
    with open(path, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
        file.write(line.encode() + b"\n")


def past_merges(store: Path) -> list[PastMerge]:
    """Return the merges listed in a folder, newest first; unreadable lines are left out.

    Raises: OutputError when the list exists and cannot be read.
    """
    path = store / MERGE_LOG_FILE
    if not path.exists():
        return []
    with (
        raise_as(OutputError, f"The list of merges {path} cannot be read"),
        path.open("rb") as file,
    ):
        file.seek(max(0, path.stat().st_size - _MOST_BYTES))
        lines = file.read().splitlines()
    found, of_json = [], TypeAdapter(PastMerge)
    for line in lines:
        try:
            found.append(of_json.validate_json(line))
        except ValidationError:
            _LOG.warning("A line of the list of merges cannot be read; skipped.")
    return found[::-1]
