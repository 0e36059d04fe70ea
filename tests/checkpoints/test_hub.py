"""Checkpoints on the Hub, over real HTTP against a Hub on this machine."""

from __future__ import annotations

import logging
import os
import pickle
from collections import namedtuple
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
import torch
from checkpoint_zoo import (
    QWEN_CONFIG,
    raw_safetensors,
    refused,
    small_tensors,
    write_checkpoint,
    write_json,
)

from ram_studio.checkpoints.fit.compatibility import check_compatibility
from ram_studio.checkpoints.hub import repository, rights
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import Checkpoint, DownloadProgress
from ram_studio.errors import CheckpointError, CompatibilityError, HubError, Stopped

MODEL = "owner/model"
inspect_source = partial(open_checkpoint, headers_only=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sharded model with a tokenizer, and things nobody wants."""
    folder = write_checkpoint(tmp_path / "source", small_tensors(), shards=2)
    write_json(folder / "tokenizer.json", {"model": {"vocab": {"a": 0}}})
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps("never"))
    (folder / "picture.png").write_bytes(b"png")
    (folder / "modeling_x.py").write_text("raise SystemExit")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "consolidated.safetensors").write_bytes(raw_safetensors(b"{}"))
    return folder


def refuse(source: str, *words: str, inspect_too: bool = True) -> None:
    """Open (and inspect) what must be refused with these words."""
    for function in (open_checkpoint, inspect_source) if inspect_too else (open_checkpoint,):
        message = refused(lambda: function(source, name="coder"), *words, kind=HubError)  # noqa: B023
        assert message.startswith(f'Agent "coder": {source.split("@")[0]}')


def places(opened: Checkpoint) -> dict[str, tuple]:
    return {n: (t.dtype, t.shape, t.offset, t.nbytes) for n, t in opened.tensors.items()}


def test_a_download_opens_like_the_folder_it_came_from(hub, source):
    commit = hub.add(MODEL, source)
    here = open_checkpoint(source, name="base")
    there = open_checkpoint(MODEL, name="base")
    assert there.fingerprint == here.fingerprint
    assert there.config == here.config
    assert places(there) == places(here)
    for one, other in zip(here.shards, there.shards, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert (there.source, there.revision, there.is_local) == (MODEL, commit, True)
    assert there.folder.is_relative_to(os.environ["HF_HOME"])
    # Weights in use and small text files were asked for, and nothing else.
    shards = {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    index, texts = "model.safetensors.index.json", {"README.md", "config.json", "tokenizer.json"}
    assert {file for file, _ in hub.downloads()} == {index, *shards, *texts}


def test_a_second_open_downloads_nothing_and_works_offline(hub, source, monkeypatch):
    hub.add(MODEL, source)
    first = open_checkpoint(MODEL, name="base")
    before = len(hub.downloads())
    assert open_checkpoint(MODEL, name="base").fingerprint == first.fingerprint
    assert len(hub.downloads()) == before
    for fault in (503, None):
        hub.status = fault
        if fault is None:  # nobody answers at all
            monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        offline = open_checkpoint(MODEL, name="base")
        assert offline.fingerprint == first.fingerprint
        assert offline.revision == first.revision
        assert inspect_source(MODEL, name="base").is_local


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, source, tmp_path):
    old = hub.add(MODEL, source)
    newer = write_checkpoint(tmp_path / "newer", small_tensors(5))
    new = hub.add(MODEL, newer, branch="v2")
    assert open_checkpoint(MODEL, name="base").revision == old
    for revision in ("v2", new):
        opened = open_checkpoint(f"{MODEL}@{revision}", name="base")
        assert opened.revision == new
        assert opened.source == f"{MODEL}@{revision}"
        assert opened.fingerprint == open_checkpoint(newer, name="base").fingerprint


@pytest.mark.parametrize(
    ("asked", "how", "words"),
    [
        (f"{MODEL}@v9", {}, ["has no revision `v9`", "{hub}/owner/model/tree/main"]),
        (MODEL, {"is_gated": True}, ["is gated", "license on {hub}/owner/model", "auth login`"]),
        (MODEL, {"is_private": True}, ["is not on {hub}, or is private", "`hf auth login`"]),
        (
            "owner/typo",
            {},
            ["is not on {hub}, or is private", "nor is there a folder /", "check the spelling"],
        ),
    ],
)
def test_what_the_hub_refuses_comes_with_advice(hub, source, asked, how, words):
    hub.add(MODEL, source, **how)
    refuse(asked, *(text.format(hub=hub.address) for text in words))


def test_a_token_is_sent_and_neither_shown_nor_stored(hub, source, caplog):
    token = "hf_" + "x" * 34
    hub.add("owner/secret", source, is_private=True)
    hub.tokens.add("somebody")
    with caplog.at_level(logging.DEBUG), rights.acting_as(token):
        streamed = open_checkpoint("owner/secret", name="base", stream=True)
        opened = open_checkpoint("owner/secret", name="base")
        with pytest.raises(HubError) as caught:
            open_checkpoint("owner/none", name="base")
    assert f"Bearer {token}" in hub.tokens
    assert streamed.remote
    shown = [streamed, *streamed.remote.values(), opened]
    assert token not in repr(shown) + str(caught.value) + caplog.text
    home = Path(os.environ["HF_HOME"])
    assert not any(token.encode() in p.read_bytes() for p in home.rglob("*") if p.is_file())


def test_what_is_no_model_is_refused_and_not_fetched(hub, source):
    (source / "model-00002-of-00002.safetensors").unlink()
    hub.add(MODEL, source)
    refuse(MODEL, "model-00002-of-00002.safetensors")
    for weights in source.glob("*.safetensors*"):
        weights.unlink()
    hub.add("owner/pickles", source)
    refuse("owner/pickles", "only pickle weights", "pytorch_model.bin", "ram-studio convert")
    (source / "pytorch_model.bin").unlink()
    hub.add("owner/data", source)
    refuse("owner/data", "has no safetensors file")
    assert hub.downloads(".bin") + hub.downloads(".safetensors") == []


def test_an_index_too_large_to_be_one_is_not_fetched(hub, source, monkeypatch):
    monkeypatch.setattr("ram_studio.checkpoints.read.shard_files.MAX_SMALL_BYTES", 100)
    hub.add(MODEL, source)
    refuse(MODEL, "model.safetensors.index.json takes", "it is not fetched")
    assert hub.downloads() == []


def test_a_dropped_connection_is_tried_again_and_completed(hub, source, monkeypatch):
    hub.add(MODEL, source)
    shard = "model-00002-of-00002.safetensors"
    here = open_checkpoint(source, name="base")
    with monkeypatch.context() as patch:  # the library waits a second between its retries
        patch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        hub.drops[shard] = [100] + [0] * 6
        words = ("could not be downloaded", "run again", "finished are kept")
        refuse(MODEL, *words, inspect_too=False)
        before = len(hub.downloads())
        hub.drops[shard] = [100]
        assert open_checkpoint(MODEL, name="base").fingerprint == here.fingerprint
    again = [file for file, _ in hub.downloads()[before:]]
    assert again.count(shard) == 2
    assert "config.json" not in again


def test_a_hub_that_is_down_or_unreachable_or_offline_says_so(hub, source, monkeypatch):
    hub.add(MODEL, source)
    for hub.status, words in ((418, ["status 418"]), (403, ["status 403", "log in"])):
        refuse(MODEL, *words)
    hub.status = None
    before = len(hub.requests)
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        refuse(MODEL, "could not be downloaded from http://127.0.0.1:9", "check the connection")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refuse(MODEL, "offline mode is on", "HF_HUB_OFFLINE")
    assert len(hub.requests) == before


def test_a_disk_too_small_for_the_download_is_refused_before_it(hub, source, monkeypatch):
    hub.add(MODEL, source)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(repository.shutil, "disk_usage", lambda path: usage(2000, 1100, 900))
    refuse(MODEL, "900 bytes free", "HF_HOME", inspect_too=False)
    assert hub.downloads(".safetensors") == []


def test_progress_counts_the_bytes_to_fetch_to_their_end(hub, source):
    hub.add(MODEL, source)
    seen: list[DownloadProgress] = []
    opened = open_checkpoint(MODEL, name="coder", on_progress=seen.append)
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert seen[-1].done_bytes == seen[-1].total_bytes
    # The index was read before the download was planned.
    assert seen[-1].total_bytes > opened.nbytes
    assert {(p.name, p.source) for p in seen} == {("coder", MODEL)}
    assert all(p.seconds >= 0 for p in seen)


class _Stop:
    """Says stop after some questions."""

    def __init__(self, after: int) -> None:
        self.left = after

    def raise_if_cancelled(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped("stopped")


def test_a_download_can_be_stopped_and_taken_up_again(hub, source):
    hub.add(MODEL, source)
    with pytest.raises(Stopped):
        inspect_source(MODEL, name="base", cancel=_Stop(0))
    for after in (0, 1, 3):
        with pytest.raises(Stopped):
            open_checkpoint(MODEL, name="base", cancel=_Stop(after))
        assert not list(Path(os.environ["HF_HOME"]).rglob("*.incomplete"))
    assert open_checkpoint(MODEL, name="base").is_local


def test_local_folders_can_be_switched_off(hub, source):
    for function in (open_checkpoint, inspect_source):
        with pytest.raises(CheckpointError, match="not a Hub id"):
            function(str(source), name="base", local_ok=False)
        assert function(str(source), name="base").is_local


MANY = {f"{'long' * 60}.{i}": torch.zeros(1) for i in range(500)}
"""Their header is longer than what is asked for first."""


class TestInspection:
    def test_headers_tell_the_same_without_any_weights(self, hub, source):
        commit = hub.add(MODEL, source)
        remote = inspect_source(MODEL, name="base")
        local = open_checkpoint(source, name="base")
        assert not remote.is_local
        assert (remote.nbytes, remote.revision) == (local.nbytes, commit)
        assert remote.config == local.config
        assert places(remote) == places(local)
        assert not any(shard.exists() for shard in remote.shards)
        assert remote.fingerprint.startswith("hub-")
        downloaded = open_checkpoint(MODEL, name="base")
        assert [t.path for t in downloaded.tensors.values()] == [
            t.path for t in remote.tensors.values()
        ]
        assert inspect_source(MODEL, name="base").fingerprint == downloaded.fingerprint

    def test_weights_are_read_by_ranges_only(self, hub, tmp_path):
        big = small_tensors() | {"big": torch.zeros(1_000_000)}
        hub.add("owner/big", write_checkpoint(tmp_path / "big", big))
        hub.add("owner/many", write_checkpoint(tmp_path / "many", MANY))
        inspect_source("owner/big", name="base")
        [(_, wanted)] = hub.downloads(".safetensors")
        assert wanted == "bytes=0-99999"
        # A header longer than the first request takes a second one.
        assert len(inspect_source("owner/many", name="base").tensors) == 500
        [first, second] = [wanted for _, wanted in hub.downloads(".safetensors")[1:]]
        assert (first, second.partition("-")[0]) == ("bytes=0-99999", "bytes=100000")

    def test_a_server_without_ranges_is_read_no_further_than_needed(self, hub, tmp_path):
        hub.ignores_ranges = True
        hub.add(MODEL, write_checkpoint(tmp_path / "m", small_tensors()))
        assert inspect_source(MODEL, name="base").tensors.keys() == small_tensors().keys()
        hub.add("owner/many", write_checkpoint(tmp_path / "many", MANY))
        with pytest.raises(HubError, match="does not support range requests"):
            inspect_source("owner/many", name="base")

    def test_a_damaged_header_is_refused_before_the_download(self, hub, tmp_path):
        folder = write_checkpoint(tmp_path / "m", small_tensors())
        shard = folder / "model.safetensors"
        for content in (shard.read_bytes()[:-1], b"", b"version https://git-lfs", b"\0" * 9):
            shard.write_bytes(content)
            hub.add(MODEL, folder)
            with pytest.raises(CheckpointError, match=r'Agent "coder".*model\.safetensors'):
                inspect_source(MODEL, name="coder")

    def test_compatibility_is_answered_before_the_download(self, hub, tmp_path):
        tied = QWEN_CONFIG | {"tie_word_embeddings": True}
        base, same, other = small_tensors(0), small_tensors(1), small_tensors(2)
        for tensors in (base, same):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        base |= {"steps": torch.arange(3)}
        same |= {"steps": torch.arange(3)}
        other |= {"model.norm.weight": torch.ones(5, 4)}
        hub.add("owner/base", write_checkpoint(tmp_path / "b", base, config=tied))
        for name in ("same", "twin"):
            hub.add(f"owner/{name}", write_checkpoint(tmp_path / "s", same, config=tied))
        hub.add("owner/other", write_checkpoint(tmp_path / "o", other))
        base = inspect_source("owner/base", name="base")
        agents = [inspect_source(f"owner/{name}", name=name) for name in ("same", "twin")]
        report = check_compatibility(base, agents)
        # By the Hub's own hashes.
        assert any('"same" and "twin" hold the same files' in text for text in report.warnings)
        assert not report.is_local
        assert report.to_dict()["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
        assert report.to_dict()["copied_tensors"] == ["steps"]
        with pytest.raises(CompatibilityError, match=r"`model\.norm\.weight`"):
            check_compatibility(base, [inspect_source("owner/other", name="other")])
        assert all(wanted for _, wanted in hub.downloads(".safetensors"))
