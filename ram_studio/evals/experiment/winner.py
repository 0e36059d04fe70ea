"""A sweep's winner, read from its JSON: found on small models, applied to larger ones.

Weights over the layers are interpolated between the first and the last layer, so those of a model
with 12 layers apply to one with 48.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.json_files import read_bounded
from ram_studio.errors import SettingsError
from ram_studio.evals.report.comparison import SIGNIFICANCE

MAX_SWEEP_BYTES = 64_000_000


@dataclass(frozen=True)
class Winner:
    """A sweep's best setting. note: a reservation from its held-out questions, "" for none."""

    label: str
    method: str
    settings: dict[str, Any]
    weights: dict[str, Any]
    agents: tuple[str, ...]
    note: str

    def check_agents(self, names: Iterable[str]) -> None:
        """Raise SettingsError unless these are the sweep's agents."""
        given = list(names)
        if set(given) != set(self.agents):
            raise SettingsError(
                f"The sweep merged {', '.join(self.agents)}; the agents here are "
                f"{', '.join(given)}. Give each its name in the sweep."
            )


def read_winner(path: Path) -> Winner:
    """Return the best setting of a file that `ram-studio sweep --json` wrote.

    Raises: SettingsError for another file, or a sweep without scores.
    """
    data = read_bounded(path, "", limit=MAX_SWEEP_BYTES)
    try:
        found = json.loads(data)
        rows = [row for row in found["rows"] if row["label"] == found["winner"]]
        winners = [_winner(row, found["recheck"]) for row in rows]
        is_sweep = found["kind"] == "sweep"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sweep, winners = False, []
    if not is_sweep:
        raise SettingsError(
            f"{printable(path)} is not the result of a sweep; expected what `ram-studio sweep ... "
            "--json` prints."
        )
    if not winners:
        raise SettingsError(f"{printable(path)}: no setting was scored in this sweep.")
    return winners[0]


def _winner(row: dict[str, Any], recheck: dict[str, Any] | None) -> Winner:
    # Fisher files of other models do not apply here.
    settings = {key: value for key, value in row["settings"].items() if key != "files"}
    note = _note(row["is_start"], None if recheck is None else recheck["counts"])
    return Winner(row["label"], row["method"], settings, row["weights"], row["merged_agents"], note)


def _note(is_start: bool, counts: dict[str, Any] | None) -> str:
    """Return the reservation about a sweep's winner, "" for none."""
    if is_start:
        return "The sweep found nothing better than the setting it started from."
    if counts is None:
        return "The sweep did not check its winner on held-out questions."
    if counts["p_value"] >= SIGNIFICANCE or counts["wins"] <= counts["losses"]:
        return (
            "On held-out questions the sweep's winner is not shown to be better than the setting "
            f"it started from ({counts['wins']} gained, {counts['losses']} lost)."
        )
    return ""
