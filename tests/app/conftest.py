"""The real app in a process of its own, and a real browser; both once for the whole run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from visitor import free_port

from ram_studio.resources import asset_path

ROOT = Path(__file__).resolve().parents[2]
# A Hub of its own on this machine.
sys.path.append(str(ROOT / "tests" / "checkpoints"))
START_SECONDS = 280.0
WAIT_MS = 120_000
"""How long anything in a page may take before a test gives up: machines differ, and are busy."""
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextlib.contextmanager
def running_app(folder: Path, *flags: str, **more: str) -> Iterator[str]:
    """Run ``python app.py`` on a free port, with flags and more environment; yield its address."""
    port = free_port()
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        **more,
    }
    log = folder / "app.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "app.py"), "--port", str(port), *flags],
            env=environment,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(url, timeout=30):
                    break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"The app did not start:\n{log.read_text()}")
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """One's own machine, with a user folder of its own."""
    from ram_studio.app.settings import Settings
    from ram_studio.app.workspace import Workspace

    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    made = Workspace(Settings(work_dir=tmp_path / "work"))
    yield made
    made.close()


@pytest.fixture
def session(workspace: object) -> object:
    """A visitor who uses the example."""
    from ram_studio.app.load.examples import load_example

    visitor = workspace.session("tab")  # type: ignore[attr-defined]
    visitor.load(load_example("1"))
    return visitor


@pytest.fixture(scope="session")
def run_app() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Return what runs the app in a process of its own, for tests that need one of their own."""
    return running_app


@pytest.fixture(scope="session")
def app_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the app on one's own machine; it leaves no session folder behind."""
    folder = tmp_path_factory.mktemp("app")
    with running_app(folder) as url:
        yield url
    (work_dir,) = folder.glob("ram-studio*")
    assert list(work_dir.glob("app-*")) == []


@pytest.fixture(scope="session")
def space_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the app as it runs on a public Space."""
    with running_app(tmp_path_factory.mktemp("space"), SPACE_ID="owner/ram-studio") as url:
        yield url


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[object]:
    """Return a headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=chromium_path, args=BROWSER_FLAGS)
        yield instance
        instance.close()


@pytest.fixture(scope="session")
def page(browser: object) -> Iterator[object]:
    """A page with the app's modules and nothing of Gradio, served from assets/ by the test."""
    page = browser.new_page()  # type: ignore[attr-defined]
    where = "http://modules.test"
    page.route(
        f"{where}/**/*.js",
        lambda route: route.fulfill(path=asset_path(route.request.url.removeprefix(where + "/"))),
    )
    page.route(f"{where}/", lambda route: route.fulfill(content_type="text/html", body="<html>"))
    page.goto(f"{where}/")
    page.evaluate("() => import('./page.js').then(() => true)")
    yield page
    page.close()


# What is queued in a page is done before it is idle, however long that takes.
_IDLE = "() => new Promise((done) => setTimeout(() => requestIdleCallback(() => done()), 100))"


class Visit:
    """A page with everything it said and asked for, so that a test can require silence."""

    def __init__(self, browser: object, url: str, size: tuple[int, int], **context: object) -> None:
        self.url = url
        self.context = browser.new_context(  # type: ignore[attr-defined]
            viewport={"width": size[0], "height": size[1]}, **context
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._under_way: list[object] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("requestfinished", self._answered)
        self.page.on("requestfailed", self._answered)

    def _console(self, message: object) -> None:
        if message.type == "error":  # type: ignore[attr-defined]
            self.complaints.append(message.text)  # type: ignore[attr-defined]

    def _asked(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        self.requests.append(url)
        if url.startswith("http") and "/heartbeat/" not in url:
            self._under_way.append(request)

    def _answered(self, request: object) -> None:
        with contextlib.suppress(ValueError):
            self._under_way.remove(request)

    def settle(self) -> None:
        """Return once the page waits for no answer and has nothing left to draw.

        Not while a job runs: its news are an answer that is under way.
        """
        asked = -1
        while self._under_way or asked != len(self.requests):
            asked = len(self.requests)
            self.page.evaluate(_IDLE)

    def open(self, query: str = "") -> None:
        """Open the app and wait until its first answer came."""
        self.page.goto(self.url + query)
        self.page.wait_for_selector("#to-load[aria-current=step], #to-tune[aria-current=step]")

    def use_example(self) -> None:
        """Press the big button and wait for the canvas."""
        self.page.click("#use-example")
        self.page.wait_for_selector("[data-agent]", state="visible")

    def choose(self, box: str, option: str) -> None:
        """Choose an option of a drop-down list, again if the list closed under the click."""
        field = self.page.locator(f"{box} input").first
        while option not in field.input_value():
            field.blur()
            self.settle()
            field.click()
            self.page.click(f"[role=option]:has-text('{option}')")
            self.settle()

    def stop(self, button: str, status: str, after: str = "body") -> None:
        """Press a Stop as soon as it and what is waited for are there, until it is said."""
        # In one step of the page: work may end, and news take the button away, between two.
        self.page.wait_for_function(
            "([button, after]) => { const found = document.querySelector(button);"
            " if (!found || !document.querySelector(after)) return false;"
            " found.click(); return true; }",
            arg=[button, after],
        )
        self.page.wait_for_selector(f"{status}:has-text('Stopped')")

    def cards(self) -> dict[str, dict[str, str]]:
        """Return the numbers of each agent's row, its data attributes."""
        return self.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('[data-agent]')]"
            ".map(e => [e.dataset.agent, {...e.dataset}]))"
        )

    def check_silence(self) -> None:
        """Fail on console errors and on requests that left this machine."""
        assert self.complaints == []
        foreign = [
            url
            for url in self.requests
            if not url.startswith((self.url.rstrip("/"), "data:", "blob:"))
        ]
        assert foreign == []


@pytest.fixture
def visit(browser: object, app_url: str) -> Iterator[object]:
    """Return a function that opens visits; each is closed, and must have been silent."""
    visits: list[Visit] = []

    def make(size: tuple[int, int] = (1280, 800), **context: object) -> Visit:
        visits.append(Visit(browser, app_url, size, **context))
        return visits[-1]

    yield make
    for one in visits:
        one.context.close()
        one.check_silence()
