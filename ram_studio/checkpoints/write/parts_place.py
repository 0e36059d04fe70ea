"""Where the parts of a merge come together: a folder that all machines see, or object storage.

Both have the same methods, and all of them raise OutputError where the place fails. What is
written, and found again, as a whole is called a unit: a part in a folder, a shard at a URL. Use a
place in a with-block.
"""

from __future__ import annotations

from pathlib import Path

from ram_studio.checkpoints.hub.url_folder import is_url, local_path
from ram_studio.checkpoints.write.part_folder import PartsFolder
from ram_studio.checkpoints.write.part_url import PartsUrl

PartsPlace = PartsFolder | PartsUrl


def parts_place(out: str | Path) -> PartsPlace:
    """Return the place that a folder or URL means; nothing is touched.

    Raises: CheckpointError for a URL that cannot be used.
    """
    if is_url(out):
        here = local_path(str(out))
        return PartsUrl(str(out)) if here is None else PartsFolder(here)
    return PartsFolder(out)
