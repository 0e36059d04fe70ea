"""The page's document before any script runs: title, link preview, the landing page.

Gradio's own document is empty until its scripts have come, and is sent as large as it is. A
middleware puts into it what readers and link previews are to see at once, and packs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ram_studio.app.public.request_guard import rewriting

_GRADIO_TAGS = re.compile(rb'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>|<title>.*?</title>')
_GRADIO_SCRIPT = re.compile(
    rb'<script type="module" crossorigin src="(\./assets/[\w.-]+\.js)"></script>'
)
_GRADIO_STYLE = re.compile(rb'<link rel="stylesheet" crossorigin href="(\./assets/[\w.-]+\.css)">')
_BODY = re.compile(rb"<body[^>]*>")
_PACKING = 5


class Document:
    """The middleware.

    opening: HTML put first into the head. first_view: put first into the body; it starts Gradio's
    scripts. tags: a request's title and preview, as HTML for the head.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        opening: str,
        first_view: str = "",
        tags: Callable[[Request], str] = lambda request: "",
    ) -> None:
        self._app, self._tags = app, tags
        self._opening, self._first_view = opening.encode(), first_view.encode()
        self._packed = GZipMiddleware(self._rewritten, compresslevel=_PACKING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        is_page = is_get and scope["path"].removeprefix(scope.get("root_path", "")) in ("", "/")
        await (self._packed if is_page else self._app)(scope, receive, send)

    async def _rewritten(self, scope: Scope, receive: Receive, send: Send) -> None:
        tags = (await run_in_threadpool(self._tags, Request(scope))).encode()
        await self._app(scope, receive, rewriting(send, lambda page: self._opened(page, tags)))

    def _opened(self, page: bytes, tags: bytes) -> bytes:
        head, mark, body = page.partition(b"</head>")
        if tags:
            head = _GRADIO_TAGS.sub(b"", head)
        if self._first_view:
            head = _GRADIO_SCRIPT.sub(rb'<script>window.RAM_APP = "\1";</script>', head)
            # Else the first paint waits for it.
            head = _GRADIO_STYLE.sub(rb'<script>window.RAM_APP_STYLE = "\1";</script>', head)
        head = head.replace(b"<head>", b"<head>" + tags + self._opening, 1)
        start = _BODY.search(body)
        at = start.end() if start else 0
        return head + mark + body[:at] + self._first_view + body[at:]
