"""Links inside a checkpoint's folder: where they may lead.

A folder from a stranger may hold a link to any file of its reader. What is copied beside a merge
would carry that file's content into a folder made to be published.
"""

from __future__ import annotations

import os
from pathlib import Path

from ram_studio.checkpoints.read.content_hash import blob_of
from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import CheckpointError


def check_link(path: Path, at: str, *, suffix: str | None = None) -> Path:
    """Return `path` if it is no link, or one that may be followed.

    A link may lead to a file inside its own folder or to a blob of a Hub cache (that is how the
    cache lays out its snapshots). With `suffix` it may also lead to any file whose name ends so:
    whoever keeps weights in one place and links to them links to `.safetensors` files.

    Args:
        path: a file directly inside a checkpoint's folder.
        at: the start of messages, as `who()` gives it.
        suffix: with its dot.

    Raises: CheckpointError naming the link and where it leads.
    """
    if not path.is_symlink() or blob_of(path) is not None:
        return path
    target = Path(os.path.realpath(path))
    if target.is_relative_to(os.path.realpath(path.parent)):
        return path
    if suffix is not None and target.name.endswith(suffix):
        return path
    raise CheckpointError(
        f"{at}{printable(path)} is a link that leaves its folder, to {printable(target)}; it is "
        "not followed. Where you trust it, put a copy of the file in its place."
    )
