"""Passes over models that stay on the Hub, over real HTTP against a Hub on this machine."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_zoo import Zoo, make_zoo, weights_in, write_folder
from loopback_hub import LoopbackHub
from safetensors.numpy import load_file

from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.fit.storage_report import check_analysis
from ram_studio.checkpoints.read import remote
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze, analyze_report, load
from ram_studio.engine.merge import merge
from ram_studio.engine.microscope.view import microscope
from ram_studio.engine.verify import verify
from ram_studio.errors import CompatibilityError, HubError


def publish(hub: LoopbackHub, zoo: Zoo) -> dict[str, str]:
    hub.add("lab/base", zoo.base_path)
    for name, path in zoo.agent_paths.items():
        hub.add(f"lab/{name}", path)
    return {name: f"lab/{name}" for name in zoo.agents}


def received(hub: LoopbackHub, file: str, repository: str) -> list[int]:
    """Return how often each byte of a file was asked for."""
    size = len(next(iter(hub.repositories[repository].commits.values()))[file])
    times = np.zeros(size, dtype=int)
    for method, path, wanted in hub.requests:
        if method == "GET" and path.endswith(f"/{file}") and f"/{repository}/" in path:
            assert wanted is not None, "never a whole file"
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            times[first : last + 1] += 1
    return times.tolist()


def same(one: Analysis, other: Analysis, folder: Path) -> None:
    """Compare what both write, but for where the files came from."""
    arrays = []
    for number, analysis in enumerate((one, other)):
        file = save_analysis(analysis, folder / f"{number}.analysis")
        arrays.append(load_file(file))
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        assert array.tobytes() == arrays[1][name].tobytes(), name
    assert one.warnings == other.warnings


def test_a_streamed_analysis_reads_once_and_equals_a_local_one(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No data comes along with the headers, and a piece holds a few tensors.
    monkeypatch.setattr(remote, "FIRST_REQUEST_BYTES", 8)
    monkeypatch.setattr(remote, "CHUNK_BYTES", 200)
    zoo = make_zoo(tmp_path / "zoo", 3, shards=3, copied=False)
    agents = publish(hub, zoo)
    streamed = analyze("lab/base", agents, stream=True, threads=2)
    same(zoo.analyze(), streamed, tmp_path)
    for name in ("base", *zoo.agents):
        for path in sorted((zoo.folder / name).glob("*.safetensors")):
            assert set(received(hub, path.name, f"lab/{name}")) == {1}, (name, path.name)
    assert not list((tmp_path / "hf-home").rglob("*.safetensors"))


def test_connections_that_drop_go_on_where_they_broke_off(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_REQUEST_BYTES", 8)
    zoo = make_zoo(tmp_path / "zoo", 2, shards=2)
    agents = publish(hub, zoo)
    report = load("lab/base", agents, stream=True)
    names = [f"model-{i:05d}-of-00002.safetensors" for i in (1, 2)]
    hub.drops = {names[0]: [7, 0, 300], names[1]: [1, 50]}
    streamed = analyze_report(report, threads=2)
    assert not any(hub.drops.values()), "all five broke off"
    same(zoo.analyze(), streamed, tmp_path)


def test_a_hub_that_is_gone_is_told_after_a_few_tries(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_REQUEST_BYTES", 8)
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * remote.TRIES)
    zoo = make_zoo(tmp_path / "zoo", 1)
    report = load("lab/base", publish(hub, zoo), stream=True)
    hub.status = 503
    before = len(hub.requests)
    with pytest.raises(HubError, match=r"lab/.* status 503"):
        analyze_report(report, threads=1)
    assert len(hub.requests) >= before + remote.TRIES
    hub.status = 404
    with pytest.raises(HubError, match="does not exist"):
        analyze_report(report, threads=1)


def test_a_streamed_analysis_is_known_again_after_the_download(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    zoo = make_zoo(tmp_path / "zoo", 2)
    agents = publish(hub, zoo)
    file = save_analysis(analyze("lab/base", agents, stream=True), tmp_path / "s")
    downloaded = load("lab/base", agents)
    assert downloaded.is_local
    check_analysis(load_analysis(file), downloaded)
    # What is in the cache is not asked for again.
    before = len(hub.downloads(".safetensors"))
    assert load("lab/base", agents, stream=True).is_local
    assert len(hub.downloads(".safetensors")) == before


@pytest.mark.parametrize("tied", [True, None])
def test_a_head_that_is_stored_twice_is_counted_once(
    hub: LoopbackHub, tmp_path: Path, tied: bool | None
) -> None:
    matrix = torch.linspace(0, 1, 40).bfloat16().reshape(10, 4)
    for name, factor in (("base", 1), ("agent", 2)):
        tensors = {"lm_head.weight": matrix * factor, "model.embed_tokens.weight": matrix * factor}
        write_folder(tmp_path / name, tensors, tied=tied)
        hub.add(f"lab/{name}", tmp_path / name)
    report = load("lab/base", {"agent": "lab/agent"}, stream=True)
    assert [t.name for t in report.counted] == ["model.embed_tokens.weight"]


def test_integers_of_another_model_are_found_on_the_hub_too(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    for name in ("base", "agent"):
        numbers = torch.arange(4) + (name == "agent")
        write_folder(tmp_path / name, {"w": torch.ones(3).bfloat16(), "positions": numbers})
        hub.add(f"lab/{name}", tmp_path / name)
    with pytest.raises(CompatibilityError, match=r"`positions` .* has other values than the base"):
        load("lab/base", {"agent": "lab/agent"}, stream=True)


def test_a_streamed_merge_equals_the_local_one_and_verifies(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    zoo = make_zoo(tmp_path / "zoo", 2, shards=2)
    agents = publish(hub, zoo)
    merge(zoo.recipe(), tmp_path / "here")
    there = make_recipe({"base": "lab/base", "agents": agents})
    analysis = analyze("lab/base", agents, stream=True)
    result = merge(there, tmp_path / "there", stream=True, analysis=analysis)
    assert not list((tmp_path / "hf-home").rglob("*.safetensors"))
    assert weights_in(tmp_path / "here") == weights_in(tmp_path / "there")
    assert result.provenance.base.files is not None
    assert verify(tmp_path / "there", with_sources=True, full=True).source_files == 5


def test_the_microscope_reads_there_what_it_shows(hub: LoopbackHub, tmp_path: Path) -> None:
    zoo = make_zoo(tmp_path / "zoo", 2)
    agents = publish(hub, zoo)
    name = "model.layers.0.mlp.up_proj.weight"
    here = microscope(zoo.base_path, zoo.agent_paths, name, start=3, count=5)
    there = microscope("lab/base", agents, name, start=3, count=5)
    assert there.agents.tobytes() == here.agents.tobytes()
    assert not list((tmp_path / "hf-home").rglob("*.safetensors"))


class Counted(bytearray):  # bytes cannot be watched
    """Bytes that are known to be there as long as somebody holds them."""

    __hash__ = object.__hash__


def test_a_piece_that_comes_as_the_wait_ends_is_taken(monkeypatch, tmp_path) -> None:
    """What arrives between two looks at it was told as a timeout."""
    monkeypatch.setattr(remote, "_WAIT_SECONDS", 0.01)
    may_arrive, path = threading.Event(), tmp_path / "f"

    class Place:
        def read_range(self, name: str, start: int, length: int) -> bytes:
            may_arrive.wait()
            return bytes(length)

    class Late(Future):  # type: ignore[type-arg]
        def done(self) -> bool:
            may_arrive.set()
            super().result()
            return True

    monkeypatch.setattr("concurrent.futures.thread._base.Future", Late)
    tensors = [TensorInfo("w", "U8", (9,), path, 0, 9)]
    check = may_arrive.set
    ahead = remote.ReadAhead({path: Place()}, tensors, check)  # type: ignore[dict-item]
    ahead.read_into(path, 0, memoryview(found := bytearray(b"x" * 9)))
    ahead.close()
    assert found == bytes(9)


def test_what_is_fetched_ahead_is_let_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also of files that nobody reads on in: memory is bounded, whatever a pass does."""
    monkeypatch.setattr(remote, "CHUNK_BYTES", 100)
    monkeypatch.setattr(remote, "MAX_BUFFERED_BYTES", 1000)
    live: weakref.WeakSet[Counted] = weakref.WeakSet()
    held = threading.Lock()  # a set that grows in another thread cannot be gone through

    class Place:
        def read_range(self, name: str, start: int, length: int) -> bytes:
            found = Counted(length)
            with held:
                live.add(found)
            return found  # type: ignore[return-value]

    paths = [tmp_path / str(number) for number in range(20)]
    tensors = [TensorInfo(p.name, "U8", (5000,), p, 0, 5000) for p in paths]
    ahead = remote.ReadAhead(dict.fromkeys(paths, Place()), tensors)  # type: ignore[arg-type]
    peak = 0
    for start in range(0, 5000, 250):
        for path in paths:
            ahead.read_into(path, start, memoryview(bytearray(10 if path.name < "1" else 250)))
            with held:
                peak = max(peak, sum(map(len, live)))
    ahead.close()
    assert peak <= 1000 + 100 * (remote.CONNECTIONS + remote.AHEAD + 1)
