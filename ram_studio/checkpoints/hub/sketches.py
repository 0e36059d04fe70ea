"""Sketches that others made: a file here, or one in a model or dataset repository on the Hub.

They come from strangers like everything else: sizes are bounded before anything is fetched or
unpacked, and names are checked before anybody shows them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.read.checkpoint import is_local_source, split_hub_id
from ram_studio.checkpoints.read.describe import printable, quoted, shown_bytes, shown_list
from ram_studio.checkpoints.record.recipe import check_agent_name
from ram_studio.checkpoints.record.sketch_file import load_sketch
from ram_studio.errors import HubError, SketchError

MOST_PROFILE_BYTES = 4_000_000
"""Of a profile; 28 layers and five agents take less than 2 MB."""

MOST_SKETCH_BYTES = 200_000_000
_MOST_TENSORS = 50_000
_SKETCH_FILE = re.compile(r"([^/]+\.)?(sketch|profile)(\.safetensors)?", re.IGNORECASE)


def open_sketch(source: str | Path, *, only_profiles: bool = False) -> Sketch:
    """Return the sketch or profile in a file, or in a Hub repository `owner/name[@revision]`.

    A repository holds one file called `sketch.safetensors`, `profile.safetensors`, or ending in
    `.sketch`, `.profile`, `.sketch.safetensors` or `.profile.safetensors`.

    Args: only_profiles: for an app that strangers use: no whole sketch, which may be large.

    Raises: SketchError for anything else or too large; HubError; CheckpointError for a source that
    is neither.
    """
    source = str(source)
    path = Path(os.path.expanduser(source))
    if not is_local_source(source, name="sketch"):
        path = _fetch(source, MOST_PROFILE_BYTES if only_profiles else MOST_SKETCH_BYTES)
    return read_foreign(path, only_profiles=only_profiles)


def find_sketch(source: str) -> Sketch:
    """Return the sketch in a file, or in a Hub repository where no file is called so.

    Raises: SketchError, HubError.
    """
    is_hub_id = split_hub_id(source) is not None and not os.path.exists(os.path.expanduser(source))
    return open_sketch(source) if is_hub_id else load_sketch(source)


def read_foreign(path: Path, *, only_profiles: bool = False) -> Sketch:
    """Return a sketch that somebody else made, checked as ``open_sketch`` says."""
    most = MOST_PROFILE_BYTES if only_profiles else MOST_SKETCH_BYTES
    if path.is_file() and path.stat().st_size > most:
        raise SketchError(
            f"{printable(path.name)} takes {shown_bytes(path.stat().st_size)}, at most "
            f"{shown_bytes(most)} are opened here; make a profile of it: ram-studio sketch profile."
        )
    sketch = load_sketch(path, only_profiles=only_profiles)
    _check_words(sketch, path)
    return sketch


def _check_words(sketch: Sketch, path: Path) -> None:
    try:
        for name in sketch.agents:
            check_agent_name(name)
        texts = [*sketch.warnings, *(t.name for t in sketch.tensors)]
        for known in (sketch.sources, sketch.fingerprints, sketch.dtypes):
            texts += [*known, *known.values()]
        if len(sketch.tensors) > _MOST_TENSORS or len(set(sketch.agents)) != len(sketch.agents):
            raise ValueError("too many tensors, or an agent twice")
        if not all(text.isprintable() for text in texts):
            raise ValueError("text that cannot be shown")
    except ValueError as error:
        raise SketchError(
            f"The sketch {printable(path.name)} is damaged or made up ({printable(error, 80)}); "
            "analyze the checkpoints again."
        ) from error


def _fetch(source: str, most: int) -> Path:
    """Return the one sketch of a repository, in the Hub's cache."""
    from huggingface_hub.errors import RepositoryNotFoundError

    from ram_studio.checkpoints.hub.repository import check_rights, list_files, talking_to
    from ram_studio.checkpoints.hub.transfer import fetch_file

    found = split_hub_id(source)
    assert found is not None, "a source that is not here is spelt like a Hub id"
    repository, revision = found
    with talking_to(repository, revision, "sketch"):
        try:
            listing = list_files(repository, revision)
        except RepositoryNotFoundError:
            listing = list_files(repository, revision, "dataset")
        sizes = listing.sizes
        names = sorted(name for name in sizes if _SKETCH_FILE.fullmatch(name))
        if len(names) != 1:
            what = shown_list(names, separator=", ", show=quoted) or "none"
            raise HubError(
                f"{repository} holds {what} of the files that a sketch is looked for in; expected "
                "one called sketch.safetensors or profile.safetensors. Give its path instead."
            )
        if sizes[names[0]] > most:
            raise HubError(
                f"{repository}: {printable(names[0])} takes {shown_bytes(sizes[names[0]])}, at "
                f"most {shown_bytes(most)} are fetched; ask for its profile (ram-studio sketch "
                "profile)."
            )
        check_rights(listing, names[0])
        where = {"repo_type": listing.kind, "revision": listing.commit}
        return fetch_file(repository, names[0], **where)
