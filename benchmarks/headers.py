"""Time of `inspect`, `plan` and one part for very large models: real headers, sparse data.

    python benchmarks/headers.py [--dtype bfloat16|fp8] [TENSORS ...]

Writes a base and two agents of the names and shapes of DeepSeek-V3 (without the layer that predicts
a second token), cut or extended to about this number of tensors: 45395 are the 671 B model itself
in bfloat16. In fp8 each matrix has a scale, which counts as a tensor. A file takes only the space
of its header. Processor seconds and peak memory are those of each command's own process. The part
writes about a gigabyte. The sums are those of a merge of this many elements with 3 agents, from
random numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import product
from math import prod
from pathlib import Path

from measuring import run_process

HIDDEN, MOE, EXPERTS, DENSE, VOCABULARY = 7168, 2048, 256, 18432, 129280
DENSE_LAYERS = 3
SHARD_BYTES = 5 << 30
BLOCK = 128
ATTENTION = {
    "q_a_proj": (1536, HIDDEN),
    "q_b_proj": (24576, 1536),
    "kv_a_proj_with_mqa": (576, HIDDEN),
    "kv_b_proj": (32768, 512),
    "o_proj": (HIDDEN, 16384),
}


def mlp(at: str, size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the three matrices of a feed-forward network."""
    shapes = {"gate_proj": (size, HIDDEN), "up_proj": (size, HIDDEN), "down_proj": (HIDDEN, size)}
    return [(f"{at}.{name}.weight", shape) for name, shape in shapes.items()]


def layer_matrices(layer: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the matrices of a layer, which fp8 stores with scales: name and shape."""
    at = f"model.layers.{layer}"
    found: list[tuple[str, tuple[int, ...]]]
    found = [(f"{at}.self_attn.{name}.weight", shape) for name, shape in ATTENTION.items()]
    if layer < DENSE_LAYERS:
        return found + mlp(f"{at}.mlp", DENSE)
    for expert in range(EXPERTS):
        found += mlp(f"{at}.mlp.experts.{expert}", MOE)
    return found + mlp(f"{at}.mlp.shared_experts", MOE)


def layer_rest(layer: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return a layer's tensors without scales: name, dtype, shape."""
    at = f"model.layers.{layer}"
    sizes = {"self_attn.q_a_layernorm": 1536, "self_attn.kv_a_layernorm": 512}
    sizes |= {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    found: list[tuple[str, str, tuple[int, ...]]]
    found = [(f"{at}.{name}.weight", "BF16", (size,)) for name, size in sizes.items()]
    if layer >= DENSE_LAYERS:
        found.append((f"{at}.mlp.gate.weight", "BF16", (EXPERTS, HIDDEN)))
        found.append((f"{at}.mlp.gate.e_score_correction_bias", "F32", (EXPERTS,)))
    return found


def specs(tensors: int, dtype: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return about this many tensors: name, dtype, shape."""
    ends = [("model.embed_tokens.weight", (VOCABULARY, HIDDEN)), ("model.norm.weight", (HIDDEN,))]
    ends.append(("lm_head.weight", (VOCABULARY, HIDDEN)))
    found: list[tuple[str, str, tuple[int, ...]]] = [(name, "BF16", shape) for name, shape in ends]
    layer = 0
    while len(found) < tensors:
        for name, shape in layer_matrices(layer):
            found.append((name, "F8_E4M3" if dtype == "fp8" else "BF16", shape))
            if dtype == "fp8":
                scale = tuple(-(-side // BLOCK) for side in shape)
                found.append((f"{name}_scale_inv", "F32", scale))
        found += layer_rest(layer)
        layer += 1
    return found


def write(folder: Path, tensors: int, dtype: str, head: int) -> int:
    """Write a sparse checkpoint with only its head's first byte as data; return its bytes."""
    folder.mkdir()
    shards: list[list[tuple[str, str, tuple[int, ...], int]]] = [[]]
    used = total = 0
    for name, kind, shape in specs(tensors, dtype):
        size = prod(shape) * {"BF16": 2, "F32": 4, "F8_E4M3": 1}[kind]
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
            if "lm_head.weight" in header:  # not tied to the embedding in DeepSeek
                out.seek(8 + len(text) + header["lm_head.weight"]["data_offsets"][0])
                out.write(bytes([head]))
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
from ram_studio.engine.passes.plan import MergedBlock

drawn = np.random.default_rng(0).normal(size=(999, 4, 3, 9))
tally = MergeTally(3)
for block in range(int(sys.argv[1])):
    tally.add(MergedBlock(None, np.zeros(8, np.int64), drawn[block % 999]))
print(tally.total.sums.nbytes, [tally.retained(agent) for agent in range(3)])
"""


def measure(*arguments: str) -> str:
    """Return processor seconds and peak memory of a separate command, as a cell."""
    found = run_process([sys.executable, *arguments])
    return f"{found.cpu:.1f} s, {found.peak_bytes / 1e9:.2f} GB"


def main() -> None:
    """Print a row of the table for each size and dtype."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    sizes = (10_000, 30_000, 45_395, 100_000)
    parser.add_argument("tensors", nargs="*", type=int, default=sizes, help=f"default: {sizes}")
    parser.add_argument("--dtype", choices=("bfloat16", "fp8"), help="default: both")
    asked = parser.parse_args()
    titles = ("tensors", "stored", "size", "inspect", "plan", "a part", "sums")
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    dtypes = [asked.dtype] if asked.dtype else ["bfloat16", "fp8"]
    for dtype, tensors in product(dtypes, asked.tensors):
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            for head, name in enumerate(("base", "coding", "tool"), 1):
                total = write(place / name, tensors, dtype, head)
            every = specs(tensors, dtype)
            elements = sum(prod(shape) for _, kind, shape in every if kind != "F32")
            cells = [f"{len(every):,}", dtype, f"{total / 1e9:,.0f} GB"]
            cells += measured_cells(place, elements)
            print(f"| {' | '.join(cells)} |", flush=True)


def measured_cells(place: Path, elements: int) -> list[str]:
    """Return the measurements for the models in a folder, with this many elements."""
    recipe, plan = place / "recipe.yaml", place / "plan"
    agents = {name: str(place / name) for name in ("coding", "tool")}
    asked = {"base": str(place / "base"), "agents": agents, "method": "task-arithmetic"}
    recipe.write_text(json.dumps(asked))
    cli = ("-m", "ram_studio")
    models = ["--base", str(place / "base")]
    for name, folder in agents.items():
        models += ["--agent", f"{name}={folder}"]
    inspect = measure(*cli, "inspect", *models)
    parts = (str(recipe), "--out", str(plan), "--no-hash", "--parts")
    planned = measure(*cli, "plan", *parts, "64")
    run_process([sys.executable, *cli, "plan", *parts, "9999", "--max-shard-size", "1GB"])
    merge = ("merge", "--plan", str(plan), "--part", "2", "--out", str(place / "out"))
    blocks = str(elements // (1 << 18))
    return [inspect, planned, measure(*cli, *merge), measure("-c", TALLY, blocks)]


if __name__ == "__main__":
    main()
