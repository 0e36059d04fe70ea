"""What a request may carry, what every answer tells the browser, and which doors stay shut.

An ASGI middleware in front of Gradio. Bodies have a largest size, uploads are recipes or profiles,
routes of Gradio that this app does not use (they record, proxy or run things) do not exist, and
streams tell ``presence`` who is there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from ram_studio.app.public.presence import Presence, stream_client
from ram_studio.checkpoints.hub.sketches import MOST_PROFILE_BYTES
from ram_studio.checkpoints.record.recipe import MAX_RECIPE_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MOST_BODY_BYTES = 16_000_000
MOST_RECIPE_BYTES = MAX_RECIPE_BYTES
RECIPE_NAMES = (".yaml", ".yml")
PROFILE_NAMES = (".safetensors",)
_FORM_BYTES = 2_000
"""What a form puts around the one file in it."""

_SHUT = re.compile(
    r"/gradio_api/(proxy=|deep_link|process_recording|component_server|custom_component|stream/|"
    r"vibe-|undo-vibe-|run-history|runs|dev/reload|app_id)|^/monitoring"
)
_UPLOAD = re.compile(r"/gradio_api/upload/?$")
_FILE_NAME = re.compile(rb'filename\*?="?([^";\r\n]*)')

HUB = "https://huggingface.co"


def security_headers(*, is_space: bool) -> dict[str, str]:
    """Return the headers of every answer.

    Gradio's page is made of inline scripts and styles, and compiles the handlers that events name,
    so both must be allowed; what is left forbids other hosts: nothing is fetched from, sent to or
    framed by anybody but the Hub that shows a Space.
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
        # Queries hold settings, paths of downloads a session's key: neither is for other sites.
        "referrer-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    }


def _opened_by(send: Send, opening: bytes) -> Send:
    """Return a send that puts ``opening`` first into the head of an HTML page."""
    held: list[Message] = []

    async def send_page(message: Message) -> None:
        if message["type"] == "http.response.start":
            held.append(message)
            return
        if held:
            start, body = held.pop(), message.get("body", b"")
            page = body.replace(b"<head>", b"<head>" + opening, 1)
            headers = MutableHeaders(scope=start)
            if "content-length" in headers:
                longer = int(headers["content-length"]) + len(page) - len(body)
                headers["content-length"] = str(longer)
            message = {**message, "body": page}
            await send(start)
        await send(message)

    return send_page


class Doorway:
    """The middleware. presence: told of streams. headers: put on every answer.

    opening: HTML that stands first in the page's head. (Gradio's own ``head`` is put there by its
    scripts, once they have come.)
    """

    def __init__(
        self, app: Any, *, presence: Presence, headers: MutableMapping[str, str], opening: str = ""
    ) -> None:
        self._app, self._presence, self._headers = app, presence, headers
        self._opening = opening.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        path, query = scope["path"], scope["query_string"].decode("latin-1")
        try:
            if _SHUT.search(path):
                raise HTTPException(404, "Not found.")
            if _UPLOAD.search(path):
                receive = await self._small_files_only(scope, receive)
            else:
                receive = self._bounded(scope, receive)
            client = stream_client(path, query) if scope["method"] == "GET" else None
            if client is None:
                is_page = path == "/" and scope["method"] == "GET"
                answer = _opened_by(send_with_headers, self._opening) if is_page else None
                await self._app(scope, receive, answer or send_with_headers)
                return
            self._presence.arrive(client)
            try:
                await self._app(scope, receive, send_with_headers)
            finally:
                self._presence.leave(client)
        except HTTPException as refused:
            refusal = PlainTextResponse(refused.detail, status_code=refused.status_code)
            await refusal(scope, receive, send_with_headers)

    @staticmethod
    def _bounded(scope: Message, receive: Receive, most: int = MOST_BODY_BYTES) -> Receive:
        """Return a receive that raises once more was sent than may be.

        Raises: HTTPException at once for a body that says so itself.
        """
        too_large = HTTPException(413, f"The request is too large; at most {most} bytes are taken.")
        said = Headers(scope=scope).get("content-length", "0")
        if not said.isdecimal() or int(said) > most:
            raise too_large
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise too_large
            return message

        return bounded

    async def _small_files_only(self, scope: Message, receive: Receive) -> Receive:
        """Return a receive for an upload that was read and holds a recipe or a profile.

        Raises: HTTPException for another file, or one that is too large.
        """
        bounded = self._bounded(scope, receive, MOST_PROFILE_BYTES + _FORM_BYTES)
        body, more = b"", True
        while more:
            message = await bounded()
            if message["type"] == "http.disconnect":
                return bounded
            body += message.get("body", b"")
            more = message.get("more_body", False)
        names = [name.decode("utf-8", "replace").lower() for name in _FILE_NAME.findall(body)]
        if len(names) != 1 or not names[0].endswith(RECIPE_NAMES + PROFILE_NAMES):
            raise HTTPException(
                415, "Only a recipe (.yaml, .yml) or a profile (.safetensors) can be uploaded."
            )
        if names[0].endswith(RECIPE_NAMES) and len(body) > MOST_RECIPE_BYTES + _FORM_BYTES:
            raise HTTPException(413, f"A recipe has at most {MOST_RECIPE_BYTES} bytes.")
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay
