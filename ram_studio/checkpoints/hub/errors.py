"""The Hub's refusals and failures in plain words, each with what to do about it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.hub.transfer import site_address
from ram_studio.checkpoints.read.describe import printable, quoted, who
from ram_studio.errors import HubError

try:  # the HTTP client of this version of huggingface_hub
    from httpx2 import HTTPError as HTTPError
    from httpx2 import InvalidURL
except ImportError:  # pragma: no cover
    from httpx import HTTPError, InvalidURL

RUN_AGAIN = "check the connection and run again; files that were finished are kept"


@contextlib.contextmanager
def hub_errors(repository: str, revision: str | None, *, name: str | None) -> Iterator[None]:
    """Turn errors of huggingface_hub into a HubError of one line.

    revision: as the user gave it; name: "base" or the agent's name.
    """
    try:
        yield
    except (HTTPError, OSError, HFValidationError, InvalidURL) as error:
        text = _explanation(error, repository, revision)
        raise HubError(f"{who(name)}{repository} {text}.") from error


def _explanation(error: Exception, repository: str, revision: str | None) -> str:
    # A missing cache entry is how huggingface_hub reports most failures to connect; what really
    # happened is its cause.
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
    if isinstance(error, OfflineModeIsEnabled) or isinstance(cause, OfflineModeIsEnabled):
        return (
            "is not complete in the cache and offline mode is on (HF_HUB_OFFLINE); unset it to "
            "download, or give a local folder"
        )
    if isinstance(cause, HfHubHTTPError):
        error = cause
    site = site_address()
    page = f"{site}/{repository}"
    # A gated repository is also a "repository not found" to huggingface_hub: ask for it first.
    if isinstance(error, GatedRepoError):
        return f"is gated: accept its license on {page} and {rights.advice()}, then run again"
    if isinstance(error, DisabledRepoError):
        return f"was disabled by the Hub; see {page}"
    if isinstance(error, RevisionNotFoundError):
        return (
            f"has no revision {quoted(revision or 'main')}; its branches and tags are listed on "
            f"{page}/tree/main"
        )
    if isinstance(error, RemoteEntryNotFoundError):
        return "lost a file while it was being read; run again"
    if isinstance(error, RepositoryNotFoundError):
        # The id may be meant as a folder.
        here = (
            "" if rights.is_shared() else f"; nor is there a folder {Path(repository).absolute()}"
        )
        return f"is not on {site}, or is private{here}; check the spelling, or {rights.advice()}"
    if isinstance(error, HfHubHTTPError):
        return _status_explanation(error, page)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "does not fit on the disk of the Hub cache; free some space, or set HF_HOME"
    if isinstance(error, PermissionError):
        return f"cannot be stored: {printable(error)}; set HF_HOME to a folder you may write to"
    # Dropped connections, timeouts, name lookup, and downloads that came out too short.
    reason = printable(cause or error, 120) or type(cause or error).__name__
    return f"could not be downloaded from {site} ({reason}); {RUN_AGAIN}"


def _status_explanation(error: HfHubHTTPError, page: str) -> str:
    status = error.response.status_code
    if status in (401, 403):
        return f"was refused by the Hub (status {status}); {rights.advice()}, with access to {page}"
    if status == 404:
        return "does not exist (status 404); check the spelling"
    if status == 429:
        return "was refused because of too many requests (status 429); wait a while and run again"
    return f"could not be read: the Hub answered with status {status}; {RUN_AGAIN}"
