"""The app in public, met by strangers who speak to it without a page: nobody stops the others."""

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
from visitor import RefusedError, Visitor, tell

from ram_studio.app.public.keeper import LEAVE_SECONDS
from ram_studio.app.public.lanes import Effort
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.hub import rights
from ram_studio.engine.events import Progress

pytest.importorskip("gradio")

# The loop of Gradio's server in this process is left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Room:
    """A public app in this process: its address, its workspace, and merges that take their time.

    slow: while set, a merge goes on until it is stopped.
    """

    def __init__(self, url: str, workspace: Workspace) -> None:
        self.url, self.workspace = url, workspace
        self.slow = threading.Event()

    @property
    def jobs(self) -> tuple[int, int]:
        """How many jobs run, and how many wait."""
        return self.workspace.lanes.counts

    def wait_for(self, jobs: tuple[int, int], seconds: float) -> None:
        """Return once so many jobs run and wait."""
        # A busy machine may take its time; the seconds themselves are tested by a clock.
        end = time.monotonic() + 20 * seconds
        while self.jobs != jobs:
            assert time.monotonic() < end, f"{self.jobs} run and wait, not {jobs}"
            time.sleep(0.05)

    def visit(self, story: Callable[..., Coroutine[Any, Any, Any]], *hosts: int) -> Any:
        """Run a story of visitors, each from an address of its own."""

        async def told() -> Any:
            async with contextlib.AsyncExitStack() as stack:
                visitors = [Visitor(self.url, f"127.0.0.{host}") for host in hosts]
                for visitor in visitors:
                    await stack.enter_async_context(visitor)
                return await story(*visitors)

        return tell(told())


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    from huggingface_hub import constants

    from ram_studio.app import Settings, launch
    from ram_studio.app.merge import work

    folder = tmp_path_factory.mktemp("room")
    settings = Settings(port=free_port(), is_space=True, work_dir=folder, max_sweep_minutes=3.0)
    merge = work.merge
    with pytest.MonkeyPatch.context() as patch:
        # The app forgets the owner's token for good: here, for as long as it runs.
        patch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
        patch.setattr(rights, "_shared_advice", None)
        patch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        blocks = launch(settings, prevent_thread_lock=True, quiet=True)[0].blocks
        made = Room(f"http://127.0.0.1:{settings.port}/", blocks.ram_workspace)
        # Whatever this machine has, and however long it takes: one lane for each kind of job.
        made.workspace.lanes.long_lanes = 1
        patch.setattr("ram_studio.app.public.lanes.OVERDUE_SECONDS", float("inf"))

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
def quiet_room(room: Room) -> Iterator[None]:
    yield
    room.slow.clear()
    room.wait_for((0, 0), LEAVE_SECONDS + 10)
    gc.collect()


async def merging(room: Room, *visitors: Visitor) -> list[asyncio.Task[Any]]:
    """Have visitors open the page and ask for a merge, each once the one before is in line."""
    tasks = []
    for number, visitor in enumerate(visitors, 1):
        await visitor.open()
        tasks.append(asyncio.create_task(visitor.call("merge", method="ram")))
        while sum(room.jobs) < number:
            await asyncio.sleep(0.05)
    return tasks


@pytest.mark.slow
def test_forty_jobs_of_a_stranger_do_not_keep_a_visitor_waiting(room: Room) -> None:
    room.slow.set()

    async def story(bot: Visitor, visitor: Visitor) -> None:
        await bot.open()
        event = next(e for e in bot.config["dependencies"] if e["api_name"] == "merge")
        body = {"data": ["example", "ram"], "fn_index": event["id"]}
        # Asked for, and nobody listens.
        posts = [bot.join({**body, "session_hash": f"bot{n}"}) for n in range(40)]
        assert len(await asyncio.gather(*posts)) == 40
        await visitor.open()
        await visitor.press("use-example")
        assert sum(room.jobs) <= 2, "one of an address runs, one waits"
        room.slow.clear()
        assert (await visitor.call("merge", method="ram"))["merge"] == "ram"

    room.visit(story, 2, 3)
    room.wait_for((0, 0), LEAVE_SECONDS + 5)


def test_a_job_whose_listener_goes_ends(room: Room) -> None:
    room.slow.set()

    async def story(visitor: Visitor) -> None:
        (asking,) = await merging(room, visitor)
        asking.cancel()
        await visitor.close()

    room.visit(story, 2)
    room.wait_for((0, 0), 6)


