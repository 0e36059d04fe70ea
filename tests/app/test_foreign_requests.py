"""The running app against foreign pages and hostile uploads, over HTTP and in a real Chromium."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from visits import WAIT_MS

SPACE, FOREIGN = "space.localhost", "foreign.localhost"
"""Two websites for a browser, which are both this machine."""

EVIL = "<script>localStorage.setItem('ran', document.domain)</script>"
NAMED = 'Content-Disposition: form-data; name="files"'
SPELLINGS = [
    f'{NAMED}; filename="evil.html"',
    f'{NAMED}; filename="a.yaml"; filename ="evil.html"',
    f'{NAMED}; filename="a.yaml"; filename= "evil.html"',
    f'{NAMED}; filename="a.yaml"; FILENAME="evil.html"',
    f'{NAMED}; filename="a.yaml"; FileName=evil.html',
    f'{NAMED}; filename="a.yaml"; filename="evil.html"',
    f'{NAMED}; filename="a.yaml";filename\t="evil.html"',
    f'{NAMED}; x="filename=a.yaml"; FILENAME="evil.html"',
    f'{NAMED}; x="; filename=a.yaml"; filename ="evil.html"',
    f"{NAMED}; filename=evil.html; filename*=utf-8''a.yaml",
    f"{NAMED}; filename*=utf-8''a.yaml; FILENAME=evil.html",
    f"{NAMED}; filename*=utf-8''evil.html",
    f'{NAMED}; filename="evil.html\\"; filename=a.yaml"',
    f'{NAMED}; filename="a.yaml\\"; FILENAME=evil.html"',
    f'{NAMED}; filename="evil.html;.yaml"',
    f'{NAMED}; filename="evil.html/a.yaml"',
    f'{NAMED}; filename="a.yaml/../evil.html"',
    f'{NAMED}; filename="evil.svg"',
    f"{NAMED}; filename=evil.xhtml;",
    'content-DISPOSITION:form-data;name=files;FILENAME=evil.html;x="filename=a.yaml"',
]
"""Heads of a part of a form, and ways to have two readers find two names in them."""


class Served(NamedTuple):
    """A public app of these tests: its address, and the folder it works in."""

    url: str
    folder: Path

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def log(self) -> str:
        return (self.folder / "app.log").read_text(encoding="utf-8")

    def stored(self) -> list[Path]:
        """Return all files of the app but its logs."""
        return [f for f in self.folder.rglob("*") if f.is_file() and f.suffix != ".log"]


@pytest.fixture(scope="module")
def served(space_url: str, space_folder: Path) -> Served:
    return Served(space_url, space_folder)


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    """Return the port of another website, an empty page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def form(*heads: str) -> str:
    """Return a form with a part for each head."""
    return "".join(f"--x\r\n{head}\r\n\r\n{EVIL}\r\n" for head in heads) + "--x--\r\n"


_UPLOAD = """async (bodies) => {
  const kind = { "content-type": "multipart/form-data; boundary=x" };
  for (const body of bodies) {
    await fetch("/gradio_api/upload", { method: "POST", headers: kind, body });
  }
}"""


@pytest.mark.browser
def test_no_spelling_of_a_name_stores_a_page_that_runs(served: Served, browser: Any) -> None:
    home, alone = f"http://{SPACE}:{served.port}/", [form(head) for head in SPELLINGS]
    beside = [form(SPELLINGS[0].replace("evil.html", "a.yaml"), head) for head in SPELLINGS]
    page = browser.new_page()
    page.goto(f"{home}ram/page.js")
    page.evaluate(_UPLOAD, alone + beside)
    stored = [file for file in served.stored() if file.name.startswith(("evil", "a.", "upload"))]
    for file in stored:
        # A download is what there is of it: the page that asked for it stays.
        with contextlib.suppress(Exception):
            page.goto(f"{home}gradio_api/file={file}")
    page.goto(f"{home}ram/page.js")
    assert page.evaluate("() => localStorage.getItem('ran')") is None
    page.close()
    assert {file.suffix for file in stored} == {".yaml"}
    assert stored, "names that end as a recipe's does are taken"


