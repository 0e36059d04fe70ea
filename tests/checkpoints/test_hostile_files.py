"""A corpus of hostile folders, and fuzzing of header, index and config together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_corpus
import pytest
import torch
from checkpoint_zoo import JSON, raw_safetensors, small_tensors, write_checkpoint, write_json
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, check_compatibility
from ram_studio.checkpoints.fit.licenses import license_of
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.header import LENGTH_BYTES
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.errors import CheckpointError, RamStudioError

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What opening every hostile folder came to, in a process with little memory."""
    folder = tmp_path_factory.mktemp("corpus")
    hostile_corpus.write_corpus(folder)
    done = subprocess.run(
        [sys.executable, hostile_corpus.__file__, str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    for case in hostile_corpus.HOSTILE:  # some are 100 MB
        for file in (folder / case).iterdir():
            file.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory through /proc")
@pytest.mark.parametrize("case", hostile_corpus.HOSTILE)
def test_it_is_refused_in_one_line_and_little_memory(outcome, case):
    kind, message = outcome[case]
    assert kind == "CheckpointError", message
    assert message.startswith('Agent "coder": ')
    assert message.isprintable()
    assert len(message) < 1500
    assert case in message  # the folder's name


def test_a_link_to_weights_kept_elsewhere_is_followed(tmp_path):
    retained = write_checkpoint(tmp_path / "kept", small_tensors(), shards=2)
    folder = tmp_path / "model"
    folder.mkdir()
    for file in retained.iterdir():
        (folder / file.name).symlink_to(file)
    opened = open_checkpoint(folder, name="base")
    assert opened.tensors.keys() == small_tensors().keys()
    # What would be copied into the merge is not taken through a link.
    with pytest.raises(CheckpointError, match=r"config\.json is a link that leaves its folder"):
        sidecar_files(opened)


@pytest.mark.parametrize("name", ["tokenizer.model", "LICENSE", "generation_config.json"])
def test_no_file_of_the_reader_is_carried_into_a_merge(tmp_path, name):
    folder = write_checkpoint(tmp_path / "model", small_tensors())
    key = tmp_path / "id_rsa"
    key.write_text("private")
    (folder / name).symlink_to(key)
    (folder / "README.md").symlink_to(key)
    opened = open_checkpoint(folder, name="base")
    with pytest.raises(CheckpointError) as caught:
        sidecar_files(opened)
    assert str(folder / name) in str(caught.value)
    assert str(key) in str(caught.value)
    assert license_of(opened).id is None
    # Inside the folder a link is as good as the file.
    (folder / name).unlink()
    (folder / "own").write_text("own")
    (folder / name).symlink_to("own")
    assert sidecar_files(opened)[name] == b"own"


_SHARD_NAMES = st.sampled_from(["a.safetensors", "b.safetensors", "c.safetensors"])
_TENSOR_NAMES = st.sampled_from(["v", "w", "lm_head.weight", "é"]) | st.text(max_size=3)


def _shard(data: st.DataObject) -> bytes:
    """Return a shard: mostly valid, with lies in its header, or cut off."""
    names = data.draw(st.lists(_TENSOR_NAMES, max_size=3, unique=True))
    header, end = {}, 0
    for name in names:
        begin, end = end, end + 8
        header[name] = {"dtype": "F32", "shape": [2], "data_offsets": [begin, end]}
        lie = data.draw(st.sampled_from([None] * 6 + ["dtype", "shape", "data_offsets"]))
        if lie:
            header[name][lie] = data.draw(JSON)
    content = raw_safetensors(header, bytes(end))
    return content[: data.draw(st.sampled_from([len(content)] * 6 + [9, 3, 0]))]


def _attempt(act: Callable[[], Any], refusal: type[Exception]) -> tuple[Any, str]:
    """Return what comes of it and "", or None and the one line of the refusal."""
    try:
        return act(), ""
    except refusal as error:
        message = str(error)
    assert message.isprintable()
    return None, message


def _assert_consistent(opened: Checkpoint, folder: Path) -> None:
    """Fail unless a reader may rely on every number."""
    assert opened.tensors
    for shard in opened.shards:
        assert shard.parent == folder
    for name, info in opened.tensors.items():
        assert info.name == name
        assert info.path in opened.shards
        assert info.nbytes == info.numel * 4 >= 0
        assert info.offset >= LENGTH_BYTES
        assert info.offset + info.nbytes <= info.path.stat().st_size
        with open(info.path, "rb") as file:
            file.seek(info.offset)
            assert len(file.read(info.nbytes)) == info.nbytes
    assert len(opened.fingerprint) == 64
    assert isinstance(opened.config, dict)


@settings(max_examples=100)
@given(data=st.data())
def test_any_folder_is_a_consistent_checkpoint_or_is_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    shards = data.draw(st.lists(_SHARD_NAMES, max_size=3, unique=True))
    for shard in shards:
        (folder / shard).write_bytes(_shard(data))
    index = data.draw(
        st.none()
        | st.dictionaries(_TENSOR_NAMES, _SHARD_NAMES, max_size=3).map(lambda m: {"weight_map": m})
        | st.dictionaries(_TENSOR_NAMES, _SHARD_NAMES | JSON, max_size=3).map(
            lambda m: {"weight_map": m}
        )
        | JSON
    )
    if index is not None:
        text = json.dumps(index).encode()
        (folder / INDEX).write_bytes(text[: data.draw(st.sampled_from([len(text)] * 5 + [1]))])
    if data.draw(st.booleans()):
        (folder / "config.json").write_text(json.dumps(data.draw(JSON)))
    opened, refusal = _attempt(lambda: open_checkpoint(folder, name="coder"), CheckpointError)
    if opened is None:
        assert refusal.startswith('Agent "coder": ')
    else:
        _assert_consistent(opened, folder)


_KEYS = st.sampled_from(
    [
        *("text_config", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings"),
        *("architectures", "auto_map", "eos_token_id", "hidden_size", "dtype", "torch_dtype"),
    ]
)
_CONFIG = st.dictionaries(_KEYS, JSON | st.dictionaries(_KEYS, JSON, max_size=2), max_size=4)
_TOKENIZER = st.dictionaries(
    st.sampled_from(["model", "added_tokens", "chat_template", "eos_token"]),
    JSON | st.dictionaries(st.just("vocab"), JSON, max_size=1),
    max_size=3,
)


@settings(max_examples=75)
@given(
    ours=_CONFIG,
    theirs=_CONFIG,
    tokenizer=_TOKENIZER,
    tokenizer_settings=_TOKENIZER,
    card=st.text(max_size=60) | st.just("---\nlicense: [x, {\n---\n"),
)
def test_any_config_tokenizer_and_card_fits_or_is_refused(
    tmp_path_factory, ours, theirs, tokenizer, tokenizer_settings, card
):
    folder = tmp_path_factory.mktemp("fuzz")
    content = save({"model.embed_tokens.weight": torch.ones(2, 2), "lm_head.weight": torch.eye(2)})
    for name, config in (("base", ours), ("a", theirs)):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(content)
        write_json(folder / name / "config.json", config)
        write_json(folder / name / "tokenizer.json", tokenizer if name == "a" else {})
        write_json(folder / name / "tokenizer_config.json", tokenizer_settings)
        (folder / name / "README.md").write_text(card, encoding="utf-8", errors="surrogatepass")

    def fit() -> CompatibilityReport:
        opened = [open_checkpoint(folder / name, name=name) for name in ("base", "a")]
        sidecar_files(opened[0], dtype="float32")
        license_of(opened[1])
        return check_compatibility(opened[0], opened[1:])

    report, _ = _attempt(fit, RamStudioError)
    if report is not None:
        assert all(warning.isprintable() for warning in report.warnings)
        json.dumps(report.to_dict())
