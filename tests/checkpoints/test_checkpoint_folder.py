"""Opening local folders: which shards make up a model, and what is refused."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_zoo import refused, small_tensors, write_checkpoint, write_json
from safetensors.torch import save_file

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read import checkpoint as checkpoint_module
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.checkpoints.read.describe import MERGED_NAME
from ram_studio.checkpoints.read.stored_bytes import same_bytes
from ram_studio.checkpoints.virtual.quantized import ScaledCodes
from ram_studio.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def refuse(folder: Path | str, *expected: str) -> None:
    assert refused(lambda: open_checkpoint(folder, name="coder"), *expected).startswith(
        'Agent "coder": '
    )


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_one_or_many_shards_open_with_or_without_an_index(tmp_path, shards, index):
    tensors = small_tensors()
    write_checkpoint(tmp_path, tensors, shards=shards, index=index)
    opened = open_checkpoint(str(tmp_path), name="coder")
    assert opened.tensors.keys() == tensors.keys()
    assert len(opened.shards) == shards
    assert list(opened.shards) == sorted(opened.shards)
    assert opened.nbytes == sum(path.stat().st_size for path in opened.shards)
    assert opened.config["model_type"] == "qwen2"
    assert (opened.name, opened.source, opened.folder) == ("coder", str(tmp_path), tmp_path)
    assert (opened.revision, opened.is_local) == (None, True)


def test_a_single_file_wins_over_an_index_and_that_over_shards(tmp_path):
    tensors = small_tensors()
    write_checkpoint(tmp_path, tensors, shards=2)
    save_file({"tok_embeddings.weight": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    assert open_checkpoint(tmp_path, name="base").tensors.keys() == tensors.keys()
    write_checkpoint(tmp_path, {"only": torch.ones(2)})  # as in transformers
    assert list(open_checkpoint(tmp_path, name="base").tensors) == ["only"]


def test_a_tensor_missing_in_the_index_belongs_to_the_model(tmp_path):
    write_checkpoint(tmp_path, small_tensors(), shards=2)
    index = tmp_path / INDEX
    index.write_text(index.read_text().replace('"model.norm.weight"', '"lm_head.weight2"'))
    refuse(tmp_path, "lacks 1 tensor", "`lm_head.weight2`", "-of-00002.safetensors")
    index.write_text(
        '{"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors", '
        '"model.layers.0.self_attn.q_proj.bias": "model-00002-of-00002.safetensors"}}'
    )
    assert "model.norm.weight" in open_checkpoint(tmp_path, name="base").tensors


def test_a_missing_or_truncated_shard_is_named(tmp_path):
    write_checkpoint(tmp_path, small_tensors(), shards=3)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    refuse(tmp_path, str(shard), "cut short")
    shard.unlink()
    refuse(tmp_path, INDEX, "1 shard", "model-00002-of-00003.safetensors")
    (tmp_path / INDEX).unlink()
    refuse(tmp_path, "2 of 3 shards", "number 2 is missing", str(tmp_path))


@pytest.mark.parametrize(
    "target",
    [
        *("../secret/model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", ""),
        *("..\\model.safetensors", "C:model.safetensors", "/tmp/model.safetensors"),
        *("~/model.safetensors", ".model.safetensors", "a\0b.safetensors"),
        *(7, None, ["model.safetensors"]),
    ],
)
def test_an_index_cannot_point_outside_its_folder(tmp_path, target):
    outside = tmp_path / "secret"
    write_checkpoint(outside, small_tensors())
    folder = write_checkpoint(tmp_path / "model", small_tensors(), shards=2)
    write_json(folder / INDEX, {"weight_map": {"lm_head.weight": target}})
    refuse(folder, INDEX, "`lm_head.weight`", "not the name of a file in the same folder")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ("[1]", "expected a JSON object"),
        ("{", "not valid JSON"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "`a` appears twice"),
        ('{"weight_map": {}, "weight_map": {"a": "../x.safetensors"}}', "`weight_map` appears"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "ram-studio convert FOLDER OUT"),
        ('{"weight_map": {"a": "weights.gguf"}}', "not a safetensors file"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path, text, words):
    write_checkpoint(tmp_path, small_tensors(), shards=2)
    (tmp_path / INDEX).write_text(text)
    refuse(tmp_path, INDEX, words)


class _Bomb:
    """Unpickling this would create the file it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("file_name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_a_pickle_is_refused_with_advice_and_never_opened(tmp_path, file_name):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / file_name).write_bytes(pickle.dumps(_Bomb(tmp_path / "exploded")))
    write_json(folder / "config.json", {})
    refuse(folder, "only pickle weights", file_name, f"ram-studio convert {folder} OUT")
    # Under a safetensors name it is still not read as a pickle.
    shutil.copy(folder / file_name, folder / "model.safetensors")
    refuse(folder, "model.safetensors", "not a safetensors file")
    assert not (tmp_path / "exploded").exists()


def test_an_agent_called_merged_is_an_agent_in_errors(tmp_path):
    """It was told of as the output."""
    with pytest.raises(CheckpointError, match=r'^Agent "merged": .* is neither a local folder'):
        open_checkpoint(str(tmp_path / "nowhere"), name="merged")
    with pytest.raises(CheckpointError, match=r"^Merged model: .* is neither a local folder"):
        open_checkpoint(str(tmp_path / "nowhere"), name=MERGED_NAME)


def test_a_file_and_nothing_at_all_are_refused(tmp_path):
    write_checkpoint(tmp_path / "m", small_tensors())
    refuse(tmp_path / "m" / "model.safetensors", "is not a folder", "give the folder that it is in")
    refuse(tmp_path / "nowhere", "neither a local folder nor a Hub id")
    refuse("", "an empty path")
    refuse("x" * 5000, "neither a local folder")
    refuse("a\0b", "neither a local folder")
    refuse("~nobody-of-that-name/x", "neither a local folder")


def test_a_folder_that_may_not_be_entered_is_named(tmp_path, monkeypatch):
    def forbidden(path: Path, **kwargs: object) -> bool:
        raise PermissionError(13, "Permission denied")

    # Root may enter everything: the system's answer is given for it.
    monkeypatch.setattr(Path, "exists", forbidden)
    refuse("owner/name", "owner/name cannot be read: Permission denied")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"adapter_model": ["lora_A"]}, ["part of a LoRA adapter", "adapter_config.json"]),
        ({"a": ["w"], "b": ["w"]}, ["`w`", "a.safetensors", "b.safetensors"]),
        (
            {f"model-{i:05d}-of-{n:05d}": [f"w{n}{i}"] for n in (2, 3) for i in range(1, n + 1)},
            ["different sets"],
        ),
        ({"model": []}, ["holds no tensors"]),
        ({}, ["no safetensors file"]),
        # The first was taken in silence.
        (["a.safetensors.index.json", "b.safetensors.index.json"], ["several indexes", "keep one"]),
        # What trainers leave, and what converts it.
        (["adapter_model.bin", "adapter_config.json"], ["LoRA adapter as a pickle", "AutoPeft"]),
        (
            ["model_world_size_8_rank_0.pt", "fsdp_config.json"],
            ["verl's", "ram-studio convert {} OUT"],
        ),
        (["actor", "data.pt"], ["a verl checkpoint", "ram-studio convert {} OUT"]),
        (["latest_checkpointed_iteration.txt", "iter_0000010"], ["Megatron", "convert {} OUT"]),
        (["zero_to_fp32.py", "latest"], ["DeepSpeed", "zero_to_fp32.py {} OUT --safe"]),
        (["mp_rank_00_model_states.pt"], ["DeepSpeed"]),
        ([".metadata", "__0_0.distcp"], ["DCP", "ram-studio convert {} OUT"]),
        (["m-Q4_K_M.gguf"], ["GGUF", 'gguf_file="m-Q4_K_M.gguf"']),
        (["pytorch_model.bin"], ["pickle", "ram-studio convert {} OUT"]),
    ],
)
def test_files_that_are_no_model_are_refused(tmp_path, files, words):
    for name in files:
        if isinstance(files, dict):
            tensors = {tensor: torch.ones(2) for tensor in files[name]}
            save_file(tensors, tmp_path / f"{name}.safetensors")
        else:
            (tmp_path / name).write_bytes(b"never opened")
    refuse(tmp_path, *(word.format(tmp_path) for word in words))


