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


FIRST, SECOND = (f"model_world_size_2_rank_{rank}.pt" for rank in range(2))
PLAIN = "pytorch_model.bin"


def cut_at(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def save_ranks(folder: Path, *saved: torch.Tensor) -> None:
    for rank, tensor in enumerate(saved):
        torch.save({"w": tensor}, folder / f"fsdp1_rank{rank}.pt")


def save_second_whole(folder: Path) -> None:
    """Save the second rank's tensors whole, where the first has parts of them."""
    whole = load_file(folder.parents[2] / "whole.safetensors")
    torch.save(whole, folder / SECOND)


def compress(path: Path) -> None:
    """Compress an archive, and spoil what is compressed."""
    with zipfile.ZipFile(path) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in entries.items():
            new.writestr(name, data)
        [at] = [e.header_offset for e in new.infolist() if e.filename.endswith("data.pkl")]
    data = bytearray(path.read_bytes())
    data[at + 60 : at + 90] = b"\xff" * 30
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("way", "spoil", "said"),
    [
        ("verl", lambda d: (d / SECOND).unlink(), r"of 1 rank, expected 2 \(rank 1 is missing\)"),
        ("verl", lambda d: shutil.copyfile(d / FIRST, d / SECOND), "not complete|make|expected"),
        ("verl", lambda d: cut_at(d / SECOND, -100), r"rank_1\.pt is not a torch\.save file"),
        ("verl", save_second_whole, "stored in another way by some ranks"),
        ("DCP", lambda d: (d / ".metadata").unlink(), r"not \.metadata"),
        ("DCP", lambda d: (d / "__1_0.distcp").unlink(), r"lacks __1_0\.distcp"),
        ("DCP", lambda d: cut_at(d / "__1_0.distcp", 900), r"__1_0\.distcp.* is cut short"),
        (
            "Megatron",
            lambda d: (d / "metadata.json").write_text('{"sharded_backend": "zarr"}'),
            "in zarr, which is not read",
        ),
        ("ShardedTensor", lambda d: (d / "fsdp1_rank1.pt").unlink(), "its parts make"),
        (
            "ShardedTensor",
            lambda d: save_ranks(d, torch.zeros(2), torch.ones(2)),
            "tensor `w` differs between ranks",
        ),
        ("pickle", lambda d: compress(d / PLAIN), "is compressed or encrypted"),
        (
            "pickle",
            lambda d: (d / PLAIN).rename(d / "pytorch_model-00002-of-00003.bin"),
            r"plain holds 1 of 3 files \(number 1 is missing\)",
        ),
    ],
    ids=[
        *("rank missing", "rank twice", "rank cut short", "rank whole"),
        *("metadata missing", "part missing", "part cut short", "zarr"),
        *("shards missing", "not equal everywhere", "compressed", "file missing"),
    ],
)
def test_what_is_not_whole_is_refused_by_name(spoiled, tmp_path, way, spoil, said):
    folder = spoiled / WAYS[way]
    spoil(folder)
    with pytest.raises(CheckpointError, match=said):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"w": torch.ones(2, 3).T}, "not stored row by row"),
        ({"w": torch._neg_view(torch.ones(2))}, "negated or conjugated view"),
        (
            {"m.lora_A.default.weight": torch.ones(2), "m.base_layer.weight": torch.ones(2)},
            "LoRA adapter",
        ),
        ({"__metadata__": torch.ones(2)}, "a tensor named __metadata__"),
        ({"w\n": torch.ones(2)}, r"model.bin has a tensor named `w\\n`"),
        ({"w": torch.ones(2), "x": [torch.ones(2)]}, r"no name \(`x.\[0\]`: it is in a list"),
        ({"w": torch.ones(2), "x": {(1, 2): torch.ones(2)}}, r"no name \(`x.\[0\]`"),
    ],
    ids=[
        *("columns first", "negated", "adapter inside", "header's name", "unprintable"),
        *("in a list", "without a name"),
    ],
)
def test_tensors_that_are_not_read_are_refused(tmp_path, tensors, said):
    torch.save(tensors, tmp_path / PLAIN)
    with pytest.raises(CheckpointError, match=said):
        convert(tmp_path / PLAIN, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lists_beside_the_model_are_left_out_and_a_file_is_named(tmp_path):
    """The source of a file was told as its folder, a relative one's as a dot."""
    optimizer = {"state": {0: {"exp_avg": torch.ones(2), "old": [torch.ones(2)]}}}
    saved = {"state_dict": {"w": torch.ones(2)}, "optimizer_states": [optimizer]}
    torch.save({**saved, "rng": [torch.ones(2), 3]}, tmp_path / PLAIN)
    done = convert(tmp_path / PLAIN, tmp_path / "out")
    assert done.source == tmp_path / PLAIN
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {"w"}


def test_float64_is_narrowed_only_where_float32_holds_it(tmp_path):
    for number, fits in ((1e38, True), (torch.inf, True), (1e39, False)):
        tensor = torch.tensor([0.1, number], dtype=torch.float64)
        torch.save({"w": tensor}, tmp_path / PLAIN)
        check_same(convert(tmp_path / PLAIN, tmp_path / f"{number}").out, {"w": tensor})
        if fits:
            done = convert(tmp_path / PLAIN, tmp_path / f"float32-{number}", dtype="float32")
            check_same(done.out, {"w": tensor}, torch.float32)
            continue
        with pytest.raises(CheckpointError, match="`w` has float64 numbers beyond those of float3"):
            convert(tmp_path / PLAIN, tmp_path / "out", dtype="float32")


def test_a_file_older_than_torch_1_6_is_refused(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / PLAIN, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"is not a torch\.save file"):
        convert(tmp_path / PLAIN, tmp_path / "out")


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
        with pytest.raises(CheckpointError, match=r"names posix\.system|is not a torch\.save file"):
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
