"""The middleware before Gradio: sizes, uploads, shut doors, headers, and who is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from ram_studio.app.public.doorway import Doorway, security_headers
from ram_studio.app.public.presence import Presence, stream_client

HEADERS = security_headers(is_space=True)


def client(handler: Any = None, presence: Presence | None = None, **options: Any) -> TestClient:
    """Return who comes through a doorway, to an app that answers with what it read."""

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    options = {"presence": presence or Presence(), "headers": HEADERS, **options}
    routes = [Route("/{path:path}", handler or echo, methods=["GET", "POST"])]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(Doorway, **options)]))


def post(path: str, content: bytes | Iterator[bytes] = b"", says: str = "") -> httpx.Response:
    headers = {"content-length": says} if says else {}
    return client().post(path, content=content, headers=headers)


def pieces(size: int) -> Iterator[bytes]:
    """Yield a body that does not say how long it is."""
    for _ in range(size // 50_000):
        yield b"x" * 50_000


def form(name: str, content: bytes) -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--x--\r\n"


def test_large_bodies_are_refused_whether_they_say_so_or_not() -> None:
    join = "/gradio_api/queue/join"
    for content, says in ((pieces(17_000_000), ""), (b"x" * 10, "17000000"), (b"", "-1")):
        assert post(join, content, says).status_code == 413
    assert post(join, b"x" * 15_000_000).status_code == 200


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
    answer = post("/gradio_api/upload", body)
    assert answer.status_code == status
    if status == 200:
        assert answer.content == body, "read ahead, and handed on whole"
    several = post("/gradio_api/upload", form("a.yaml", b"") + form("b.html", b""))
    assert several.status_code == 415


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
    assert post(path).status_code == 404


def test_every_answer_has_the_headers() -> None:
    answers = (post("/"), post("/gradio_api/proxy=x"), post("/gradio_api/upload", form("x", b"")))
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'self' https://huggingface.co https://*.hf.space" in policy
        assert "object-src 'none'" in policy
        assert "googleapis" not in policy
    own = security_headers(is_space=False)["content-security-policy"]
    assert "https:" not in own, "away from the Hub there is no other host"


def test_the_page_is_opened_by_what_must_run_before_anything_is_fetched() -> None:
    async def page(request: Request) -> Response:
        return HTMLResponse("<html><head><title>ä</title></head></html>")

    visitor = client(page, opening="<script>ö</script>")
    answer = visitor.get("/")
    assert answer.text.startswith("<html><head><script>ö</script><title>")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "script" not in visitor.get("/other").text


@pytest.mark.parametrize(
    ("path", "query", "whose"),
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
def test_streams_belong_to_clients(path: str, query: str, whose: str | None) -> None:
    assert stream_client(path, query) == whose


def test_a_client_is_there_while_a_stream_is_open() -> None:
    presence, seen = Presence(clock=lambda: 7.0), []

    async def stream(request: Request) -> Response:
        seen.append(presence.count)
        return Response()

    assert presence.gone_since("abc") == 0.0, "was never there"
    client(stream, presence).get("/gradio_api/heartbeat/abc")
    assert seen == [1]
    assert presence.gone_since("abc") == 7.0
    presence.arrive("abc"), presence.arrive("abc"), presence.leave("abc")
    assert presence.gone_since("abc") is None, "one of two streams is still open"
