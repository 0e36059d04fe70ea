"""Shards on the Hub, read by byte ranges: nothing is stored here.

With huggingface_hub's session, login and proxies, one request for each range. A dropped connection
is resumed where it ended: every received byte resets the count of tries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from ram_studio.checkpoints.hub.errors import HTTPError, hub_errors
from ram_studio.checkpoints.hub.rights import Token
from ram_studio.checkpoints.hub.transfer import LIBRARY, REQUEST_SECONDS, site_address
from ram_studio.checkpoints.read.checkpoint import hub_fingerprint
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.remote import BUSY, FIRST_REQUEST_BYTES, RemoteFiles, Retries
from ram_studio.errors import HubError

CACHED_BYTES = 4096
"""Ranges up to this size are cached."""


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit.

    Attributes:
        repository: `owner/name`.
        revision: as the user gave it, None for the default branch.
        commit: its current commit.
        sizes: bytes of each file directly in the folder.
        contents: the Hub's hash of each file's content.
        kind: "model" or "dataset".
        below: the folder in the repository whose files they are, as "runs/1/", "" for the top.
    """

    repository: str
    revision: str | None
    commit: str
    sizes: dict[str, int]
    contents: dict[str, str]
    kind: str = "model"
    below: str = ""

    def url(self, file: str) -> str:
        """Return the URL of a file of this commit."""
        where = {"repo_type": self.kind, "revision": self.commit, "endpoint": site_address()}
        return huggingface_hub.hf_hub_url(self.repository, self.below + file, **where)


@dataclass(eq=False)
class HubFiles(RemoteFiles):
    """The files of a listing; small ones, and those complete in the cache, are in `folder` too.

    Ranges that were fetched with a header, or to compare two tensors, are cached. name: "base" or
    the agent's; check: raises to stop.
    """

    listing: Listing = field(kw_only=True)
    name: str = field(kw_only=True)
    token: Token = field(kw_only=True, repr=False)
    check: Callable[[], None] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: dict[str, dict[int, bytes]] = {}
        self._retries = Retries(f"{self.who}{self.listing.repository}", self.check)

    def at(self, name: str) -> str:
        listing = self.listing
        return listing.url(name) if name else f"{listing.repository}/{listing.below}".rstrip("/")

    def names(self) -> list[str]:
        return sorted(self.listing.sizes)

    def sizes(self) -> dict[str, int]:
        return self.listing.sizes

    def fingerprint(self, shards: Iterable[str]) -> str:
        contents = self.listing.contents
        return hub_fingerprint([f"{shard}:{contents[shard]}" for shard in shards])

    def content_hash(self, name: str) -> str | None:
        """Return the SHA-256 of a shard that the Hub stores as a large file; see `RemoteFiles`."""
        content = self.listing.contents[name]
        return f"sha256:{content}" if len(content) == 64 else None

    def fetch(self, name: str, start: int, length: int) -> bytes:
        with self._lock:
            cached = sorted(self._cache.setdefault(name, {}).items())
        parts = []
        at, end = start, start + length
        with hub_errors(self.listing.repository, self.listing.revision, name=self.name):
            for first, data in (*cached, (end, b"")):
                if at < first:
                    upto = min(first, end)
                    parts.append(self._receive(self.at(name), at, upto))
                    at = upto
                if first <= at < min(first + len(data), end):
                    parts.append(data[at - first : end - first])
                    at += len(parts[-1])
        found = b"".join(parts)
        # A request for a header may return data, too.
        if length <= (CACHED_BYTES if start else FIRST_REQUEST_BYTES):
            with self._lock:
                if length > len(self._cache[name].get(start, b"")):
                    self._cache[name][start] = found
        return found

    def _receive(self, url: str, begin: int, end: int) -> bytes:
        received = bytearray()
        vain = 0
        while len(received) < end - begin:
            self.check()
            before = len(received)
            try:
                self._request(url, begin + before, end, received)
                failure: Exception = HTTPError("the connection was closed")
            except (HTTPError, OSError) as error:
                if isinstance(error, HfHubHTTPError) and error.response.status_code not in BUSY:
                    raise
                failure = error
            vain = 0 if len(received) > before else vain + 1
            if vain and len(received) < end - begin and not self._retries.pause(vain, failure):
                raise failure
        return bytes(received)

    def _request(self, url: str, begin: int, end: int, received: bytearray) -> None:
        """Append bytes begin..end; further bytes of the server are not read."""
        headers = build_hf_headers(token=self.token, **LIBRARY)
        headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        wanted = len(received) + end - begin
        with get_session().stream(
            "GET", url, headers=headers, timeout=REQUEST_SECONDS, follow_redirects=True
        ) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            if response.status_code != 206 and begin > 0:
                raise HubError(
                    f"{self.who}{printable(url)}: the server does not support range requests; "
                    "download the model instead (--download)."
                )
            for chunk in response.iter_bytes():
                received += chunk[: wanted - len(received)]
                if len(received) >= wanted:
                    return