def test_one_address_gets_no_third_job(room: Room) -> None:
    room.slow.set()

    async def story(*visitors: Visitor) -> None:
        tasks = await merging(room, *visitors[:2])
        assert room.jobs == (1, 1)
        await visitors[2].open()
        with pytest.raises(RefusedError, match=r"2 jobs of your address .* duplicate this Space"):
            await visitors[2].call("merge", method="ram")
        room.slow.clear()
        await asyncio.gather(*tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPACE_ID", "owner/ram-studio")
        patch.setattr(room.workspace.lanes, "_hint", "Or duplicate this Space.")
        room.visit(story, 2, 2, 2)


def test_a_sweep_gets_no_half_hour(room: Room) -> None:
    async def story(visitor: Visitor) -> None:
        await visitor.open()
        asking = asyncio.create_task(
            visitor.call("sweep", over={"r": "0:0.5:6"}, minutes=30, items=100)
        )
        while sum(room.jobs) < 1:
            await asyncio.sleep(0.02)
        (turn,) = room.workspace.lanes._running
        assert sum(turn.effort.parts.values()) <= 180
        asking.cancel()

    room.visit(story, 2)


def test_light_events_stand_in_no_line(room: Room) -> None:
    async def story(visitor: Visitor) -> None:
        await visitor.open()
        for element in ("use-example", "use-dense", "draw-details", "to-history"):
            for event in visitor.handlers(element):
                assert event["queue"] is False, element
        for event in visitor.config["dependencies"]:
            if event["backend_fn"] and any(name == "load" for _, name in event["targets"]):
                assert event["queue"] is False

    room.visit(story, 2)
    around = httpx.post(room.url + "gradio_api/run/merge", json={"data": []})
    assert around.status_code == 404, "the line of others cannot be gone around"


def test_the_doorway_stands_before_the_page_which_names_no_other_host(room: Room) -> None:
    for name, status in (("page.html", 415), ("recipe.yaml", 200)):
        files = {"files": (name, b"base: b")}
        assert httpx.post(room.url + "gradio_api/upload", files=files).status_code == status
    page = httpx.get(room.url)
    assert "fonts.g" not in page.text
    assert "cdnjs" not in page.text
    policy = page.headers["content-security-policy"]
    assert "frame-ancestors 'self' https://huggingface.co" in policy


# ---------------------------------------------------------------------------- in a browser


def start_merge(page: Any) -> None:
    page.click("#merge")
    page.wait_for_selector("#stop", state="visible")


@pytest.mark.browser
@pytest.mark.slow
def test_a_reloaded_page_finds_its_job_and_a_closed_one_ends_it(visit_at, room, monkeypatch):
    # How long a reload takes is the machine's business, not this test's.
    monkeypatch.setattr("ram_studio.app.public.keeper.LEAVE_SECONDS", 300.0)
    room.slow.set()
    it = visit_at(room.url, is_silent=False)
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
        told.add(room.workspace.presence.gone_since(key))
        page.wait_for_timeout(100)
    page.unroute("**/ram/page.js")  # lets what was held go on
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#merge-status .progress")
    monkeypatch.setattr("ram_studio.app.public.keeper.LEAVE_SECONDS", LEAVE_SECONDS)
    time.sleep(LEAVE_SECONDS + 1)
    assert room.jobs == (1, 0), "the reloaded page waits for it"
    page.click("#stop")
    page.wait_for_selector("#merge-status:has-text('Stopped')")
    page.wait_for_selector("#merge:not([disabled])")

    # One that ended while its page was away is shown when it comes back.
    monkeypatch.setattr("ram_studio.app.public.keeper.LEAVE_SECONDS", 300.0)
    start_merge(page)
    page.goto("about:blank")
    room.slow.clear()
    room.wait_for((0, 0), LEAVE_SECONDS)
    page.go_back()
    page.wait_for_selector("#merge-result .result", state="attached")

    # Nobody comes back to a closed tab.
    monkeypatch.setattr("ram_studio.app.public.keeper.LEAVE_SECONDS", LEAVE_SECONDS)
    page.click("#to-merge")
    page.wait_for_selector("#merge:not([disabled])")
    room.slow.set()
    start_merge(page)
    page.close()
    room.wait_for((0, 0), 5)


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_in_line_shows_its_place_and_the_wait(visit_at: Any, room: Room) -> None:
    lanes = room.workspace.lanes
    busy = [lanes.enter(Effort("seconds", {"": s}), f"other{s}") for s in (60.0, 1.0)]
    try:
        it = visit_at(room.url)
        it.open()
        it.use_example()
        it.page.click("#to-merge")
        start_merge(it.page)
        it.page.wait_for_selector("#merge-status:has-text('Place 1 in line')")
        it.page.wait_for_selector("#merge-status:has-text('starts in')")
    finally:
        # Both lanes, for slow merges before this one make it count as a long job.
        for turn in busy:
            turn.leave()
    it.page.wait_for_selector("#merge-result .result", state="attached")
    it.settle()


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_works_under_its_policy_and_a_duplicate_of_its_tab_on_its_own(visit_at, room):
    it = visit_at(room.url)
    page = it.page
    it.open()
    page.click("#own-models > button")
    # The form is mounted when it opens; what is typed into a half-mounted box is lost.
    it.settle()
    it.write("base", "/etc")
    it.write("agent-source-1", "owner/name")
    page.click("#analyze")
    page.wait_for_selector("#load-status .callout[data-tone=bad]:has-text('not a Hub id')")
    it.use_example()
    page.click("#open-details")
    page.wait_for_selector("#chart-map .js-plotly-plot")

    read_key = "() => sessionStorage.getItem('ram-key')"
    key = page.evaluate(read_key)
    second = visit_at(room.url)
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
