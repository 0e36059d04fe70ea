"""Hashing sources behind a pass: the right digests, little memory, nothing in the way."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import tracemalloc
from pathlib import Path

import blake3
import pytest
import torch
from engine_zoo import make_zoo, write_folder

from ram_studio.checkpoints.read.content_hash import CHUNK_BYTES, blob_of, known_hash
from ram_studio.checkpoints.read.stored_bytes import hash_tensor
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.engine.analyze import load
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.engine.passes import source_hashes
from ram_studio.engine.passes.source_hashes import SourceHasher
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS
from ram_studio.errors import CheckpointError, SourceChangedError, Stopped

BIG = {f"model.layers.{i}.w": ((3 + i) * 4 * GROUP_ELEMENTS,) for i in range(3)}


def digest(path: Path) -> str:
    return f"blake3:{blake3.blake3(path.read_bytes()).hexdigest()}"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo"), 2, shapes=BIG, shards=3, seed=1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("steps", [(), (0.2, 0.1, 0.7), (1.0,)])
def test_every_shard_gets_the_hash_of_its_content(zoo, threads, steps):
    report = zoo.load()
    with SourceHasher(report, threads=threads) as hasher:
        for fraction in steps:
            hasher.advance(fraction)
        found = hasher.finish()
    assert list(found) == ["base", "agent0", "agent1"]
    for checkpoint in (report.base, *report.agents):
        expected = {path.name: digest(path) for path in checkpoint.shards}
        assert found[checkpoint.name] == expected
    assert threading.active_count() == 1 or not any(t.name == "hash" for t in threading.enumerate())


def test_a_tensor_that_ends_too_early_has_no_hash(tmp_path):
    (tmp_path / "f").write_bytes(bytes(10))
    with pytest.raises(CheckpointError, match="f cannot be read: it ends too early"):
        hash_tensor(TensorInfo("w", "U8", (9,), tmp_path / "f", 2, 9))


def test_nothing_is_read_before_the_pass_has_been_there(zoo, monkeypatch):
    report = zoo.load()
    reads: list[tuple[int, int]] = []
    original = os.preadv

    def preadv(handle, buffers, offset):
        reads.append((handle, offset + len(buffers[0])))
        return original(handle, buffers, offset)

    monkeypatch.setattr(source_hashes.os, "preadv", preadv)
    with SourceHasher(report, threads=1) as hasher:
        hasher._workers[0].join(0.1)
        assert reads == []
        hasher.advance(0.5)
        files = hasher._files.values()
        total = sum(f.size for f in files)
        deadline = time.monotonic() + 60
        while total // 2 - sum(f.done for f in files) >= len(files) * CHUNK_BYTES:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        hasher._workers[0].join(0.1)
        assert sum(f.done for f in files) <= total // 2
        hasher.finish()
        assert sum(f.done for f in hasher._files.values()) == total


def test_memory_is_a_piece_per_thread(zoo):
    report = zoo.load()
    tracemalloc.start()
    try:
        with SourceHasher(report, threads=2) as hasher:
            hasher.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * CHUNK_BYTES + 300_000


def test_a_stop_ends_it_and_its_threads(zoo):
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Stopped), SourceHasher(zoo.load()) as hasher:
        hasher.finish(cancel=cancel)
    assert not any(t.name == "hash" for t in threading.enumerate())


@pytest.mark.parametrize("change", ["touch", "replace", "vanish", "truncate"])
def test_a_file_that_is_not_the_one_at_the_start_is_refused(tmp_path, change):
    zoo = make_zoo(tmp_path, 1, seed=2)
    shard = zoo.folder / "agent0" / "model.safetensors"
    named = pytest.raises(SourceChangedError, match=r'Agent "agent0": .*model\.safetensors')
    with named, SourceHasher(zoo.load()) as hasher:
        if change == "touch":
            os.utime(shard, ns=(1, 1))
        elif change == "replace":
            copy = tmp_path / "copy"
            copy.write_bytes(shard.read_bytes())
            os.utime(copy, ns=(shard.stat().st_atime_ns, shard.stat().st_mtime_ns))
            os.replace(copy, shard)
        elif change == "vanish":
            shard.unlink()
        else:
            os.truncate(shard, 100)
        hasher.finish()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_disk_that_fails_is_named_and_ends_all_threads(zoo, monkeypatch, threads):
    def fail(*_):
        raise OSError(5, "Input/output error")

    report = zoo.load()
    monkeypatch.setattr(source_hashes.os, "preadv", fail)
    named = pytest.raises(CheckpointError, match="Input/output")
    with named, SourceHasher(report, threads=threads) as hasher:
        hasher.advance(0.01)  # not all of them have begun
        hasher.finish()
    assert not any(t.name == "hash" for t in threading.enumerate())


def hub_cache(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Write a snapshot as the Hub's cache lays it out: links to blobs named by their SHA-256."""
    written = write_folder(folder / "written", tensors)
    repository = folder / "models--owner--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in written.iterdir():
        data = file.read_bytes()
        name = hashlib.sha256(data).hexdigest()
        if file.suffix == ".json":
            name = hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()
        (repository / "blobs" / name).write_bytes(data)
        (snapshot / file.name).symlink_to(Path("../../blobs") / name)
    return snapshot


