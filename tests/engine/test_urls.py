"""Sources and outputs at fsspec URLs: the same bytes as in folders, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from engine_zoo import Zoo, contents, contents_at, make_zoo, write_folder

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read import remote
from ram_studio.checkpoints.read.content_hash import blake3_of
from ram_studio.checkpoints.read.remote import FollowedHash, Retries, is_passing
from ram_studio.checkpoints.read.url_folder import UrlFolder, is_url
from ram_studio.checkpoints.record.part_plan import load_plan, save_plan
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.checkpoints.write.parts import open_output
from ram_studio.engine.analyze import analyze, load_sources
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import make_plan, open_plan
from ram_studio.engine.parts.steps import merge_part
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.verify import verify
from ram_studio.errors import (
    CheckpointError,
    OutputError,
    PlanError,
    RamStudioError,
    SourceChangedError,
    Stopped,
    StorageError,
    VerificationError,
)

CPU: dict[str, Any] = {"device": "cpu", "threads": 1}
SHARD = 300
URL = "memory://merged/model"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 2, shards=3, seed=8)


@pytest.fixture(scope="module")
def good(made: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a merge into a folder writes."""
    out = tmp_path_factory.mktemp("good") / "out"
    merge(made.recipe(), out, max_shard_bytes=SHARD, **CPU)
    return contents(out)


@pytest.fixture
def zoo(made: Zoo, tmp_path: Path, monkeypatch) -> Iterator[Zoo]:
    """A zoo in a folder, and the same under memory://zoo; nothing is at URL."""
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    memory = fsspec.filesystem("memory")
    memory.put(str(made.folder), "/zoo", recursive=True)
    yield made
    for folder in ("/zoo", "/merged"):
        if memory.exists(folder):
            memory.rm(folder, recursive=True)


@pytest.mark.parametrize("scheme", ["memory://zoo", "file://{folder}"])
def test_sources_at_urls_are_those_of_a_folder(zoo, tmp_path, scheme):
    root = scheme.format(folder=zoo.folder)
    agents = {name: f"{root}/{name}" for name in zoo.agents}
    here, there = (
        zoo.analyze(**CPU),
        analyze(f"{root}/base", agents, **CPU),
    )
    assert there.fingerprints == here.fingerprints
    assert (there.counts.patterns == here.counts.patterns).all()
    recipe = make_recipe({"base": f"{root}/base", "agents": agents})
    merge(zoo.recipe(), tmp_path / "here", **CPU)
    merge(recipe, tmp_path / "there", **CPU)
    plan = make_plan(recipe, 2)
    for part in (1, 2):
        merge_part(plan, part, tmp_path / "parts", analysis=there, **CPU)
    finish(plan, tmp_path / "parts", **CPU)
    told = {"README.md", "ram_studio.json"}  # they name the sources
    found = [contents(tmp_path / name) for name in ("here", "there", "parts")]
    assert found[1] == found[2]
    first, *others = [{k: v for k, v in files.items() if k not in told} for files in found]
    assert others == [first, first]
    records = [json.loads(files["ram_studio.json"]) for files in found]
    assert records[1]["base"]["source"] == f"{root}/base"
    # Every file of a source has the hash that it has in a folder.
    for name in ("base", "agent1"):
        own, other = (r["base"] if name == "base" else r["agents"][name] for r in records[:2])
        assert own["files"] == other["files"] is not None
    assert verify(tmp_path / "there", with_sources=True, full=True).source_files == 7


