"""torch's own distributed checkpoints (golden/make_distributed.py), read from their shards."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, refused, write_checkpoint
from safetensors.torch import load_file, save_file

from ram_studio.checkpoints.opening import open_checkpoint, open_folder, why_no_model
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze
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


def box(folder: Path, rank: int, info: object, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a rank's file with 2 x 2 elements of `w`; info: where it says that they lie."""
    file = folder / f"shard-{rank:05d}-model-00001-of-00001.safetensors"
    told = {} if info is None else {"DCP_SHARDING_INFO": info}
    if isinstance(info, tuple):
        told = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": info}})}
    save_file({"w": torch.ones(2, 2, dtype=dtype)}, file, {"format": "pt", **told})


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([(None,)], "in DCP_SHARDING_INFO"),
        ([("[" * 5000,)], "in DCP_SHARDING_INFO"),
        ([((0, -1),)], "has no offsets of"),
        ([((2, 0),)], "is not complete"),
        ([((2**62, 2**62),)], "is not complete"),
        ([((0, 0),), ((2, 0), torch.float32)], "different dtypes"),
        ([((0, 0),), ((1, 0),)], "is not complete"),
    ],
)
def test_boxes_that_are_no_whole_are_refused(tmp_path, boxes, said):
    for rank, how in enumerate(boxes, start=1):
        box(tmp_path, rank, *how)
    refused(lambda: open_folder(tmp_path, name="a"), said)


def test_equal_boxes_must_hold_the_same(tmp_path):
    """What several ranks hold is stored by each; of parts that differ the first won in silence."""
    for rank in (1, 2):
        box(tmp_path, rank, (0, 0))
    assert open_folder(tmp_path, name="a").tensors["w"].shape == (2, 2)
    info = json.dumps({"w": {"saved_offsets": (0, 0)}})
    file = tmp_path / "shard-00002-model-00001-of-00001.safetensors"
    save_file({"w": torch.zeros(2, 2, dtype=torch.bfloat16)}, file, {"DCP_SHARDING_INFO": info})
    refused(lambda: open_folder(tmp_path, name="a"), "two parts at offsets [0, 0] that differ")
