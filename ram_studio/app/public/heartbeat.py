"""Heartbeats: a client that has closed all its streams is gone.

A page holds Gradio's heartbeat while it is open, a waiting client the stream of its results. Both
end within a moment of a closed tab, a reload or a dropped connection (see ``request_guard``). A
page that is loading again tells so from the first line of its head on, by its tab's key
(back.html.j2).
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

    A client is known by Gradio's session hash, one of the plain ``/call`` route by its event, a tab
    that is loading again by its key.
    """
    if match := _STREAMS.search(path):
        return match["client"]
    return queue_client(path, query)


def queue_client(path: str, query: str) -> str | None:
    """Return the session whose results a request's stream tells, None for any other request."""
    if not _QUEUE.search(path):
        return None
    return next(iter(parse_qs(query).get("session_hash", ())), None)


class Heartbeats:
    """Which clients have a stream open. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self._closed_at: OrderedDict[str, float] = OrderedDict()

    def arrive(self, client: str) -> None:
        """Note that a stream was opened."""
        with self._lock:
            self._open[client] += 1
            self._closed_at.pop(client, None)

    def leave(self, client: str) -> None:
        """Note that a stream was closed."""
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
