"""Delay the reply to a queued request until its client has read the end of a closed stream.

Gradio's server closes a session's stream after its last result. Its clients open another when they
have read that. A client that sends a request in between, and first reads that it was queued, treats
the old stream as open, so it never gets the new results. So the reply to a request that was queued
behind a closed stream waits until the client has read the end and disconnected, as Gradio's
clients do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ram_studio.app.public.heartbeat import queue_client

_JOIN = re.compile(r"/gradio_api/queue/join/?$")
_CLOSE = "close_stream"


class QueueStreams:
    """The middleware. seconds: longest wait for a client's disconnect."""

    def __init__(self, app: ASGIApp, *, seconds: float = 2.0) -> None:
        self._app, self._seconds = app, seconds
        self._closed: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if client := queue_client(path, scope.get("query_string", b"").decode("latin-1")):
            await self._stream(client, scope, receive, send)
        elif _JOIN.search(path):
            await self._join(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _stream(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold a closed stream open until its client has disconnected."""
        is_read = asyncio.Event()

        async def send_but_the_end(message: Message) -> None:
            if _is_close(message.get("body", b"")):
                self._closed[client] = is_read
            if self._closed.get(client) is not is_read or message.get("more_body", False):
                await send(message)

        try:
            await self._app(scope, receive, send_but_the_end)
            if self._closed.get(client) is is_read:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds):
                        while (await receive())["type"] != "http.disconnect":
                            pass
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            is_read.set()
            if self._closed.get(client) is is_read:
                del self._closed[client]

    async def _join(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a queue request after the client has read the end of its closed streams."""
        parts: list[bytes] = []

        async def receive_noting() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def send_after(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start and self._closed:
                is_read = self._closed.get(_session(b"".join(parts)))
                if is_read is not None:
                    await is_read.wait()
            await send(message)

        await self._app(scope, receive_noting, send_after)


def _is_close(body: bytes) -> bool:
    """Return whether a chunk of a stream is Gradio's last message, not a result with its text."""
    if _CLOSE.encode() not in body:
        return False
    with contextlib.suppress(ValueError):
        return bool(json.loads(body.removeprefix(b"data:"))["msg"] == _CLOSE)
    return False


def _session(body: bytes) -> str:
    """Return the session of a request to queue; Gradio refuses requests without one."""
    with contextlib.suppress(ValueError):
        request = json.loads(body)
        return str(request.get("session_hash")) if isinstance(request, dict) else ""
    return ""
