"""What is ended and removed although nobody calls: jobs, sessions, files above the watermark."""

from __future__ import annotations

import os
import signal
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from app_parts import Clock
from loopback_hub import serving
from random_analyses import make_analysis
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from ram_studio.app import leave_at_sigterm
from ram_studio.app.public.heartbeat import Heartbeats
from ram_studio.app.public.job_queue import Effort, QueueFullError
from ram_studio.app.public.session_reaper import SessionReaper, is_abandoned
from ram_studio.app.public.user import address_of, forget_owner_token
from ram_studio.app.session import disk
from ram_studio.app.session.disk import Entry
from ram_studio.app.session.jobs import Job
from ram_studio.app.session.session import LoadedModels, MergedModel, Session
from ram_studio.app.session.sets import DEFAULT_SET, load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.app.shell import download_link, head_html, zip_route
from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.errors import OutputError
from ram_studio.resources import asset_path


@pytest.fixture
def workspace(tmp_path: Path, clock: Clock) -> Iterator[Workspace]:
    made = Workspace(Settings(work_dir=tmp_path, is_space=True, max_disk_bytes=1000), clock)
    yield made
    made.close()


class FakeJob:
    """A job of clients, that notes why it was stopped. now: when it was queued and began."""

    def __init__(self, *clients: str, now: float) -> None:
        self.clients, self.entered, self.began = set(clients), now, now
        self.stopped: list[str] = []
        self.is_done = False

    def stop(self, why: str = "") -> None:
        self.stopped.append(why)


def add_merge(session: Session, name: str, nbytes: int) -> Path:
    folder = session.folder / "merges" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w" * nbytes)
    session.merges[name] = MergedModel(name, folder, "ram", {}, "")
    return folder


def test_a_job_ends_seconds_after_its_last_listener_left(clock: Clock) -> None:
    heartbeats = Heartbeats(clock)
    job = FakeJob("old", "new", now=clock.now)
    heartbeats.arrive("old"), heartbeats.arrive("new")
    heartbeats.leave("old")
    clock.now += 60
    assert not is_abandoned(job, heartbeats, clock.now), "the reloaded page is there"
    heartbeats.leave("new")
    clock.now += 3
    assert not is_abandoned(job, heartbeats, clock.now), "it may be a reload"
    clock.now += 2
    assert is_abandoned(job, heartbeats, clock.now)


def test_a_page_that_announces_its_return_keeps_its_job(clock: Clock) -> None:
    heartbeats = Heartbeats(clock)
    job = FakeJob("old", "key of the tab", now=clock.now)
    heartbeats.arrive("old"), heartbeats.leave("old")
    for _ in range(20):
        clock.now += 1.5
        heartbeats.arrive("key of the tab"), heartbeats.leave("key of the tab")
        assert not is_abandoned(job, heartbeats, clock.now)
    clock.now += 5
    assert is_abandoned(job, heartbeats, clock.now), "closed while it was loading"


def test_a_job_ends_without_listeners_or_at_its_time_limit(clock: Clock) -> None:
    heartbeats, done, start = Heartbeats(clock), [], clock.now
    unheard, job, waiting = (FakeJob(client, now=start) for client in ("bot", "a", "a"))
    waiting.began = None
    heartbeats.arrive("a")
    chores = [(5, lambda: done.append(clock.now))]
    every = [unheard, job, waiting]
    reaper = SessionReaper(lambda: every, heartbeats, most_seconds=11, chores=chores, clock=clock)
    for _ in range(12):
        reaper.tick()
        clock.now += 1
    assert done == [start + 5, start + 10], "what is to be done now and then is done in its time"
    assert set(unheard.stopped) == {"left"}
    assert job.stopped == waiting.stopped == []
    reaper.tick()
    assert (job.stopped, waiting.stopped) == (["time"], [])


@pytest.mark.parametrize(
    ("space", "way"),
    [("owner/ram-studio", "duplicate this Space"), ("", "For more, run RAM Studio on your own")],
)
def test_limit_errors_say_what_else_to_do(tmp_path, monkeypatch, space, way) -> None:
    monkeypatch.setenv("SPACE_ID", space)
    queue = Workspace(Settings(host="0.0.0.0", work_dir=tmp_path, is_space=bool(space))).job_queue
    for _ in range(2):
        queue.enter(Effort(), "tab", "10.0.0.1")
    with pytest.raises(QueueFullError, match=way):
        queue.enter(Effort(), "tab", "10.0.0.1")
    late = threading.Event()
    session = Session("tab", tmp_path)
    job = Job(session, lambda report, cancel: late.wait(10) and cancel.raise_if_cancelled())
    job.stop("time")
    late.set()
    list(job.updates())
    assert way in str(job.outcome()[1])
    assert (f"/{space}?duplicate=true" in head_html()) == bool(space)


