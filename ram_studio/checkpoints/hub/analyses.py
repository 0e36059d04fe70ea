"""Analyses by others: a local file, or one in a model or dataset repository on the Hub.

They are untrusted like everything else: sizes are bounded before anything is fetched or
unpacked, and names are checked before they are shown.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.opening import is_local_source
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.checkpoints.read.describe import printable, quoted, shown_bytes, shown_list
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.checkpoints.record.recipe import check_agent_name
from ram_studio.errors import AnalysisError, HubError

MOST_COMPACT_BYTES = 4_000_000
"""Size limit of a compact analysis; 28 layers and five agents take less than 2 MB."""

MOST_ANALYSIS_BYTES = 200_000_000
_MOST_TENSORS = 50_000
_AT_ONCE = threading.BoundedSemaphore(2)
"""Size limit of a whole analysis; reading takes several times its size in memory."""
_ANALYSIS_FILE = re.compile(r"([^/]+\.)?analysis(\.safetensors)?", re.IGNORECASE)


def open_analysis(source: str | Path, *, only_compact: bool = False) -> Analysis:
    """Return the analysis in a file, or in a Hub repository `owner/name[@revision]`.

    A repository holds one file called `analysis.safetensors`, or ending in `.analysis` or
    `.analysis.safetensors`.

    Args: only_compact: for a shared server: only compact analyses, and only Hub ids, never local
        paths.

    Raises: AnalysisError for anything else or too large; HubError; CheckpointError for a source
    that is neither.
    """
    source = str(source)
    path = Path(os.path.expanduser(source))
    if only_compact or not is_local_source(source):
        path = _fetch(source, MOST_COMPACT_BYTES if only_compact else MOST_ANALYSIS_BYTES)
    return read_foreign(path, only_compact=only_compact)


def find_analysis(source: str) -> Analysis:
    """Return the analysis in a file, or in a Hub repository if no such file exists.

    Raises: AnalysisError, HubError.
    """
    is_hub_id = split_hub_id(source) is not None and not os.path.exists(os.path.expanduser(source))
    return open_analysis(source) if is_hub_id else load_analysis(source)


def read_foreign(path: Path, *, only_compact: bool = False) -> Analysis:
    """Return an analysis from an untrusted file, with the checks of ``open_analysis``."""
    most = MOST_COMPACT_BYTES if only_compact else MOST_ANALYSIS_BYTES
    if path.is_file() and path.stat().st_size > most:
        raise AnalysisError(
            f"{printable(path.name)} is larger than {shown_bytes(most)}, the limit. "
            "Make it compact: ram-studio analysis compact."
        )
    with _AT_ONCE:
        analysis = load_analysis(path, only_compact=only_compact)
    _check_words(analysis, path)
    return analysis


def _check_words(analysis: Analysis, path: Path) -> None:
    try:
        for name in analysis.agents:
            check_agent_name(name)
        texts = [*analysis.warnings, *(t.name for t in analysis.tensors)]
        for known in (analysis.sources, analysis.fingerprints, analysis.dtypes):
            texts += [*known, *known.values()]
        if len(analysis.tensors) > _MOST_TENSORS or len(set(analysis.agents)) != len(
            analysis.agents
        ):
            raise ValueError("too many tensors, or an agent twice")
        if not all(text.isprintable() for text in texts):
            raise ValueError("text that cannot be shown")
    except ValueError as error:
        raise AnalysisError(
            f"The analysis {printable(path.name)} is damaged or invalid ({printable(error, 80)}); "
            "analyze the checkpoints again."
        ) from error


def _fetch(source: str, most: int) -> Path:
    """Return the one analysis of a repository, in the Hub's cache."""
    from huggingface_hub.errors import RepositoryNotFoundError

    from ram_studio.checkpoints.hub.repository import check_rights, list_files, talking_to
    from ram_studio.checkpoints.hub.transfer import fetch_file

    found = split_hub_id(source)
    assert found is not None, "a source that is not here is spelled like a Hub id"
    repository, revision = found
    with talking_to(repository, revision, "analysis"):
        try:
            listing = list_files(repository, revision)
        except RepositoryNotFoundError:
            listing = list_files(repository, revision, "dataset")
        sizes = listing.sizes
        names = sorted(name for name in sizes if _ANALYSIS_FILE.fullmatch(name))
        if len(names) != 1:
            what = shown_list(names, separator=", ", show=quoted) or "none"
            raise HubError(
                f"Analysis files in {repository}: {what}; expected one called "
                "analysis.safetensors. Give the path of one instead."
            )
        if sizes[names[0]] > most:
            raise HubError(
                f"{repository}: {printable(names[0])} has {shown_bytes(sizes[names[0]])}; the "
                f"limit is {shown_bytes(most)}. Request a compact one (ram-studio analysis "
                "compact)."
            )
        check_rights(listing, names[0])
        where = {"repo_type": listing.kind, "revision": listing.commit}
        return fetch_file(repository, names[0], **where)
