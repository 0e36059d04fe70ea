"""The work behind the Merge step: from the form to a recipe, a finished folder and its numbers."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ram_studio.algorithm.ladder import LADDER
from ram_studio.algorithm.meters.rounding_meter import estimate, loses_rescaling, rounding_advice
from ram_studio.app import markup, wording
from ram_studio.app.check.answers import memory_folder
from ram_studio.app.jobs import Job
from ram_studio.app.load import loading
from ram_studio.app.merge.controls import tuned_by
from ram_studio.app.session import Loaded, Merged, Session
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.record.merge_log import remember_merge
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe, recipe_yaml
from ram_studio.engine.merge import merge
from ram_studio.errors import OutputError, RamStudioError, SettingsError

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_STORED_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_START_SECONDS = 0.2
_USUAL_RATE = 300e6
"""Bytes a second where nothing was measured: two cores of a small machine."""

RESCALING = ("ram+", "ram+s", "ram+m")


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
    seed: int = 0
    device: str = "auto"
    name: str = ""

    def settings(self) -> dict[str, Any]:
        """Return the method's own settings."""
        tuned = {
            "epsilon": LADDER[min(max(0, int(self.point)), len(LADDER) - 1)],
            "r": self.r,
            "alpha": self.alpha,
        }
        return {**{name: tuned[name] for name in tuned_by(self.method)}, **self.own}


def recipe_of(form: MergeForm, loaded: Loaded) -> Recipe:
    """Return the validated recipe of a form.

    Raises: SettingsError that names the field.
    """
    return recipe_from(
        loaded,
        form.method,
        form.settings(),
        dtype=form.dtype,
        rounding=form.rounding,
        seed=form.seed or 0,
    )


def recipe_from(
    loaded: Loaded,
    method: str,
    settings: Mapping[str, Any],
    *,
    dtype: str | None = None,
    rounding: str = "nearest",
    seed: float = 0,
) -> Recipe:
    """Return the validated recipe of a merge of what is loaded.

    Raises: SettingsError that names the field.
    """
    try:
        whole = int(seed)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"The seed is {seed!r}; it must be a whole number.") from None
    return make_recipe(
        {
            "base": loaded.base,
            "agents": dict(loaded.agents),
            "method": method,
            "settings": dict(settings),
            "dtype": dtype or None,
            "rounding": rounding,
            "seed": whole,
            **loaded.options,
        },
        where="The merge",
    )


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
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:60] or "merge"


def output_dtype(loaded: Loaded, dtype: str | None) -> str:
    """Return the dtype name the merge will be stored in."""
    return dtype or _STORED_NAMES.get(loaded.sketch.dtypes.get("base", "BF16"), "bfloat16")


def plan_html(loaded: Loaded | None, form: MergeForm, folder: Path) -> str:
    """Return what the merge will do and need, and the rounding caution where it holds."""
    if loaded is None:
        return markup.callout(wording.NEED_LOAD, "warn")
    dtype = output_dtype(loaded, form.dtype)
    needed = loaded.sketch.total * ELEMENT_BYTES[dtype]
    free = shutil.disk_usage(_existing(folder)).free
    note = wording.METHOD_NOTES.get(form.method, "")
    size = (
        f"Writes about {markup.size_text(needed)} ({dtype}){_time(form.method, loaded, needed)}; "
        f"{markup.size_text(free)} are free."
    )
    lines = [f'<p class="plan">{escape(note)} <span class="muted">{escape(size)}</span></p>']
    if needed > free:
        lines.append(markup.callout("The disk is too small for this merge.", "bad"))
    if caution := rounding_caution(loaded, form, dtype):
        lines.append(f'<p class="fine">{escape(caution)}</p>')
    return "".join(lines)


def rounding_caution(loaded: Loaded, form: MergeForm, dtype: str) -> str:
    """Return a sentence where rounding to nearest takes much of the rescaling, "" elsewhere.

    With the sketch's statistics it names agents and factors; without, it says what can happen.
    """
    is_exposed = form.rounding == "nearest" and dtype != "float32" and form.r > 0
    if form.method not in RESCALING or not is_exposed:
        return ""
    sketch = loaded.sketch
    if sketch.steps is None or form.own.get("scope", "global") != "global":
        return wording.ROUNDING_TRAP.format(dtype=dtype)
    point = min(max(0, int(form.point)), len(LADDER) - 1)
    agents = sketch.preview(point, form.method, form.r, form.alpha)["agents"]
    code = next(k for k, name in _STORED_NAMES.items() if name == dtype)
    lost = {}
    for t, (name, numbers) in enumerate(agents.items()):
        curve = sketch.steps.curve(t, point, code)
        if curve is None:
            continue
        kept = estimate(curve, numbers["lambda"]).value
        if loses_rescaling(numbers["lambda"], kept):
            lost[name] = (numbers["lambda"], kept)
    return rounding_advice(dtype, lost)


def _time(method: str, loaded: Loaded, written: float) -> str:
    """Return how long a merge should take, where reading and writing are what takes the time."""
    if method == "wudi":
        return ""
    return f" in about {markup.duration_text(_seconds(loaded, written))}"