def test_sources_at_urls_that_changed_are_found_by_verify(zoo, tmp_path):
    recipe = make_recipe({"base": "memory://zoo/base", "agents": {"agent1": "memory://zoo/agent1"}})
    merge(recipe, tmp_path / "out", **CPU)
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file("/zoo/agent1/model.safetensors"))
    data[len(data) // 2] ^= 1  # among the floats
    memory.pipe_file("/zoo/agent1/model.safetensors", bytes(data))
    with pytest.raises(VerificationError, match=r'"agent1".*memory://zoo/agent1 is not .*content'):
        verify(tmp_path / "out", with_sources=True)


def test_an_empty_file_beside_the_weights_is_read_as_such(zoo, monkeypatch):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/zoo/base/merges.txt", b"")
    cat = memory.cat_file

    def ranged(path: str, start: int, end: int) -> bytes:
        assert start < end, "no store knows bytes=0--1"
        return cat(path, start=start, end=end)

    monkeypatch.setattr(memory, "cat_file", ranged)
    opened = open_checkpoint("memory://zoo/base", name="base")
    assert (opened.folder / "merges.txt").read_bytes() == b""


def at_urls(zoo: Zoo, root: str = "memory://zoo", **more: Any) -> Any:
    agents = {name: f"{root}/{name}" for name in zoo.agents}
    return make_recipe({"base": f"{root}/base", "agents": agents, **more})


def overwrite(path: str, by: int = 1) -> None:
    """Write a file again at memory://, with another last byte but for by=0."""
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file(path))
    data[-1] ^= by
    memory.pipe_file(path, bytes(data))


@pytest.mark.parametrize("hash_sources", [True, False])
def test_a_source_overwritten_in_a_one_pass_merge_is_found(
    zoo, tmp_path, monkeypatch, hash_sources
):
    read_into, overwritten = remote.ReadAhead.read_into, []

    def while_overwritten(self: Any, path: Path, *where: Any) -> None:
        if not overwritten:
            overwrite("/zoo/agent1/model.safetensors")
            overwritten.append(path)
        read_into(self, path, *where)

    monkeypatch.setattr(remote.ReadAhead, "read_into", while_overwritten)
    recipe = at_urls(zoo, method="task-arithmetic")
    with pytest.raises(SourceChangedError, match=r'"agent1": memory://.*model.* overwritten') as e:
        merge(recipe, tmp_path / "out", hash_sources=hash_sources, **CPU)
    assert (e.value.exit_code, (tmp_path / "out").exists()) == (75, False)


def test_a_busy_store_is_asked_again_and_told_once(zoo, monkeypatch, caplog):
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * remote.TRIES)
    memory, asked = fsspec.filesystem("memory"), set()
    cat = memory.cat_file

    def every_first(path: str, start: int, end: int) -> bytes:
        if (path, start) not in asked:
            asked.add((path, start))
            raise OSError(errno.EBUSY, "SlowDown")
        return cat(path, start=start, end=end)

    monkeypatch.setattr(memory, "cat_file", every_first)
    recipe = at_urls(zoo)
    found = analyze(recipe.base, recipe.agents, **CPU)
    assert found.fingerprints == zoo.analyze(**CPU).fingerprints
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == ["Base", 'Agent "agent0"', 'Agent "agent1"']
    assert all("SlowDown" in text and "tries again" in text for text in told)

    def never(*_: Any, **__: Any) -> bytes:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(memory, "cat_file", never)
    with pytest.raises(StorageError, match=r"Base: memory://zoo/base .* after 6 tries: gone") as e:
        open_checkpoint("memory://zoo/base", name="base")
    monkeypatch.setattr(memory, "pipe_file", never)
    with pytest.raises(OutputError, match=r"The output memory://merged/model .* gone") as out:
        merge(zoo.recipe(), URL, **CPU)
    for error in (e.value, out.value):
        assert (error.exit_code, error.can_retry) == (69, True)


def test_a_server_that_says_when_is_asked_then_or_not_at_all(monkeypatch):
    class Refusal(Exception):
        def __init__(self, status: int, seconds: str) -> None:
            self.status, self.headers = status, {"Retry-After": seconds}

    def wrapped(status: int, seconds: str = "0") -> OSError:
        error = OSError("as s3fs tells it")
        error.__cause__ = Refusal(status, seconds)
        return error

    assert [is_passing(wrapped(s)) for s in (503, 429, 404, 412)] == [True, True, False, False]
    assert not is_passing(FileNotFoundError("x"))
    now = [0.0]
    clock = {"monotonic": lambda: now[0], "sleep": lambda s: now.__setitem__(0, now[0] + s)}
    monkeypatch.setattr(remote, "time", SimpleNamespace(**clock))
    assert Retries("here").pause(1, wrapped(429, "17"))
    assert now == [pytest.approx(17)]
    assert not Retries("here").pause(1, wrapped(429, "3600"))
    token = CancelToken()
    token.cancel()
    with pytest.raises(Stopped):
        Retries("here", token.raise_if_cancelled).pause(1, wrapped(503, "60"))