def test_a_config_that_is_not_a_json_object_is_refused(tmp_path):
    write_checkpoint(tmp_path, small_tensors(), config=None)
    assert open_checkpoint(tmp_path, name="base").config == {}
    for text, words in (("[" * 100_000, "nested too deeply"), ("[]", "expected a JSON object")):
        (tmp_path / "config.json").write_text(text)
        refuse(tmp_path, "config.json", words)


NO_IDS = ["owner/name@", "owner", "./owner/name", "../name", "a/b/c", "owner/na me", ""]
NO_IDS += ["owner/name@a..b", "owner/name\n", "owner/.name"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/name", ("owner/name", None)),
        ("owner/name@main", ("owner/name", "main")),
        ("Qwen/Qwen2.5-7B-Instruct@refs/pr/3", ("Qwen/Qwen2.5-7B-Instruct", "refs/pr/3")),
        *((text, None) for text in NO_IDS),
    ],
)
def test_hub_ids_are_told_from_paths(source, expected):
    assert split_hub_id(source) == expected


def test_a_folder_here_wins_over_a_hub_id(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "owner" / "name@main", small_tensors())
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("owner/name@main", name="base").is_local


def fingerprint(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> str:
    return open_checkpoint(write_checkpoint(folder, tensors, shards=shards), name="x").fingerprint


def test_a_fingerprint_covers_every_byte_and_no_path(tmp_path):
    tensors = small_tensors()
    prints = [
        fingerprint(tmp_path / "a", tensors),
        fingerprint(tmp_path / "b", {f"x.{k}": v for k, v in tensors.items()}),
        fingerprint(tmp_path / "c", tensors, shards=2),
    ]
    assert fingerprint(tmp_path / "d", tensors) == prints[0]
    path = tmp_path / "a" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    prints.append(open_checkpoint(tmp_path / "a", name="base").fingerprint)
    path.rename(tmp_path / "a" / "weights.safetensors")
    prints.append(open_checkpoint(tmp_path / "a", name="base").fingerprint)
    assert {len(p) for p in prints} == {64}
    assert len(set(prints)) == 5


def test_of_a_large_checkpoint_pages_spread_evenly_are_read(tmp_path, monkeypatch):
    # 8 pages over 2 shards of 64 KiB: each page covers one sixteenth of what lies around it.
    monkeypatch.setattr(checkpoint_module, "WHOLE_FINGERPRINT_BYTES", 1000)
    monkeypatch.setattr(checkpoint_module, "FINGERPRINT_PAGES", 8)
    data = np.zeros(2**15, dtype=np.float16)

    def after(**changed: int) -> str:
        tensors = {name: torch.from_numpy(data.copy()) for name in ("a", "b")}
        for name, index in changed.items():
            tensors[name][index] = 1
        return fingerprint(tmp_path, tensors, shards=2)

    same = after()
    assert after(a=0) != same
    assert after(b=2**15 - 1) != same
    page_elements = checkpoint_module.PAGE_BYTES // 2
    step = (2 * 2**16 - checkpoint_module.PAGE_BYTES) // 7
    assert after(b=(4 * step - 2**16) // 2 + 5) != same
    # Between two pages nothing is read: the docstring says so.
    assert after(a=page_elements + 10) == same


def test_equal_bytes_of_another_dtype_derive_other_tensors(tmp_path):
    codes = torch.arange(16, dtype=torch.uint8).reshape(4, 4)
    dtypes = {"a": torch.float8_e4m3fn, "b": torch.float8_e4m3fn, "c": torch.float8_e5m2}
    stored = {name: codes.clone().view(dtype) for name, dtype in dtypes.items()}
    found = open_checkpoint(
        write_checkpoint(tmp_path, stored | {"scale": torch.ones(1, 1)}), name="base"
    ).tensors
    a, b, c = (
        replace(found[n], virtual=ScaledCodes(found[n], found["scale"], (1, 1), (4, 4)))
        for n in "abc"
    )
    assert [same_bytes(a, other) for other in (b, c)] == [True, False]
