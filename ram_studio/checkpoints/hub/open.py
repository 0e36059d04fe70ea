"""A source as a user gives it, opened: a folder here, a URL, or a Hub id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ram_studio.checkpoints.opening import is_local_source, open_files, open_folder
from ram_studio.checkpoints.read.checkpoint import CancelSignal, Checkpoint, ProgressCallback
from ram_studio.checkpoints.read.describe import who
from ram_studio.checkpoints.read.shard_files import is_distributed
from ram_studio.checkpoints.read.url_folder import UrlFolder, files_at, is_url
from ram_studio.checkpoints.write.output_folder import write_whole


def open_checkpoint(
    source: str | Path,
    *,
    name: str,
    on_progress: ProgressCallback | None = None,
    cancel: CancelSignal | None = None,
    local_ok: bool = True,
    stream: bool = False,
    headers_only: bool = False,
) -> Checkpoint:
    """Open a local folder, or download a Hub id `owner/name[@revision]` and open it.

    A folder that exists wins over a Hub id of the same spelling.

    Args:
        source: a folder (`~` is understood), an fsspec URL or a Hub id.
        name: "base" or the agent's name; every message carries it.
        on_progress: called with a `DownloadProgress` while downloading, from several threads.
        cancel: asked between pieces of a download; a stopped download can be resumed.
        local_ok: False refuses local folders and URLs, for a shared server.
        stream: instead of downloading shards that are not in the cache, let passes read them where
            they are; the result has `is_local` False, and its `nbytes` is known all the same.
        headers_only: of a Hub id: download no shards, and let nobody read more than their headers.

    Raises: CheckpointError (the folder), HubError (the Hub), Stopped.
    """
    if local_ok and is_url(source):
        files = files_at(source, who(name))
        if isinstance(files, UrlFolder):
            files.fetch_small(write_whole)
        return open_files(files, name=name, source=str(source))
    if local_ok and is_local_source(source, name=name):
        return open_folder(source, name=name)
    # Only Hub ids need huggingface_hub, whose import costs more than opening a folder.
    from ram_studio.checkpoints.hub.repository import open_repository

    opened = open_repository(
        str(source),
        name=name,
        on_progress=on_progress,
        cancel=cancel,
        download=not (stream or headers_only),
    )
    return replace(opened, remote={}) if headers_only else opened


def why_no_model(checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint cannot answer alone, and what to do; None for a whole model."""
    if checkpoint.adapter is not None:
        return (
            "is a LoRA adapter, which only answers with its base: merge it first (ram-studio merge "
            "--method task-arithmetic --set scale=1), and evaluate that."
        )
    if checkpoint.delta is not None:
        return (
            "is a delta, which only answers with its base: write the model again first (ram-studio "
            "delta apply BASE FILE --out DIR), and evaluate that."
        )
    if is_distributed(shard.name for shard in checkpoint.shards):
        return (
            "is a distributed checkpoint (DCP) in parts, which transformers does not load: write "
            "it in one piece first (ram-studio merge --base DIR --agent a=DIR --out OUT), and "
            "evaluate that."
        )
    return None
