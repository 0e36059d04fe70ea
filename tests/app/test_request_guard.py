"""The request guard: hosts and origins, sizes, uploads, shut doors, headers, and who is there."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from ram_studio.app.landing.document import Document
from ram_studio.app.public.allowed_hosts import AllowedHosts
from ram_studio.app.public.heartbeat import Heartbeats, stream_client
from ram_studio.app.public.request_guard import RequestGuard, security_headers
from ram_studio.app.settings import Settings

HEADERS = security_headers(is_space=True)
PRIVATE, SPACE, LAN = Settings(), Settings(is_space=True), Settings(host="0.0.0.0")
UPLOADS = Path("/uploads")
JOIN = "/gradio_api/queue/join"


async def echo(request: Request) -> Response:
    """Answer with what was read."""
    return Response(await request.body())


def client(handler: Any = echo, heartbeats: Heartbeats | None = None, **options: Any) -> TestClient:
    """Return who is before a guard, with an app behind it."""
    options = {"hosts": AllowedHosts(SPACE), "uploads": UPLOADS, "is_public": True, **options}
    options |= {"heartbeats": heartbeats or Heartbeats(), "headers": HEADERS}
    routes = [Route("/{path:path}", handler, methods=["GET", "POST"])]
    guard = Middleware(RequestGuard, **options)
    return TestClient(Starlette(routes=routes, middleware=[guard]), raise_server_exceptions=False)


def post(path: str, content: bytes | Iterator[bytes] = b"", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client().post(path, content=content, headers=named)


def pieces(size: int) -> Iterator[bytes]:
    """Yield a body that does not say how long it is."""
    for _ in range(size // 50_000):
        yield b"x" * 50_000


def form(name: str, content: bytes) -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--x--\r\n"


async def keep(request: Request) -> Response:
    """Answer an upload as Gradio does: with where it lies."""
    async with request.form() as parts:
        ((field, file),) = parts.multi_items()
        assert field == "files"
        return Response(json.dumps([f"/uploads/{'0' * 64}/{file.filename}"]))


def upload(body: bytes, kind: str = "multipart/form-data; boundary=x") -> httpx.Response:
    return client(keep).post("/gradio_api/upload", content=body, headers={"content-type": kind})


def test_large_bodies_are_refused_whether_they_say_so_or_not() -> None:
    for content, says in ((pieces(150_000), ""), (b"x" * 10, "100001"), (b"", "-1")):
        said = {"content_length": says} if says else {}
        assert post(JOIN, content, **said).status_code == 413
    assert post(JOIN, b'{"a": "' + b"x" * 90_000 + b'"}').status_code == 200


def test_bodies_of_many_values_are_refused_not_of_many_commas() -> None:
    many = {"list": "[" + "0," * 5_000 + "0]", "lists": "[[]" + ",[[]]" * 2_000 + "]"}
    many["objects"] = "[" + '{"a":"x"},' * 3_000 + "{}]"
    many["after a quote"] = '["\\\\",' + "0," * 5_000 + "0]"
    for kind, body in many.items():
        assert post(JOIN, body.encode()).status_code == 413, kind
    commas = {"a": ["," * 20_000, '[{"' * 5_000, '\\",' * 5_000]}
    assert post(JOIN, json.dumps(commas).encode()).status_code == 200


@pytest.mark.parametrize(
    ("name", "size", "status"),
    [
        ("recipe.yaml", 60_000, 200),
        ("RECIPE.YML", 10, 200),
        ("recipe.json", 10, 200),
        ("recipe.yaml", 70_000, 413),
        ("profile.safetensors", 70_000, 200),
        ("profile.safetensors", 4_100_000, 413),
        ("page.html", 10, 415),
        ("a.yaml.exe", 10, 415),
        (".yaml", 10, 415),
        ("", 10, 415),
    ],
)
def test_uploads_are_recipes_and_profiles(name: str, size: int, status: int) -> None:
    answer = upload(form(name, b"r" * size))
    assert answer.status_code == status
    if status == 200:
        assert answer.json() == [f"upload:{'0' * 64}/{name[:-4]}{name[-4:].lower()}"]


@pytest.mark.parametrize(
    ("spelled", "kept"),
    [
        ("a b (2).yaml", "a b (2).yaml"),
        ("../../etc/a.yaml", "a.yaml"),
        ("C:\\\\x\\\\a.yaml", "a.yaml"),
        ("<img src=x>.yaml", "_img src_x_.yaml"),
        ('a\\".html;.yaml', "a_.html_.yaml"),
        ("ü.yaml", "ü.yaml"),
        ("x" * 300 + ".yaml", "x" * 60 + ".yaml"),
    ],
)
def test_names_of_uploads_are_made_safe(spelled: str, kept: str) -> None:
    assert upload(form(spelled, b"")).json()[0].split("/")[1] == kept


def test_an_upload_is_one_file_and_nothing_else() -> None:
    one = form("a.yaml", b"r")
    field = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'
    assert upload(one).status_code == 200
    for body in (one.replace(b"--x--", b"--x") + one, field + one, b"", b"--x--\r\n", one[20:]):
        assert upload(body).status_code in (400, 415)
    for kind in ("multipart/form-data", "application/json", ""):
        assert upload(one, kind).status_code in (400, 415)


FILE = {"meta": {"_type": "gradio.FileData"}, "orig_name": "a.yaml"}


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"path": "https://example.org/a.yaml"}, 400),
        ({"path": "HTTP://169.254.169.254/"}, 400),
        ({"path": "a.yaml", "url": "http://example.org/a.yaml"}, 400),
        ({"path": "a.yaml", "url": "https://testserver.example.org/gradio_api/file=a.yaml"}, 400),
        ({"path": "a.yaml", "url": "http://testserver@example.org/"}, 400),
        ({"path": "/uploads/b/a.csv", "url": "http://testserver/gradio_api/file=a.csv"}, 200),
        ({"path": "/uploads/b/a.csv", "url": None}, 200),
        ({"path": "a.yaml"}, 400),
        ({"path": "../uploads/a.yaml"}, 400),
        ({"path": "/etc/passwd"}, 400),
        ({"path": "/uploads/../etc/passwd"}, 400),
        ({"path": "/uploads/b/a.csv"}, 200),
        ({"path": f"upload:{'0' * 64}/gone.yaml"}, 400),
        ({"path": f"upload:{'0' * 64}/.."}, 400),
        ({"path": f"upload:{'0' * 64}/{'x' * 300}"}, 400),
        ({"path": f"upload:{'0' * 64}/\udcff"}, 400),
    ],
)
def test_files_in_json_are_what_was_uploaded(said: dict[str, Any], status: int) -> None:
    for data in (
        [{**FILE, **said}],
        [[{"deep": {**FILE, **said}}]],
        {"path": "x", "of": [{**FILE, **said}]},
    ):
        body = json.dumps({"data": data}).encode()
        for content in (body, b" " * 30_000 + body):
            answer = post(JOIN, content)
            assert answer.status_code == status
            assert status != 200 or answer.content == content


def test_only_files_are_checked_as_files() -> None:
    agents = {"data": ["base", {"path": "owner/agent", "url": "owner/other"}]}
    assert post(JOIN, json.dumps(agents).encode()).status_code == 200
    at_home = {"data": ["base", {"path": "/models/agent"}]}
    for is_public, status in ((True, 400), (False, 200)):
        answer = client(is_public=is_public).post(JOIN, json=at_home)
        assert answer.status_code == status


def test_an_upload_is_found_again_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / ("0" * 64) / "a.yaml"
    file.parent.mkdir()
    file.touch()
    data = {"data": [{**FILE, "path": f"upload:{'0' * 64}/a.yaml"}], "x": float("inf")}
    answer = client(uploads=tmp_path).post(JOIN, content=json.dumps(data))
    assert json.loads(answer.content) == {**data, "data": [{**FILE, "path": str(file)}]}


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff\xfe\xfd", b"[" * 4_000, b"1" * 5_000, b"[{}]", b"null", "{}".encode("utf-16")],
    ids=["open", "bytes", "deep", "number", "list", "null", "utf-16"],
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    assert post(JOIN, body).status_code == 400


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


def test_the_list_of_routes_is_shown_on_ones_own_machine_alone() -> None:
    for path in ("/openapi.json", "/gradio_api/openapi.json", "/gradio_api/openapi.json%0a"):
        assert client().get(path).status_code == 404
        assert client(is_public=False).get(path).status_code == 200


def test_every_answer_has_the_headers() -> None:
    async def fault(request: Request) -> Response:
        raise KeyError("x")

    refused = client().get("/", headers={"origin": "http://example.org"})
    failed = client(fault).get("/")
    assert (refused.status_code, failed.status_code) == (403, 500)
    for answer in (post("/"), post("/gradio_api/proxy=x"), upload(b""), refused, failed):
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'self' https://huggingface.co https://*.hf.space" in policy
        assert "object-src 'none'" in policy
        assert "googleapis" not in policy
    own = security_headers(is_space=False)["content-security-policy"]
    assert "https:" not in own, "away from the Hub there is no other host"


@pytest.mark.parametrize("path", ["file=/a.html", "file/a.html", "file=/missing"])
def test_files_are_saved_and_never_shown(path: str) -> None:
    async def page(request: Request) -> Response:
        asked = {"content-disposition": 'inline; filename="a.html"', "x-range": ""}
        asked["x-range"] = request.headers.get("range", "none")
        status = 404 if "missing" in path else 200
        return HTMLResponse("<script>", status_code=status, headers=asked)

    answer = client(page).get(f"/gradio_api/{path}", headers={"range": "bytes=0-1"})
    assert answer.headers["content-disposition"] == 'attachment; filename="a.html"'
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["x-range"] == "none"


def test_a_refusal_or_a_failure_writes_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def fault(request: Request) -> Response:
        raise KeyError("x\n" * 1000)

    with caplog.at_level(logging.WARNING):
        client().get("/gradio_api/proxy=a%0ab")
        client(fault).get("/")
        client().get("/", headers={"origin": "http://example.org"})
    assert len(caplog.records) == 3
    formatter = logging.Formatter()
    for record in caplog.records:
        assert re.fullmatch("(Refused|Failed) GET [^\n]{1,600}", formatter.format(record))


def test_the_page_opens_with_what_must_run_first() -> None:
    async def page(request: Request) -> Response:
        return HTMLResponse("<html><head><meta name='ä'></head></html>")

    added = {"opening": "<script>ö</script>", "first_view": "", "tags": lambda request: ""}
    opening = Middleware(Document, **added)
    routes = [Route("/{path:path}", page)]
    user = TestClient(Starlette(routes=routes, middleware=[opening]))
    answer = user.get("/")
    assert answer.text.startswith("<html><head><script>ö</script><meta name='ä'>")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "script" not in user.get("/other").text


def test_the_page_is_made_once_an_address_and_titled_a_request() -> None:
    made: list[str] = []

    async def page(request: Request) -> Response:
        made.append(request.headers["host"])
        if "fails" in request.headers:
            return PlainTextResponse("no", status_code=500)
        text = f"<html><head><title>x</title></head><body>{made[-1]}</body></html>"
        cookie = {"set-cookie": "one=1"} if "personal" in request.headers else {}
        return HTMLResponse(text, headers=cookie)

    def tags(request: Request) -> str:
        return f"<title>{request.query_params.get('set', '')}</title>"

    opening = Middleware(Document, opening="", first_view="<p>first</p>", tags=tags)
    user = TestClient(Starlette(routes=[Route("/", page)], middleware=[opening]))
    for name in ("a", "b"):
        text = user.get("/", params={"set": name}).text
        assert text == (
            f"<html><head><title>{name}</title></head><body><p>first</p>testserver</body></html>"
        )
    assert made == ["testserver"]
    assert "other.test" in user.get("/", headers={"host": "other.test"}).text
    user.get("/", headers={"x-forwarded-host": "proxy.test"})
    user.get("/", params={"deep_link": "x"})
    assert len(made) == 4
    # What is one user's is not kept; what is not a page goes through.
    for _ in range(2):
        user.get("/", headers={"host": "fourth.test", "personal": "1"})
    assert len(made) == 6
    failed = user.get("/", headers={"host": "third.test", "fails": "1"})
    assert (failed.status_code, failed.text) == (500, "no")
    assert user.get("/", headers={"host": "third.test"}).status_code == 200
    for number in range(9):
        user.get("/", headers={"host": f"h{number}.test"})
    before = len(made)
    user.get("/", headers={"host": "h0.test"})
    assert len(made) == before + 1, "few are kept"


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
    heartbeats, seen = Heartbeats(clock=lambda: 7.0), []

    async def stream(request: Request) -> Response:
        seen.append(heartbeats.closed_since("abc"))
        return Response()

    assert heartbeats.closed_since("abc") == -math.inf, "was never there"
    client(stream, heartbeats).get("/gradio_api/heartbeat/abc")
    assert seen == [None]
    assert heartbeats.closed_since("abc") == 7.0
    heartbeats.arrive("abc"), heartbeats.arrive("abc"), heartbeats.leave("abc")
    assert heartbeats.closed_since("abc") is None, "one of two streams is still open"


OWN = "127.0.0.1:7860"
PROXIED = Settings(allowed_hosts=("hub.example.org:8443",))
CUSTOM = Settings(is_space=True, allowed_hosts=("o-s.hf.space", "ram.example.org"))
NAMED = Settings(host="Class.Example.org")


@pytest.mark.parametrize(
    ("settings", "host", "is_allowed"),
    [
        (PRIVATE, OWN, True),
        (PRIVATE, "LocalHost", True),
        (PRIVATE, "[::1]:1", True),
        (PRIVATE, "[0:0:0:0:0:0:0:1]:7860", True),
        (PRIVATE, "evil.example.org:7860", False),
        (PRIVATE, "localhost.evil.example.org", False),
        (PRIVATE, "localhost.", False),
        (PRIVATE, "localhost@evil.example.org", False),
        (PRIVATE, "localhost:7860, evil.example.org", False),
        (PRIVATE, "0.0.0.0:7860", False),
        (PRIVATE, "192.168.1.5:7860", False),
        (PRIVATE, "127.1:7860", False),
        (PRIVATE, "[::1%25eth0]:7860", False),
        (PRIVATE, "[::1", False),
        (PRIVATE, "", False),
        (PROXIED, "hub.example.org:8443", True),
        (PROXIED, "hub.example.org", True),
        (PROXIED, "other.example.org:8443", False),
        (NAMED, "class.example.org:7860", True),
        (NAMED, "10.0.0.1", True),
        (NAMED, "evil.example.org", False),
        (LAN, "192.168.1.5:7860", True),
        (LAN, "[fe80::1]:7860", True),
        (LAN, "[fe80::1%25eth0]:7860", False),
        (LAN, "localhost:7860", True),
        (LAN, "evil.example.org", False),
        (LAN, "192.168.1.5.evil.example.org", False),
        (SPACE, "10.1.2.3:7860", True),
        (SPACE, "whatever the Hub calls it", True),
    ],
)
def test_only_own_hosts_are_answered(settings: Settings, host: str, is_allowed: bool) -> None:
    answer = client(hosts=AllowedHosts(settings)).get("/", headers={"host": host})
    assert answer.status_code == (200 if is_allowed else 403)


@pytest.mark.parametrize(
    ("settings", "host", "origin", "is_allowed"),
    [
        (PRIVATE, OWN, f"http://{OWN}", True),
        (PRIVATE, OWN, f"HTTP://{OWN}", True),
        (PRIVATE, "localhost", "http://localhost", True),
        (PRIVATE, "localhost:80", "http://localhost", True),
        (PRIVATE, "[::1]:7860", "http://[::1]:7860", True),
        (PRIVATE, OWN, "http://localhost:7860", False),
        (PRIVATE, OWN, "http://127.0.0.1:3000", False),
        (PRIVATE, OWN, "http://127.0.0.1", False),
        (PRIVATE, OWN, "http://evil.example.org", False),
        (PRIVATE, OWN, f"http://{OWN}.evil.example.org", False),
        (PRIVATE, OWN, f"http://{OWN}@evil.example.org", False),
        (PRIVATE, OWN, f"http://evil.example.org@{OWN}", False),
        (PRIVATE, OWN, f"http://{OWN}/", False),
        (PRIVATE, OWN, f"http://{OWN} http://evil.example.org", False),
        (PRIVATE, OWN, f"http://{OWN}, http://evil.example.org", False),
        (PRIVATE, OWN, f"ftp://{OWN}", False),
        (PRIVATE, OWN, f"file://{OWN}", False),
        (PRIVATE, OWN, OWN, False),
        (PRIVATE, OWN, "null", False),
        (PRIVATE, OWN, "", False),
        (PRIVATE, "[::1]:7860", "http://[::1%25eth0]:7860", False),
        (PROXIED, OWN, "https://hub.example.org:8443", True),
        (PROXIED, OWN, "https://hub.example.org", False),
        (CUSTOM, "o-s.hf.space", "https://o-s.hf.space", True),
        (CUSTOM, "10.1.2.3:7860", "https://o-s.hf.space", True),
        (CUSTOM, "10.1.2.3:7860", "https://ram.example.org", True),
        (CUSTOM, "10.1.2.3:7860", "https://o-s.hf.space.", False),
        (CUSTOM, "o-s.hf.space", "https://other.hf.space", False),
        (CUSTOM, "o-s.hf.space", "https://huggingface.co", False),
        (CUSTOM, "o-s.hf.space", "http://o-s.hf.space:8000", False),
        (CUSTOM, "", "https://evil.example.org", False),
    ],
)
def test_only_the_apps_own_page_may_ask(
    settings: Settings, host: str, origin: str, is_allowed: bool
) -> None:
    user = client(hosts=AllowedHosts(settings))
    headers = {"host": host, "origin": origin}
    for method, more in (("POST", {}), ("OPTIONS", {"access-control-request-method": "POST"})):
        answer = user.request(method, JOIN, headers={**headers, **more})
        assert (answer.status_code != 403) == is_allowed
    twice = user.get("/", headers=[*headers.items(), ("origin", f"http://{OWN}")])
    assert twice.status_code == 403, "one page asks"


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_the_app_is_linked_to_and_not_embedded(site: str, mode: str, status: int) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
    assert client().get("/logout", headers=headers).status_code == status


def test_web_sockets_are_closed() -> None:
    with pytest.raises(WebSocketDisconnect), client().websocket_connect("/"):
        pass