_ACT = """async ([app, merge]) => {
  const body = JSON.stringify(merge);
  const preview = JSON.stringify({ data: ["shared-style", 1e-5, "ram", 0, 0, null, "model"] });
  const signed = { credentials: "include" };
  const json = { ...signed, method: "POST", headers: { "content-type": "application/json" }, body };
  const plain = { ...signed, method: "POST", mode: "no-cors", body };
  const streamed = (path) => new Promise((done) => {
    const events = new EventSource(app + path, { withCredentials: true });
    events.onmessage = () => { events.close(); done("read"); };
    events.onerror = () => { events.close(); done("blocked"); };
  });
  const told = async (answer) => { const r = await answer; return r.ok ? "read" : "blocked"; };
  const drawn = (path) => new Promise((done) => {
    const image = new Image();
    image.onload = () => done("read");
    image.onerror = () => done("blocked");
    image.src = app + path;
  });
  const asked = {
    settings: () => told(fetch(`${app}config`, signed)),
    called: () => told(fetch(`${app}gradio_api/run/preview`, { ...json, body: preview })),
    joined: () => told(fetch(`${app}gradio_api/queue/join`, json)),
    plain: () => told(fetch(`${app}gradio_api/queue/join`, plain)),
    streamed: () => streamed("gradio_api/heartbeat/abc"),
    drawn: () => drawn("favicon.ico"),
  };
  const found = {};
  for (const [name, ask] of Object.entries(asked)) {
    found[name] = await ask().catch(() => "blocked");
  }
  return found;
}"""


@pytest.mark.browser
def test_a_foreign_page_reads_nothing_and_has_nothing_done(
    served: Served, browser: Any, foreign_port: int
) -> None:
    app = f"http://{SPACE}:{served.port}/"
    config = httpx.get(f"{served.url}config").json()
    (event,) = (e for e in config["dependencies"] if e["api_name"] == "merge")
    call = {"data": ["shared-style", "ram"], "fn_index": event["id"], "session_hash": "foreign"}
    kinds = {"plain": "blocked"}  # it has no type that is taken, wherever it comes from
    for home, expected in ((f"{app}ram/page.js", "read"), (_foreign(foreign_port), "blocked")):
        page, statuses = browser.new_page(), []
        page.goto(home)
        page.on("response", lambda answer, seen=statuses: seen.append(answer.status))
        found = page.evaluate(_ACT, [app, call])
        assert found == {**dict.fromkeys(found, expected), **kinds}
        if expected == "blocked":
            assert set(statuses) == {403}, "and nothing was done"
        page.close()


@pytest.mark.browser
def test_a_foreign_form_and_a_frame_are_refused(
    served: Served, browser: Any, foreign_port: int
) -> None:
    app = f"http://{SPACE}:{served.port}/"
    page = browser.new_page()
    page.goto(_foreign(foreign_port))
    page.set_content(f"<form method=post action={app}gradio_api/queue/join><button>x</form>")
    with page.expect_response(f"{app}**") as answer:
        page.click("button")
    assert answer.value.status == 403
    page.goto(_foreign(foreign_port))
    page.set_content(f"<a href='{app}?example=1'>x</a>")
    with page.expect_response(f"{app}?example=1") as answer:
        page.click("a")
    assert answer.value.status == 200, "a link to the app opens it"
    page.close()


def _foreign(port: int) -> str:
    return f"http://{FOREIGN}:{port}/"


@pytest.mark.browser
@pytest.mark.slow
def test_the_app_works_in_the_hubs_frame(served: Served, browser: Any) -> None:
    # What the Hub lets a Space do.
    rights = "allow-scripts allow-same-origin allow-forms allow-downloads allow-popups"
    frame = f"<iframe sandbox='{rights}' src=http://{SPACE}:{served.port}/>"
    # That page is none of this machine's, so a browser asks before it shows one that is.
    context, statuses = browser.new_context(permissions=["local-network-access"]), []
    page = context.new_page()
    page.on("response", lambda answer: statuses.append(answer.status))
    page.route(
        "https://huggingface.co/**",
        lambda route: route.fulfill(content_type="text/html", body=frame),
    )
    page.goto("https://huggingface.co/spaces/owner/ram-studio")
    app = page.frame_locator("iframe")
    app.locator("[data-opens=shared-style]").first.click(timeout=WAIT_MS)
    app.locator("[data-agent]").first.wait_for(timeout=WAIT_MS)
    assert 403 not in statuses
    context.close()


def test_preflights_are_refused_and_answered_as_all_else(served: Served) -> None:
    host = "owner-ram-studio.hf.space"
    wanted = {"access-control-request-method": "POST", "host": host}
    for origin, status in ((f"http://{FOREIGN}", 403), ("null", 403), (f"https://{host}", 200)):
        headers = {**wanted, "origin": origin}
        answer = httpx.options(f"{served.url}gradio_api/queue/join", headers=headers)
        assert answer.status_code == status
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors" in answer.headers["content-security-policy"]
        assert ("access-control-allow-origin" in answer.headers) == (status == 200)


def _upload_event(served: Served, element: str) -> dict[str, Any]:
    """Return a call of what runs when a file was chosen for a button."""
    config = httpx.get(f"{served.url}config").json()
    (own,) = (c["id"] for c in config["components"] if c["props"].get("elem_id") == element)
    event = next(e for e in config["dependencies"] if [own, "upload"] in e["targets"])
    return {"fn_index": event["id"], "session_hash": "abcdefghijk"}


