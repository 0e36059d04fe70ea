"""The page's document before any script runs: title, link preview, the landing page.

Gradio's own document is empty until its scripts are loaded, is rendered for each visit (0.1 s of
processor time) and sent uncompressed. A middleware caches it, inserts the first view and the link
preview, and compresses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from cachetools import LRUCache
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_GRADIO_TAGS = re.compile(rb'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>|<title>.*?</title>')
_GRADIO_SCRIPT = re.compile(
    rb'<script type="module" crossorigin src="(\./assets/[\w.-]+\.js)"></script>'
)
_GRADIO_STYLE = re.compile(rb'<link rel="stylesheet" crossorigin href="(\./assets/[\w.-]+\.css)">')
_GRADIO_FACTS = b"<script>window.gradio_"
_BODY = re.compile(rb"<body[^>]*>")
_PACKING = 5
_MOST_PAGES = 4


class _Page(NamedTuple):
    """Gradio's document: the start of its response, and its body around a request's tags."""

    start: Message
    before: bytes
    after: bytes


class Document:
    """The middleware.

    opening: HTML at the start of the head. first_view: HTML at the start of the body, which starts
    Gradio's scripts. tags: a request's title and preview, as HTML for the head.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        opening: str,
        first_view: str,
        tags: Callable[[Request], str],
    ) -> None:
        self._app, self._tags = app, tags
        self._pages: LRUCache[tuple[object, ...], _Page] = LRUCache(_MOST_PAGES)
        self._opening, self._first_view = opening.encode(), first_view.encode()
        self._packed = GZipMiddleware(self._serve_page, compresslevel=_PACKING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        is_page = is_get and scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")
        await (self._packed if is_page else self._app)(scope, receive, send)

    async def _serve_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = self._pages.get(key := self._key(scope)) or await self._fetch(scope, receive, send)
        if page is None:
            return
        if not any(name == b"set-cookie" for name, _ in page.start["headers"]):
            self._pages[key] = page  # otherwise it belongs to one user
        tags = await run_in_threadpool(self._tags, Request(scope))
        body = page.before + tags.encode() + page.after
        start = {**page.start, "headers": [*page.start["headers"]]}
        MutableHeaders(scope=start)["content-length"] = str(len(body))
        await send(start)
        await send({"type": "http.response.body", "body": body})

    @staticmethod
    def _key(scope: Scope) -> tuple[object, ...]:
        """Return the cache key of Gradio's document: the request's address of the app."""
        headers = Headers(scope=scope).items()
        names = tuple(item for item in headers if item[0] == "host" or "forwarded" in item[0])
        query = scope["query_string"] if b"deep_link" in scope["query_string"] else b""
        return (scope["scheme"], scope.get("root_path", ""), scope["path"], query, names)

    async def _fetch(self, scope: Scope, receive: Receive, send: Send) -> _Page | None:
        """Return Gradio's page; any other response is sent unchanged."""
        start: Message = {}
        parts: list[bytes] = []

        async def take(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                start.update(message)
            elif not start or message["type"] != "http.response.body":
                await send(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, take)
        return _Page(start, *self._split_page(b"".join(parts))) if start else None

    def _split_page(self, page: bytes) -> tuple[bytes, bytes]:
        head, mark, body = page.partition(b"</head>")
        head = _GRADIO_TAGS.sub(b"", head)
        if _GRADIO_SCRIPT.search(head):
            head = _GRADIO_SCRIPT.sub(rb'<script>window.RAM_APP = "\1";</script>', head)
            # Otherwise the first paint waits for it. As plain text, half a megabyte of JSON takes
            # no time before it either.
            later = b'<script type="text/plain" class="ram-later">window.gradio_'
            head = head.replace(_GRADIO_FACTS, later)
            head = _GRADIO_STYLE.sub(rb'<script>window.RAM_APP_STYLE = "\1";</script>', head)
        top, opens, rest = head.partition(b"<head>")
        start = _BODY.search(body)
        at = start.end() if start else 0
        after = self._opening + rest + mark + body[:at] + self._first_view + body[at:]
        return top + opens, after
