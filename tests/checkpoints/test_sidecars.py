"""The small files a merged checkpoint takes over."""

from __future__ import annotations

import json

import pytest
from checkpoint_zoo import QWEN_CONFIG, make, small_tensors, write_json

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.write.sidecars import MODEL_FILES, TOKENIZER_FILES, sidecar_files
from ram_studio.errors import CheckpointError, SettingsError


def test_config_tokenizer_and_license_are_copied_alone(tmp_path):
    base = make(tmp_path, "base", small_tensors())
    taken = [CONFIG_FILE, *MODEL_FILES, *TOKENIZER_FILES, "LICENSE", "NOTICE.txt"]
    for name in taken[1:]:
        (base.folder / name).write_bytes(b"content of " + name.encode())
    for name in ("modeling_x.py", "README.md", "training_args.bin", "trainer_state.json"):
        (base.folder / name).write_text("x")
    files = sidecar_files(base)
    assert sorted(files) == sorted(taken)
    for name in taken:
        assert files[name] == (base.folder / name).read_bytes()


OTHER = {"z": 1, "text_config": {"é": "é"}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(
            (OTHER | {key: "bfloat16"}, OTHER | {key: "float16"})
            for key in ("torch_dtype", "dtype")
        ),
        ({"model_type": "qwen2"}, {"model_type": "qwen2", "torch_dtype": "float16"}),
    ],
)
def test_the_config_names_the_output_dtype_wherever_it_named_one(tmp_path, before, after):
    base = make(tmp_path, "base", small_tensors(), config=before)
    text = sidecar_files(base, dtype="float16")["config.json"].decode()
    assert list(json.loads(text).items()) == list(after.items())
    assert ("é" in text) == ("é" in str(before))
    # What stays the same keeps its bytes.
    (base.folder / "config.json").write_text('{ "torch_dtype" :  "float16"}')
    assert sidecar_files(base, dtype="float16")["config.json"] == b'{ "torch_dtype" :  "float16"}'


def test_another_tokenizer_can_be_chosen(tmp_path):
    base = make(tmp_path, "base", small_tensors())
    agent = make(tmp_path, "agent", small_tensors(1))
    write_json(base.folder / "tokenizer.json", {"of": "base"})
    write_json(base.folder / "vocab.json", {"of": "base"})
    write_json(agent.folder / "tokenizer.json", {"of": "agent"})
    files = sidecar_files(base, tokenizer=agent)
    assert files["tokenizer.json"] == b'{"of": "agent"}'
    assert "vocab.json" not in files
    assert json.loads(files["config.json"]) == QWEN_CONFIG


def test_what_cannot_be_used_is_refused(tmp_path):
    base = make(tmp_path, "base", small_tensors())
    with pytest.raises(SettingsError, match="expected bfloat16, float16, float32"):
        sidecar_files(base, dtype="int8")
    (base.folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"Base: .*config\.json holds a list"):
        sidecar_files(base, dtype="float16")