def test_an_upload_is_known_by_a_name_that_tells_no_place(served: Served) -> None:
    files = {"files": ("my.safetensors", b"not a profile")}
    answer = httpx.post(f"{served.url}gradio_api/upload", files=files)
    (name,) = answer.json()
    assert name.startswith("upload:")
    assert name.endswith("/my.safetensors")
    assert str(served.folder) not in answer.text
    file = {"path": name, "orig_name": "my.safetensors", "meta": {"_type": "gradio.FileData"}}
    call = _upload_event(served, "upload-analysis")
    for home in (served.url, "https://owner-ram-studio.hf.space/"):
        data = {**call, "data": [{**file, "url": f"{home}gradio_api/file={name}"}]}
        told = httpx.post(f"{served.url}gradio_api/run/predict", json=data, timeout=60)
        assert "my.safetensors" in told.json()["data"][0], "it was read, and is not a profile"
    assert httpx.get(f"{served.url}gradio_api/file={name}").status_code == 403


def test_a_url_in_the_place_of_a_file_is_not_fetched(served: Served) -> None:
    call = _upload_event(served, "upload-analysis")
    url = "https://example.org/huge.safetensors"
    for named in ({"path": url}, {"path": "a.safetensors", "url": url}):
        data = {**call, "data": [{**named, "meta": {"_type": "gradio.FileData"}}]}
        for route in ("run/predict", "queue/join", "call/analyze"):
            answer = httpx.post(f"{served.url}gradio_api/{route}", json=data)
            assert answer.status_code == 400
            assert "upload the file" in answer.text
    for path in (f"file={url}", f"file/{url}", f"file=%20{url}", "proxy=https://o-s.hf.space/x"):
        assert httpx.get(f"{served.url}gradio_api/{path}").status_code in (403, 404)


def test_every_file_of_gradio_is_an_attachment(served: Served) -> None:
    httpx.post(f"{served.url}gradio_api/upload", files={"files": ("my.yaml", EVIL.encode())})
    (file,) = (f for f in served.stored() if f.read_bytes() == EVIL.encode() and f.stem == "my")
    path = f"{served.url}gradio_api/file={file}"
    for asked, status in ((path, 200), (f"{path}x", 403), (path.replace("file=", "file/"), 200)):
        for method in ("GET", "HEAD"):
            # A range would be answered with the request's own headers.
            own = {"range": "bytes=0-3", "content-security-policy": "none"}
            answer = httpx.request(method, asked.replace("file//", "file/%2f"), headers=own)
            assert answer.headers["content-disposition"].startswith("attachment")
            assert answer.headers["content-security-policy"] == "sandbox"
            assert method == "HEAD" or answer.status_code == status


def test_what_is_refused_writes_a_line_and_no_traceback(served: Served) -> None:
    before, chunks = served.log, [b"x" * 100_000] * 11

    def endless() -> Iterator[bytes]:
        yield from chunks

    with contextlib.suppress(httpx.HTTPError):
        httpx.request("GET", served.url, content=endless())
    asked = [
        ("GET", "openapi.json", None),
        ("GET", "gradio_api/openapi.json", None),
        ("GET", f"static/{'a' * 5000}", None),
        ("POST", "gradio_api/queue/join", "not json"),
        ("POST", "gradio_api/upload", "not a form"),
        ("POST", "gradio_api/call/nothing", '{"data": []}'),
        ("POST", "gradio_api/queue/join", '{"data": [], "fn_index": 99999, "session_hash": "a"}'),
    ]
    for method, path, body in asked:
        kind = {"content-type": "application/json"}
        answer = httpx.request(method, served.url + path, content=body, headers=kind)
        assert answer.status_code >= 400
        assert answer.headers["x-content-type-options"] == "nosniff"
    every = served.log.removeprefix(before).splitlines()
    # What Gradio says when the app has started may still follow.
    written = [line for line in every if not line.startswith("* ")]
    assert len(written) == 1 + len(asked)
    for line in written:
        assert line.startswith(("Refused", "Failed"))


def test_values_that_fit_no_event_write_no_traceback(served: Served) -> None:
    before = served.log
    config = httpx.get(f"{served.url}config").json()
    values: list[Any] = [{"path": 1}, {"x": [None]}, ["a", {}], "x", -1e309, None]
    hostile = [json.dumps([value] * 40) for value in values] + ["[]"]
    told = ("null", '{"index": {}, "value": []}', '{"_data": 1}')
    for number, event in enumerate(config["dependencies"]):
        body = (
            f'{{"data": {hostile[number % len(hostile)]}, "fn_index": {event["id"]},'
            f' "session_hash": "hostile", "event_data": {told[number % len(told)]}}}'
        )
        kind = {"content-type": "application/json"}
        httpx.post(f"{served.url}gradio_api/run/predict", content=body, headers=kind)
    written = served.log.removeprefix(before)
    assert "Traceback" not in written, written[:3000]