def test_a_session_goes_when_its_page_was_closed_or_it_was_idle(
    workspace: Workspace, clock: Clock
) -> None:
    settings = workspace.settings
    there, gone = workspace.session("there"), workspace.session("gone")
    folders = [add_merge(session, "m", 10) for session in (there, gone)]
    workspace.heartbeats.arrive("there")
    clock.now += settings.gone_seconds - 1
    workspace.expire()
    assert [folder.exists() for folder in folders] == [True, True]
    clock.now += 2
    workspace.expire()
    assert [folder.exists() for folder in folders] == [True, False]
    clock.now += settings.idle_seconds
    there.job = FakeJob("there", now=clock.now)
    workspace.expire()
    assert folders[0].exists(), "its job still runs"
    there.job.is_done = True
    workspace.expire()
    assert not folders[0].exists()
    root = workspace.root
    workspace.close()
    assert not root.exists()


def test_callers_without_a_session_share_none(workspace: Workspace) -> None:
    assert len({workspace.session(who).key for who in (None, None, "")}) == 3


def test_the_session_that_is_missed_least_makes_room(
    workspace: Workspace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ram_studio.app.session.workspace._MAX_SESSIONS", 20)
    monkeypatch.setattr("ram_studio.app.session.workspace._MAX_PER_ADDRESS", 8)
    folder = add_merge(workspace.session("merged", address="1"), "m", 10)
    workspace.session("loaded", address="1").data = "something"
    open_page = workspace.session("open page", address="1")
    workspace.heartbeats.arrive("open page")
    for number in range(100):
        clock.now += 1
        workspace.session(f"invented{number}", address=str(number % 5))
    assert len(workspace._sessions) <= 20
    assert workspace.session("open page") is open_page
    assert workspace.session("loaded").data == "something"
    for number in range(100):
        clock.now += 1
        workspace.session(f"worked{number}", address="2").data = "something"
    assert sum(s.address == "2" for s in workspace._sessions.values()) == 8
    assert workspace.session("loaded").data == "something", "of another address"
    for number in range(100):
        clock.now += 1
        workspace.session(f"here{number}", address="1").data = "something"
    assert workspace.session("loaded").data == ""
    assert folder.exists()
    assert workspace.session("open page") is open_page


def test_a_session_that_was_given_nothing_is_not_kept(workspace: Workspace, clock: Clock) -> None:
    empty, open_page = workspace.session("empty"), workspace.session("open page")
    workspace.heartbeats.arrive("open page")
    clock.now += 59
    workspace.expire()
    assert workspace.session("empty") is empty
    clock.now += 61
    workspace.expire()
    assert workspace.session("empty") is not empty
    assert workspace.session("open page") is open_page


def test_what_users_opened_takes_a_bounded_memory(
    workspace: Workspace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis = make_analysis(2)
    loaded = LoadedModels("opened", None, "base", {"agent0": "a", "agent1": "b"}, analysis)
    monkeypatch.setattr("ram_studio.app.session.workspace._MAX_ANALYSIS_BYTES", 4.5 * loaded.nbytes)
    for client, address in (("one", "1"), ("a", "2"), ("b", "2"), ("c", "2"), ("d", "2")):
        clock.now += 1
        workspace.session(client, address=address).load(replace(loaded, title=client))
        workspace.free_memory()
    workspace.session("example").load(load_set(DEFAULT_SET))
    workspace.free_memory()
    left = [s.loaded.title for s in workspace._sessions.values() if s.loaded]
    assert left == ["one", "b", "c", "d", load_set(DEFAULT_SET).title], "of the address with most"


def test_a_users_oldest_merges_make_room(tmp_path: Path) -> None:
    session = Session("key", tmp_path)
    for name in ("a", "b", "c"):
        add_merge(session, name, 100)
    assert disk.make_room(session.merges, 100, most_merges=3, most_bytes=1000) == ["a"]
    assert disk.make_room(session.merges, 150, most_merges=9, most_bytes=300) == ["b"]
    assert [path.name for path in (tmp_path / "merges").iterdir()] == ["c"]
    with pytest.raises(OutputError, match=r"would take 0\.0 GB; one user may have"):
        disk.make_room(session.merges, 301, most_merges=9, most_bytes=300)


def test_above_the_watermark_the_oldest_goes_first() -> None:
    removed: list[str] = []
    entries = [
        Entry(used, 100, lambda name=name: removed.append(name))
        for name, used in (("new", 30.0), ("old", 10.0), ("middle", 20.0))
    ]
    assert disk.tidy(entries, 900, 1000) == 0
    assert disk.tidy(entries, 1001, 1000) == 300
    assert removed == ["old", "middle", "new"]


def test_merges_and_gradios_cache_are_kept_below_the_watermark(
    workspace: Workspace, clock: Clock
) -> None:
    busy = workspace.session("busy")
    clock.now += 100
    old = workspace.session("old")
    clock.now += 100
    folders = [add_merge(s, "m", 300) for s in (old, workspace.session("new"), busy)]
    busy.job = FakeJob("busy", now=clock.now)
    cached = workspace.gradio_folder / "x" / "upload.yaml"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"c" * 200)
    os.utime(cached, (0, 0))
    assert workspace.tidy() == 500
    assert not cached.exists()
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert list(old.merges) == []


def test_what_nobody_has_loaded_leaves_the_hubs_cache_first(tmp_path, monkeypatch) -> None:
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        folders = {}
        for name in ("base", "coding"):
            hub.add(f"owner/{name}", asset_path("independent", name))
            folders[name] = open_checkpoint(f"owner/{name}", name=name).folder
    used, entries = disk.hub_models({"owner/coding"})
    assert used == sum(map(disk.folder_bytes, tmp_path.glob("hub/models--*/blobs")))
    assert len(entries) == 1
    assert disk.tidy(entries, used, used) == 0
    assert disk.tidy(entries, used, used - 1) > 0
    assert [folder.exists() for folder in folders.values()] == [False, True]


def test_a_merge_goes_home_without_a_copy_and_only_ones_own(workspace: Workspace) -> None:
    session = workspace.session("a")
    folder = add_merge(session, "ram-plus", 100_000)
    app = TestClient(Starlette(routes=[zip_route(workspace.merge_folder)]))
    answer = app.get("/" + download_link(session.key, folder))
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "ram-plus.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["ram-plus/model.safetensors"]
    assert [path.name for path in session.folder.iterdir()] == ["merges"]
    others = [f"{session.key}/{n}" for n in ("other.zip", "..zip", "../../x.zip", "%2e%2e.zip")]
    for place in (*others, f"{'0' * 32}/ram-plus.zip"):
        assert app.get(f"/downloads/{place}").status_code == 404


def request(host: str, *forwarded: str) -> Any:
    headers = Headers(raw=[(b"x-forwarded-for", line.encode()) for line in forwarded])
    return SimpleNamespace(client=SimpleNamespace(host=host), headers=headers)


@pytest.mark.parametrize(
    ("forwarded", "is_space", "address"),
    [
        ([], True, "10.1.2.3"),
        (["93.184.216.34"], True, "93.184.216.34"),
        (["1.1.1.1, 93.184.216.34, 10.0.0.7"], True, "93.184.216.34"),
        (["1.1.1.1", "93.184.216.34, 10.0.0.7"], True, "93.184.216.34"),
        (["93.184.216.34:50123"], True, "93.184.216.34"),
        (["::ffff:93.184.216.34"], True, "93.184.216.34"),
        (["[::ffff:93.184.216.34]:443"], True, "93.184.216.34"),
        (["1.1.1.1, ::ffff:10.0.0.7"], True, "1.1.1.1"),
        (["not an address", "[]:1", "1:2:3"], True, "10.1.2.3"),
        (["2606:2800:220:1:248:1893:25c8:1946"], True, "2606:2800:220:1::/64"),
        (["[2606:2800:220:1:248:1893:25c8:1946]:443"], True, "2606:2800:220:1::/64"),
        (["93.184.216.34"], False, "10.1.2.3"),
    ],
)
def test_an_address_is_what_the_proxy_saw(
    forwarded: list[str], is_space: bool, address: str
) -> None:
    assert address_of(request("10.1.2.3", *forwarded), is_space=is_space) == address


def test_addresses_of_a_socket_for_both_protocols_are_told_apart() -> None:
    addresses = {address_of(request(f"::ffff:10.1.2.{n}"), is_space=False) for n in (3, 4)}
    assert addresses == {"10.1.2.3", "10.1.2.4"}
    assert address_of(request("testclient"), is_space=True) == "testclient"


def test_the_owners_token_is_not_sent_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(rights, "_shared_advice", None)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
    assert build_hf_headers()["authorization"] == "Bearer hf_owner"
    forget_owner_token()
    assert "authorization" not in build_hf_headers()
    assert build_hf_headers(token="hf_user")["authorization"] == "Bearer hf_user"


@pytest.mark.timeout(60)  # it waited for itself
def test_a_second_sigterm_does_not_stop_the_first(workspace, monkeypatch):
    removed = []

    def remove(folder: Path, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        removed.append(folder)

    root, before = workspace.root, signal.getsignal(signal.SIGTERM)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("ram_studio.app.session.workspace.shutil.rmtree", remove)
            leave_at_sigterm(workspace)
            with pytest.raises(SystemExit):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert removed == [root]
