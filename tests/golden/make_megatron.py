"""Save a small model as Megatron-core does, by two ranks, and whole beside it.

    pip install "megatron-core==0.16.1"
    python tests/golden/make_megatron.py tests/golden/megatron

Writes iter_0000007 with ``megatron.core.dist_checkpointing`` (gloo): layers stacked into one tensor
and cut by tensor parallelism, what every rank has alike, an optimizer and an object beside them.
Megatron asks for a GPU in two places that move nothing here; they are answered for it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

EMBEDDING = "embedding.word_embeddings.weight"
LAYERS = "decoder.layers.self_attention.linear_qkv.weight"
NORM = "decoder.final_layernorm.weight"


def whole() -> dict[str, torch.Tensor]:
    """Return the model in one piece."""
    torch.manual_seed(0)
    shapes = {EMBEDDING: (12, 6), LAYERS: (2, 8, 6), NORM: (6,)}
    return {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}


def save(rank: int, ranks: int, out: Path) -> None:
    """Save a rank's share of the model."""
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=ranks)
    torch.cuda.synchronize = lambda *device: None
    torch.cuda.current_device = lambda: "cpu"
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    made, cut = whole(), ShardedTensor.from_rank_offsets
    rows = made[EMBEDDING].chunk(ranks)[rank].clone()
    layers = {}
    for n, layer in enumerate(made[LAYERS]):
        part = layer.chunk(ranks)[rank].clone()
        layers[f"layers.{n}"] = cut(LAYERS, part, (0, n, 2), (1, rank, ranks), prepend_axis_num=1)
    extra = ShardedObject("decoder.layers._extra_state", {"a": 1}, (1,), (0,), replica_id=rank)
    model = {
        EMBEDDING: cut(EMBEDDING, rows, (0, rank, ranks)),
        NORM: cut(NORM, made[NORM], replica_id=rank),
        "extra": extra,
    }
    moments = cut(f"optimizer.state.exp_avg.{EMBEDDING}", rows.float(), (0, rank, ranks))
    state = {"model": model | layers, "optimizer": {"m": moments}, "iteration": 7}
    os.chdir(out)  # the metadata names the folder
    dist_checkpointing.save(state, "iter_0000007")
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "iter_0000007").mkdir(parents=True)
    save_file(whole(), folder / "whole.safetensors", {"format": "pt"})
    torch.multiprocessing.start_processes(save, (2, folder), 2, start_method="fork")
    (folder / "store").unlink(missing_ok=True)
