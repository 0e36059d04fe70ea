"""Moving bytes from the Hub: progress of a download, and headers read without one."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status
from huggingface_hub.utils import tqdm as hub_tqdm

from ram_studio._version import __version__
from ram_studio.checkpoints.read.checkpoint import CancelSignal, DownloadProgress, ProgressCallback
from ram_studio.checkpoints.read.describe import printable, who
from ram_studio.checkpoints.read.header import LENGTH_BYTES, Header, header_length, parse_header
from ram_studio.errors import HubError

LIBRARY: dict[str, Any] = {"library_name": "ram-studio", "library_version": __version__}
"""How requests introduce themselves."""

# Nearly all headers fit into the first request.
FIRST_REQUEST_BYTES = 100_000
REQUEST_SECONDS = 30.0

Token = str | bool | None
"""As huggingface_hub takes it, see `rights.token_for`."""


def progress_bar(
    name: str,
    source: str,
    total: int,
    on_progress: ProgressCallback | None,
    cancel: CancelSignal | None,
) -> type[hub_tqdm]:
    """Return a progress bar class that draws nothing, reports bytes and asks for Stop.

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
                    # Two bars tell of the same bytes: report only what is news.
                    if done > reported:
                        reported = done
                        seconds = time.monotonic() - started
                        on_progress(DownloadProgress(name, source, done, total, seconds))
            return None

    return Reporter


def read_remote_header(url: str, size: int, path: Path, *, name: str, token: Token) -> Header:
    """Return the header of a shard on the Hub, read with one or two range requests.

    Args:
        url: of the shard.
        size: of the whole file in bytes, as the Hub lists it.
        path: where the shard will lie once downloaded; `TensorInfo` and messages carry it.
        name: "base" or the agent's name.
        token: see `rights.token_for`.

    Raises: CheckpointError for a header that is not acceptable, HubError for a server that does
    not send what was asked, and huggingface_hub's own errors.
    """
    at = f"{who(name)}{printable(url)}"
    start = _read_range(url, 0, min(FIRST_REQUEST_BYTES, size), token, at)
    length = header_length(start[:LENGTH_BYTES], size, at)
    end = LENGTH_BYTES + length
    if len(start) < end:
        start += _read_range(url, len(start), end, token, at)
    return parse_header(start[LENGTH_BYTES:end], file_size=size, path=path, agent=name)


def _read_range(url: str, begin: int, end: int, token: Token, at: str) -> bytes:
    """Return bytes begin..end of a file; no more is read, whatever the server sends."""
    if begin >= end:
        return b""
    headers = build_hf_headers(token=token, **LIBRARY)
    headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    received = bytearray()
    with get_session().stream(
        "GET", url, headers=headers, timeout=REQUEST_SECONDS, follow_redirects=True
    ) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        if response.status_code != 206 and begin > 0:
            raise HubError(
                f"{at}: the server does not send parts of files, so its header cannot be read "
                "before the download; download the model instead."
            )
        for chunk in response.iter_bytes():
            received += chunk
            if len(received) >= end - begin:
                break
    if len(received) < end - begin:
        raise HubError(
            f"{at}: the server sent {len(received)} of {end - begin} bytes of the header; "
            "run again."
        )
    return bytes(received[: end - begin])
