"""Allowed request bodies: one small file, or JSON that names no other files than uploads.

Bodies are read completely before any other code gets them. An upload is parsed and rewritten, so
that two parsers cannot disagree about its name; the browser gets files' paths relative to the
folder of uploads, never a path of this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from ram_studio.checkpoints.hub.analyses import MOST_COMPACT_BYTES
from ram_studio.checkpoints.record.recipe import MAX_RECIPE_BYTES

MAX_BODY_BYTES = 100_000
MAX_JSON_VALUES = 5_000
"""Gradio visits every value of a body in the event loop, several times: 5,000 take 20 ms. The page
sends less than 1 kB and 50 values, except for a long question in the chat."""
MAX_FORM_BYTES = 2_000
"""Bytes of a form around its one file."""
UPLOAD_LIMITS = {
    ".yaml": MAX_RECIPE_BYTES,
    ".yml": MAX_RECIPE_BYTES,
    ".json": MAX_RECIPE_BYTES,
    ".safetensors": MOST_COMPACT_BYTES,
}
"""The largest upload by suffix: recipes and compact analyses."""
_THREAD_BYTES = 20_000
"""Larger JSON is parsed outside the event loop."""

# The last quote is optional: otherwise a search would restart at every quote.
_JSON_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_UPLOAD_NAME = re.compile(r"upload:(?P<folder>[0-9a-f]{16,128})/(?P<name>[^/\\\0]+)")
_UNSAFE = re.compile(r"[^\w .()+-]+")
_MAX_STEM = 60
"""Most characters of an upload's name: with four bytes each it is still a valid file name."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """Return the body of a request, None when its sender disconnected.

    Raises: HTTPException for one larger than ``limit``, before reading it if its header shows it.
    """
    too_large = HTTPException(413, f"The request is too large; the limit is {limit} bytes.")
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise too_large
    parts: list[bytes] = []
    more, size = True, 0
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large
        more = message.get("more_body", False)
    return b"".join(parts)


def with_headers(scope: Scope, changed: Mapping[bytes, bytes | None]) -> Scope:
    """Return a request's scope with headers replaced, or removed where they are None."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in changed]
    headers += [(name, value) for name, value in changed.items() if value is not None]
    return {**scope, "headers": headers}


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive that replays a body and then continues with later messages."""
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def rewrite_upload(scope: Scope, body: bytes) -> tuple[Scope, bytes]:
    """Return an upload as a rewritten form, with the matching scope.

    Raises: HTTPException for anything but one recipe or compact analysis within the limits.
    """
    name, content = await _read_file(scope, body)
    kind = PurePosixPath(name).suffix
    if len(content) > UPLOAD_LIMITS[kind]:
        raise HTTPException(413, f"A {kind} file may have at most {UPLOAD_LIMITS[kind]} bytes.")
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    )
    form = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    changed = {
        b"content-type": f"multipart/form-data; boundary={boundary}".encode(),
        b"content-length": str(len(form)).encode(),
        b"transfer-encoding": None,
        # The response is rewritten too, so it must not be compressed.
        b"accept-encoding": None,
    }
    return with_headers(scope, changed), form


async def _read_file(scope: Scope, body: bytes) -> tuple[str, bytes]:
    """Return the safe name and the content of the one file in a form.

    Raises: HTTPException for any other form.
    """

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    # With an app in the scope, parse errors are raised as HTTPException.
    request = Request({**scope, "app": scope.get("app")}, receive)
    async with request.form(max_files=1, max_fields=0) as form:
        files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        name = PurePosixPath((files[0].filename or "").replace("\\", "/")) if files else None
        if name is None or name.suffix.lower() not in UPLOAD_LIMITS:
            raise HTTPException(
                415, f"Only files that end in {', '.join(UPLOAD_LIMITS)} can be uploaded."
            )
        stem = _UNSAFE.sub("_", name.stem).strip(" .")[:_MAX_STEM] or "upload"
        return f"{stem}{name.suffix.lower()}", await files[0].read()


def name_uploads(answer: bytes) -> bytes:
    """Return Gradio's response to an upload, with paths of this machine replaced by names."""
    files = [PurePosixPath(Path(path).as_posix()) for path in json.loads(answer)]
    return json.dumps([f"upload:{file.parent.name}/{file.name}" for file in files]).encode()


class FileReferences:
    """References to files in JSON. folder: of uploads.

    is_own: whether a URL leads to this app. is_public: accepts no other path of this machine.
    """

    def __init__(self, folder: Path, is_own: Callable[[str], bool], *, is_public: bool) -> None:
        self._folder, self._is_own, self._is_public = folder, is_own, is_public
        self._changed = False

    async def resolve(self, body: bytes) -> bytes:
        """Return a JSON body with names of uploads replaced by their paths.

        Raises: HTTPException for a body that is not a JSON object in UTF-8, or that names a file by
            a URL, which Gradio would download.
        """
        marks = _JSON_TEXT.sub(b"", body)
        if sum(map(marks.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
            raise HTTPException(413, f"One request can have at most {MAX_JSON_VALUES} values.")
        if len(body) > _THREAD_BYTES:
            return await asyncio.to_thread(self._resolve, body)
        return self._resolve(body)

    def _resolve(self, body: bytes) -> bytes:
        try:
            # The hook visits every object, in any spelling.
            found = json.loads(body.decode(), object_hook=self._check)
            if isinstance(found, dict):
                return json.dumps(found).encode() if self._changed else body
        except (ValueError, RecursionError):
            pass
        raise HTTPException(400, "The body of the request is not a JSON object in UTF-8.")

    def _check(self, value: dict[str, Any]) -> dict[str, Any]:
        path, url = value.get("path"), value.get("url")
        if isinstance(url, str) and "://" in url and not self._is_own(url):
            raise HTTPException(400, "A file was named by a URL; upload the file itself.")
        if not isinstance(path, str):
            return value
        if "://" in path:
            raise HTTPException(400, "A file was named by a URL; upload the file itself.")
        if match := _UPLOAD_NAME.fullmatch(path):
            file = self._folder / match["folder"] / match["name"]
            # Path.is_file raises for names that a disk cannot have.
            if match["name"] in (".", "..") or not os.path.isfile(file):
                raise HTTPException(400, "The uploaded file is gone; upload it again.")
            self._changed = True
            return {**value, "path": str(file)}
        is_file = "meta" in value or (self._is_public and Path(path).is_absolute())
        if is_file and not self._holds(Path(path)):
            raise HTTPException(400, "A named file was not uploaded.")
        return value

    def _holds(self, path: Path) -> bool:
        return path.is_relative_to(self._folder) and ".." not in path.parts
