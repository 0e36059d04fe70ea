"""The real app in a process of its own, and a real browser; both once for the whole run."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from app_parts import Clock, built, open_modules
from app_process import running_app
from http_user import HttpUser, tell
from loopback_hub import LoopbackHub, serving
from stage_page import mount_stage
from visits import Fault, Visit, find_faults

ROOT = Path(__file__).resolve().parents[2]
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def run_here(
    folder: Path, *flags: str, by: Sequence[str] = (), **more: str
) -> contextlib.AbstractContextManager[str]:
    """Run ``python app.py`` with a folder as its own, with flags and more environment.

    by: what Python runs to run it.
    """
    environment = {**os.environ, "TMPDIR": str(folder), "GRADIO_TEMP_DIR": str(folder / "gradio")}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **more}
    return running_app([sys.executable, *by, ROOT / "app.py", *flags], folder, environment)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """One's own machine, with a user folder of its own."""
    from ram_studio.app.session.workspace import Workspace
    from ram_studio.app.settings import Settings

    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    made = Workspace(Settings(work_dir=tmp_path / "work"))
    yield made
    made.close()


@pytest.fixture(params=[0.0, 1e9], ids=["just booted", "up for long"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return Clock(request.param)


@pytest.fixture
def session(workspace: object) -> object:
    """A user who uses the example."""
    from ram_studio.app.session.sets import load_set

    user = workspace.session("tab")
    user.load(load_set("shared-style"))
    return user


@pytest.fixture(scope="session")
def check_panel(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Check's panel by itself, of a workspace of its own; what it does is done to a test's user."""
    from ram_studio.app.check.panel import CheckPanel
    from ram_studio.app.session.workspace import Workspace
    from ram_studio.app.settings import Settings

    return built(CheckPanel, Workspace(Settings(work_dir=tmp_path_factory.mktemp("check"))))


@pytest.fixture(scope="session")
def run_app() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Return what runs the app in a process of its own, for tests that need one of their own."""
    return run_here


@pytest.fixture(scope="session")
def app_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the app on one's own machine; it leaves no session folder behind."""
    folder = tmp_path_factory.mktemp("app")
    with run_here(folder) as url:
        yield url
    (work_dir,) = folder.glob("ram-studio*")
    assert list(work_dir.glob("app-*")) == []


OWNER = "hf_of_the_owner"
SPACE_HOST = "owner-ram-studio.hf.space"
OAUTH = {
    "SYSTEM": "spaces",
    "SPACE_ID": "owner/ram-studio",
    "OAUTH_CLIENT_ID": "client",
    "OAUTH_CLIENT_SECRET": "secret of the Space",
    "OAUTH_SCOPES": "openid profile gated-repos contribute-repos",
    "OPENID_PROVIDER_URL": "the Hub's address",
}
"""What a Space has in its environment whose users can sign in."""


# A step of the event loop counts as long as its own thread computed: where jobs, or others, take
# the machine, the loop stands still through no fault of a request.
WATCHED = """
import asyncio, os, runpy, sys, time
from ram_studio import app

told = open("loop.log", "w", buffering=1)
print("PID", os.getpid(), file=told)
step, warm = asyncio.events.Handle._run, app._warm_up
def timed(handle):
    start = time.thread_time()
    step(handle)
    seconds = time.thread_time() - start
    if seconds > 0.03:
        print(f"HELD {seconds:.4f} {time.time():.4f}", file=told)
def warmed(settings):
    warm(settings)
    print("WARM", file=told)
asyncio.events.Handle._run, app._warm_up = timed, warmed
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script that launches the app, and writes in ``loop.log`` what holds its event loop."""


@pytest.fixture(scope="session")
def space_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the app of ``space_url`` works, with its ``app.log`` and ``loop.log``."""
    return tmp_path_factory.mktemp("space")


@pytest.fixture(scope="session")
def space_hub() -> Iterator[LoopbackHub]:
    """The Hub of ``space_url``: it notes who asks for what, and has no models of its own."""
    with serving() as hub:
        yield hub


@pytest.fixture(scope="session")
def space_url(space_folder: Path, space_hub: LoopbackHub) -> Iterator[str]:
    """The address of the app as it runs on a public Space whose owner is logged in.

    Told to end, it leaves nothing but its logs and the Hub's models.
    """
    hub = space_folder / "hub"
    more = {
        **OAUTH,
        "HF_TOKEN": OWNER,
        "HF_ENDPOINT": space_hub.address,
        "OPENID_PROVIDER_URL": space_hub.address,
        "SPACE_HOST": SPACE_HOST,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(hub),
        "HF_HUB_DISABLE_XET": "1",
    }
    with run_here(space_folder, by=("-c", WATCHED), **more) as url:
        yield url
        tell(_begin_a_sweep(url))
        assert list(space_folder.glob("ram-studio*/app-*/*"))
    left = [path for path in space_folder.rglob("*") if path.is_file() and path.suffix != ".log"]
    assert [path for path in left if hub not in path.parents] == []


async def _begin_a_sweep(url: str) -> None:
    """Return once a user's sweep is under way, with a merge of theirs on the disk."""
    async with HttpUser(url) as user:
        await user.open()
        await user.call("merge", method="ram")
        (sweep,) = (e for e in user.config["dependencies"] if e["api_name"] == "sweep")
        data = [{"r": "0:0.5:6"}, "shared-style", {}, ["demo"], 100, 30.0, "grid", 12, None, None]
        await user.join({"data": data, "fn_index": sweep["id"], "session_hash": user.hash})


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[object]:
    """Return a headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=chromium_path, args=BROWSER_FLAGS)
        yield instance
        instance.close()


@pytest.fixture(scope="session")
def context(browser: object) -> Iterator[object]:
    """What all pages of the run share: a second page takes its scripts from the cache."""
    made = browser.new_context()
    yield made
    made.close()


@pytest.fixture(scope="session")
def module_page(browser: object) -> Iterator[object]:
    page = browser.new_page()
    open_modules(page)
    yield page
    page.close()


@pytest.fixture
def page(module_page: object) -> Iterator[object]:
    """A page with the app's modules and nothing of Gradio, served from assets/ by the test."""
    yield module_page
    # A canvas that was left behind is drawn again whenever anything changes.
    module_page.evaluate("() => document.body.replaceChildren()")


@pytest.fixture
def stage(page: object) -> object:
    """A page with the stage alone, at the paper's setting of the default set."""
    page.set_viewport_size({"width": 1280, "height": 800})
    mount_stage(page, "shared-style")
    return page


@pytest.fixture(scope="session")
def page_faults() -> Callable[[object, str], list[Fault]]:
    """Return what tells axe's faults of a page that is not the app's, in forced colors too."""
    return functools.partial(find_faults, forced=True)


@pytest.fixture(scope="session")
def _example_visit(context: object, app_url: str) -> Iterator[Visit]:
    it = Visit(context, app_url)
    it.open()
    assert it.page.is_disabled("#to-tune"), "nothing is loaded yet"
    yield it
    it.page.close()


@pytest.fixture
def example(_example_visit: Visit) -> Iterator[Visit]:
    """A visit at Tune with the example and its first settings: one page, opened once."""
    it = _example_visit
    it.page.set_viewport_size({"width": 1280, "height": 800})
    if "set=shared-style" in it.page.url:
        it.go("tune")
    else:
        it.page.click("#to-load")
        it.use_example()
    it.page.click("#reset")
    it.settle()
    yield it
    it.check_silence()
    it.complaints.clear()


@pytest.fixture
def visit_at(context: object) -> Iterator[object]:
    """Return a function that opens visits of an address: ``Visit`` without the context.

    Each is closed at the end and must have been silent, unless told otherwise (``is_silent``): a
    page that is left in the middle of an answer is not.
    """
    visits: list[Visit] = []

    def make(url: str, *arguments: object, is_silent: bool = True, **media: object) -> Visit:
        visits.append(Visit(context, url, *arguments, **media))
        visits[-1].is_silent = is_silent
        return visits[-1]

    yield make
    for one in visits:
        one.page.close()
        one.check_silence()


@pytest.fixture
def visit(visit_at: Callable[..., Visit], app_url: str) -> Callable[..., Visit]:
    """Return a function that opens visits of the app on one's own machine."""
    return functools.partial(visit_at, app_url)
