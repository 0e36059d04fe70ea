"""Requests to the Hub: address, user agent, cache, and progress of downloads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.utils import tqdm as hub_tqdm

from ram_studio._version import __version__
from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.read.checkpoint import CancelSignal, DownloadProgress, ProgressCallback

LIBRARY: dict[str, Any] = {"library_name": "ram-studio", "library_version": __version__}
"""User agent of requests."""

REQUEST_SECONDS = 30.0


def site_address() -> str:
    """Return the Hub's address: the current HF_ENDPOINT, else huggingface_hub's own."""
    address = os.environ.get("HF_ENDPOINT") or huggingface_hub.constants.ENDPOINT
    return address.rstrip("/")


def cache_folder() -> Path:
    """Return the Hub cache: the current HF_HUB_CACHE or HF_HOME, else huggingface_hub's own."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(huggingface_hub.constants.HF_HUB_CACHE)


def hub_api() -> huggingface_hub.HfApi:
    """Return a Hub client with this thread's rights, see `rights`."""
    return huggingface_hub.HfApi(endpoint=site_address(), token=rights.token(), **LIBRARY)


def fetch_file(repository: str, file: str, **how: Any) -> Path:
    """Return a file of a repository in the cache; how: further options of `hf_hub_download`."""
    how |= {"cache_dir": cache_folder(), "endpoint": site_address(), "token": rights.token()}
    return Path(huggingface_hub.hf_hub_download(repository, file, **LIBRARY, **how))


def progress_bar(
    name: str,
    source: str,
    total: int,
    on_progress: ProgressCallback | None,
    cancel: CancelSignal | None,
) -> type[hub_tqdm]:
    """Return a progress bar class that draws nothing, reports bytes and checks for a stop.

    snapshot_download opens one bar that counts files and, depending on its version, one or two
    that count bytes (received, written); the furthest of those is reported.
    """
    started = time.monotonic()
    lock = threading.Lock()
    counts: dict[int, int] = {}
    reported = -1

    class Reporter(hub_tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal reported
            if cancel is not None:
                cancel.raise_if_cancelled()
            if self._counts_bytes and on_progress is not None:
                with lock:
                    counts[id(self)] = counts.get(id(self), 0) + int(n or 0)
                    done = min(max(counts.values()), total)
                    # Two bars count the same bytes: report only new ones.
                    if done > reported:
                        reported = done
                        seconds = time.monotonic() - started
                        on_progress(DownloadProgress(name, source, done, total, seconds))
            return None

    return Reporter
