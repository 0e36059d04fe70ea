"""The middleware before Gradio: sizes, uploads, shut doors, headers, and who is there."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import HTMLResponse
from visitor import tell

from ram_studio.app.public.doorway import Doorway, security_headers
from ram_studio.app.public.presence import Presence, stream_client


async def _ask(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    query: str = "",
    says: int | None = None,
    presence: Presence | None = None,
    seen: list[Any] | None = None,
) -> dict[str, Any]:
    """Send a request through a doorway to an app that reads it whole; return what it answered."""
    presence = presence or Presence()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if seen is not None:
            seen.append(presence.count)
        read, more = b"", True
        while more:
            message = await receive()
            read += message.get("body", b"")
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": read})

    chunks = [body[i : i + 50_000] for i in range(0, len(body), 50_000)] or [b""]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    answer: dict[str, Any] = {}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer["status"] = message["status"]
            answer["headers"] = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer["body"] = answer.get("body", b"") + message["body"]

    headers = [] if says is None else [(b"content-length", str(says).encode())]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
    }
    doorway = Doorway(app, presence=presence, headers=security_headers(is_space=True))
    await doorway(scope, receive, send)
    return answer


def ask(path: str, body: bytes = b"", **more: Any) -> dict[str, Any]:
    return tell(_ask(path, body, **more))


def form(name: str, content: bytes) -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--x--\r\n"


@pytest.mark.parametrize("says", [None, 17_000_000])
def test_large_bodies_are_refused_whether_they_say_so_or_not(says: int | None) -> None:
    body = b"x" * (17_000_000 if says is None else 10)
    assert ask("/gradio_api/queue/join", body, says=says)["status"] == 413
    assert ask("/gradio_api/queue/join", b"x" * 15_000_000)["status"] == 200


def test_a_length_that_is_none_is_refused() -> None:
    assert ask("/x", says=-1)["status"] == 413


@pytest.mark.parametrize(
    ("name", "size", "status"),
    [
        ("recipe.yaml", 60_000, 200),
        ("RECIPE.YML", 10, 200),
        ("recipe.yaml", 70_000, 413),
        ("profile.safetensors", 70_000, 200),
        ("profile.safetensors", 4_100_000, 413),
        ("page.html", 10, 415),
        ("a.yaml.exe", 10, 415),
        ("", 10, 415),
    ],
)
def test_uploads_are_recipes_and_profiles(name: str, size: int, status: int) -> None:
    body = form(name, b"r" * size)
    answer = ask("/gradio_api/upload", body)
    assert answer["status"] == status
    if status == 200:
        assert answer["body"] == body, "read ahead, and handed on whole"


def test_an_upload_of_several_files_is_refused() -> None:
    assert ask("/gradio_api/upload", form("a.yaml", b"") + form("b.html", b""))["status"] == 415


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/proxy=https://huggingface.co/x",
        "/gradio_api/process_recording",
        "/gradio_api/component_server/",
        "/gradio_api/vibe-edit/",
        "/gradio_api/deep_link",
        "/monitoring/summary",
    ],
)
def test_doors_that_nobody_needs_are_shut(path: str) -> None:
    assert ask(path)["status"] == 404


def test_every_answer_has_the_headers() -> None:
    for answer in (ask("/"), ask("/gradio_api/proxy=x"), ask("/gradio_api/upload", form("x", b""))):
        headers = answer["headers"]
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'self' https://huggingface.co https://*.hf.space" in policy
        assert "object-src 'none'" in policy
        assert "googleapis" not in policy
    own = security_headers(is_space=False)["content-security-policy"]
    assert "https:" not in own, "away from the Hub there is no other host"


def test_the_page_is_opened_by_what_must_run_before_anything_is_fetched() -> None:
    async def story(path: str) -> tuple[bytes, str]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            page = HTMLResponse("<html><head><title>ä</title></head></html>")
            await page(scope, receive, send)

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        doorway = Doorway(app, presence=Presence(), headers={}, opening="<script>ö</script>")
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        await doorway(scope, None, send)
        headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return b"".join(m.get("body", b"") for m in sent[1:]), headers["content-length"]

    page, length = tell(story("/"))
    assert page.decode().startswith("<html><head><script>ö</script><title>")
    assert int(length) == len(page)
    assert "script" not in tell(story("/other"))[0].decode()


@pytest.mark.parametrize(
    ("path", "query", "client"),
    [
        ("/gradio_api/heartbeat/abc", "", "abc"),
        ("/gradio_api/queue/data", "session_hash=abc", "abc"),
        ("/prefix/gradio_api/call/sweep/e1", "", "e1"),
        ("/gradio_api/call/v2/sweep/e1", "", "e1"),
        ("/prefix/ram/here/0123456789abcdef", "", "0123456789abcdef"),
        ("/ram/page.js", "", None),
        ("/gradio_api/queue/data", "", None),
        ("/gradio_api/queue/join", "session_hash=abc", None),
    ],
)
def test_streams_belong_to_clients(path: str, query: str, client: str | None) -> None:
    assert stream_client(path, query) == client


def test_a_client_is_there_while_a_stream_is_open() -> None:
    presence, seen = Presence(clock=lambda: 7.0), []
    assert presence.gone_since("abc") == 0.0, "was never there"
    ask("/gradio_api/heartbeat/abc", method="GET", presence=presence, seen=seen)
    assert seen == [1]
    assert presence.gone_since("abc") == 7.0
    presence.arrive("abc"), presence.arrive("abc"), presence.leave("abc")
    assert presence.gone_since("abc") is None, "one of two streams is still open"
