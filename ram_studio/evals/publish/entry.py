"""An entry of the gallery: the description of a merge's folder or repository, without its weights.

Entries are untrusted: sizes are bounded before anything is read, only Hub repositories are linked
to, and a provenance is only trusted as far as `verify` confirmed it against its sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import pydantic

from ram_studio._version import __version__
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods import METHODS
from ram_studio.checkpoints.hub.analyses import MOST_COMPACT_BYTES, read_foreign
from ram_studio.checkpoints.opening import is_local_source, open_checkpoint
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.checkpoints.read.describe import (
    MERGED_NAME,
    printable,
    quoted,
    shown_bytes,
    shown_list,
)
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.record.filters import REGEX
from ram_studio.checkpoints.record.provenance import PROVENANCE_FILE, Provenance, provenance_of
from ram_studio.engine.verify import unknown_files, verify
from ram_studio.errors import CheckpointError, RamStudioError, VerificationError
from ram_studio.evals.publish.common import common_table, find_common, replies
from ram_studio.evals.publish.hub_files import check_sources
from ram_studio.evals.publish.scores import (
    MOST_CARD_BYTES,
    MOST_RESULT_BYTES,
    RESULTS_FOLDER,
    StatedScore,
    sources_in,
    stated_scores,
    stored_scores,
)
from ram_studio.evals.report.skill_table import merge_row
from ram_studio.evals.store import AnswerStore

MOST_PROVENANCE_BYTES = 4_000_000
MOST_AGENTS = 64
_MOST_RESULT_FILES = 30
_ANALYSIS = re.compile(r"([^/]+\.)?analysis(\.safetensors)?", re.IGNORECASE)


@pydantic.dataclasses.dataclass(frozen=True)
class Verification:
    """The confirmation that a merge follows from its sources: bytes, program version and date."""

    nbytes: int
    version: str
    day: str

    @property
    def text(self) -> str:
        """The checks as a sentence."""
        return (
            f"Every file is as the provenance says. All {self.nbytes:,} bytes and its numbers were "
            f"computed again from the sources and are the same (RAM Studio {self.version}, "
            f"{self.day})."
        )


@dataclass(frozen=True)
class Entry:
    """A merge of the gallery.

    key: of its page; title: for display. repository, commit: on the Hub, None for a folder; names:
    of the repository's files. analysis: of its sources, or None. notes: missing parts, with
    reasons. table: every answer of merge and sources, see `skill_table`.
    """

    key: str
    title: str
    repository: str | None
    commit: str | None
    folder: Path
    provenance: Provenance
    analysis: Analysis | None = None
    scores: tuple[StatedScore, ...] = ()
    verified: Verification | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    table: Mapping[str, Any] | None = None


def read_entry(source: str, store: AnswerStore | None = None) -> Entry:
    """Return the entry of a folder, or of a Hub repository `owner/name[@revision]`.

    No weights are read. store: its scores of a folder with weights take precedence over those in
    the folder.

    Raises: RamStudioError for an invalid merge.
    """
    repository = commit = None
    names: tuple[str, ...] = ()
    if is_local_source(source):
        folder = Path(source).expanduser()
        title = folder.resolve().name
    else:
        folder, repository, commit, names = _fetch_entry(source)
        title = repository
    files = Folder(folder)
    if files.has(PROVENANCE_FILE) and (size := (folder / PROVENANCE_FILE).stat().st_size) > (
        MOST_PROVENANCE_BYTES
    ):
        raise _too_large(size)
    provenance = provenance_of(files)
    if len(provenance.agents) > MOST_AGENTS:
        raise VerificationError(
            f"It has {len(provenance.agents)} agents, at most {MOST_AGENTS} are shown."
        )
    notes: list[str] = []
    analysis = _analysis_of(files, names or files.names(), provenance, notes)
    scores = {stated.name: stated for stated in stated_scores(files)}
    table = None
    if repository is None and store is not None:
        own, table = _own_answers(folder, store, provenance)
        scores |= own
    return Entry(
        re.sub(r"[^A-Za-z0-9.-]+", "--", title).strip(".-")[:100] or "merge",
        printable(title, 120),
        repository,
        commit,
        folder,
        provenance,
        analysis,
        tuple(scores[name] for name in sorted(scores)),
        notes=tuple(notes),
        names=names,
        table=table,
    )


def _too_large(size: int) -> VerificationError:
    return VerificationError(
        f"{PROVENANCE_FILE} takes {shown_bytes(size)}, at most "
        f"{shown_bytes(MOST_PROVENANCE_BYTES)} are read."
    )


def _fetch_entry(source: str) -> tuple[Path, str, str, tuple[str, ...]]:
    """Return the folder of a repository's describing files, its name, commit and all file names."""
    from ram_studio.checkpoints.hub.repository import talking_to
    from ram_studio.checkpoints.hub.transfer import REQUEST_SECONDS, fetch_file, hub_api

    found = split_hub_id(source)
    assert found is not None, "a source that is not here is spelled like a Hub id"
    repository, revision = found
    with talking_to(repository, revision, None):
        info: Any = hub_api().model_info(
            repository, revision=revision, files_metadata=True, timeout=REQUEST_SECONDS
        )
        names = tuple(file.rfilename for file in info.siblings or [])
        sizes = {f.rfilename: int(f.size) for f in info.siblings or [] if f.size is not None}
        if PROVENANCE_FILE not in sizes:
            raise VerificationError(f"{repository} has no {PROVENANCE_FILE}.")
        if (size := sizes[PROVENANCE_FILE]) > MOST_PROVENANCE_BYTES:
            raise _too_large(size)
        places = {
            name: fetch_file(repository, name, revision=info.sha)
            for name in _describing_files(sizes)
        }
    return places[PROVENANCE_FILE].parent, repository, str(info.sha), names


