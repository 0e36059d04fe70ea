"""Opens a checkpoint: finds the files of a source, its shards, and their tensors by headers.

A local folder, a URL and a Hub id become `Files` first; the rest is the same for all.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ram_studio.checkpoints.read.checkpoint import (
    CONFIG_FILE,
    DELTA_FORMAT,
    CancelSignal,
    Checkpoint,
    ProgressCallback,
    fingerprint_of,
    split_hf_url,
    split_hub_id,
)
from ram_studio.checkpoints.read.describe import plural, printable, quoted, shown_list, who
from ram_studio.checkpoints.read.files import Files, Folder
from ram_studio.checkpoints.read.header import Header
from ram_studio.checkpoints.read.json_files import MAX_CONFIG_BYTES
from ram_studio.checkpoints.read.remote import RemoteFiles
from ram_studio.checkpoints.read.shard_files import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    find_shards,
    is_distributed,
)
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.read.url_folder import KnownHeaders, UrlFolder, files_at, is_url
from ram_studio.checkpoints.virtual.distributed import collect_boxes
from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import CheckpointError


def open_checkpoint(
    source: str | Path,
    *,
    name: str,
    on_progress: ProgressCallback | None = None,
    cancel: CancelSignal | None = None,
    local_ok: bool = True,
    stream: bool = False,
    headers_only: bool = False,
    known: KnownHeaders | None = None,
) -> Checkpoint:
    """Open a local folder, or download a Hub id `owner/name[@revision]` and open it.

    A folder that exists wins over a Hub id of the same spelling.

    Args:
        source: a folder (`~` is understood), an fsspec URL or a Hub id.
        name: "base" or the agent's name; every message carries it.
        on_progress: called with a `DownloadProgress` while downloading, from several threads.
        cancel: checked between chunks of a download; a stopped download can be resumed.
        local_ok: False refuses local folders and URLs, for a shared server.
        stream: for a Hub id, as always for a URL: do not download shards that are not in the
            cache, but let passes read them over the network; the result has `is_local` False, and
            its `nbytes` is known.
        headers_only: for a Hub id: download no shards, and allow reading only their headers.
        known: for a URL: headers to use as long as its listing is the same.

    Raises: CheckpointError (the folder), HubError (the Hub), Stopped.
    """
    is_on_hub = local_ok and split_hf_url(str(source)) is not None
    if local_ok and is_url(source) and not is_on_hub:
        place = files_at(source, who(name))
        if isinstance(place, UrlFolder):
            place.known = known
            if cancel is not None:
                place.check = cancel.raise_if_cancelled
            place.fetch_small(write_whole)
        return open_files(place, name=name, source=str(source))
    if local_ok and not is_on_hub and is_local_source(source, name=name):
        return open_folder(source, name=name)
    # Only Hub ids need huggingface_hub, whose import costs more than opening a folder.
    from ram_studio.checkpoints.hub.repository import find_repository

    files = find_repository(
        str(source),
        name=name,
        on_progress=on_progress,
        cancel=cancel,
        download=not (stream or headers_only or is_on_hub),
    )
    opened = open_files(files, name=name, source=str(source))
    return replace(opened, remote={}) if headers_only else opened


def is_local_source(source: str | Path, *, name: str | None = None) -> bool:
    """Return whether `source` is a local folder (True) or a Hub id (False).

    Raises: CheckpointError when it is neither an existing folder nor spelled like a Hub id.
    """
    text = str(source)
    try:
        if text and "\0" not in text and Path(text).expanduser().exists():
            return True
    except PermissionError as error:
        raise CheckpointError(
            f"{who(name)}{printable(text)} cannot be read: {error.strerror}; check its permissions."
        ) from error
    except (OSError, RuntimeError):  # a name too long, a `~user` who does not exist
        pass
    if isinstance(source, str) and split_hub_id(text) is not None:
        return False
    raise CheckpointError(
        f"{who(name)}{printable(text) or 'an empty path'} is neither a local folder nor a Hub id "
        "of the form owner/name[@revision]; check the spelling."
    )


def open_folder(folder: str | Path, *, name: str) -> Checkpoint:
    """Open a local folder of safetensors shards, or a delta (the file itself), by its headers.

    name: "base" or the agent's name. Raises: CheckpointError, one line naming agent and file.
    """
    source, path = str(folder), Path(os.path.expanduser(folder))
    files = Folder(path, who(name))
    if path.suffix == ".safetensors" and path.is_file():
        beside = Folder(path.parent, who(name))
        header = beside.header(path.name)
        if header.metadata.get("format") == DELTA_FORMAT:
            found = _assemble(beside, [header], header.tensors, name=name, source=source)
            return replace(found, folder=path, delta=header.metadata)
    if not path.is_dir():
        hint = " (a file: give the folder that it is in)" if path.is_file() else ""
        raise CheckpointError(
            f"{files.who}{printable(path)} is not a folder{hint}; expected a folder with "
            "safetensors files."
        )
    return open_files(files, name=name, source=source)


def open_files(files: Files, *, name: str, source: str) -> Checkpoint:
    """Open the checkpoint in some files.

    Args: name: "base" or the agent's name; source: as the user gave it.

    Raises: CheckpointError, one line naming the agent and the file.
    """
    shards, weight_map = find_shards(files)
    headers = files.headers(shards)
    tensors = _collect_tensors(files, headers, weight_map)
    is_adapter = shards == [ADAPTER_FILE]
    return replace(
        _assemble(files, headers, tensors, name=name, source=source),
        config=files.json(CONFIG_FILE, limit=MAX_CONFIG_BYTES),
        adapter=files.json(ADAPTER_CONFIG, limit=MAX_CONFIG_BYTES) if is_adapter else None,
    )


def _assemble(
    files: Files,
    headers: list[Header],
    tensors: dict[str, TensorInfo],
    *,
    name: str,
    source: str,
) -> Checkpoint:
    """Return the checkpoint of the weights alone, without a config."""
    shards = [header.path.name for header in headers]
    paths = tuple(header.path for header in headers)
    return Checkpoint(
        name=name,
        source=source,
        folder=files.folder,
        tensors=tensors,
        shards=paths,
        config={},
        fingerprint=files.fingerprint(shards) or fingerprint_of(headers, files),
        nbytes=sum(header.file_size for header in headers),
        revision=files.revision,
        is_local=not isinstance(files, RemoteFiles),
        remote=dict.fromkeys(paths, files) if isinstance(files, RemoteFiles) else {},
    )


def _collect_tensors(
    files: Files, headers: list[Header], weight_map: dict[str, str] | None
) -> dict[str, TensorInfo]:
    """Return all tensors of the shards by name, in file order.

    With an index, a tensor is taken from the shard in the index; tensors of a shard that are not in
    the index are part of the model too (transformers loads them).

    Parts of a distributed checkpoint's tensor may be in several shards, see ``distributed``.

    Raises: CheckpointError when a shard lacks a tensor of the index, when two shards have the same
    name and no index decides, or when there is no tensor.
    """
    if weight_map is None and is_distributed(header.path.name for header in headers):
        return collect_boxes(files, headers)
    at = f"{files.who}{printable(files.folder)}"
    if weight_map is not None:
        stored = {header.path.name: header.tensors for header in headers}
        lost = [tensor for tensor, shard in weight_map.items() if tensor not in stored[shard]]
        if lost:
            raise CheckpointError(
                f"{files.who}{printable(files.folder / weight_map[lost[0]])} lacks "
                f"{plural(len(lost), 'tensor')} of the index: "
                f"{shown_list(lost, show=quoted)}; download or copy the checkpoint again."
            )
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors.values():
            chosen = weight_map.get(tensor.name) if weight_map else None
            if chosen is not None and chosen != header.path.name:
                continue
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise CheckpointError(
                    f"{files.who}tensor {quoted(tensor.name)} is in both {printable(other)} and "
                    f"{printable(header.path.name)} of {printable(files.folder)}; remove the file "
                    "that does not belong there."
                )
            tensors[tensor.name] = tensor
    if not tensors:
        raise CheckpointError(f"{at} holds no tensors; expected a model's weights.")
    return tensors


def why_no_model(checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint cannot answer alone, and what to do; None for a whole model."""
    if checkpoint.adapter is not None:
        return (
            "is a LoRA adapter, which needs its base: merge it first (ram-studio merge "
            "--base BASE --agent a=FILE --method task-arithmetic --set scale=1 --out DIR), and "
            "evaluate that."
        )
    if checkpoint.delta is not None:
        return (
            "is a delta, which needs its base: write the model first (ram-studio "
            "delta apply BASE FILE --out DIR), and evaluate that."
        )
    if is_distributed(shard.name for shard in checkpoint.shards):
        return (
            "is a distributed checkpoint (DCP) in parts, which transformers does not load: write "
            "it as one model first (ram-studio merge --base FILE --agent a=FILE --out DIR), and "
            "evaluate that."
        )
    return None
