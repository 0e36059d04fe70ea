"""What `inspect`, `plan` and a part take for very large models: headers are real, data are holes.

    python benchmarks/headers.py [TENSORS ...]

Writes a base and an agent of the names and shapes of DeepSeek-V3 (671 B parameters; 256 experts a
layer, one tensor each) with about so many tensors, as bfloat16 and, with a scale for each matrix,
as fp8. A file takes the room of its header only. Processor seconds and peak memory are those of
each command's own process. The part writes about a gigabyte. The sums are those that a merge of so
many elements adds up for 3 agents, drawn at random.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import product
from pathlib import Path

from measuring import run_process

HIDDEN, MOE, EXPERTS, ATTENTION = 7168, 2048, 256, 1536
SHARD_BYTES = 5 << 30
BLOCK = 128


def specs(tensors: int, dtype: str) -> list[tuple[str, str, tuple[int, int]]]:
    """Return about so many tensors: name, dtype, shape."""
    found = [("model.embed_tokens.weight", "BF16", (129280, HIDDEN))]
    for layer in range(10_000):
        if len(found) >= tensors:
            break
        at = f"model.layers.{layer}"
        matrices = [(f"{at}.self_attn.{n}_proj.weight", (ATTENTION, HIDDEN)) for n in "qkv"]
        for expert in range(EXPERTS):
            for name, shape in (
                ("gate_proj", (MOE, HIDDEN)),
                ("up_proj", (MOE, HIDDEN)),
                ("down_proj", (HIDDEN, MOE)),
            ):
                matrices.append((f"{at}.mlp.experts.{expert}.{name}.weight", shape))
        for name, shape in matrices:
            if dtype == "fp8":
                found.append((name, "F8_E4M3", shape))
                scale = (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK))
                found.append((f"{name}_scale_inv", "F32", scale))
            else:
                found.append((name, "BF16", shape))
        found.append((f"{at}.input_layernorm.weight", "BF16", (HIDDEN, 1)))
    return found


def write(folder: Path, tensors: int, dtype: str) -> int:
    """Write a checkpoint whose data are holes; return its bytes."""
    folder.mkdir()
    shards: list[list[tuple[str, str, tuple[int, int], int]]] = [[]]
    used = total = 0
    for name, kind, shape in specs(tensors, dtype):
        size = shape[0] * shape[1] * {"BF16": 2, "F32": 4, "F8_E4M3": 1}[kind]
        if used + size > SHARD_BYTES:
            shards.append([])
            used = 0
        shards[-1].append((name, kind, shape, size))
        used, total = used + size, total + size
    weight_map = {}
    for number, own in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, end = {}, 0
        for name, kind, shape, size in own:
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
            end += size
            weight_map[name] = file
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + end)
    config: dict[str, object] = {"model_type": "deepseek_v3", "torch_dtype": "bfloat16"}
    if dtype == "fp8":
        config["quantization_config"] = {
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        }
    (folder / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


TALLY = """
import sys
import numpy as np
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import Merged

drawn = np.random.default_rng(0).normal(size=(999, 4, 3, 9))
tally = MergeTally(3)
for block in range(int(sys.argv[1])):
    tally.add(Merged(None, np.zeros(8, np.int64), drawn[block % 999]))
print(tally.total.sums.nbytes, [tally.retained(agent) for agent in range(3)])
"""


def measure(*arguments: str) -> str:
    """Return processor seconds and peak memory of a command of its own, as a cell."""
    found = run_process([sys.executable, *arguments])
    return f"{found.cpu:.1f} s, {found.peak_bytes / 1e9:.2f} GB"


def main() -> None:
    """Print a row of the table for each size and dtype."""
    sizes = [int(n) for n in sys.argv[1:]] or [10_000, 30_000, 100_000]
    titles = ("tensors", "stored", "size", "inspect", "plan", "a part", "sums")
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    for dtype, tensors in product(("bfloat16", "fp8"), sizes):
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            total = write(place / "base", tensors, dtype)
            write(place / "agent", tensors, dtype)
            every = specs(tensors, dtype)
            elements = sum(rows * columns for _, kind, (rows, columns) in every if kind != "F32")
            cells = [f"{len(every):,}", dtype, f"{total / 1e9:,.0f} GB"]
            cells += measured_cells(place, elements)
            print(f"| {' | '.join(cells)} |", flush=True)


def measured_cells(place: Path, elements: int) -> list[str]:
    """Return what was measured of the models in a folder, which have so many elements."""
    recipe, plan = place / "recipe.yaml", place / "plan"
    text = f"base: {place / 'base'}\nagents: {{a: {place / 'agent'}}}\n"
    recipe.write_text(text + "method: task-arithmetic\n")
    cli = ("-m", "ram_studio")
    models = ["--base", str(place / "base"), "--agent", f"a={place / 'agent'}"]
    inspect = measure(*cli, "inspect", *models)
    parts = (str(recipe), "--out", str(plan), "--no-hash", "--parts")
    planned = measure(*cli, "plan", *parts, "64")
    run_process([sys.executable, *cli, "plan", *parts, "9999", "--max-shard-size", "1GB"])
    merge = ("merge", "--plan", str(plan), "--part", "2", "--out", str(place / "out"))
    blocks = str(elements // (1 << 18))
    return [inspect, planned, measure(*cli, *merge), measure("-c", TALLY, blocks)]


if __name__ == "__main__":
    main()