def _describing_files(sizes: dict[str, int]) -> list[str]:
    """Return the files that describe a merge, within their size limits."""
    limits = {"README.md": MOST_CARD_BYTES, PROVENANCE_FILE: MOST_PROVENANCE_BYTES}
    analyses = [name for name in sizes if _ANALYSIS.fullmatch(name)]
    if len(analyses) == 1:
        limits[analyses[0]] = MOST_COMPACT_BYTES
    results = [n for n in sizes if n.startswith(RESULTS_FOLDER) and n.endswith(".yaml")]
    limits |= dict.fromkeys(sorted(results)[:_MOST_RESULT_FILES], MOST_RESULT_BYTES)
    return [name for name, limit in limits.items() if sizes.get(name, limit + 1) <= limit]


def _analysis_of(
    files: Folder, listed: Iterable[str], provenance: Provenance, notes: list[str]
) -> Analysis | None:
    names = [name for name in listed if _ANALYSIS.fullmatch(name)]
    if len(names) != 1:
        notes.append(f"No canvas: {len(names) or 'no'} compact analyses, expected one.")
        return None
    try:
        analysis = read_foreign(files.folder / names[0], only_compact=True)
        check_sources(provenance, analysis)
    except RamStudioError as error:
        why = str(error).replace(f"{files.folder}/", "")  # the page is for others
        notes.append(f"No canvas: {printable(why, 300)}")
        return None
    return analysis


def _own_answers(
    folder: Path, store: AnswerStore, provenance: Provenance
) -> tuple[dict[str, StatedScore], dict[str, Any] | None]:
    """Return a merge's scores in a store, and the skill table of the merge and its sources."""
    try:
        checkpoint = open_checkpoint(str(folder), name=MERGED_NAME)
    except CheckpointError:
        return {}, None  # a description without weights
    own = model_fingerprint(folder, checkpoint.fingerprint)
    sources, recipe = sources_in(store, provenance), provenance.recipe
    scores = {stated.name: stated for _, stated in stored_scores(store, own, sources)}
    prints = {name: known for known, name in sources.items()}
    is_shown = recipe.method in METHODS and not (recipe.densities or recipe.filters)
    if not is_shown or prints.keys() != provenance.sources.keys():
        return scores, None
    ordered = {name: prints[name] for name in provenance.sources}
    if (common := find_common(store, ordered, {own})) is None:
        return scores, None
    answers = replies(common.merges[own][key] for key in common.questions)
    return scores, common_table(common, [merge_row(recipe.model_dump(), answers)])


def verify_entry(entry: Entry) -> Verification | str:
    """Return the verification of an entry against its sources, or why it was not possible.

    All of it is computed again: samples would leave the numbers in the provenance unchecked.

    The weights of repositories, and of their sources, are downloaded. A source in an untrusted
    provenance is opened only if it is a repository on the Hub.

    Raises: VerificationError where the entry does not follow from its sources.
    """
    provenance = entry.provenance
    if provenance.recipe.method not in METHODS:
        return "Not verified: its method is not one of RAM Studio's."
    if any(p.startswith(REGEX) for f in provenance.recipe.filters for p in f.match):
        # A foreign regex can run practically forever.
        return "Not verified: its filters have regexes. Use * and ? instead."
    local = [n for n, s in provenance.sources.items() if s.repository is None]
    folder: Path | str = entry.folder
    try:
        if entry.repository is not None:
            if local:
                return f"Not verified: not on the Hub are {', '.join(local)}."
            if unknown := unknown_files(entry.names, provenance):
                raise VerificationError(
                    f"{shown_list(sorted(unknown), show=quoted)} is not in the provenance and may "
                    "be loaded with the model."
                )
            checkpoint = open_checkpoint(f"{entry.repository}@{entry.commit}", name=MERGED_NAME)
            folder = checkpoint.folder
        found = verify(folder, with_sources=True, full=True)
    except VerificationError:
        raise
    except RamStudioError as error:
        return f"Not verified: {without_paths(error, provenance)}"
    day = datetime.now(UTC).date().isoformat()
    return Verification(found.compared_bytes, __version__, day)


def without_paths(error: object, provenance: Provenance) -> str:
    """Return an error's text for publication: folders of this machine by their last names."""
    text = str(error)
    for record in provenance.sources.values():
        for place in filter(None, (record.folder, record.source)):
            text = text.replace(place, PurePath(place).name)
    return printable(text, 300)


def source_name(record: Any) -> str:
    """Return a source's name: its repository, or its folder's last name."""
    return printable(record.repository or PurePath(record.source).name or "base", 120)