def test_parts_take_headers_and_fingerprint_from_the_plan(zoo, tmp_path, monkeypatch):
    plan = make_plan(at_urls(zoo, method="task-arithmetic"), 2, max_shard_bytes=SHARD)
    save_plan(plan, tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    memory = fsspec.filesystem("memory")
    cat, fetched = memory.cat_file, []

    def note(path: str, start: int | None = None, end: int | None = None) -> bytes:
        fetched.append((path, start))
        return cat(path, start=start, end=end)

    monkeypatch.setattr(memory, "cat_file", note)
    opened = open_plan(plan, RunOptions.of(**CPU))
    # No header and no page of the fingerprint; heads and copied tensors are compared.
    assert not [p for p, start in fetched if p.endswith(".safetensors") and not start]
    assert opened.job.report.tensors == load_sources(plan.recipe).tensors
    known = replace(plan.sources["base"].known, headers="AAAA")
    sources = plan.sources | {"base": plan.sources["base"].model_copy(update={"known": known})}
    with pytest.raises(CheckpointError, match=r"Base: .*headers in the plan are damaged"):
        open_plan(plan.model_copy(update={"sources": sources}), RunOptions.of(**CPU))
    # Written again, the same: read again, and taken. Another: refused.
    overwrite("/zoo/base/model-00001-of-00003.safetensors", by=0)
    fetched.clear()
    open_plan(plan, RunOptions.of(**CPU))
    read = {p.split("/")[-2] for p, start in fetched if p.endswith("safetensors") and not start}
    assert read == {"base"}
    overwrite("/zoo/base/model-00001-of-00003.safetensors")
    with pytest.raises(PlanError, match=r"1 source changed .*memory://zoo/base"):
        open_plan(plan, RunOptions.of(**CPU))


def test_headers_come_many_at_a_time_and_parts_ask_little(zoo, tmp_path, monkeypatch):
    shards = 8
    tensor = torch.ones(8, 8).bfloat16()
    own = {f"model.layers.{i}.mlp.up_proj.weight": tensor + i for i in range(8)}
    memory = fsspec.filesystem("memory")
    for number, source in enumerate(("base", "a", "b")):
        moved = {name: tensor + number / 64 for name, tensor in own.items()}
        write_folder(tmp_path / "many" / source, moved, shards=shards)
    memory.put(str(tmp_path / "many"), "/zoo/many", recursive=True)
    together = threading.Barrier(shards, timeout=20)
    cat, asked, seen = memory.cat_file, Counter(), set()

    def wait_for_others(path: str, start: int = 0, end: int | None = None) -> bytes:
        asked[path] += 1
        if path.endswith(".safetensors") and path not in seen:
            seen.add(path)
            together.wait()  # a header: none comes before eight were asked for
        return cat(path, start=start, end=end)

    monkeypatch.setattr(memory, "cat_file", wait_for_others)
    agents = {name: f"memory://zoo/many/{name}" for name in ("a", "b")}
    told = {"method": "task-arithmetic", "other_base": "accept"}
    recipe = make_recipe({"base": "memory://zoo/many/base", "agents": agents, **told})
    plan = make_plan(recipe, shards, max_shard_bytes=200, hash_sources=False)
    # A header and a page of the fingerprint, each once.
    assert [asked[path] for path in sorted(seen)] == [2] * 3 * shards
    for part in range(1, shards + 1):
        asked.clear()
        merge_part(plan, part, tmp_path / "out", **CPU)
        # Its own shard of each source, in one request; config and index of each.
        assert sorted(n for p, n in asked.items() if p.endswith(".safetensors")) == [1, 1, 1]
        assert asked.total() < 20


def test_hf_urls_are_read_at_the_commit_of_the_beginning(zoo, hub, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * remote.TRIES)
    commits = {"base": hub.add("lab/base", zoo.base_path)}
    for name, path in zoo.agent_paths.items():
        commits[name] = hub.add(f"lab/{name}", path, "refs/pr/1", below="runs/1/")
    urls = {name: f"hf://lab/{name}@refs/pr/1/runs/1" for name in zoo.agents}
    recipe = make_recipe({"base": "hf://lab/base", "agents": urls, "method": "task-arithmetic"})
    read_into, hub.busy = remote.ReadAhead.read_into, 503

    def while_pushed(self: Any, *where: Any) -> None:
        if len(hub.repositories["lab/base"].commits) == 1:
            hub.add("lab/base", zoo.agent_paths["agent0"])
        read_into(self, *where)

    monkeypatch.setattr(remote.ReadAhead, "read_into", while_pushed)
    merge(recipe, tmp_path / "there", max_shard_bytes=SHARD, **CPU)
    merge(zoo.recipe(method="task-arithmetic"), tmp_path / "here", max_shard_bytes=SHARD, **CPU)
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert all(there[n] == data for n, data in here.items() if n.endswith(".safetensors"))
    record = json.loads(there["ram_studio.json"])
    assert record["base"]["revision"] == commits["base"]
    assert record["agents"]["agent1"]["revision"] == commits["agent1"]
    assert record["agents"]["agent1"]["source"] == urls["agent1"]
    assert any("status 503" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("held", [1000, 0])
def test_a_file_is_hashed_in_order_however_it_is_read(held, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "MOST_AHEAD_BYTES", held)
    monkeypatch.setattr(remote, "CHUNK_BYTES", 7)
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 2)
    fetched = []

    def fetch(start: int, length: int) -> bytes:
        fetched.append(length)
        return file.read_bytes()[start : start + length]

    followed = FollowedHash(fetch, 512)
    for start, length in ((100, 50), (300, 12), (90, 40), (8, 82), (0, 3), (320, 100), (0, 10)):
        followed.took(start, file.read_bytes()[start : start + length])
    assert followed.finish() == f"blake3:{blake3_of(file)}"
    # What somebody read is not fetched again while there is room to hold it.
    assert sum(fetched) == (512 - 262 if held else 512 - 162)


@pytest.mark.parametrize(
    "changes",
    [{}, {"settings": {"epsilon": 1.23456e-5}}, {"method": "task-arithmetic"}],
    ids=["ram+", "off the epsilon grid", "no counts"],
)
def test_a_merge_to_a_url_has_the_bytes_of_one_in_a_folder(zoo, good, changes, tmp_path):
    seen = []
    recipe = zoo.recipe(**changes)
    if changes:
        merge(recipe, tmp_path / "one", max_shard_bytes=SHARD, **CPU)
        good = contents(tmp_path / "one")
    result = merge(recipe, URL, max_shard_bytes=SHARD, on_progress=seen.append, **CPU)
    assert contents_at(URL) == good
    assert result.out == URL
    assert result.bytes_written == sum(len(v) for k, v in good.items() if "safetensors" in k[-11:])
    assert {progress.stage for progress in seen} >= {"merge", "check"}
    done = verify(URL, with_sources=True, full=True)
    assert (done.folder, done.shards) == (URL, 6)
    assert not any((tmp_path / "home" / "uploads").iterdir())
    again = merge(recipe, URL, max_shard_bytes=SHARD, **CPU)
    assert (again.bytes_read, again.provenance) == (0, result.provenance)


def test_a_file_url_is_a_folder(zoo, good, tmp_path):
    out = tmp_path / "out"
    merge(zoo.recipe(), f"file://{out}", max_shard_bytes=SHARD, **CPU)
    assert contents(out) == good
    assert verify(f"file://{out}").shards == 6


def test_the_index_comes_last_and_little_lies_here_meanwhile(zoo, monkeypatch, tmp_path):
    order, most = [], 0
    upload, write = UrlFolder.upload, UrlFolder.write

    def note_upload(self, path, name, on_bytes):
        nonlocal most
        order.append(name)
        lying = [p for p in (tmp_path / "home" / "uploads").rglob("*.partial") if p.is_file()]
        most = max(most, len(lying))
        with pytest.raises(CheckpointError, match="not finished"):
            open_checkpoint(URL, name="base")
        upload(self, path, name, on_bytes)

    def note_write(self, name, data):
        order.append(name)
        write(self, name, data)

    monkeypatch.setattr(UrlFolder, "upload", note_upload)
    monkeypatch.setattr(UrlFolder, "write", note_write)
    merge(zoo.recipe(), URL, max_shard_bytes=SHARD, **CPU)
    assert [n.rpartition("/")[2][:4] for n in (order[0], *order[-2:])] == ["plan", "conf", "mode"]
    assert order[-1] == "model.safetensors.index.json"
    receipts = [n for n in order if n.endswith(".receipt")]
    shards = [n for n in order if n.endswith(".safetensors")]
    assert len(shards) == len(receipts) == 6
    assert all(order.index(s) < order.index(r) for s, r in zip(shards, receipts, strict=True))
    assert most <= 2


def test_a_merge_to_a_url_goes_on_where_it_ended(zoo, good, monkeypatch, caplog):
    sent: list[str] = []
    upload = UrlFolder.upload

    def fail_third(self, path, name, on_bytes):
        sent.append(name)
        if len(sent) == 3:
            raise CheckpointError("s3://x: the wire was cut.")
        upload(self, path, name, on_bytes)

    monkeypatch.setattr(UrlFolder, "upload", fail_third)
    with pytest.raises(OutputError, match="the wire was cut"):
        merge(zoo.recipe(), URL, max_shard_bytes=SHARD, **CPU)
    assert not {"config.json", "model.safetensors.index.json", *sent[2:]} & contents_at(URL).keys()
    with caplog.at_level("INFO", logger="ram_studio"):
        merge(zoo.recipe(), URL, max_shard_bytes=SHARD, **CPU)
    [told] = [r.getMessage() for r in caplog.records if r.name == "ram_studio.engine.parts.steps"]
    assert re.fullmatch(rf"{URL} holds 2 of 6 files already \(.+\); merging the other 4", told)
    # The two that were there did not go up again; all others did once.
    assert sorted(sent) == sorted([*dict.fromkeys(sent), sent[2]])
    assert contents_at(URL) == good


def test_a_stopped_merge_to_a_url_keeps_what_is_there(zoo, good, monkeypatch):
    cancel = CancelToken()
    upload = UrlFolder.upload

    def then_stop(self, path, name, on_bytes):
        upload(self, path, name, on_bytes)
        cancel.cancel()

    with monkeypatch.context() as patched:
        patched.setattr(UrlFolder, "upload", then_stop)
        with pytest.raises(Stopped):
            merge(zoo.recipe(), URL, max_shard_bytes=SHARD, cancel=cancel, **CPU)
    assert sum(name.endswith(".safetensors") for name in contents_at(URL)) in (1, 2)
    merge(zoo.recipe(), URL, max_shard_bytes=SHARD, **CPU)
    assert contents_at(URL) == good


def test_parts_merge_to_a_url(zoo, good):
    plan = make_plan(zoo.recipe(), 3, max_shard_bytes=SHARD)
    analysis = zoo.analyze(**CPU)
    with pytest.raises(PlanError, match="parts 1 to 3 of 3 missing"):
        finish(plan, URL, **CPU)
    for part in (3, 1, 2, 2):
        done = merge_part(plan, part, URL, analysis=analysis, **CPU)
        assert (done.out, "model.safetensors.index.json" in contents_at(URL)) == (URL, False)
    assert done.is_done_before
    shard = next(iter(plan.parts[1].shards))
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/merged/model/{shard}", b"\0" * plan.parts[1].shards[shard])
    with pytest.raises(PlanError, match=rf"^Part 2 of 3: {shard} not as written"):
        finish(plan, URL, **CPU)
    merge_part(plan, 2, URL, analysis=analysis, **CPU)
    finish(plan, URL, **CPU)
    assert contents_at(URL) == good
    finish(plan, URL, **CPU)


def test_a_machine_that_fails_takes_nothing_from_the_others(zoo, good, monkeypatch):
    plan = make_plan(zoo.recipe(), 2, max_shard_bytes=SHARD)
    analysis = analyze(zoo.base_path, zoo.agent_paths, **CPU)
    upload = UrlFolder.upload

    def while_another_fails(self, path, name, on_bytes):
        with contextlib.suppress(KeyError), open_output(URL, in_parts=True) as other:
            other.begin(plan.digest)
            raise KeyError
        upload(self, path, name, on_bytes)

    monkeypatch.setattr(UrlFolder, "upload", while_another_fails)
    for part in (1, 2):
        merge_part(plan, part, URL, analysis=analysis, **CPU)
    finish(plan, URL, **CPU)
    assert contents_at(URL) == good


def test_a_finish_at_a_url_that_was_broken_off_is_done_again(zoo, good, monkeypatch):
    plan = make_plan(zoo.recipe(), 2, max_shard_bytes=SHARD)
    analysis = zoo.analyze(**CPU)
    for part in (1, 2):
        merge_part(plan, part, URL, analysis=analysis, **CPU)

    def half(self, names):
        self.system.rm(f"{self.root}/{names[0]}/plan-{plan.digest}")
        raise CheckpointError("s3://x: gone.")

    with monkeypatch.context() as broken:
        broken.setattr(UrlFolder, "remove", half)
        with pytest.raises(OutputError, match="gone"):
            finish(plan, URL, **CPU)
    assert len(contents_at(URL)) > len(good)
    finish(plan, URL, **CPU)
    assert contents_at(URL) == good


def test_what_is_there_already_is_not_overwritten(zoo):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/merged/model/thesis.txt", b"mine")
    with pytest.raises(OutputError, match=r"memory://merged/model exists and is not empty"):
        merge(zoo.recipe(), URL, **CPU)
    memory.rm("/merged", recursive=True)
    plan = make_plan(zoo.recipe(method="task-arithmetic"), 2, max_shard_bytes=SHARD)
    merge_part(plan, 1, URL, **CPU)
    with pytest.raises(OutputError, match="parts of another plan"):
        merge(zoo.recipe(), URL, **CPU)
    with pytest.raises(RamStudioError):
        merge(zoo.recipe(settings={"r": 99999}), "memory://merged/other", **CPU)
    assert not fsspec.filesystem("memory").exists("/merged/other")


def test_of_two_plans_that_begin_at_once_one_goes_on(zoo, monkeypatch):
    other = make_plan(zoo.recipe(method="task-arithmetic"), 1)
    write, begun = UrlFolder.write, []

    def meanwhile(self, name, data):
        write(self, name, data)
        if not begun:
            begun.append(name)
            write(self, f".ram-studio-parts/plan-{other.digest}", b"")

    monkeypatch.setattr(UrlFolder, "write", meanwhile)
    with pytest.raises(OutputError, match="parts of another plan"):
        merge(zoo.recipe(), URL, max_shard_bytes=SHARD, **CPU)
    merge_part(other, 1, URL, **CPU)
    finish(other, URL, **CPU)
    assert not [name for name in contents_at(URL) if "plan-" in name]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("memory://nowhere", "memory://nowhere: .*Check the address"),
        ("nosuchscheme://bucket/model", "nosuchscheme"),
        ("memory://zoo", "memory://zoo has no safetensors"),
        ("ftp://me:secret@host/model", r"ftp://\.\.\.@host/model contains a password"),
        ("https://host/model?X-Amz-Signature=secret", "https://host/model contains .* signed"),
        ("s3://bucket/model", "needs a package that is not installed: Install s3fs"),
        ("gs://bucket/model", "needs a package that is not installed: Please install gcsfs"),
    ],
)
def test_what_cannot_be_used_is_told(zoo, source, words, monkeypatch):
    for package in ("s3fs", "gcsfs"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(CheckpointError, match=rf'^Agent "tool": .*{words}') as told:
        open_checkpoint(source, name="tool")
    assert "secret" not in str(told.value)
    if source.startswith("memory"):
        return
    with pytest.raises(OutputError, match=f"^The output .*{words}") as told:
        merge(zoo.recipe(), source, **CPU)
    assert "secret" not in str(told.value)


def test_errors_of_stores_are_told_in_a_line(zoo, monkeypatch):
    class NoCredentialsError(Exception):
        """As botocore's, which is no OSError."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(fsspec.filesystem("memory"), "pipe_file", refuse)
    with pytest.raises(OutputError, match=r"locate credentials .*your credentials") as told:
        merge(zoo.recipe(), URL, **CPU)
    assert "\n" not in str(told.value)


def test_public_apps_refuse_urls(zoo):
    with pytest.raises(RamStudioError):
        open_checkpoint("memory://zoo/base", name="base", local_ok=False)
    assert not is_url(Path("memory://zoo"))
