"""Faults at every write of a multi-shard merge: nothing that looks finished is wrong.

Each is followed by a plain run into the same folder, which must complete as if nothing had been.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fault_points
import pytest
from engine_zoo import Zoo, contents, make_zoo
from fault_points import FaultPoint
from test_source_faults import at_block

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.verify import verify
from ram_studio.errors import CheckpointError, OutputError, SourceChangedError

SHAPES = {f"model.layers.{i}.w": (6, 50 + i) for i in range(5)} | {"model.norm.w": (3,)}
OPTIONS = {"threads": 1, "max_shard_bytes": 1300}
WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EIO: "input/output error",
    errno.EROFS: "the disk is read-only",
    errno.EDQUOT: "quota",
    errno.EACCES: os.strerror(errno.EACCES),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 2, shapes=SHAPES, shards=3, seed=1)


@pytest.fixture(scope="module")
def good(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed merge writes."""
    out = merge(zoo.recipe(), tmp_path_factory.mktemp("good") / "out", **OPTIONS).out
    found = contents(out)
    assert len([name for name in found if name.endswith(".safetensors")]) == 3
    return found


@pytest.fixture(scope="module")
def calls(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The calls of an undisturbed merge that change something where it writes."""
    folder = tmp_path_factory.mktemp("calls")
    with FaultPoint(folder, None, lambda: None).installed() as point:
        merge(zoo.recipe(), folder / "out", **OPTIONS)
    return point.seen


def test_the_harness_sees_every_kind_of_write(calls, good):
    kinds = {kind for kind, _ in calls}
    assert {"open", "pwrite", "fsync", "rename", "mkdir", "posix_fallocate"} <= kinds
    written = {name.removesuffix(".partial") for kind, name in calls if kind != "mkdir"}
    assert {os.path.basename(name) for name in good} <= written
    # Every tensor is written once at least, and every shard's header.
    assert sum(kind == "pwrite" for kind, _ in calls) >= len(SHAPES) + 2 + 3


def assert_nothing_wrong(folder: Path, good: dict[str, bytes]) -> bool:
    """Fail if something below looks like a model and is not the right one; say if it is there."""
    for below in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
        try:
            open_checkpoint(str(below), name="merged")
        except CheckpointError:
            continue
        found = contents(below)
        if below.name.startswith(".") and "config.json" not in found:
            # Hidden, and no config yet, so that nothing loads it: its shards are whole at least.
            found = {n: data for n, data in found.items() if n.endswith(".safetensors")}
            assert found == {n: data for n, data in good.items() if n.endswith(".safetensors")}
        else:
            assert found == good
    return (folder / "out").exists()


def rerun(zoo: Zoo, folder: Path, good: dict[str, bytes]) -> None:
    """Merge into the same folder, undisturbed."""
    merge(zoo.recipe(), folder / "out", **OPTIONS)
    assert contents(folder / "out") == good
    assert os.listdir(folder) == ["out"]


def test_an_error_at_any_write_is_told_and_leaves_nothing(zoo, good, calls, tmp_path):
    finished = []
    for at, call in enumerate(calls):
        code = list(WORDS)[at % len(WORDS)]
        folder = tmp_path / str(at)
        folder.mkdir()

        def fail(code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        point = FaultPoint(folder, at, fail)
        try:
            with point.installed():
                merge(zoo.recipe(), folder / "out", **OPTIONS)
        except OutputError as error:
            message = str(error)
        else:
            message = ""
        assert len(point.seen) > at, f"{call}: not reached"
        if message:
            assert WORDS[code] in message, f"{call}: {message}"
            assert str(folder) in message
            assert "Nothing was left behind." in message
            assert message.isprintable()
            assert os.listdir(folder) == [], f"{call}: {os.listdir(folder)}"
        else:
            finished.append(call)
            assert contents(folder / "out") == good, f"{call}"
            assert os.listdir(folder) == ["out"]
        if at % 23 == 0 and message:
            rerun(zoo, folder, good)
    # An error is no failure where a folder to be made is there already, and when everything is in
    # place: the last flush, that of the parent.
    assert finished.pop() == calls[-1]
    assert calls[-1][0] == "fsync"
    assert {kind for kind, _ in finished} <= {"mkdir"}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written to; for root, who may write anywhere, a disk of its own."""
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    if os.geteuid() != 0:
        yield folder
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)]
    if (
        not shutil.which("mount")
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_target_is_refused_before_any_work(zoo, read_only, monkeypatch):
    monkeypatch.setattr(BlockReader, "read", lambda *_: pytest.fail("a block was read"))
    with pytest.raises(OutputError, match="not writable"):
        merge(zoo.recipe(), read_only / "out", **OPTIONS)
    assert os.listdir(read_only) == []


Order = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def order(zoo: Zoo) -> Iterator[Order]:
    """Merge in a process of its own with a fault; returns (exit code, what it said)."""
    recipe = zoo.recipe().model_dump(mode="json")
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", fault_points.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )

    def send(value: dict[str, Any]) -> Any:
        server.stdin.write(json.dumps(value) + "\n")
        server.stdin.flush()
        return server.stdout.readline()

    merging = {"recipe": recipe, "options": OPTIONS}
    assert send(merging) == "ready\n"

    def run(fault: str, out: Path, at: int) -> tuple[int, str]:
        code, text = json.loads(send({**merging, "fault": fault, "out": str(out), "at": at}))
        return code, text

    yield run
    server.stdin.close()
    server.wait(60)
    server.stdout.close()


def test_a_kill_at_any_write_is_repaired_by_the_next_run(zoo, good, calls, order, tmp_path):
    last = len(calls) - 14  # from here on the folder is put together
    completed = []
    for at in [*range(0, last, 4), *range(last, len(calls))]:
        folder = tmp_path / str(at)
        folder.mkdir()
        code, text = order("kill", folder / "out", at)
        assert code == -signal.SIGKILL, f"{calls[at]}: {code} {text}"
        if assert_nothing_wrong(folder, good):
            completed.append(calls[at])
            verify(folder / "out", with_sources=True, full=True)
        else:
            rerun(zoo, folder, good)
    assert completed in ([], [calls[-1]]), completed


def test_a_stop_at_any_write_exits_with_130_and_leaves_nothing(zoo, good, calls, order, tmp_path):
    for at in range(0, len(calls) - 1, 9):
        folder = tmp_path / str(at)
        folder.mkdir()
        code, text = order("term", folder / "out", at)
        assert (code, text) == (130, "Stopped; nothing was left behind.\n"), calls[at]
        assert os.listdir(folder) == []


def test_files_that_may_not_grow_are_told_by_any_writer(zoo, good, order, tmp_path):
    largest = max(map(len, good.values()))
    outcomes = []
    for at in (1, 900, 1500, 3000, largest - 1, largest):
        folder = tmp_path / str(at)
        folder.mkdir()
        code, text = order("limit", folder / "out", at)
        outcomes.append(code)
        if code:
            assert "File too large" in text
            assert os.listdir(folder) == []
        else:
            assert contents(folder / "out") == good
    assert outcomes == [1] * 5 + [0]


@pytest.mark.parametrize("change", ["overwrite", "replace", "truncate", "vanish"])
def test_a_source_that_changes_at_any_block_is_noticed(zoo, good, tmp_path, monkeypatch, change):
    blocks = 2 * len(SHAPES)  # both passes
    shown = {"base": "Base", "agent0": 'Agent "agent0"'}
    for number in range(1, blocks + 1, 2 if change == "overwrite" else 5):
        mine = make_zoo(tmp_path / f"{number}", 2, shapes=SHAPES, shards=3, seed=1)
        who = ("base", "agent0")[number % 2]
        shard = mine.folder / who / "model-00002-of-00003.safetensors"
        data = shard.read_bytes()

        def act(shard: Path = shard, data: bytes = data) -> None:
            changed = data[:-1] + bytes([data[-1] ^ 1])
            if change == "overwrite":
                with open(shard, "r+b") as file:
                    file.write(changed)
                later = shard.stat().st_mtime_ns + 10_000_000
                os.utime(shard, ns=(later, later))
            elif change == "replace":
                other = shard.with_suffix(".new")
                other.write_bytes(changed)
                os.replace(other, shard)
            elif change == "truncate":
                os.truncate(shard, len(data) - 40)
            else:
                shard.unlink()

        out = tmp_path / f"out{number}" / "out"
        out.parent.mkdir()
        with monkeypatch.context() as patch:
            at_block(patch, number, act)
            with pytest.raises(CheckpointError) as caught:
                merge(mine.recipe(), out, block_elements=GROUP_ELEMENTS, **OPTIONS)
        assert isinstance(caught.value, SourceChangedError) or change == "vanish"
        message = str(caught.value)
        named = f"{shown[who]}: {shard}"
        assert named in message or "between the two passes" in message
        assert message.isprintable()
        assert os.listdir(out.parent) == []
        shard.write_bytes(data)
        merge(mine.recipe(), out, **OPTIONS)
        for name in good:
            if name.endswith(".safetensors"):
                assert (out / name).read_bytes() == good[name]


def test_of_merges_into_one_folder_at_once_one_writes(zoo, good, tmp_path):
    """One that starts after the end of another finds its merge done, and leaves it."""
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        barrier = threading.Barrier(4)
        outcomes: list[str] = []

        def run(out: Path, barrier: threading.Barrier, outcomes: list[str]) -> None:
            barrier.wait()
            try:
                merge(zoo.recipe(), out, **OPTIONS)
            except OutputError as error:
                outcomes.append(str(error))
            else:
                outcomes.append(f"done {os.stat(out).st_ino}")

        given = (folder / "out", barrier, outcomes)
        threads = [threading.Thread(target=run, args=given) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({text for text in outcomes if text.startswith("done ")}) == 1
        for text in outcomes:
            assert re.search("^done |Another run is writing|not empty", text), text
        assert contents(folder / "out") == good
        assert os.listdir(folder) == ["out"]


def test_a_second_process_is_refused_while_the_first_lives(zoo, good, calls, order, tmp_path):
    """The first waits in the middle of its writes until the second has been told."""
    middle = len(calls) // 2
    told: list[tuple[int, str]] = []

    def other() -> None:
        told.append(order("none", tmp_path / "out", -1))

    with FaultPoint(tmp_path, middle, other).installed():
        merge(zoo.recipe(), tmp_path / "out", **OPTIONS)
    [(code, text)] = told
    assert code == 1
    assert "Another run is writing" in text
    assert contents(tmp_path / "out") == good
    assert os.listdir(tmp_path) == ["out"]
