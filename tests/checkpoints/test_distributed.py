"""torch's own distributed checkpoints (golden/make_distributed.py), read from their shards."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, write_checkpoint
from safetensors.torch import load_file, save_file

from ram_studio.checkpoints.hub.open import open_checkpoint, why_no_model
from ram_studio.checkpoints.read.checkpoint import Checkpoint, open_folder
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyse import analyze
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import CheckpointError

GOLDEN = Path(__file__).parents[1] / "golden" / "distributed"
WHOLE = load_file(GOLDEN / "whole.safetensors")
RANKS = pytest.mark.parametrize("ranks", ["ranks-2", "ranks-4"])


def read(checkpoint: Checkpoint, name: str, cuts: list[int]) -> torch.Tensor:
    """Return a tensor, read in pieces that begin at these elements."""
    info = checkpoint.tensors[name]
    found = bytearray()
    with Sources(checkpoint) as sources:
        for start, stop in itertools.pairwise([0, *cuts, info.numel]):
            piece = bytearray(2 * (stop - start))
            sources.read_into(info, 2 * start, memoryview(piece))
            found += piece
    return torch.frombuffer(found, dtype=torch.bfloat16).reshape(info.shape)


@RANKS
def test_every_tensor_is_put_together_wherever_a_block_begins(ranks):
    opened = open_folder(GOLDEN / ranks, name="a")
    assert {name: info.shape for name, info in opened.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in WHOLE.items()
    }
    for name, tensor in WHOLE.items():
        for cuts in ([], list(range(1, tensor.numel())), [tensor.numel() // 2]):
            assert torch.equal(read(opened, name, cuts), tensor), (name, cuts)


@RANKS
def test_it_is_base_and_agent_like_any_other(tmp_path, ranks):
    base = write_checkpoint(
        tmp_path / "base", {n: t + (t > 1) for n, t in WHOLE.items()}, config=QWEN_CONFIG
    )
    whole = write_checkpoint(tmp_path / "whole", WHOLE, config=QWEN_CONFIG)
    parts = GOLDEN / ranks
    one, other = (analyze(base, {"a": agent}) for agent in (whole, parts))
    assert one.preview() == other.preview()
    recipe = make_recipe(
        {"base": str(parts), "agents": {"a": str(base)}, "method": "task-arithmetic"}
    )
    out = merge(recipe, tmp_path / "out").out
    merged = load_file(out / "model.safetensors")
    assert all(torch.equal(merged[name], t + (t > 1)) for name, t in WHOLE.items())
    assert verify(out, with_sources=True, full=True).source_files == 1 + len(
        list(parts.glob("*.safetensors"))
    )
    assert "(DCP) in parts" in str(why_no_model(open_checkpoint(parts, name="a")))


def test_a_missing_file_is_told(tmp_path):
    folder = tmp_path / "parts"
    shutil.copytree(GOLDEN / "ranks-4", folder)
    (folder / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r'"a": .*tensor `.*` of shape .* is not complete'):
        open_folder(folder, name="a")


def offsets(*numbers: int) -> str:
    return json.dumps({"w": {"saved_offsets": numbers}})


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ("null", "does not say in DCP_SHARDING_INFO"),
        ("[" * 5000, "does not say in DCP_SHARDING_INFO"),
        (offsets(0, -1), "does not say"),
        (offsets(2, 0), "is not complete"),
        (offsets(2**62, 2**62), "is not complete"),
    ],
)
def test_headers_that_say_nothing_sound_are_refused(tmp_path, info, said):
    told = {} if info == "null" else {"DCP_SHARDING_INFO": info}
    file = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    save_file({"w": torch.ones(2, 2).bfloat16()}, file, {"format": "pt", **told})
    with pytest.raises(CheckpointError, match=said):
        open_folder(tmp_path, name="a")


def test_boxes_of_two_dtypes_or_ones_that_overlap_are_refused(tmp_path):
    def box(rank: int, tensor: torch.Tensor, *begin: int) -> None:
        file = tmp_path / f"shard-{rank:05d}-model-00001-of-00001.safetensors"
        save_file({"w": tensor}, file, {"format": "pt", "DCP_SHARDING_INFO": offsets(*begin)})

    box(1, torch.ones(2, 2).bfloat16(), 0, 0)
    box(2, torch.ones(2, 2), 2, 0)
    with pytest.raises(CheckpointError, match="different dtypes"):
        open_folder(tmp_path, name="a")
    box(2, torch.ones(2, 2).bfloat16(), 1, 0)
    with pytest.raises(CheckpointError, match="is not complete"):
        open_folder(tmp_path, name="a")
