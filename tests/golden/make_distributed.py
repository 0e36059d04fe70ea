"""Save a small model as torch's distributed checkpoint in several processes, and whole beside it.

    python tests/golden/make_distributed.py tests/golden/distributed

Writes ranks-2 (each tensor cut in two, along one dimension or another) and ranks-4 (a mesh of two
by two) with ``HuggingFaceStorageWriter(save_distributed=True)``, gloo, and whole.safetensors.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

_CUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "model.embed_tokens.weight": ((7, 4), (0,)),
    "model.layers.0.self_attn.q_proj.weight": ((6, 5), (1,)),
    "model.layers.0.self_attn.q_proj.bias": ((5,), (0,)),
    "model.layers.0.mlp.experts.gate_up_proj": ((3, 4, 5), (1, 2)),
    "model.layers.0.mlp.experts.down_proj": ((3, 5, 2), (0, 0)),
    "model.layers.0.mlp.up_proj.weight": ((6, 4), (0, 1)),
    "model.layers.0.input_layernorm.weight": ((5,), ()),
    "model.layers.0.mlp.gate.weight": ((1, 4), (0,)),
    "model.norm.weight": ((4,), ()),
}
"""Shape of each tensor, and along which dimension each dimension of the mesh cuts it."""


def whole() -> dict[str, torch.Tensor]:
    """Return the model in one piece."""
    torch.manual_seed(0)
    return {name: torch.randn(shape).bfloat16() for name, (shape, _) in _CUTS.items()}


def save(rank: int, ranks: int, out: Path, store: Path) -> None:
    """Save a rank's share of the model."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,) if ranks < 4 else (ranks // 2, 2))
    state = {}
    for name, tensor in whole().items():
        cuts = _CUTS[name][1]
        placements: list[Placement] = [
            Shard(cuts[d]) if d < len(cuts) else Replicate() for d in range(mesh.ndim)
        ]
        # The last one as trainers keep what is the same everywhere.
        state[name] = (
            tensor if name == "model.norm.weight" else distribute_tensor(tensor, mesh, placements)
        )
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(out), save_distributed=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    save_file(whole(), target / "whole.safetensors", {"format": "pt"})
    for count in (2, 4):
        folder = target / f"ranks-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as temporary:
            torch.multiprocessing.spawn(save, (count, folder, Path(temporary) / "store"), count)
