"""Checkpoints on the Hugging Face Hub: opened by their headers, or downloaded into its cache.

Everything goes through huggingface_hub, so its cache, its login, its proxies and HF_ENDPOINT apply.
Weights are safetensors only; pickles are never requested. Tokens are passed on and never
stored. Imported only when a Hub id is used.
"""

from __future__ import annotations

import contextlib
import glob
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils import tqdm as hub_tqdm

from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.hub.errors import HTTPError, hub_errors
from ram_studio.checkpoints.hub.ranges import HubFiles, Listing
from ram_studio.checkpoints.hub.transfer import (
    LIBRARY,
    REQUEST_SECONDS,
    cache_folder,
    hub_api,
    progress_bar,
    site_address,
)
from ram_studio.checkpoints.read.checkpoint import (
    CancelSignal,
    ProgressCallback,
    split_hf_url,
    split_hub_id,
)
from ram_studio.checkpoints.read.describe import printable, shown_bytes, who
from ram_studio.checkpoints.read.files import Files, Folder
from ram_studio.checkpoints.read.shard_files import INDEX_SUFFIX, find_shards, is_small_file
from ram_studio.checkpoints.write.output_folder import nearest_folder
from ram_studio.errors import CheckpointError, HubError

PARALLEL_DOWNLOADS = 8


@contextlib.contextmanager
def talking_to(repository: str, revision: str | None, name: str | None) -> Iterator[None]:
    """Map errors, and hide huggingface_hub's own retry messages."""
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        with hub_errors(repository, revision, name=name):
            yield
    finally:
        hub_logging.set_verbosity(verbosity)


def list_files(
    repository: str, revision: str | None, kind: str = "model", below: str = ""
) -> Listing:
    """Return the files of a repository; kind, below: see Listing."""
    info: Any = hub_api().repo_info(
        repository, revision=revision, repo_type=kind, files_metadata=True, timeout=REQUEST_SECONDS
    )
    every = ((f.rfilename.removeprefix(below), f) for f in info.siblings or [])
    files = {n: f for n, f in every if "/" not in n and f.rfilename == below + n}
    return Listing(
        repository,
        revision,
        str(info.sha),
        {name: file.size or 0 for name, file in files.items()},
        {n: f.lfs.sha256 if f.lfs else str(f.blob_id) for n, f in files.items()},
        kind,
        below,
    )


def _fetch(listing: Listing, files: list[str], bar: type[hub_tqdm] | None = None) -> Path:
    """Download files of one commit into the cache and return their folder."""
    snapshot = Path(
        huggingface_hub.snapshot_download(
            listing.repository,
            # The name, not the commit: the cache stores the commit of a name, for offline use.
            revision=listing.revision,
            cache_dir=cache_folder(),
            endpoint=site_address(),
            **LIBRARY,
            token=rights.token(),
            allow_patterns=[glob.escape(listing.below + file) for file in files],
            max_workers=PARALLEL_DOWNLOADS,
            tqdm_class=bar or progress_bar("", "", 0, None, None),
        )
    )
    return snapshot / listing.below


def _listing_or_cache(
    repository: str, revision: str | None, below: str, name: str
) -> Listing | Folder:
    """Return the repository's files, or a cached snapshot if the Hub cannot be reached.

    Only where the Hub did not answer or is down: a refusal counts even if files are in the cache,
    and on a shared server nothing is read from the cache without the Hub's permission.
    """
    try:
        return list_files(repository, revision, below=below)
    except (HTTPError, OfflineModeIsEnabled) as error:
        response = getattr(error, "response", None)
        if rights.is_shared() or (response is not None and response.status_code < 500):
            raise
        cached = _cached_snapshot(repository, revision, below, name)
        if cached is None:
            raise
        return cached


def check_rights(listing: Listing, file: str) -> None:
    """Check with the Hub that this user may read a file, which may already be in the cache.

    Everybody may list the files of a gated repository.
    """
    if rights.is_shared():
        huggingface_hub.get_hf_file_metadata(
            listing.url(file), token=rights.token(), timeout=REQUEST_SECONDS
        )


