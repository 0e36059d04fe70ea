"""Time and memory of `convert` for checkpoints of several gigabytes written by torch.

    python benchmarks/converting.py [--layers N] [--layout DCP|verl] [--out FOLDER]

Two processes (gloo) save a float32 model with the shapes of Llama 3.1 8B, cut to N layers, in
DTensors: once by torch's distributed checkpoint (DCP), once as in verl, one file per rank. The
embedding alone takes 2.1 GB. Each is then converted in a separate process, and every element of the
output is compared with the saved one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from measuring import machine_facts, run_process, table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

RANKS = 2
LAYOUTS = ("DCP", "verl")
HIDDEN, MLP, VOCABULARY, KEYS = 4096, 14336, 128256, 1024
REPEAT = 1 << 24


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return the model's tensors."""
    ends = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    parts = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KEYS, HIDDEN)}
    parts |= {"self_attn.v_proj": (KEYS, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN)}
    parts |= {"mlp.gate_proj": (MLP, HIDDEN), "mlp.up_proj": (MLP, HIDDEN)}
    parts |= {"mlp.down_proj": (HIDDEN, MLP), "input_layernorm": (HIDDEN,)}
    every = (
        {f"model.layers.{i}.{name}.weight": shape for name, shape in parts.items()}
        for i in range(layers)
    )
    return {name: shape for group in (ends, *every) for name, shape in group.items()}


def pattern() -> np.ndarray:
    """Return the numbers that tensors repeat, for each rank's rows from the first one."""
    return np.random.default_rng(0).standard_normal(REPEAT, np.float32)


def local_part(shape: tuple[int, ...], numbers: torch.Tensor) -> torch.Tensor:
    """Return one rank's rows of a tensor: random numbers that repeat."""
    rows = (shape[0] // RANKS, *shape[1:])
    count = int(np.prod(rows))
    return numbers.repeat(-(-count // REPEAT))[:count].clone().reshape(rows)


def save(rank: int, out: Path, layers: int, layout: str) -> None:
    """Save this rank's rows of every tensor; verl's ranks one after another, to spare memory."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    numbers = torch.from_numpy(pattern())

    def state() -> dict[str, DTensor]:
        return {
            name: DTensor.from_local(local_part(shape, numbers), mesh, [Shard(0)], run_check=False)
            for name, shape in shapes(layers).items()
        }

    if layout == "DCP":
        dcp.save(state(), checkpoint_id=str(out))
    for turn in range(RANKS if layout == "verl" else 0):
        if turn == rank:
            (out / "actor").mkdir(parents=True, exist_ok=True)
            torch.save(state(), out / "actor" / f"model_world_size_{RANKS}_rank_{rank}.pt")
        dist.barrier()
    dist.destroy_process_group()


def check(_: int, folder: Path, layers: int) -> None:
    """Compare every element with the saved one; in a separate process, unmeasured.

    A command inherits the peak memory of the process that starts it.
    """
    left, numbers = shapes(layers), pattern().view(np.uint32)
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        data = np.memmap(path, np.uint8, "r", 8 + size)
        for name, told in header.items():
            assert (tuple(told["shape"]), told["dtype"]) == (left.pop(name), "F32"), name
            begin, end = told["data_offsets"]
            for rows in np.split(data[begin:end].view(np.uint32), RANKS):
                for start in range(0, len(rows), REPEAT):
                    piece = rows[start : start + REPEAT]
                    assert np.array_equal(piece, numbers[: len(piece)]), name
    assert not left, left


def main() -> None:
    """Print a row for each layout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=5, help="default: 5, of 6.5 GB")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="default: both")
    parser.add_argument("--out", type=Path, help="where to write, for a time [default: temporary]")
    asked = parser.parse_args()
    rows = []
    for layout in asked.layout or LAYOUTS:
        place = Path(tempfile.mkdtemp(dir=asked.out))
        try:
            given = (place / "saved", asked.layers, layout)
            torch.multiprocessing.start_processes(save, given, RANKS, start_method="spawn")
            files = [path for path in (place / "saved").rglob("*") if path.is_file()]
            saved = sum(path.stat().st_size for path in files)
            command = ("-m", "ram_studio", "convert", str(place / "saved"), str(place / "out"))
            run = run_process([sys.executable, *command])
            torch.multiprocessing.start_processes(check, (place / "out", asked.layers))
            largest = max(4 * int(np.prod(shape)) for shape in shapes(asked.layers).values())
            cells = (f"{saved / 1e9:.1f} GB", f"{largest / 1e9:.1f} GB", f"{run.wall:.0f} s")
            rows.append((layout, *cells, f"{run.cpu:.0f} s", f"{run.peak_bytes / 1e9:.2f} GB"))
            print(rows[-1], file=sys.stderr)
        finally:
            shutil.rmtree(place)
    titles = ("saved by", "size", "largest tensor", "wall", "processor", "peak memory")
    print(table(titles, rows))
    print(f"\n{machine_facts()}")


if __name__ == "__main__":
    main()
