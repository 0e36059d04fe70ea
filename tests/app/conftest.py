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

ROOT = Path(__file__).resolve().parents[2]
WAIT_MS = 300_000
"""How long anything in a page may take before a test gives up: machines differ, and are busy."""
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

    user = workspace.session("tab")  # type: ignore[attr-defined]
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
    made = browser.new_context()  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture(scope="session")
def module_page(browser: object) -> Iterator[object]:
    page = browser.new_page()  # type: ignore[attr-defined]
    open_modules(page)
    yield page
    page.close()


@pytest.fixture
def page(module_page: object) -> Iterator[object]:
    """A page with the app's modules and nothing of Gradio, served from assets/ by the test."""
    yield module_page
    # A canvas that was left behind is drawn again whenever anything changes.
    module_page.evaluate("() => document.body.replaceChildren()")  # type: ignore[attr-defined]


@pytest.fixture
def stage(page: object) -> object:
    """A page with the stage alone, at the paper's setting of the default set."""
    page.set_viewport_size({"width": 1280, "height": 800})  # type: ignore[attr-defined]
    mount_stage(page, "shared-style")
    return page


# What is queued in a page is done before it is idle. After a click or a key Chromium calls no page
# idle before a frame, which is drawn where it is asked for, if nothing changed. Where none is drawn
# its turn comes after a second, behind what was queued before.
_IDLE = """() => new Promise((done) => {
  setTimeout(() => {
    requestAnimationFrame(() => {});
    requestIdleCallback(() => done(), { timeout: 1000 });
  }, 100);
})"""


@functools.cache
def _axe_script() -> str:
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")


# Faults by axe-core's rules, in the theme that is shown; of the other one those of color. Where the
# system forces its colors, which are the same in both, those of color alone.
_FAULTS = """async ([root, isForced]) => {
  const isEndless = (a) => a.effect.getTiming().iterations === Infinity;
  const run = async (options) => {
    await Promise.all(document.getAnimations()
      .filter((a) => !isEndless(a)).map((a) => a.finished.catch(() => {})));
    return (await axe.run(root, { resultTypes: ["violations"], ...options })).violations;
  };
  const colors = { runOnly: { type: "tag", values: ["cat.color"] } };
  if (isForced) return run(colors);
  const here = await run({});
  document.body.classList.toggle("dark");
  const there = await run(colors);
  document.body.classList.toggle("dark");
  return [...here, ...there];
}"""

# What can be pressed and is nearer than 40 px to something else; links within a text may be.
_SMALL = """(root) => {
  const kinds = "button, input, select, textarea, summary, [role=slider]";
  const found = [];
  for (const node of document.querySelector(root).querySelectorAll(kinds)) {
    const isSeen = node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const isMeant = !node.disabled && !node.closest("[inert], .unseen") && !node.matches(".link");
    if (!isSeen || !isMeant) continue;
    node.scrollIntoView({ block: "center", inline: "center" });
    const label = node.closest("label");
    const isTicked = node.matches("[type=radio], [type=checkbox]");
    const box = (isTicked && label ? label : node).getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const isOwn = (hit) => hit && (hit === node || node.contains(hit)
      || (label && hit.closest("label") === label));
    const reach = (dx, dy) => {
      let n = 0;
      while (n < 24 && isOwn(document.elementFromPoint(x + dx * n, y + dy * n))) n += 1;
      return n;
    };
    const [wide, tall] = [reach(1, 0) + reach(-1, 0) - 1, reach(0, 1) + reach(0, -1) - 1];
    if (Math.min(wide, tall) < 39) {
      const name = node.getAttribute("aria-label") || node.textContent.trim() || node.type;
      found.push(`${node.tagName} ${node.id} ${name}: ${wide} x ${tall}`);
    }
  }
  return found;
}"""


# What is read from the last row of a room: no text below 20 px.
_SMALL_TEXT = """() => {
  const small = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    const isSeen = node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const { width, height } = node.getBoundingClientRect();
    const isLeftOut = node.closest(".unseen, .ex-head, #top, script, style");
    if (!text || !isSeen || !width || !height || isLeftOut) continue;
    // An SVG's text is as large as its picture is drawn.
    const svg = node.closest("svg");
    const scale = svg?.viewBox.baseVal?.width
      ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(getComputedStyle(node).fontSize) * scale;
    if (size < 20) small.push([size, text]);
  }
  return small;
}"""


def _page_faults(
    page: object, root: str, *, is_forced: bool = False
) -> list[tuple[str, list[object], str]]:
    """Return what axe finds: rule, where, and how bad; is_forced: by the system's colors."""
    if not page.evaluate("() => Boolean(window.axe)"):  # type: ignore[attr-defined]
        page.evaluate(_axe_script())  # type: ignore[attr-defined]
    return [
        (fault["id"], [node["target"] for node in fault["nodes"]], fault["impact"])
        for fault in page.evaluate(_FAULTS, [root, is_forced])  # type: ignore[attr-defined]
    ]