def _seconds(loaded: Loaded, written: float) -> float:
    """Return how long a merge should take: everything read once, as fast as the analysis was."""
    stored = ELEMENT_BYTES[output_dtype(loaded, None)]
    read = loaded.sketch.total * stored * (1 + len(loaded.agents))
    return _START_SECONDS + (read + written) / (loaded.read_rate or _USUAL_RATE)


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def run_merge(
    form: MergeForm, session: Session, settings: Settings
) -> Iterator[tuple[str, Merged | None]]:
    """Merge; yield (status HTML, the finished merge or None) as it goes.

    A stopped or failed merge leaves no folder (the writer's temporary one is removed).
    """
    if session.loaded is None:
        yield markup.callout(wording.NEED_LOAD, "warn"), None
        return
    if session.is_busy:
        yield markup.callout(wording.BUSY, "warn"), None
        return
    loaded = session.loaded
    try:
        recipe = recipe_of(form, loaded)
    except RamStudioError as error:
        yield markup.callout(str(error), "bad"), None
        return
    name = session.free_name((form.name or "").strip()[:60] or form.method)
    out = output_folder(session, name)
    job = Job(
        lambda report, cancel: merge(
            recipe, out, sketch=loaded.sketch, device=form.device, on_progress=report, cancel=cancel
        )
    )
    session.job = job
    yield markup.progress(None, "Starting"), None
    for event in job.updates():
        yield loading.progress_html(event), None
    result, error = job.outcome()
    if result is None:
        message = markup.failure(error, wording.STOPPED_MERGE)
        yield hide_paths(message, session, settings), None
        return
    text = recipe_text(recipe, loaded, settings)
    merged = Merged(name, out, form.method, result.to_dict(), text)
    keep(merged, loaded, session, settings)
    yield "", merged


def keep(merged: Merged, loaded: Loaded, session: Session, settings: Settings) -> None:
    """Add a finished merge to its session, and to the list of merges made."""
    session.merges[merged.name] = merged
    remember_merge(
        memory_folder(session, settings),
        merged.result,
        merged.recipe,
        name=merged.name,
        title=loaded.title,
        example=loaded.example,
    )


def recipe_text(recipe: Recipe, loaded: Loaded, settings: Settings) -> str:
    """Return a recipe as YAML; on a Space the example's folders are named as in the repository."""
    text = recipe_yaml(recipe)
    if settings.is_space and loaded.example is not None:
        text = text.replace(str(Path(loaded.base).parents[1]), "assets")
    return text


def hide_paths(text: str, session: Session, settings: Settings) -> str:
    """Return a message without the session's folder in it, on a Space."""
    return text.replace(f"{session.folder}/", "") if settings.is_space else text


def _ratio(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"


def result_html(merged: Merged, loaded: Loaded, settings: Settings) -> str:
    """Return a finished merge: lambda asked and stored per agent, sizes, time, where it is."""
    result = merged.result
    rows, lost = [], {}
    shows_lambda = merged.method in ("ram", *RESCALING)
    for t, (name, numbers) in enumerate(result["agents"].items()):
        asked, stored = numbers.get("lambda"), numbers.get("effective_lambda")
        head = markup.marker(t) + escape(name)
        rows.append(
            (
                head,
                markup.cell(_ratio(numbers.get("rho"))),
                markup.cell("–" if asked is None else f"{asked:.3f}"),
                markup.cell("–" if stored is None else f"{stored:.3f}", "strong"),
            )
        )
        if asked is not None and stored is not None and loses_rescaling(asked, stored):
            lost[name] = asked, stored
    rate = (result["bytes_read"] + result["bytes_written"]) / max(result["seconds"], 1e-9)
    facts = [
        f"{markup.size_text(result['bytes_written'])} written in "
        f"{markup.duration_text(result['seconds'])}",
        f"{markup.size_text(rate)}/s",
    ]
    parts = [
        f'<div class="figure-head"><h3>{escape(merged.name)}</h3>'
        f'<span class="muted">{escape(" · ".join(facts))}</span></div>'
    ]
    if shows_lambda:
        parts.append(markup.table(("Agent", "ρ", "λ asked", "λ stored"), rows))
    if lost:
        parts.append(markup.callout(rounding_advice(None, lost), "note"))
    if not settings.is_space:
        parts.append(f'<p class="fine">Folder: <code>{escape(str(merged.folder))}</code></p>')
    return f'<section class="box result">{"".join(parts)}</section>'


def zip_of(merged: Merged, session: Session, settings: Settings) -> Path | None:
    """Return a zip of the merged folder, made now, or None when it is too large for one."""
    files = sorted(f for f in merged.folder.iterdir() if f.is_file())
    if sum(f.stat().st_size for f in files) > settings.max_zip_bytes:
        return None
    target = session.folder / "downloads" / f"{merged.folder.name}.zip"
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        # Weights hardly compress; storing them is many times faster.
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            for file in files:
                archive.write(file, f"{merged.folder.name}/{file.name}")
    except OSError as error:
        target.unlink(missing_ok=True)
        raise OutputError(f"The zip could not be written: {error.strerror or error}.") from error
    return target


def files_html(merged: Merged) -> str:
    """Return links to the files of a merge that is too large for one zip.

    They are served from the session's folder, whose name only its visitor knows.
    """
    items = []
    for file in sorted(merged.folder.iterdir()):
        if file.is_file():
            size = markup.size_text(file.stat().st_size)
            items.append(
                f'<li><a class="link" href="gradio_api/file={escape(quote(str(file)))}" download>'
                f'{escape(file.name)}</a> <span class="muted">{size}</span></li>'
            )
    return f'<ul class="files">{"".join(items)}</ul>'
