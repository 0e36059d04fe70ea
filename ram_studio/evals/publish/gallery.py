"""The gallery: a comparison of merges as a static site, which sends no requests.

`index.html` has one row per merge; `merges/NAME.html` is the canvas of each that has an analysis,
at the settings of its recipe. All pages work from a disk, and as a static Space.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio._version import __version__
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import has_lambda
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.checkpoints.read.describe import plural, printable
from ram_studio.checkpoints.record.filters import choices_text
from ram_studio.checkpoints.record.provenance import PROVENANCE_FILE
from ram_studio.checkpoints.write.output_folder import (
    SIDECAR_BYTES,
    absolute,
    check_output,
    plain_words,
    reserved,
)
from ram_studio.errors import EvaluationError, RamStudioError
from ram_studio.evals.publish.entry import (
    Entry,
    Verification,
    read_entry,
    source_name,
    verify_entry,
)
from ram_studio.evals.publish.scores import StatedScore
from ram_studio.evals.report.canvas_page import canvas_page, canvas_settings, space_readme
from ram_studio.evals.report.colors import SHAPE_PATHS, css_variables
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_text, templates

VERIFIED_FILE = "verified.json"
MOST_ENTRIES = 2000
_MOST_COLUMNS = 24
_BACK = (
    '<nav class="ex-page"><p><a style="color: inherit" href="../index.html">Back to the gallery</a>'
    "</p></nav>"
)
_SHOWN = ("epsilon", "r", "alpha", "scale", "density", "drop_rate", "scope", "shared")


@dataclass(frozen=True)
class Built:
    """A built gallery: the page, its entries, and the sources left out, with reasons."""

    page: Path
    entries: tuple[Entry, ...]
    left_out: Mapping[str, str]


class Column(NamedTuple):
    """Comparable scores: of one suite under the same settings."""

    name: str
    settings: str


class AgentCell(NamedTuple):
    """An agent in a row; factor: its lambda, None where the method has none."""

    name: str
    source: str
    link: str | None
    factor: str | None
    retained: float | None


def build_gallery(
    sources: Sequence[str],
    out: str | Path,
    *,
    title: str = "Merges of RL-trained agents",
    store: AnswerStore | None = None,
    known: Mapping[str, Verification] | None = None,
    check: bool = False,
) -> Built:
    """Write the gallery of some folders and repositories.

    Args:
        sources: see `entry.read_entry`. out: a folder that does not exist yet.
        known: earlier verifications, by `verified_key`; only of repositories, whose commits do not
            change.
        check: verify the others.

    Raises: EvaluationError where no source is a merge; OutputError.
    """
    target = absolute(out)
    folders = [Path(os.path.expanduser(source)) for source in sources]
    merges = [folder for folder in folders if os.path.isfile(folder / PROVENANCE_FILE)]
    check_output(target, needed_bytes=SIDECAR_BYTES, sources=merges)
    entries, left_out = _entries(sources, store, dict(known or {}), check)
    if not entries:
        why = printable(" ".join(left_out.values()), 400)
        raise EvaluationError(
            f"No source is a merge of RAM Studio. {why} Give folders or Hub ids with a "
            "ram_studio.json."
        )
    with reserved(target) as folder, plain_words(f"the gallery {printable(target)}"):
        (folder / "merges").mkdir()
        for entry in entries:
            if entry.analysis is not None:
                page = _canvas(entry)
                (folder / "merges" / f"{entry.key}.html").write_text(page, encoding="utf-8")
        (folder / "index.html").write_text(gallery_page(entries, left_out, title), "utf-8")
        about = (
            f"{plural(len(entries), 'merge')} of RL-trained agents, with their settings, scores "
            f"and canvas: pages that send no requests, made by RAM Studio {__version__}."
        )
        (folder / "README.md").write_text(space_readme(title, about), "utf-8")
        verified = {verified_key(e): asdict(e.verified) for e in entries if e.verified}
        (folder / VERIFIED_FILE).write_text(json.dumps(verified, indent=1), "utf-8")
        folder.replace(target)
    return Built(target / "index.html", tuple(entries), left_out)


def verified_key(entry: Entry) -> str:
    """Return the key of one state of an entry in `verified.json`."""
    return f"{entry.repository or entry.title}@{entry.commit or entry.provenance.checksum}"


def load_verified(file: Path) -> dict[str, Verification]:
    """Return the verifications in the `verified.json` of an earlier gallery.

    Raises: EvaluationError.
    """
    try:
        found = json.loads(file.read_bytes())
        return {str(key): Verification(**value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EvaluationError(
            f"{printable(file)} is not the {VERIFIED_FILE} of a gallery ({printable(error, 100)}). "
            "Leave it out."
        ) from error


def _entries(
    sources: Sequence[str],
    store: AnswerStore | None,
    known: Mapping[str, Verification],
    check: bool,
) -> tuple[list[Entry], dict[str, str]]:
    entries: list[Entry] = []
    left_out: dict[str, str] = {}
    taken: set[str] = set()  # page names in lower case, for file systems without case
    for source in dict.fromkeys(sources):
        try:
            if len(entries) >= MOST_ENTRIES:
                raise EvaluationError(f"A gallery has at most {MOST_ENTRIES} merges.")
            entry = _verify_entry(read_entry(source, store), known, check)
        except RamStudioError as error:
            # The page is published, so it shows only a folder's last name.
            name = source if split_hub_id(source) else Path(source).name or "."
            why = str(error).replace(source.rstrip("/") or source, name)
            left_out[printable(name, 120)] = printable(why, 400)
            continue
        keys = (entry.key, *(f"{entry.key}.{n}" for n in range(2, MOST_ENTRIES + 1)))
        key = next(key for key in keys if key.lower() not in taken)
        taken.add(key.lower())
        entries.append(replace(entry, key=key))
    return entries, left_out


def _verify_entry(entry: Entry, known: Mapping[str, Verification], check: bool) -> Entry:
    found: Verification | str | None = None
    if entry.repository is not None:
        found = known.get(verified_key(entry))
    if found is None and check:
        found = verify_entry(entry)
    if isinstance(found, str):
        return replace(entry, notes=(*entry.notes, found))
    return replace(entry, verified=found)


def _canvas(entry: Entry) -> str:
    assert entry.analysis is not None
    settings, note = canvas_settings(entry.provenance.recipe)
    data = {
        "title": entry.title,
        "profile": client_profile(entry.analysis),
        "table": entry.table,
        "settings": settings,
    }
    return canvas_page(data, more=_BACK, note=note)


def gallery_page(entries: Sequence[Entry], left_out: Mapping[str, str], title: str) -> str:
    """Return the page of these entries: every text escaped, and no script but its own."""
    columns = score_columns(entries)
    lows = _lows_of_best(columns, entries)
    page = templates(Path(__file__).parent).get_template("gallery.html.j2")
    return page.render(
        title=title,
        style=f"{css_variables()}\n{asset_text('gallery.css')}",
        script=asset_text("gallery.js"),
        shapes=SHAPE_PATHS,
        columns=columns,
        rows=[_row(entry, lows) for entry in entries],
        bases=sorted({source_name(e.provenance.base) for e in entries}),
        methods=sorted({e.provenance.recipe.method for e in entries}),
        left_out=left_out,
        version=__version__,
    )


def score_columns(entries: Iterable[Entry]) -> list[Column]:
    """Return the columns of scores, the most common ones first."""
    found = Counter(Column(s.name, s.settings) for e in entries for s in e.scores)
    ordered = sorted(found, key=lambda column: (-found[column], column))
    return ordered[:_MOST_COLUMNS]


def _by_column(entry: Entry) -> dict[Column, StatedScore]:
    return {Column(stated.name, stated.settings): stated for stated in entry.scores}


def _lows_of_best(columns: Iterable[Column], entries: Iterable[Entry]) -> dict[Column, float]:
    """Return the lower end of the interval of each column's best score."""
    every = [_by_column(entry) for entry in entries]
    found = {column: [own[column].score for own in every if column in own] for column in columns}
    return {c: max(own, key=lambda score: score.score).ci95[0] for c, own in found.items()}


