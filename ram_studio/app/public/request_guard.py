"""The guard in front of Gradio: checks of hosts, routes and bodies, and the response headers.

The outermost ASGI middleware. A refused request never reaches Gradio and writes one line to the
log. Gradio's routes that this app does not use (they record, proxy or run things) do not exist,
files are sent as attachments, and open streams are reported to ``heartbeats``.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ram_studio.app.public import request_bodies
from ram_studio.app.public.allowed_hosts import AllowedHosts
from ram_studio.app.public.heartbeat import Heartbeats, stream_client
from ram_studio.app.public.request_bodies import FileReferences

_LOG = logging.getLogger(__name__)

# Gradio's own paths, below any root of a proxy; a route's end also matches before a newline.
_SHUT = re.compile(
    r"/gradio_api/(proxy=|deep_link|process_recording|component_server|custom_component|stream/|"
    r"vibe-|undo-vibe-|run-history|runs|dev/reload|app_id|profiling|file[=/]\s*https?:)|"
    r"/monitoring\b",
    re.IGNORECASE,
)
_SHUT_IN_PUBLIC = re.compile(r"/openapi\.json")
_UPLOAD = re.compile(r"/gradio_api/upload\b")
_FILE = re.compile(r"/gradio_api/file\b")
_MAX_SEGMENT_BYTES = 255
"""The longest file name; the file system raises for longer ones."""

HUB = "https://huggingface.co"


def security_headers(*, is_space: bool) -> dict[str, str]:
    """Return the headers of every response.

    Gradio's page uses inline scripts and styles, and compiles the events' handlers, so both must be
    allowed; the other rules forbid other hosts: nothing is fetched from, sent to or framed by any
    host but the Hub that shows a Space.
    """
    hub = f" {HUB}" if is_space else ""
    pictures = f"{hub} https://cdn-avatars.huggingface.co" if is_space else ""
    frames = f" {HUB} https://*.hf.space" if is_space else ""
    policy = {
        "default-src": "'self'",
        "script-src": "'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": f"'self' data: blob:{pictures}",
        "font-src": "'self' data:",
        "connect-src": f"'self' data: blob:{hub}",
        "worker-src": "'self' blob:",
        "media-src": "'self' data: blob:",
        "object-src": "'none'",
        "base-uri": "'self'",
        "form-action": f"'self'{hub}",
        "frame-ancestors": f"'self'{frames}",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        # Queries contain settings, and download paths a session's key, which other sites must not
        # see.
        "referrer-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    }


def rewriting(send: Send, change: Callable[[bytes], bytes]) -> Send:
    """Return a send that changes the complete body of a successful response."""
    start: Message = {}
    parts: list[bytes] = []

    async def send_changed(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            start.update(message)
        elif not start or message["type"] != "http.response.body":
            await send(message)
        else:
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                body = change(b"".join(parts))
                MutableHeaders(scope=start)["content-length"] = str(len(body))
                await send(start)
                await send({"type": "http.response.body", "body": body})

    return send_changed


class _Answer:
    """A response being sent, with the headers added. is_file: it is one of Gradio's files."""

    def __init__(self, send: Send, headers: Mapping[str, str], *, is_file: bool) -> None:
        self._send, self._headers, self._is_file = send, headers, is_file
        self.is_begun = False

    async def send(self, message: Message) -> None:
        """Send one of its messages."""
        if message["type"] == "http.response.start":
            self.is_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers[name] = value
            if self._is_file:
                # Any file is saved, and never runs as part of this app.
                _, _, name = headers.get("content-disposition", "").partition(";")
                headers["content-disposition"] = f"attachment;{name}" if name else "attachment"
                headers["content-security-policy"] = "sandbox"
        await self._send(message)


class RequestGuard:
    """The middleware.

    heartbeats: gets open streams. hosts: allowed ones. headers: of every response. uploads:
    Gradio's folder of uploads. is_public: the server is shared.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        heartbeats: Heartbeats,
        hosts: AllowedHosts,
        headers: Mapping[str, str],
        uploads: Path,
        is_public: bool,
    ) -> None:
        self._app, self._heartbeats, self._hosts = app, heartbeats, hosts
        self._headers, self._uploads, self._is_public = headers, uploads, is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # The app uses no WebSockets, whose Origin would need a check too.
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(send, self._headers, is_file=bool(_FILE.search(scope["path"])))
        request_line = f"{scope['method']} {scope['path'][:200]!r}"
        try:
            self._check_head(scope)
            admitted = await self._admit(scope, receive, answer.send)
            if admitted is not None:
                with self._noting(scope):
                    await self._app(*admitted)
        except HTTPException as refused:
            address = (scope.get("client") or ("unknown",))[0]
            _LOG.warning("Refused %s from %s: %s", request_line, address, refused)
            refusal = PlainTextResponse(refused.detail, status_code=refused.status_code)
            await refusal(scope, receive, answer.send)
        except Exception as error:
            if answer.is_begun:
                raise
            # A private server prints the traceback for debugging; on a shared one it could fill the
            # log.
            _LOG.error("Failed %s: %.300r", request_line, error, exc_info=not self._is_public)
            failure = PlainTextResponse("Internal server error.", status_code=500)
            await failure(scope, receive, answer.send)

    def _check_head(self, scope: Scope) -> None:
        """Raise HTTPException for a request that is refused regardless of its body."""
        path = scope["path"]
        if why := self._hosts.refusal(Headers(scope=scope)):
            raise HTTPException(403, why)
        if any(len(name.encode()) > _MAX_SEGMENT_BYTES for name in path.split("/")):
            raise HTTPException(414, "The path holds a name that is too long.")
        if _SHUT.search(path) or (self._is_public and _SHUT_IN_PUBLIC.search(path)):
            raise HTTPException(404, "Not found.")

    async def _admit(
        self, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Scope, Receive, Send] | None:
        """Return the scope and receive for Gradio, None when the sender disconnected.

        Raises: HTTPException for a refused body.
        """
        is_upload = bool(_UPLOAD.search(scope["path"]))
        most = max(request_bodies.UPLOAD_LIMITS.values()) + request_bodies.MAX_FORM_BYTES
        limit = most if is_upload else request_bodies.MAX_BODY_BYTES
        body = await request_bodies.read_body(scope, receive, limit)
        if body is None:
            return None
        if _FILE.search(scope["path"]):
            # Gradio answers a range request with the request's own headers.
            scope = request_bodies.with_headers(scope, {b"range": None})
        if is_upload and scope["method"] == "POST":
            scope, body = await request_bodies.rewrite_upload(scope, body)
            send = rewriting(send, request_bodies.name_uploads)
        elif body:
            headers = Headers(scope=scope)
            names = FileReferences(
                self._uploads,
                lambda url: self._hosts.is_own(url, headers),
                is_public=self._is_public,
            )
            body = await names.resolve(body)
            length = str(len(body)).encode()
            scope = request_bodies.with_headers(scope, {b"content-length": length})
        return scope, request_bodies.replay(body, receive), send

    @contextlib.contextmanager
    def _noting(self, scope: Scope) -> Iterator[None]:
        """Record a stream in heartbeats while it is open."""
        query = scope["query_string"].decode("latin-1")
        client = stream_client(scope["path"], query) if scope["method"] == "GET" else None
        if client is None:
            yield
            return
        self._heartbeats.arrive(client)
        try:
            yield
        finally:
            self._heartbeats.leave(client)
