"""A shared server, with users who call it without a page: nobody stops the others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
from app_process import free_port
from http_user import HttpUser, RefusedError, element_ids, tell

from ram_studio.app.public.job_queue import Effort
from ram_studio.app.public.session_reaper import LEAVE_SECONDS
from ram_studio.app.session.workspace import Workspace
from ram_studio.checkpoints.hub import rights
from ram_studio.engine.events import Progress

pytest.importorskip("gradio")

# The loop of Gradio's server in this process is left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class SharedServer:
    """A public app in this process: its address, its workspace, and merges that take their time.

    slow: while set, a merge goes on until it is stopped. pages: what Gradio remembers of pages.
    """

    def __init__(self, url: str, workspace: Workspace, pages: Any) -> None:
        self.url, self.workspace, self.pages = url, workspace, pages
        self.slow = threading.Event()

    @property
    def jobs(self) -> tuple[int, int]:
        """How many jobs run, and how many wait."""
        return self.workspace.job_queue.counts

    def wait_for(self, jobs: tuple[int, int], seconds: float) -> None:
        """Return once so many jobs run and wait."""
        # A busy machine may take its time; the seconds themselves are tested by a clock.
        end = time.monotonic() + 20 * seconds
        while self.jobs != jobs:
            assert time.monotonic() < end, f"{self.jobs} run and wait, not {jobs}"
            time.sleep(0.05)

    def visit(self, story: Callable[..., Coroutine[Any, Any, Any]], *hosts: int) -> Any:
        """Run a story of users, each from an address of its own."""

        async def told() -> Any:
            async with contextlib.AsyncExitStack() as stack:
                users = [HttpUser(self.url, f"127.0.0.{host}") for host in hosts]
                for user in users:
                    await stack.enter_async_context(user)
                return await story(*users)

        return tell(told())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    from huggingface_hub import constants

    from ram_studio.app import Settings, launch
    from ram_studio.app.merge import work

    folder = tmp_path_factory.mktemp("server")
    settings = Settings(port=free_port(), is_space=True, work_dir=folder, max_sweep_minutes=3.0)
    merge = work.merge
    with pytest.MonkeyPatch.context() as patch:
        # The app forgets the owner's token for good: here, for as long as it runs.
        patch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
        patch.setattr(rights, "_shared_advice", None)
        patch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        blocks = launch(settings, prevent_thread_lock=True, quiet=True)[0].blocks
        address = f"http://127.0.0.1:{settings.port}/"
        made = SharedServer(address, blocks.ram_workspace, blocks.state_holder)
        # Whatever this machine has, and however long it takes: one slot for each kind of job.
        made.workspace.job_queue.heavy_slots = 1
        patch.setattr("ram_studio.app.public.job_queue.OVERDUE_SECONDS", float("inf"))

        def slow_merge(*arguments: Any, on_progress: Any, cancel: Any, **more: Any) -> Any:
            # One event: a page that is drawn anew all the time never stands still for a click.
            on_progress(Progress("merge", "w", 1, 2, 1, 2, 1.0))
            while made.slow.is_set():
                cancel.raise_if_cancelled()
                time.sleep(0.02)
            return merge(*arguments, on_progress=on_progress, cancel=cancel, **more)

        patch.setattr(work, "merge", slow_merge)
        yield made
        made.slow.clear()
        blocks.close()
        made.workspace.close()
    # Here, where its warnings are let through, and not while another file is tested.
    del blocks, made
    asyncio.set_event_loop(None)
    gc.collect()
    assert list(folder.glob("app-*")) == []


@pytest.fixture(autouse=True)
def quiet_room(server: SharedServer) -> Iterator[None]:
    yield
    server.slow.clear()
    server.wait_for((0, 0), LEAVE_SECONDS + 10)
    gc.collect()


def test_a_free_server_seldom_looks_for_events(server: SharedServer, monkeypatch) -> None:
    from gradio.queueing import Queue

    looks, count = [], Queue.__len__
    monkeypatch.setattr(Queue, "__len__", lambda queue: looks.append(None) or count(queue))
    start = time.monotonic()
    while len(looks) < 10:
        time.sleep(0.01)
    # Gradio's own 1 ms would be 8 % of a core, page or none.
    assert len(looks) < 2 + 200 * (time.monotonic() - start)


async def merging(server: SharedServer, *users: HttpUser) -> list[asyncio.Task[Any]]:
    """Have users open the page and ask for a merge, each once the one before is queued."""
    tasks = []
    for number, user in enumerate(users, 1):
        await user.open()
        tasks.append(asyncio.create_task(user.call("merge", method="ram")))
        while sum(server.jobs) < number:
            await asyncio.sleep(0.05)
    return tasks


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Miss who went at once; how long they are waited for is tested by a clock."""
    monkeypatch.setattr("ram_studio.app.public.session_reaper.LEAVE_SECONDS", 0.2)


