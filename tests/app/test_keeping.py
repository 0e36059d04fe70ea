"""What is ended and removed although nobody calls: jobs, sessions, files above the watermark."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from app_parts import Clock
from loopback_hub import serving
from starlette.applications import Starlette
from starlette.testclient import TestClient

from ram_studio.app import leave_at_sigterm
from ram_studio.app.jobs import Job
from ram_studio.app.public import disk
from ram_studio.app.public.disk import Entry
from ram_studio.app.public.keeper import Keeper, is_left
from ram_studio.app.public.lanes import Effort, LineFullError
from ram_studio.app.public.presence import Presence
from ram_studio.app.public.visitor import address_of, forget_owner_token
from ram_studio.app.session import Merged, Session
from ram_studio.app.settings import Settings
from ram_studio.app.shell import download_link, head_html, zip_route
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.hub.open import open_checkpoint
from ram_studio.errors import OutputError
from ram_studio.resources import asset_path


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = Workspace(Settings(work_dir=tmp_path, is_space=True, max_disk_bytes=1000))
    yield made
    made.close()


class FakeJob:
    """A job of clients, that notes why it was stopped."""

    def __init__(self, *clients: str, entered: float = 1000.0) -> None:
        self.clients, self.entered, self.began = set(clients), entered, entered
        self.stopped: list[str] = []
        self.is_done = False

    def stop(self, why: str = "") -> None:
        self.stopped.append(why)


def add_merge(session: Session, name: str, nbytes: int) -> Path:
    folder = session.folder / "merges" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w" * nbytes)
    session.merges[name] = Merged(name, folder, "ram", {}, "")
    return folder


def test_a_job_ends_some_seconds_after_the_last_who_waited_for_it_left(clock: Clock) -> None:
    presence = Presence(clock)
    job = FakeJob("old", "new")
    presence.arrive("old"), presence.arrive("new")
    presence.leave("old")
    clock.now += 60
    assert not is_left(job, presence, clock.now), "the reloaded page is there"
    presence.leave("new")
    clock.now += 3
    assert not is_left(job, presence, clock.now), "it may be a reload"
    clock.now += 2
    assert is_left(job, presence, clock.now)


def test_a_page_that_says_it_is_coming_back_keeps_its_job_however_slow_it_is(clock: Clock) -> None:
    presence = Presence(clock)
    job = FakeJob("old", "key of the tab")
    presence.arrive("old"), presence.leave("old")
    for _ in range(20):
        clock.now += 1.5
        presence.arrive("key of the tab"), presence.leave("key of the tab")
        assert not is_left(job, presence, clock.now)
    clock.now += 5
    assert is_left(job, presence, clock.now), "closed while it was loading"


def test_a_job_that_nobody_listens_to_ends_and_none_runs_longer_than_it_may(clock: Clock) -> None:
    presence, done = Presence(clock), []
    unheard, job, waiting = FakeJob("bot"), FakeJob("a"), FakeJob("a")
    waiting.began = None
    presence.arrive("a")
    chores = [(5, lambda: done.append(clock.now))]
    every = [unheard, job, waiting]
    keeper = Keeper(lambda: every, presence, most_seconds=11, chores=chores, clock=clock)
    for _ in range(12):
        keeper.tick()
        clock.now += 1
    assert done == [1005, 1010], "what is to be done now and then is done in its time"
    assert set(unheard.stopped) == {"left"}
    assert job.stopped == waiting.stopped == []
    keeper.tick()
    assert (job.stopped, waiting.stopped) == (["time"], [])


@pytest.mark.parametrize(
    ("space", "way"),
    [("owner/ram-studio", "duplicate this Space"), ("", "For more, run RAM Studio on a")],
)
def test_who_meets_a_limit_is_told_the_way_out(tmp_path, monkeypatch, space, way) -> None:
    monkeypatch.setenv("SPACE_ID", space)
    lanes = Workspace(Settings(host="0.0.0.0", work_dir=tmp_path, is_space=bool(space))).lanes
    for _ in range(2):
        lanes.enter(Effort(), "tab", "10.0.0.1")
    with pytest.raises(LineFullError, match=way):
        lanes.enter(Effort(), "tab", "10.0.0.1")
    job = Job(Session("tab", tmp_path), lambda report, cancel: None)
    job.stop("time")
    list(job.updates())
    assert way in str(job.outcome()[1])
    assert (f"/{space}?duplicate=true" in head_html()) == bool(space)


def test_a_session_goes_when_its_page_was_closed_or_it_was_idle(workspace: Workspace) -> None:
    there, gone = workspace.session("there"), workspace.session("gone")
    folders = [add_merge(session, "m", 10) for session in (there, gone)]
    workspace.presence.arrive("there")
    for session in (there, gone):
        session.touched -= workspace.settings.gone_seconds + 1
    workspace.expire()
    assert [folder.exists() for folder in folders] == [True, False]
    there.touched -= workspace.settings.idle_seconds
    there.job = FakeJob("there")
    workspace.expire()
    assert folders[0].exists(), "its job still runs"
    there.job.is_done = True
    workspace.expire()
    assert not folders[0].exists()
    root = workspace.root
    workspace.close()
    assert not root.exists()


def test_callers_without_a_session_share_none_and_there_are_not_endlessly_many(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({workspace.session(who).key for who in (None, None, "")}) == 3
    monkeypatch.setattr("ram_studio.app.workspace._MOST_SESSIONS", 20)
    for number in range(100):
        workspace.session(f"client{number}")
    assert len(workspace._sessions) <= 20


def test_a_visitors_oldest_merges_make_room(tmp_path: Path) -> None:
    session = Session("key", tmp_path)
    for name in ("a", "b", "c"):
        add_merge(session, name, 100)
    assert disk.make_room(session.merges, 100, most_merges=3, most_bytes=1000) == ["a"]
    assert disk.make_room(session.merges, 150, most_merges=9, most_bytes=300) == ["b"]
    assert [path.name for path in (tmp_path / "merges").iterdir()] == ["c"]
    with pytest.raises(OutputError, match=r"would take 0\.0 GB; one visitor may have"):
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


def test_merges_and_gradios_cache_are_kept_below_the_watermark(workspace: Workspace) -> None:
    old, new, busy = (workspace.session(name) for name in ("old", "new", "busy"))
    folders = [add_merge(session, "m", 300) for session in (old, new, busy)]
    old.touched -= 100
    busy.touched -= 200
    busy.job = FakeJob("busy")
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
            hub.add(f"owner/{name}", asset_path("example", name))
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


def request(host: str, forwarded: str = "") -> Any:
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    return SimpleNamespace(client=SimpleNamespace(host=host), headers=headers)


@pytest.mark.parametrize(
    ("forwarded", "is_space", "address"),
    [
        ("", True, "10.1.2.3"),
        ("93.184.216.34", True, "93.184.216.34"),
        ("1.1.1.1, 93.184.216.34, 10.0.0.7", True, "93.184.216.34"),
        ("not an address", True, "10.1.2.3"),
        ("2606:2800:220:1:248:1893:25c8:1946", True, "2606:2800:220:1::/64"),
        ("93.184.216.34", False, "10.1.2.3"),
    ],
)
def test_an_address_is_what_the_proxy_saw(forwarded: str, is_space: bool, address: str) -> None:
    assert address_of(request("10.1.2.3", forwarded), is_space=is_space) == address


def test_the_owners_token_is_not_sent_for_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(rights, "_shared_advice", None)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
    assert build_hf_headers()["authorization"] == "Bearer hf_owner"
    forget_owner_token()
    assert "authorization" not in build_hf_headers()
    assert build_hf_headers(token="hf_visitor")["authorization"] == "Bearer hf_visitor"


@pytest.mark.timeout(60)  # it waited for itself
def test_a_second_sigterm_does_not_keep_the_first_from_ending_the_app(workspace, monkeypatch):
    removed = []

    def remove(folder: Path, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        removed.append(folder)

    root, before = workspace.root, signal.getsignal(signal.SIGTERM)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("ram_studio.app.workspace.shutil.rmtree", remove)
            leave_at_sigterm(workspace)
            with pytest.raises(SystemExit):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert removed == [root]
