"""Heartbeats: a client without an open stream has left.

An open page has Gradio's heartbeat stream, a waiting client the stream of its results. Both end
soon after a closed tab, a reload or a dropped connection (see ``request_guard``). A reloading page
opens a stream at the start of its head, with its tab's key (back.html.j2).
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from urllib.parse import parse_qs

_STREAMS = re.compile(
    r"/(?:gradio_api/(?:heartbeat|call(?:/v2)?/[^/]+)|ram/here)/(?P<client>[^/]+)/?$"
)
_QUEUE = re.compile(r"/gradio_api/queue/data/?$")
_MOST_CLOSED = 10_000


def stream_client(path: str, query: str) -> str | None:
    """Return the client that a request's stream belongs to, None for any other request.

    Clients are identified by Gradio's session hash, those of the plain ``/call`` route by the
    event, and a reloading tab by its key.
    """
    if match := _STREAMS.search(path):
        return match["client"]
    return queue_client(path, query)


def queue_client(path: str, query: str) -> str | None:
    """Return the session whose results a request streams, None for any other request."""
    if not _QUEUE.search(path):
        return None
    return next(iter(parse_qs(query).get("session_hash", ())), None)


class Heartbeats:
    """The clients with an open stream. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self._closed_at: OrderedDict[str, float] = OrderedDict()

    def arrive(self, client: str) -> None:
        """Record that a stream was opened."""
        with self._lock:
            self._open[client] += 1
            self._closed_at.pop(client, None)

    def leave(self, client: str) -> None:
        """Record that a stream was closed."""
        with self._lock:
            self._open[client] -= 1
            if self._open[client] <= 0:
                del self._open[client]
                self._closed_at[client] = self._clock()
                while len(self._closed_at) > _MOST_CLOSED:
                    self._closed_at.popitem(last=False)

    def closed_since(self, client: str) -> float | None:
        """Return when a client's last stream closed: None while one is open, -inf if none was."""
        with self._lock:
            return None if client in self._open else self._closed_at.get(client, -math.inf)
