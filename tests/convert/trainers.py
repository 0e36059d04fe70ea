"""Save a small model as trainers do, in several processes: what torch itself writes, not this code.

    python tests/convert/trainers.py FOLDER RANKS

Writes whole.safetensors and, of the same model, in the ways of verl (FSDP2's DTensors, a file for
each rank), accelerate and Megatron (DCP), FSDP1 (ShardedTensor) and torch.save.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WAYS = {
    "verl": "verl/global_step_7/actor",
    "verl, one level up": "verl/global_step_7",
    "verl, two levels up": "verl/global_step_7/..",
    "accelerate": "verl/checkpoint-7",
    "DCP": "verl/checkpoint-7/pytorch_model_fsdp_0",
    "Megatron": "verl/iter_0000007",
    "ShardedTensor": "fsdp1",
    "pickle": "plain",
    "one file": "plain/pytorch_model.bin",
}
"""Where what was saved lies, by who saves so."""


def saved_by_trainers(folder: Path, ranks: int) -> Path:
    """Save in a process of its own; return the folder."""
    command = [sys.executable, __file__, str(folder), str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


class Block(nn.Module):
    """Two projections of odd sizes, a norm in float32 and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(6, 7, bias=False)
        self.down_proj = nn.Linear(7, 6)
        self.norm = nn.LayerNorm(6, bias=False)
        self.register_buffer("position", torch.arange(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down_proj(self.up_proj(x)))


class Model(nn.Module):
    """Two blocks over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.layers:
            x = block(x)
        return x


def model() -> Model:
    """Return the model in one piece."""
    torch.manual_seed(0)
    return Model().bfloat16()


def sharded(mesh_shape: tuple[int, ...], *, is_parallel: bool = False) -> Model:
    """Return the model cut by FSDP2; of two dimensions replicated, or over tensor parallelism."""
    names = ("dp", "tp") if is_parallel else ("ddp", "fsdp")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    made = model()
    if is_parallel:
        for block in made.layers:
            plan = {"up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
    for block in made.layers:
        fully_shard(block, mesh=mesh["dp"] if is_parallel else mesh)
    return fully_shard(made, mesh=mesh["dp"] if is_parallel else mesh)


def save_verl(out: Path, made: nn.Module, rank: int, ranks: int) -> None:
    """Save as verl does: actor/, a file for each rank, config beside, the optimizer too."""
    actor = out / "global_step_7" / "actor"
    (actor / "huggingface").mkdir(parents=True, exist_ok=True)
    end = f"world_size_{ranks}_rank_{rank}.pt"
    torch.save(made.state_dict(), actor / f"model_{end}")
    torch.save({"state": {}, "rng": torch.zeros(3)}, actor / f"optim_{end}")
    torch.save({"lr_scheduler": None}, actor / f"extra_state_{end}")
    if rank == 0:
        config = {"model_type": "qwen2", "torch_dtype": "bfloat16"}
        (actor / "huggingface" / "config.json").write_text(json.dumps(config))
        (actor / "huggingface" / "tokenizer.json").write_text("{}")
        torch.save({"step": 7}, out / "global_step_7" / "data.pt")


def save_fsdp1(out: Path, rank: int) -> None:
    """Save FSDP1's sharded state dict without a mesh: ShardedTensor."""
    made = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    config = ShardedStateDictConfig(_use_dtensor=False)
    kind = StateDictType.SHARDED_STATE_DICT
    with FullyShardedDataParallel.state_dict_type(made, kind, config):
        torch.save({"model": made.state_dict()}, out / f"fsdp1_rank{rank}.pt")


def save(rank: int, ranks: int, out: Path) -> None:
    """Save one rank's share in every way."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=ranks)
    if rank == 0:
        whole = model().state_dict()
        save_file(whole, out / "whole.safetensors", {"format": "pt"})
        (out / "plain").mkdir()
        torch.save(whole, out / "plain" / "pytorch_model.bin")
    ways = {"verl": sharded((ranks,))}
    if ranks == 4:
        ways |= {"hsdp": sharded((2, 2)), "tp": sharded((2, 2), is_parallel=True)}
    for name, made in ways.items():
        save_verl(out / name, made, rank, ranks)
        optimizer = torch.optim.AdamW(made.parameters())
        for parameter in made.parameters():
            parameter.grad = torch.ones_like(parameter)
        state = made.state_dict()
        other = {"ema": {k: v + 1 for k, v in state.items()}}
        accelerate = out / name / "checkpoint-7" / "pytorch_model_fsdp_0"
        dcp.save({"model": state}, checkpoint_id=accelerate)
        optimizer.step()
        dcp.save(
            {"optim": optimizer.state_dict(), "step": 7},
            checkpoint_id=out / name / "checkpoint-7" / "optimizer_0",
        )
        megatron = out / name / "iter_0000007"
        dcp.save({**made.state_dict(), "optimizer.x": torch.ones(2)}, checkpoint_id=megatron)
        dcp.save({"model": state, **other}, checkpoint_id=out / name / "two")
        if rank == 0:
            (megatron / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
            save_file(made_after(out), out / "after.safetensors")
    (out / "fsdp1").mkdir(exist_ok=True)
    dist.barrier()
    save_fsdp1(out / "fsdp1", rank)
    dist.barrier()
    dist.destroy_process_group()


def made_after(out: Path) -> dict[str, torch.Tensor]:
    """Return what one step of AdamW on gradients of one makes of the model in one piece."""
    made = model()
    optimizer = torch.optim.AdamW(made.parameters())
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return dict(made.state_dict())


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    # Forked: what was imported here, seconds of it, is not imported once more by each rank.
    import torch._dynamo

    arguments = (count, folder.resolve())
    torch.multiprocessing.start_processes(save, arguments, count, start_method="fork")