@pytest.mark.usefixtures("soon")
def test_a_job_whose_listener_goes_ends(server: SharedServer) -> None:
    server.slow.set()

    async def story(user: HttpUser) -> None:
        (asking,) = await merging(server, user)
        asking.cancel()
        await user.close()

    server.visit(story, 2)
    server.wait_for((0, 0), 6)


def test_one_address_gets_no_third_job(server: SharedServer) -> None:
    server.slow.set()

    async def story(*users: HttpUser) -> None:
        tasks = await merging(server, *users[:2])
        assert server.jobs == (1, 1)
        await users[2].open()
        limit = r"Your address already has 2 jobs .* duplicate this Space"
        with pytest.raises(RefusedError, match=limit):
            await users[2].call("merge", method="ram")
        server.slow.clear()
        await asyncio.gather(*tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPACE_ID", "owner/ram-studio")
        patch.setattr(server.workspace.job_queue, "_hint", "Or duplicate this Space.")
        server.visit(story, 2, 2, 2)


@pytest.mark.usefixtures("soon")
def test_a_sweep_gets_no_half_hour(server: SharedServer) -> None:
    async def story(user: HttpUser) -> None:
        await user.open()
        asking = asyncio.create_task(
            user.call("sweep", over={"r": "0:0.5:6"}, minutes=30, limit=100)
        )
        while sum(server.jobs) < 1:
            await asyncio.sleep(0.02)
        (ticket,) = server.workspace.job_queue._running
        assert sum(ticket.effort.parts.values()) <= 180
        asking.cancel()

    server.visit(story, 2)
    server.wait_for((0, 0), 6)


async def load_a_set(user: HttpUser, client: str) -> None:
    """Load models as somebody else, of an invented name."""
    user.hash = client
    await user.press("use-dense")


@pytest.mark.parametrize("address", [2, 3], ids=["of one's own address", "of another"])
def test_invented_clients_evict_no_work(server: SharedServer, monkeypatch, address: int) -> None:
    monkeypatch.setattr("ram_studio.app.session.workspace._MAX_SESSIONS", 10)
    monkeypatch.setattr("ram_studio.app.session.workspace._MAX_PER_ADDRESS", 5)

    async def story(owner: HttpUser, reader: HttpUser, bot: HttpUser) -> None:
        await owner.open()
        await owner.press("use-dense")
        merged = await owner.call("merge", method="ram")
        await reader.open()
        await reader.press("use-dense")
        await bot.open()
        for number in range(12):
            await load_a_set(bot, f"invented{number}by{address}")
        # Nothing was merged in it, but its page is open.
        await reader.press("merge")
        scores = await owner.call("evaluate", models=["base", merged["merge"]], limit=1)
        assert list(scores["models"]) == ["base", merged["merge"]]
        assert "ram+" in reader.shows("check-models")

    server.visit(story, 2, 4, address)
    mine = [s for s in server.workspace._sessions.values() if s.address == f"127.0.0.{address}"]
    assert len(mine) <= 5


def test_a_page_works_when_gradio_forgot_it(server: SharedServer, monkeypatch) -> None:
    monkeypatch.setattr(server.pages, "capacity", 1)

    async def story(user: HttpUser, other: HttpUser) -> None:
        await user.open()
        await other.open()

        async def press(element: str) -> None:
            # Whoever comes between makes Gradio forget what it told this page.
            await load_a_set(other, "another")
            await user.press(element)

        await press("use-dense")
        await press("merge")
        user.fill("limit", 50)
        user.fill("check-models", ["base", "ram+"])
        await press("evaluate")
        user.fill("item-position", 40)
        await press("item-next")
        assert user.shows("item-position") == 41
        await press("add-agent")
        await press("add-agent")
        await press("draw-details")
        await press("scope-refresh")
        await press("scope-refresh")

    server.visit(story, 2, 3)


def test_light_events_stand_in_no_line(server: SharedServer) -> None:
    async def story(user: HttpUser) -> None:
        await user.open()
        for element in ("use-shared-style", "use-dense", "draw-details", "to-history"):
            for event in user.handlers(element):
                assert event["queue"] is False, element
        for event in user.config["dependencies"]:
            if event["backend_fn"] and any(name == "load" for _, name in event["targets"]):
                assert event["queue"] is False

    server.visit(story, 2)
    around = httpx.post(server.url + "gradio_api/run/merge", json={"data": []})
    assert around.status_code == 404, "the job queue cannot be bypassed"


def test_the_page_names_no_other_host(server: SharedServer) -> None:
    for name, status in (("page.html", 415), ("recipe.yaml", 200)):
        files = {"files": (name, b"base: b")}
        assert httpx.post(server.url + "gradio_api/upload", files=files).status_code == status
    page = httpx.get(server.url)
    assert "fonts.g" not in page.text
    assert "cdnjs" not in page.text
    policy = page.headers["content-security-policy"]
    assert "frame-ancestors 'self' https://huggingface.co" in policy


def test_nothing_is_signed_or_pushed_without_oauth(server: SharedServer) -> None:
    assert not {"sign-in", "push"} & element_ids(server.url), "a Space without hf_oauth"


# ---------------------------------------------------------------------------- in a browser


def start_merge(page: Any) -> None:
    page.click("#merge")
    page.wait_for_selector("#stop", state="visible")


@pytest.mark.browser
@pytest.mark.slow
def test_a_reloaded_page_finds_its_job_and_a_closed_one_ends_it(visit_at, server, monkeypatch):
    # How long a reload takes is the machine's business, not this test's.
    monkeypatch.setattr("ram_studio.app.public.session_reaper.LEAVE_SECONDS", 300.0)
    server.slow.set()
    it = visit_at(server.url, is_silent=False)
    page = it.page
    it.open()
    it.use_example()
    page.click("#to-merge")
    start_merge(page)
    # A phone that needs long for the scripts: until then the page tells that it is coming back.
    held: list[Any] = []
    page.route("**/ram/page.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    key, told = page.evaluate("() => sessionStorage.getItem('ram-key')"), set()
    while len(told - {0.0}) < 2 or not held:
        told.add(server.workspace.heartbeats.closed_since(key))
        page.wait_for_timeout(100)
    page.unroute("**/ram/page.js")  # lets what was held go on
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#merge-status .progress")
    monkeypatch.setattr("ram_studio.app.public.session_reaper.LEAVE_SECONDS", LEAVE_SECONDS)
    time.sleep(LEAVE_SECONDS + 1)
    assert server.jobs == (1, 0), "the reloaded page waits for it"
    page.click("#stop")
    page.wait_for_selector("#merge-status:has-text('Stopped')")
    page.wait_for_selector("#merge:not([disabled])")

    # One that ended while its page was away is shown when it comes back.
    monkeypatch.setattr("ram_studio.app.public.session_reaper.LEAVE_SECONDS", 300.0)
    start_merge(page)
    page.goto("about:blank")
    server.slow.clear()
    server.wait_for((0, 0), LEAVE_SECONDS)
    page.go_back()
    page.wait_for_selector("#merge-result .result", state="attached")

    # Nobody comes back to a closed tab.
    monkeypatch.setattr("ram_studio.app.public.session_reaper.LEAVE_SECONDS", LEAVE_SECONDS)
    page.click("#to-merge")
    page.wait_for_selector("#merge:not([disabled])")
    server.slow.set()
    start_merge(page)
    page.close()
    server.wait_for((0, 0), 5)


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_in_line_shows_its_place_and_the_wait(visit_at: Any, server: SharedServer) -> None:
    queue = server.workspace.job_queue
    busy = [queue.enter(Effort("seconds", {"": s}), f"other{s}") for s in (60.0, 1.0)]
    try:
        it = visit_at(server.url)
        it.open()
        it.use_example()
        it.page.click("#to-merge")
        start_merge(it.page)
        it.page.wait_for_selector("#merge-status:has-text('Queued: position 1')")
        it.page.wait_for_selector("#merge-status:has-text('starts in')")
    finally:
        # Both slots, for slow merges before this one make it count as a long job.
        for ticket in busy:
            ticket.leave()
    it.page.wait_for_selector("#merge-result .result", state="attached")
    it.settle()


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_works_under_its_policy_and_in_a_second_tab(visit_at, server):
    it = visit_at(server.url)
    page = it.page
    it.open()
    page.click("#own-models > button")
    # The form is mounted when it opens; what is typed into a half-mounted box is lost.
    it.settle()
    assert page.inner_text("footer").strip() == "Built with Gradio"
    it.write("base", "/etc")
    it.write("agent-source-1", "owner/name")
    page.click("#analyze")
    page.wait_for_selector("#load-status .callout[data-tone=bad]:has-text('not a Hub id')")
    it.use_example()
    page.click("#open-details")
    page.wait_for_selector("#chart-map .js-plotly-plot")

    read_key = "() => sessionStorage.getItem('ram-key')"
    key = page.evaluate(read_key)
    second = visit_at(server.url)
    second.page.add_init_script(
        f"sessionStorage.getItem('ram-key') || sessionStorage.setItem('ram-key', '{key}')"
    )
    second.open()
    assert second.page.evaluate(read_key) != key
    it.settle()
    page.reload()
    page.wait_for_selector("#to-tune[aria-current=step]")
    assert page.evaluate(read_key) == key
    it.settle()