def test_of_the_hubs_cache_the_sha256_is_known_without_reading(tmp_path, zoo, monkeypatch):
    base = {"w": torch.ones(100)}
    snapshot = hub_cache(tmp_path, base)
    other = write_folder(tmp_path / "agent", {"w": torch.zeros(100)})
    shard = snapshot / "model.safetensors"
    expected = f"sha256:{hashlib.sha256(shard.read_bytes()).hexdigest()}"
    assert known_hash(shard) == expected
    assert known_hash(snapshot / "config.json") is None  # a Git hash
    assert blob_of(snapshot / "config.json") is not None
    assert known_hash(other / "model.safetensors") is None
    read: list[int] = []
    original = os.preadv
    monkeypatch.setattr(
        source_hashes.os, "preadv", lambda h, b, o: (read.append(h), original(h, b, o))[1]
    )
    with SourceHasher(load(snapshot, {"a": other})) as hasher:
        found = hasher.finish()
    assert found["base"] == {"model.safetensors": expected}
    assert found["a"] == {"model.safetensors": digest(other / "model.safetensors")}
    assert len(set(read)) == 1


def test_a_merge_hashes_its_sources_unless_told_not_to(zoo, tmp_path):
    result = merge(zoo.recipe(), tmp_path / "out")
    for name in ("base", "agent0", "agent1"):
        record = result.provenance.base if name == "base" else result.provenance.agents[name]
        shards = sorted((zoo.folder / name).glob("*.safetensors"))
        assert {f: r.hash for f, r in record.files.items()} == {p.name: digest(p) for p in shards}
        assert {f: r.nbytes for f, r in record.files.items()} == {
            p.name: p.stat().st_size for p in shards
        }
    plain = merge(zoo.recipe(), tmp_path / "plain", hash_sources=False)
    assert plain.provenance.base.files is None
    shards = sorted(p.name for p in result.out.glob("*.safetensors"))
    for name in shards:
        assert (result.out / name).read_bytes() == (plain.out / name).read_bytes()


def test_few_files_are_open_at_a_time_for_any_shards(zoo, monkeypatch):
    report = zoo.load()
    assert len({p for c in (report.base, *report.agents) for p in c.shards}) == 7
    here: set[int] = set()
    most: list[int] = []
    opened, closed = os.open, os.close

    def count_open(*arguments, **options):
        handle = opened(*arguments, **options)
        here.add(handle)
        most.append(len(here))
        return handle

    def count_close(handle):
        here.discard(handle)
        closed(handle)

    monkeypatch.setattr(source_hashes.os, "open", count_open)
    monkeypatch.setattr(source_hashes.os, "close", count_close)
    with SourceHasher(report, threads=1) as hasher:
        for step in range(11):  # as a pass goes: one shard of each checkpoint at a time
            hasher.advance(step / 10)
            hasher._workers[0].join(0.05)
        hasher.finish()
    assert not here
    assert max(most) <= 5  # one of each, and the next before the last piece of the one before
