"""Put the commit of the code into a wheel that is built from a clone (a hook of hatchling)."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds a file that ``ram_studio/_version.py`` reads."""

    PLUGIN_NAME = "custom"

    _written: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file; an editable install asks git itself."""
        known = runpy.run_path(str(Path(self.root) / "ram_studio" / "_version.py"))
        commit = known["find_commit"]()
        if version == "editable" or commit is None:
            return
        written = Path(self.directory) / known["COMMIT_FILE"]
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(f"{commit}\n", encoding="utf-8")
        build_data["force_include"][str(written)] = f"ram_studio/{known['COMMIT_FILE']}"
        self._written = written

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing but archives in the folder that is uploaded."""
        if self._written is not None:
            self._written.unlink()