def _cached_snapshot(repository: str, revision: str | None, below: str, name: str) -> Folder | None:
    folder: str | None
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision, cache_dir=cache_folder(), local_files_only=True
        )
    except LocalEntryNotFoundError as error:
        folder = getattr(error, "snapshot_path", None)
    if folder is None:
        return None
    found = Folder(Path(folder) / below, who(name), Path(folder).name)
    try:
        # Files that are never requested (pickles, images) may be missing: test the headers.
        found.headers(find_shards(found)[0])
    except CheckpointError:
        return None
    return found


def _missing_bytes(listing: Listing, files: list[str]) -> int:
    folder = f"models--{listing.repository.replace('/', '--')}"
    snapshot = cache_folder() / folder / "snapshots" / listing.commit
    return sum(listing.sizes[f] for f in files if not (snapshot / listing.below / f).exists())


def _check_disk(needed: int, source: str, name: str) -> None:
    cache = cache_folder()
    free = shutil.disk_usage(nearest_folder(cache / "x")).free
    if free < needed:
        raise HubError(
            f"{who(name)}{source} needs {shown_bytes(needed)} for the download, the Hub cache "
            f"{printable(cache)} has {shown_bytes(free)} free; free {shown_bytes(needed - free)} "
            "or set HF_HOME to a larger disk."
        )


def find_repository(
    source: str,
    *,
    name: str,
    on_progress: ProgressCallback | None,
    cancel: CancelSignal | None,
    download: bool,
) -> Files:
    """Return the files of `owner/name[@revision]`, with its commit as the revision.

    Of a URL `hf://owner/name[@revision][/folder]` too.

    Its small files (config, tokenizer) are downloaded into the cache, and with `download` its
    shards, if the disk has space for them. Otherwise missing shards are read with range requests,
    beginning with their headers: the files are then remote, and have another kind of fingerprint
    (`hub-...`, from the Hub's content hashes). Without a connection a snapshot that is
    complete in the cache is used.

    Raises: HubError; CheckpointError for anything that is not a Hub id, or a damaged file; Stopped.
    """
    found, below = split_hf_url(source) or (split_hub_id(source), "")
    if found is None:
        raise CheckpointError(
            f"{who(name)}{printable(source)} is not a Hub id of the form owner/name[@revision]; "
            "check the spelling."
        )
    repository, revision = found
    check = (lambda: None) if cancel is None else cancel.raise_if_cancelled
    check()
    with talking_to(repository, revision, name):
        listing = _listing_or_cache(repository, revision, below, name)
        if isinstance(listing, Folder):
            return listing
        indexes = [file for file in listing.sizes if file.endswith(INDEX_SUFFIX)]
        for file in indexes:
            if not is_small_file(file, listing.sizes[file]):
                raise HubError(
                    f"{who(name)}{source}: {printable(file)} takes "
                    f"{shown_bytes(listing.sizes[file])}, more than any real index; it is not "
                    "fetched."
                )
        folder = _fetch(listing, indexes) if indexes else cache_folder()
        files = HubFiles(
            folder, who(name), listing=listing, name=name, token=rights.token(), check=check
        )
        try:
            shards, _ = find_shards(files)
        except CheckpointError as error:
            raise HubError(str(error)) from error
        check_rights(listing, shards[0])
        wanted = [file for file, size in listing.sizes.items() if is_small_file(file, size)]
        bar = None
        if download:
            wanted += shards
            missing = _missing_bytes(listing, wanted)
            _check_disk(missing, source, name)
            bar = progress_bar(name, source, missing, on_progress, cancel)
        folder = _fetch(listing, wanted, bar)
        if download or all((folder / shard).exists() for shard in shards):
            return Folder(folder, who(name), listing.commit)
        return replace(files, folder=folder, revision=listing.commit)
