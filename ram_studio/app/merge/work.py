"""The work behind Merge: from the form to a recipe, a finished folder, and what is taken home."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ram_studio.algorithm.ladder import LADDER
from ram_studio.app.check.answers import memory_folder
from ram_studio.app.jobs import Report, Work
from ram_studio.app.merge.controls import tuned_by
from ram_studio.app.merge.recipes import recipe_from, recipe_text
from ram_studio.app.session import Loaded, Merged, Session
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.record.merge_log import remember_merge
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.errors import OutputError

_LONGEST_NAME = 60


@dataclass(frozen=True)
class MergeForm:
    """The Merge step's form.

    point, r, alpha: as in Tune, point on the ladder; own: the method's other settings, by name.
    """

    method: str
    point: int
    r: float
    alpha: float
    own: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    rounding: str = "nearest"
    seed: float = 0
    device: str = "auto"
    name: str = ""

    def settings(self) -> dict[str, Any]:
        """Return the method's own settings."""
        tuned = {"epsilon": LADDER[self.point], "r": self.r, "alpha": self.alpha}
        return {**{name: tuned[name] for name in tuned_by(self.method)}, **self.own}

    def recipe(self, loaded: Loaded) -> Recipe:
        """Return the validated recipe of the form.

        Raises: SettingsError that names the field.
        """
        return recipe_from(
            loaded,
            self.method,
            self.settings(),
            dtype=self.dtype,
            rounding=self.rounding,
            seed=self.seed or 0,
        )


def merge_work(
    recipe: Recipe, session: Session, settings: Settings, *, name: str = "", device: str = "auto"
) -> Work[Merged]:
    """Return the work of a merge, which ends with it in the session and in the list of merges.

    A stopped or failed merge leaves no folder (the writer's temporary one is removed).

    name: of the merge; the method's when empty, with a number when it is taken.
    """
    loaded = session.models
    name = session.free_name(name.strip()[:_LONGEST_NAME] or recipe.method)
    out = output_folder(session, name)

    def work(report: Report, cancel: CancelToken) -> Merged:
        result = merge(
            recipe, out, sketch=loaded.sketch, device=device, on_progress=report, cancel=cancel
        )
        text = recipe_text(recipe, loaded, settings)
        merged = Merged(name, out, recipe.method, result.to_dict(), text)
        session.merges[name] = merged
        remember_merge(
            memory_folder(session, settings),
            merged.result,
            text,
            name=name,
            title=loaded.title,
            example=loaded.example,
        )
        return merged

    return work


def output_folder(session: Session, name: str) -> Path:
    """Return a folder for a merge that does not exist yet; its parent is made."""
    out = session.folder / "merges" / slug(name)
    out.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = 2
    while out.exists():
        out = out.with_name(f"{slug(name)}-{number}")
        number += 1
    return out


def slug(name: str) -> str:
    """Return a file name made from a merge's name: plain letters, digits, dashes."""
    text = re.sub(r"\+", "-plus-", name)
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:_LONGEST_NAME] or "merge"


def zip_of(merged: Merged, session: Session, settings: Settings) -> Path | None:
    """Return a zip of the merged folder, made now, or None when it is too large for one.

    Raises: OutputError when it cannot be written.
    """
    files = sorted(f for f in merged.folder.iterdir() if f.is_file())
    if sum(f.stat().st_size for f in files) > settings.max_zip_bytes:
        return None
    target = session.download(f"{merged.folder.name}.zip")
    try:
        # Weights hardly compress; storing them is many times faster.
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            for file in files:
                archive.write(file, f"{merged.folder.name}/{file.name}")
    except OSError as error:
        target.unlink(missing_ok=True)
        raise OutputError(f"The zip could not be written: {error.strerror or error}.") from error
    return target