def _row(entry: Entry, lows: Mapping[Column, float]) -> dict[str, Any]:
    provenance = entry.provenance
    method = METHODS.get(provenance.recipe.method)
    agents = [
        AgentCell(
            name,
            source_name(agent),
            _link(agent.repository),
            _number(agent.scaling_factor if (f := agent.effective_scaling_factor) is None else f)
            if has_lambda(provenance.recipe.method)
            else None,
            _finite(agent.retained.total if agent.retained else None),
        )
        for name, agent in provenance.agents.items()
    ]
    scores = _by_column(entry)
    retained = [agent.retained for agent in agents if agent.retained is not None]
    return {
        "entry": entry,
        "link": _link(entry.repository),
        "base": source_name(provenance.base),
        "base_link": _link(provenance.base.repository),
        "method": provenance.recipe.method,
        "method_title": provenance.recipe.method if method is None else method.title,
        "settings": _settings(provenance.recipe.settings),
        "choices": [
            f"{name} {text}" for name, text in choices_text(provenance.recipe.model_dump()).items()
        ],
        "dtype": printable(provenance.dtype, 20),
        "license": printable(provenance.license.shown, 60),
        "agents": agents,
        "retained": min(retained, default=None),
        # None where it was not asked; the lower end is that of the column's best score.
        "scores": [(scores.get(column), low) for column, low in lows.items()],
        "words": " ".join(
            (entry.title, source_name(provenance.base), *(f"{a.name} {a.source}" for a in agents))
        ).lower(),
    }


def _link(repository: str | None) -> str | None:
    return None if repository is None else f"https://huggingface.co/{repository}"


def _settings(settings: Mapping[str, Any]) -> str:
    def value_text(value: Any) -> str:
        return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)

    parts = [
        f"{name.replace('_', ' ')} {value_text(settings[name])}"
        for name in _SHOWN
        if settings.get(name) is not None
    ]
    return printable(", ".join(parts), 160)


def _number(value: float | None) -> str:
    return "-" if _finite(value) is None else f"{value:.3f}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
