"""The checkpoints of what is loaded, opened again for those who look into files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ram_studio.app.jobs import NEED_MODELS
from ram_studio.app.session import Loaded
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.hub import rights
from ram_studio.engine.analyse import load
from ram_studio.errors import SettingsError


def open_loaded(loaded: Loaded) -> CompatibilityReport:
    """Return the checkpoints of what is loaded, opened; headers are read again when files changed.

    Raises: CheckpointError, CompatibilityError, HubError; SettingsError where only a sketch is.
    """
    if loaded.is_sketch_only:
        raise SettingsError(NEED_MODELS)
    folders = (loaded.base, *loaded.agents.values())
    states = tuple(state for folder in folders for state in _states(folder))
    # What is read from the Hub is read with the rights of whoever opened it, and holds their token:
    # so it is kept with what they loaded, and goes with it.
    key = (states, rights.token())
    report: CompatibilityReport | None = loaded.opened.get(key)
    if report is None:
        options: dict[str, Any] = dict(loaded.options)
        report = load(loaded.base, loaded.agents, **options, stream=True)
        loaded.opened.clear()
        loaded.opened[key] = report
    return report


def _states(folder: str) -> list[tuple[str, int, int]]:
    """Return size and time of a folder's shards; nothing for a Hub id (its files stay)."""
    return [
        (path.name, (stat := path.stat()).st_size, stat.st_mtime_ns)
        for path in sorted(Path(folder).glob("*.safetensors"))
    ]
