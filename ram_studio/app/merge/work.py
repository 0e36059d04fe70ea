"""The work behind Merge: from a recipe to a finished folder."""

from __future__ import annotations

import re
from pathlib import Path

from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS
from ram_studio.app.load.sources import public_name
from ram_studio.app.merge.recipes import recipe_text
from ram_studio.app.public.job_queue import Effort
from ram_studio.app.session.answers import memory_folder
from ram_studio.app.session.disk import make_room
from ram_studio.app.session.jobs import Report, Work, costing
from ram_studio.app.session.session import LoadedModels, MergedModel, Session
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.read.tensors import DTYPE_BITS
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.sidecars import OUTPUT_DTYPES
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.engine.merge_log import remember_merge

SLOW = ("wudi", "tsv-m", "iso-c", "resmerge", "project")
"""Methods that take minutes of computing, beyond the time of reading and writing."""

_LONGEST_NAME = 60


def merge_work(
    recipe: Recipe, session: Session, settings: Settings, *, name: str = "", device: str = "auto"
) -> Work[MergedModel]:
    """Return the work of a merge, which adds it to the session and the list of merges.

    A stopped or failed merge leaves no folder (the writer's temporary one is removed).

    name: of the merge; empty for the method's, with a number when it exists.
    """
    loaded = session.models
    name = session.free_name(name.strip()[:_LONGEST_NAME] or recipe.method)
    out = output_folder(session, name)
    written = output_bytes(loaded, recipe.dtype)

    def work(report: Report, cancel: CancelToken) -> MergedModel:
        if settings.is_public:
            make_room(
                session.merges,
                written,
                most_merges=settings.max_merges,
                most_bytes=settings.max_session_bytes,
            )
        result = merge(
            recipe,
            out,
            analysis=loaded.analysis,
            stream=True,
            names={source: public_name(source, settings) for source in loaded.sources},
            device=device,
            on_progress=report,
            cancel=cancel,
        )
        text = recipe_text(result.provenance.placed_recipe, settings)
        merged = MergedModel(name, out, recipe.method, result.to_dict(), text)
        session.keep(merged, loaded)
        remember_merge(
            memory_folder(session, settings),
            merged.result,
            text,
            name=name,
            title=loaded.title,
            set_name=loaded.set_name,
        )
        return merged

    read = output_bytes(loaded, None) * (1 + len(loaded.agents))
    if recipe.method in SLOW:
        return costing(work, Effort("seconds", {"": 120.0}))
    return costing(work, Effort("merge", {"": read + written}))


def output_bytes(loaded: LoadedModels, dtype: str | None) -> int:
    """Return the bytes of a merge's weights; dtype: the base's when None."""
    stored = OUTPUT_DTYPES[output_dtype(loaded, dtype)]
    return loaded.analysis.total * DTYPE_BITS[stored] // 8


def output_dtype(loaded: LoadedModels, dtype: str | None) -> str:
    """Return the dtype name the merge will be stored in."""
    return dtype or DTYPE_WORDS.get(loaded.analysis.dtypes.get("base", "BF16"), "bfloat16")


def output_folder(session: Session, name: str) -> Path:
    """Return a new folder name for a merge; its parent is made."""
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