def _forced_faults(page: object, root: str) -> list[tuple[str, list[object], str]]:
    """Return what axe finds in colors that the system forces, on light and on dark ground."""
    media = page.emulate_media  # type: ignore[attr-defined]
    is_dark = "() => matchMedia('(prefers-color-scheme: dark)').matches"
    before = "dark" if page.evaluate(is_dark) else "light"  # type: ignore[attr-defined]
    faults = []
    for scheme in ("light", "dark"):
        media(forced_colors="active", color_scheme=scheme)
        faults += _page_faults(page, root, is_forced=True)
    media(forced_colors="none", color_scheme=before)
    return faults


@pytest.fixture(scope="session")
def page_faults() -> Callable[[object, str], list[tuple[str, list[object], str]]]:
    """Return what tells axe's faults of a page that is not the app's, in forced colors too."""
    return lambda page, root: _page_faults(page, root) + _forced_faults(page, root)


class Visit:
    """A page with everything it said and asked for, so that a test can require silence."""

    def __init__(
        self, context: object, url: str, size: tuple[int, int] = (1280, 800), **media: object
    ) -> None:
        self.url, self.is_silent = url, True
        self.page = context.new_page()  # type: ignore[attr-defined]
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        # What moves is painted sixty times a second by a processor that tests wait for.
        self.page.emulate_media(**{"reduced_motion": "reduce", **media})
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

    def open(self, query: str = "?step=load") -> None:
        """Open the app, not only its landing page, and wait until its first answer came."""
        self.page.goto(self.url + query)
        self.page.wait_for_selector("#to-load[aria-current=step], #to-tune[aria-current=step]")

    def go(self, step: str) -> None:
        """Press a step's button and wait until it is open and all of it has come."""
        self.page.click(f"#to-{step}")
        self.page.wait_for_selector(f"#to-{step}[aria-current=step]")
        self.settle()

    def write(self, element: str, value: object) -> None:
        """Write into a field, a number or a text, and leave it."""
        field = self.page.locator(f"#{element} :is(input[type=number], input[type=text], textarea)")
        field.first.fill(str(value))
        field.first.press("Tab")

    def download(self, button: str) -> Path:
        """Press what takes a file home; return where it lies."""
        with self.page.expect_download() as download:
            self.page.click(button)
        return Path(download.value.path())

    def check_width(self, what: str = "") -> None:
        """Fail where the page is wider than its window."""
        wide = "() => document.documentElement.scrollWidth - window.innerWidth"
        assert self.page.evaluate(wide) <= 0, what

    def use_example(self) -> None:
        """Press the big button and wait for the canvas."""
        self.page.click("[data-opens=shared-style]")
        self.page.wait_for_selector("[data-agent]", state="visible")

    def open_layer(self) -> None:
        """Open the microscope at layer 1 by keyboard: the third row from the top."""
        self.page.focus(".cv-rows")
        for _ in range(3):
            self.page.keyboard.press("ArrowDown")
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector(".scope-cell[aria-selected]:focus")

    def choose(self, box: str, option: str) -> None:
        """Choose an option of a drop-down list, again if the list closed under the click."""
        field = self.page.locator(f"{box} input").first
        while option not in field.input_value():
            field.blur()
            self.settle()
            field.click()
            self.page.click(f"[role=option]:has-text('{option}')")
            self.settle()

    def set_slider(self, name: str, value: float) -> None:
        """Pull a slider of Gradio's to a value."""
        self.page.evaluate(
            """([id, value]) => {
              const input = document.querySelector(`#${id} input[type=range]`);
              Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")
                .set.call(input, value);
              input.dispatchEvent(new Event("input", {bubbles: true}));
            }""",
            [name, value],
        )

    def stop(self, button: str, status: str, after: str = "body") -> None:
        """Press a Stop as soon as it and what is waited for are there, until it is said."""
        # In one step of the page: work may end, and news take the button away, between two. Again
        # while it is there: Gradio draws a button some time before it listens to it.
        self.page.wait_for_function(
            "([button, status, after]) => { const found = document.querySelector(button);"
            " if (document.querySelector(after)) found?.click();"
            " return document.querySelector(status)?.textContent.match(/stopped/i); }",
            arg=[button, status, after],
            polling=250,
        )

    def check_access(self, what: str, root: str = "html", *, forced: bool = False) -> None:
        """Fail on serious faults for those who cannot see, or see little, in light and dark.

        forced: in colors that the system forces, too.
        """
        self.settle()
        faults = _page_faults(self.page, root)
        if forced:
            faults += _forced_faults(self.page, root)
        serious = [told for *told, impact in faults if impact in ("serious", "critical")]
        assert serious == [], what

    def check_targets(self, root: str) -> None:
        """Fail where a finger has less than 40 px of something below ``root``."""
        self.settle()
        assert self.page.evaluate(_SMALL, root) == [], root

    def check_text_size(self) -> None:
        """Fail where a projector would show a text too small for the last row."""
        assert self.page.evaluate(_SMALL_TEXT) == []

    def cards(self) -> dict[str, dict[str, str]]:
        """Return the numbers of each agent's row, its data attributes."""
        return self.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('[data-agent]')]"
            ".map(e => [e.dataset.agent, {...e.dataset}]))"
        )

    def check_silence(self) -> None:
        """Fail on console errors and on requests that left this machine."""
        assert not self.is_silent or self.complaints == []
        foreign = [
            url
            for url in self.requests
            if not url.startswith((self.url.rstrip("/"), "data:", "blob:"))
        ]
        assert foreign == []


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
