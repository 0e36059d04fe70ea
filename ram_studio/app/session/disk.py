"""Disk usage of users: a limit for each session, and a watermark for all sessions together.

Above the watermark the oldest entries are deleted first: an unused merge, a file of Gradio's cache,
a model of the Hub's cache. Files of jobs and loaded models stay.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import NamedTuple

from ram_studio.app.session.session import MergedModel
from ram_studio.errors import OutputError

LOW_WATER = 0.8
"""A clean-up frees space down to this share of the limit."""

_GIGABYTE = 1e9


class Entry(NamedTuple):
    """A removable file or folder: its last use, its bytes, and a function that removes it."""

    used: float
    nbytes: int
    remove: Callable[[], None]


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; a file deleted meanwhile counts 0."""
    return sum(entry.nbytes for entry in files_in(folder))


def make_room(
    merges: MutableMapping[str, MergedModel], needed: int, *, most_merges: int, most_bytes: int
) -> list[str]:
    """Remove a session's oldest merges until a new one fits; return their names.

    Args:
        merges: of the session, oldest first; changed in place. needed: bytes of the new one.

    Raises: OutputError when the new one alone exceeds a session's limit.
    """
    if needed > most_bytes:
        raise OutputError(
            f"This merge would take {needed / _GIGABYTE:.1f} GB; one user may have "
            f"{most_bytes / _GIGABYTE:.1f} GB here. Merge smaller models, or run RAM Studio on a "
            "machine of your own."
        )
    sizes = {name: folder_bytes(merge.folder) for name, merge in merges.items()}
    removed = []
    for name in list(merges):
        if len(merges) < most_merges and sum(sizes.values()) + needed <= most_bytes:
            break
        shutil.rmtree(merges.pop(name).folder, ignore_errors=True)
        del sizes[name]
        removed.append(name)
    return removed


def tidy(entries: Iterable[Entry], used: int, most: int) -> int:
    """Remove the oldest entries when more than ``most`` bytes are used; return the bytes freed."""
    freed = 0
    if used <= most:
        return freed
    for entry in sorted(entries, key=lambda entry: entry.used):
        if used - freed <= LOW_WATER * most:
            break
        entry.remove()
        freed += entry.nbytes
    return freed


def files_in(folder: Path) -> Iterator[Entry]:
    """Yield the files below a folder, such as Gradio's cache, without those deleted meanwhile."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            try:
                known = path.lstat()
            except OSError:
                continue
            remove = functools.partial(path.unlink, missing_ok=True)
            yield Entry(known.st_mtime, known.st_size, remove)


def merges_in(merges: MutableMapping[str, MergedModel], used: float) -> Iterator[Entry]:
    """Yield a session's merges; ``used``: time of its user's last request (time.time)."""

    def remove(name: str) -> None:
        if (merge := merges.pop(name, None)) is not None:
            shutil.rmtree(merge.folder, ignore_errors=True)

    for name, merge in list(merges.items()):
        yield Entry(used, folder_bytes(merge.folder), functools.partial(remove, name))


def hub_models(in_use: Collection[str]) -> tuple[int, list[Entry]]:
    """Return the bytes of the Hub's cache, and its revisions of repositories that are not in use.

    in_use: `owner/name` of loaded models. Nothing where huggingface_hub was never used.
    """
    if "huggingface_hub" not in sys.modules:
        return 0, []
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from ram_studio.checkpoints.hub.transfer import cache_folder

    try:
        cache = scan_cache_dir(cache_folder())
    except CacheNotFound:
        return 0, []
    entries = []
    for repository in cache.repos:
        if repository.repo_id in in_use:
            continue
        for revision in repository.revisions:
            strategy = cache.delete_revisions(revision.commit_hash)
            size = strategy.expected_freed_size
            entries.append(Entry(repository.last_accessed, size, strategy.execute))
    return cache.size_on_disk, entries
