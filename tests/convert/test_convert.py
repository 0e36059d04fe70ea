"""`ram-studio convert`: what torch's own trainers save, read to the bit; nothing in it is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trainers import WAYS, saved_by_trainers

from ram_studio.checkpoints.opening import open_folder
from ram_studio.cli.merge.convert import convert as command
from ram_studio.convert.writing import convert
from ram_studio.errors import CheckpointError, SettingsError
from ram_studio.evals.sandbox import is_sealed

pytestmark = pytest.mark.skipif(not is_sealed(), reason="this machine cannot seal a process")


@pytest.fixture
def spoiled(saved, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(saved, tmp_path / "spoiled"))


def check_same(folder: Path, whole: dict[str, torch.Tensor], dtype: torch.dtype | None = None):
    found = load_file(folder / "model.safetensors")
    assert found.keys() == whole.keys()
    for name, tensor in whole.items():
        expected = tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        assert found[name].dtype == expected.dtype, name
        assert torch.equal(found[name], expected), name
    assert open_folder(folder, name="a").tensors.keys() == whole.keys()


def source_of(saved: Path, way: str) -> Path:
    if way != "verl, two levels up":
        return saved / WAYS[way]
    above = saved / "above"
    if not above.exists():
        shutil.copytree(saved / "verl" / "global_step_7", above / "global_step_7")
    return above


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_saving_comes_back_to_the_bit(saved, tmp_path, way):
    after = "after" if way == "Megatron" else "whole"
    whole = load_file(saved / f"{after}.safetensors")
    done = convert(source_of(saved, way), tmp_path / "out")
    check_same(done.out, whole)
    assert done.tensors == len(whole)


def test_what_megatron_itself_wrote_comes_back_to_the_bit(tmp_path):
    """golden/make_megatron.py: Megatron-core keeps each rank's plan in the metadata."""
    golden = Path(__file__).parents[1] / "golden" / "megatron"
    for source in ("iter_0000007", "."):
        done = convert(golden / source, tmp_path / f"out-{source}")
        check_same(done.out, load_file(golden / "whole.safetensors"))
        assert done.left_out == ("decoder.layers._extra_state/shard_0_1",)


def test_float32_widens_and_the_config_says_so(saved, tmp_path):
    whole = load_file(saved / "whole.safetensors")
    actor = saved / WAYS["verl"]
    for dtype, name in (("stored", "bfloat16"), ("float32", "float32")):
        done = convert(actor, tmp_path / dtype, dtype=dtype)
        check_same(done.out, whole, torch.float32 if dtype == "float32" else None)
        assert json.loads((done.out / "config.json").read_text())["torch_dtype"] == name
        assert (done.out / "tokenizer.json").is_file()
    with pytest.raises(SettingsError, match="bfloat16"):
        convert(actor, tmp_path / "other", dtype="bfloat16")


def test_thousands_of_other_entries_take_one_line(saved, tmp_path, capsys, monkeypatch):
    done = convert(saved / WAYS["DCP"], tmp_path / "out")
    many = replace(done, left_out=tuple(f"optim.{n}" for n in range(5000)))
    monkeypatch.setattr("ram_studio.convert.writing.convert", lambda *a, **k: many)
    command(tmp_path / "in", tmp_path / "other")
    out = capsys.readouterr().out
    assert (
        "note: 5000 entries left out, no tensors: optim.0; optim.1; optim.2; and 4997 more" in out
    )
    assert out.count("\n") < 6


def test_one_of_several_models_is_chosen_by_key(saved, tmp_path):
    whole = load_file(saved / "whole.safetensors")
    with pytest.raises(SettingsError, match=r"several models \(model; ema\).*--key model"):
        convert(saved / "verl" / "two", tmp_path / "out")
    done = convert(
        saved / "verl" / "two",
        tmp_path / "out",
        key="ema",
        config=saved / "verl" / "global_step_7" / "actor" / "huggingface",
    )
    check_same(done.out, {name: tensor + 1 for name, tensor in whole.items()})
    assert (done.out / "config.json").is_file()


@pytest.mark.slow
def test_four_ranks_in_two_dimensions(tmp_path):
    saved = saved_by_trainers(tmp_path / "ranks", 4)
    whole = load_file(saved / "whole.safetensors")
    for way in ("verl", "hsdp", "tp"):
        for folder in ("global_step_7", "checkpoint-7"):
            done = convert(saved / way / folder, tmp_path / f"{way}-{folder}")
            check_same(done.out, whole)
    check_same(convert(saved / "fsdp1", tmp_path / "fsdp1").out, whole)


