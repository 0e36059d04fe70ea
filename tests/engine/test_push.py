"""Merges to a Hub on this machine: private, whole or nothing, and gone on with."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import huggingface_hub
import pytest
from engine_zoo import contents, make_zoo
from loopback_hub import LoopbackHub

from ram_studio.checkpoints.hub.push import PushAhead, PushProgress, check_push, push
from ram_studio.checkpoints.record.provenance import read_provenance
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.cli.main import commands
from ram_studio.engine.merge import merge
from ram_studio.engine.verify import verify
from ram_studio.errors import CheckpointError, HubError, OutputError, VerificationError

MODEL = "me/merged"

# huggingface_hub sends files in a way that its own HTTP client calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")


@pytest.fixture
def hub(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """The Hub on this machine, as its owner meets it."""
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    # The storage beside the Hub has a protocol of its own; the Hub's is spoken here.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    return hub


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    zoo = make_zoo(tmp_path / "zoo", 2)
    (zoo.base_path / "tokenizer.json").write_text("{}")
    return merge(zoo.recipe(), tmp_path / "out", max_shard_bytes=500).out


def there(hub: LoopbackHub, name: str = MODEL) -> dict[str, bytes]:
    repository = hub.repositories[name]
    return repository.commits[repository.branches["main"]]


def test_a_merge_goes_up_whole_and_private_and_comes_back(
    hub: LoopbackHub, merged: Path, tmp_path: Path
) -> None:
    (merged / "notes.txt").write_text("mine alone")
    steps: list[PushProgress] = []
    pushed = push(merged, MODEL, on_progress=steps.append)
    assert hub.repositories[MODEL].is_private
    assert (pushed.url, pushed.is_public) == (f"{hub.address}/{MODEL}", False)
    expected = {name: data for name, data in contents(merged).items() if name != "notes.txt"}
    assert there(hub) == expected
    assert {"README.md", "ram_studio.json", "tokenizer.json"} < expected.keys()
    assert [step.done_bytes for step in steps][-1] == steps[0].total_bytes == pushed.nbytes
    (tmp_path / "back").mkdir()
    for name, data in there(hub).items():
        (tmp_path / "back" / name).write_bytes(data)
    verify(tmp_path / "back")
    # Once more: it is there already.
    assert push(merged, MODEL).was_there


def test_a_push_that_broke_off_goes_on_and_showed_nothing(hub: LoopbackHub, merged: Path) -> None:
    hub.drops["lfs"] = [0]
    shards = sorted(merged.glob("*.safetensors"))
    assert len(shards) > 2
    with pytest.raises(HubError, match=MODEL):
        push(merged, MODEL)
    assert there(hub) == {}
    hub.drops = {}
    push(merged, MODEL)
    assert set(there(hub)) == set(contents(merged))
    sent = [path for method, path, _ in hub.requests if method == "PUT"]
    assert len(sent) == len(shards) + 1, "what had arrived was not sent again"


def test_nothing_is_made_public_without_a_second_yes(hub: LoopbackHub, merged: Path) -> None:
    hub.add(MODEL, merged.parent / "zoo" / "base")  # public
    with pytest.raises(HubError, match="is public: everybody could read"):
        check_push(MODEL)
    with pytest.raises(HubError, match="already holds another model"):
        push(merged, MODEL, public=True)
    assert push(merged, "me/open", public=True).is_public
    assert not hub.repositories["me/open"].is_private


def test_a_place_one_may_not_write_to_is_refused_in_words(hub: LoopbackHub, merged: Path) -> None:
    with pytest.raises(HubError, match=r"others/x was not written.*new name under your account"):
        push(merged, "others/x")


@pytest.mark.parametrize("name", ["merged", "a/b/c", "me/x@v1", "/tmp/x", ""])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(HubError, match=f"^{name or 'An empty name'} is not a Hub id"):
        check_push(name)


def test_nothing_but_the_merge_goes_up(hub: LoopbackHub, merged: Path, tmp_path: Path) -> None:
    key, card = tmp_path / "id_rsa", merged / "README.md"
    key.write_text("private")
    provenance, text = read_provenance(merged), card.read_bytes()
    card.unlink()
    with pytest.raises(VerificationError, match=r"lacks `README.md`, which its provenance lists"):
        push(merged, MODEL)
    card.symlink_to(key)
    with pytest.raises(CheckpointError, match=r"README\.md is a link that leaves its folder"):
        push(merged, MODEL)
    card.unlink()
    # A provenance file may come from anywhere, and its checksum be right.
    for name in (str(key), "../id_rsa", ""):
        made_up = provenance.with_checksum({"README.md": text, name: key.read_bytes()})
        (merged / "ram_studio.json").write_bytes(made_up.to_json())
        card.write_bytes(text)
        with pytest.raises(VerificationError, match=r"is damaged: files.*below the folder"):
            push(merged, MODEL)
    (merged / "sub").symlink_to(tmp_path)  # a folder that is a link holds nothing of the merge
    made_up = provenance.with_checksum({"README.md": text, "sub/id_rsa": key.read_bytes()})
    (merged / "ram_studio.json").write_bytes(made_up.to_json())
    with pytest.raises(CheckpointError, match=r"sub is a link that leaves its folder"):
        push(merged, MODEL)
    assert MODEL not in hub.repositories


def test_nobody_logged_in_is_refused_before_the_work(
    hub: LoopbackHub, merged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(HubError, match=r"You are not logged in.*hf auth login"):
        check_push(MODEL)


def test_the_commands_push(
    hub: LoopbackHub, merged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands(["push", str(merged), MODEL, "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["files"] == len(there(hub))
    recipe = ["merge", str(merged / "ram_studio.json"), "--out", str(tmp_path / "again")]
    commands([*recipe, "--push", "me/again"], standalone_mode=False)
    assert f"{hub.address}/me/again (private): pushed" in capsys.readouterr().out
    assert there(hub, "me/again")["ram_studio.json"]


class Waiting(PushAhead):
    """Lets the merge go on only once a shard has arrived, and notes whether it was finished."""

    out: Path
    one, arrived = threading.Lock(), threading.Semaphore(0)

    def take(self, shard: Shard, path: Path) -> None:
        with self.one:
            super().take(shard, path)
            assert self.arrived.acquire(timeout=60)
        assert not self.out.exists(), "the merge is still being written"

    def _send(self, name: str, path: Path) -> None:
        try:
            super()._send(name, path)
        finally:
            self.arrived.release()


def test_shards_go_up_while_others_are_merged(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = make_zoo(tmp_path / "zoo", 2)
    out = Waiting.out = tmp_path / "out"
    with Waiting(MODEL) as ahead:
        assert MODEL not in hub.repositories, "nothing is made before there is something to send"
        merge(zoo.recipe(), out, max_shard_bytes=500, receiver=ahead)
    shards = {path.name for path in out.glob("*.safetensors")}
    assert ahead.sent.keys() == shards
    assert hub.repositories[MODEL].is_private
    assert there(hub) == {}, "no model before all of it is there"
    pushed = push(out, MODEL, ahead=ahead.sent)
    assert there(hub) == contents(out)
    assert pushed.ahead == len(shards)
    assert sum(method == "PUT" for method, *_ in hub.requests) == len(shards), "each went up once"


def test_what_a_merge_that_broke_off_sent_is_not_sent_again(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    zoo = make_zoo(tmp_path / "zoo", 2)
    Waiting.out = tmp_path / "out"

    class Full(Waiting):
        def take(self, shard: Shard, path: Path) -> None:
            super().take(shard, path)
            if len(self.sent) == 2:
                raise OutputError("the disk is full")

    with pytest.raises(OutputError), Full(MODEL) as ahead:
        merge(zoo.recipe(), tmp_path / "out", max_shard_bytes=500, receiver=ahead, threads=1)
    assert there(hub) == {}
    assert not (tmp_path / "out").exists()
    with Waiting(MODEL) as ahead:
        merge(zoo.recipe(), tmp_path / "out", max_shard_bytes=500, receiver=ahead)
    push(tmp_path / "out", MODEL, ahead=ahead.sent)
    assert there(hub) == contents(tmp_path / "out")
    shards = len(list((tmp_path / "out").glob("*.safetensors")))
    assert sum(method == "PUT" for method, *_ in hub.requests) == shards


def test_a_failed_push_leaves_the_merge_and_says_where(
    hub: LoopbackHub, merged: Path, tmp_path: Path
) -> None:
    hub.add(MODEL, merged.parent / "zoo" / "base", is_private=True)
    command = ["merge", str(merged / "ram_studio.json"), "--out", str(tmp_path / "again")]
    with pytest.raises(HubError, match=r"holds another model.*ram-studio push .*again me/merged"):
        commands([*command, "--push", MODEL], standalone_mode=False)
    verify(tmp_path / "again")
    assert not [path for method, path, _ in hub.requests if method == "PUT"]
    hub.add("me/public", merged.parent / "zoo" / "base")
    with pytest.raises(HubError, match="confirm with"):
        commands(
            [*command[:-1], str(tmp_path / "third"), "--push", "me/public"], standalone_mode=False
        )
    assert not (tmp_path / "third").exists(), "told before the work"
