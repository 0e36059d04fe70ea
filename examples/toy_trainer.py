"""A toy training job that saves as large ones do: FSDP2 in several processes, DCP checkpoints.

    python examples/toy_trainer.py RUN --steps 30 --save-every 10

It trains the shipped base on one made-up text with gloo, on the CPU, and writes RUN/step_10,
RUN/step_20, ... in float32, as torch.distributed.checkpoint does: `.metadata` comes last.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer

import ram_studio as rs

TEXT = "Merge the agents, keep what each of them alone has learned, and average what they share."


def train(rank: int, arguments: argparse.Namespace) -> None:
    """Train on one rank and save every few steps."""
    run = Path(arguments.run)
    meeting = f"file://{run.absolute()}/rendezvous"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=arguments.ranks)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = AutoTokenizer.from_pretrained(arguments.base)(TEXT, return_tensors="pt").input_ids
    for step in range(1, arguments.steps + 1):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % arguments.save_every == 0:
            dcp.save({"model": model.state_dict()}, checkpoint_id=run / f"step_{step}")
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
            time.sleep(arguments.pause)
    dist.destroy_process_group()


def main() -> None:
    """Start one process for each rank."""
    parser = argparse.ArgumentParser(description="Train a toy agent and save DCP checkpoints.")
    parser.add_argument("run", help="folder to write to")
    parser.add_argument("--base", default=str(rs.asset_path("independent", "base")))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each checkpoint")
    arguments = parser.parse_args()
    Path(arguments.run).mkdir(parents=True)
    mp.spawn(train, (arguments,), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