def spoil(folder: Path, what: str) -> Path:
    """Spoil a checkpoint in one way; return what to convert."""
    actor, dcp = folder / WAYS["verl"], folder / WAYS["DCP"]
    second = actor / "model_world_size_2_rank_1.pt"
    if what == "rank missing":
        second.unlink()
    elif what == "rank twice":
        shutil.copyfile(actor / "model_world_size_2_rank_0.pt", second)
    elif what == "cut short":
        second.write_bytes(second.read_bytes()[:-100])
    elif what == "metadata missing":
        (dcp / ".metadata").unlink()
    elif what == "part missing":
        (dcp / "__1_0.distcp").unlink()
    elif what == "part cut":
        (dcp / "__1_0.distcp").write_bytes((dcp / "__1_0.distcp").read_bytes()[:900])
    elif what == "zarr":
        (folder / WAYS["Megatron"] / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    elif what == "not equal everywhere":
        for rank in range(2):
            torch.save({"w": torch.full((2,), rank)}, folder / "fsdp1" / f"fsdp1_rank{rank}.pt")
    elif what == "columns first":
        torch.save({"w": torch.ones(2, 3).T}, folder / "plain" / "pytorch_model.bin")
    elif what == "old format":
        old = folder / "plain" / "pytorch_model.bin"
        torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    elif what == "adapter inside":
        names = {"m.lora_A.default.weight": torch.ones(2), "m.base_layer.weight": torch.ones(2)}
        torch.save(names, folder / "plain" / "pytorch_model.bin")
    elif what == "header's name":
        torch.save({"__metadata__": torch.ones(2)}, folder / "plain" / "pytorch_model.bin")
    places = {
        "header's": folder / "plain",
        "metadata": dcp,
        "part": dcp,
        "zarr": folder / WAYS["Megatron"],
    }
    places |= {"not": folder / "fsdp1", "columns": folder / "plain", "old": folder / "plain"}
    return (places | {"adapter": folder / "plain", "header's": folder / "plain"}).get(
        what.split()[0], actor
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("rank missing", r"files of 1 rank, expected 2 \(rank 1 is missing\)"),
        ("rank twice", "is not complete|its parts make|expected"),
        ("cut short", r"rank_1\.pt is not a torch\.save file"),
        ("metadata missing", r"not \.metadata"),
        ("part missing", r"lacks __1_0\.distcp"),
        ("part cut", r"__1_0\.distcp.* is cut short"),
        ("zarr", "in zarr, which is not read"),
        ("not equal everywhere", "tensor `w` differs between ranks"),
        ("columns first", "not stored row by row"),
        ("old format", r"is not a torch\.save file"),
        ("adapter inside", "LoRA adapter"),
        ("header's name", "a tensor named __metadata__"),
    ],
)
def test_what_is_not_whole_is_refused_by_name(spoiled, tmp_path, what, said):
    with pytest.raises(CheckpointError, match=said):
        convert(spoil(spoiled, what), tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Runs:
    """Pickled, it runs a shell command when it is opened."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


class Builds:
    """Pickled, it is a call of an allowed name with arguments that no tensor has."""

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, ("no storage", "x", Builds, 3)


def archive(data: bytes) -> bytes:
    """Return a file of torch.save with this pickle."""
    torch.save({"w": torch.ones(2)}, real := io.BytesIO())
    made = io.BytesIO()
    with zipfile.ZipFile(real) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, data if entry.filename.endswith("data.pkl") else old.read(entry))
    return made.getvalue()


def test_a_pickle_that_runs_code_is_refused_and_nothing_runs(spoiled, tmp_path):
    marker = tmp_path / "it-ran"
    hostile = pickle.dumps({"w": Runs(marker)}, protocol=2)
    actor, dcp = spoiled / WAYS["verl"], spoiled / WAYS["DCP"]
    (actor / "model_world_size_2_rank_1.pt").write_bytes(archive(hostile))
    (dcp / ".metadata").write_bytes(hostile)
    (spoiled / "plain" / "pytorch_model.bin").write_bytes(archive(hostile))
    part = archive(pickle.dumps(Runs(marker), protocol=2))
    megatron = spoiled / WAYS["Megatron"] / "__1_0.distcp"
    megatron.write_bytes(part.ljust(megatron.stat().st_size, b"\0"))
    for source in (actor, dcp, spoiled / "plain", megatron.parent):
        with pytest.raises(
            CheckpointError, match=r"asks for posix\.system|is not a torch\.save file"
        ):
            convert(source, tmp_path / "out")
    assert not marker.exists()
    pickle.loads(hostile)
    assert marker.exists(), "this pickle does run code where it is opened"


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"w": Builds()}, protocol=2),
        pickle.dumps([[[[]]]] * 3),
        b"\x80\x04" + b"]" * 100_000 + b".",
        b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little") + b"x.",
        b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.",
        b"\x80\x02ctorch\nSize\n)R}X\x01\x00\x00\x00aK\x01sb.",
        pickle.dumps({"a": {"b": 1}}),
        b"",
        pickle.dumps(reduce(lambda inner, _: dict.fromkeys("abcdefgh", inner), range(14), {})),
    ],
    ids=["call", "lists", "deep", "huge", "eval", "state", "no-tensor", "empty", "shared"],
)
def test_odd_pickles_end_in_words(tmp_path, data):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "pytorch_model.bin").write_bytes(archive(data))
    with pytest.raises((CheckpointError, SettingsError)):
        convert(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("value", [["x"], {"a": 1}, "0", None, float("nan")])
@pytest.mark.parametrize("name", ["relative_path", "offset", "length"])
def test_places_of_any_kind_end_in_words(spoiled, tmp_path, name, value):
    file = spoiled / WAYS["DCP"] / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    for info in metadata.storage_data.values():
        setattr(info, name, value)
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError):
        convert(file.parent, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path):
    torch.save({"w": torch.zeros(75_000_000, dtype=torch.bfloat16)}, tmp_path / "model.pt")
    program = (
        "import resource, sys, torch\n"
        "from ram_studio.convert.writing import convert\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "convert(*sys.argv[1:], dtype='float32')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.pt"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout)
    assert kilobytes < 60_000, "150 MB were read, 300 MB written"
