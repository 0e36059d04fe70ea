"""Make a base model and agents of chosen size, for benchmarks.

Checkpoints in the layout of Qwen2 models: bfloat16 safetensors shards with an index, config.json
and a toy tokenizer. Each agent changes its share of the base's elements by 1, 2 or 4 units in the
last place, as reinforcement learning does; the shares of the first three agents are those of the
paper's coding, tool and memory agents, and half of every agent's choices are shared with the
others. The same arguments give the same bytes. Large tensors repeat 32 million different elements,
so that making a zoo takes about as long as writing it.

    python benchmarks/zoo.py FOLDER [--size 0.1b] [--agents 3] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DENSITIES = (0.032, 0.462, 0.543, 0.30, 0.10, 0.45)
CHUNK = 1 << 20
POOL_CHUNKS = 32
SHARD_BYTES = 2_000_000_000
SPARE_BYTES = 8_000_000_000
COMPLETE = "zoo.json"


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Qwen2 model."""

    vocabulary: int
    hidden: int
    layers: int
    intermediate: int
    heads: int
    key_heads: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of every tensor; the head is tied to the embedding."""
        h, keys = self.hidden, self.hidden // self.heads * self.key_heads
        yield "model.embed_tokens.weight", (self.vocabulary, h)
        for i in range(self.layers):
            prefix = f"model.layers.{i}."
            for name, rows in (("q", h), ("k", keys), ("v", keys)):
                yield f"{prefix}self_attn.{name}_proj.weight", (rows, h)
                yield f"{prefix}self_attn.{name}_proj.bias", (rows,)
            yield f"{prefix}self_attn.o_proj.weight", (h, h)
            yield f"{prefix}mlp.gate_proj.weight", (self.intermediate, h)
            yield f"{prefix}mlp.up_proj.weight", (self.intermediate, h)
            yield f"{prefix}mlp.down_proj.weight", (h, self.intermediate)
            yield f"{prefix}input_layernorm.weight", (h,)
            yield f"{prefix}post_attention_layernorm.weight", (h,)
        yield "model.norm.weight", (h,)


SIZES = {
    "tiny": Shape(256, 64, 2, 176, 4, 2),
    "0.1b": Shape(32768, 896, 5, 4864, 14, 2),
    "0.5b": Shape(151936, 896, 24, 4864, 14, 2),
    "1.5b": Shape(151936, 1536, 28, 8960, 12, 2),
}


def agent_names(agents: int) -> list[str]:
    """Return the folders of the agents, in order."""
    return [f"agent_{t + 1}" for t in range(agents)]


def elements(size: str) -> int:
    """Return the number of elements of a model of this size."""
    return sum(math.prod(shape) for _, shape in SIZES[size].tensors())


def make_zoo(folder: Path, size: str, agents: int, seed: int = 0) -> Path:
    """Write a base and agents into ``folder`` unless they exist; return it."""
    wanted = {"size": size, "agents": agents, "seed": seed}
    record = folder / COMPLETE
    if record.is_file() and json.loads(record.read_text()) == wanted:
        return folder
    record.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = 2 * elements(size) * (agents + 1), shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise SystemExit(
            f"{folder}: a zoo of {size} and {agents} agents takes {needed / 1e9:.1f} GB; "
            f"{free / 1e9:.1f} GB are free, and {SPARE_BYTES / 1e9:.0f} GB must stay free."
        )
    shards = _shards(SIZES[size])
    for name in ("base", *agent_names(agents)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        _write_side_files(folder / name, SIZES[size])
    pool = _Pool(agents, seed)
    for index, tensors in enumerate(shards):
        _write_shard(folder, index, len(shards), tensors, pool)
    record.write_text(json.dumps(wanted))
    return folder


def _shards(shape: Shape) -> list[list[tuple[str, tuple[int, ...]]]]:
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, dimensions in shape.tensors():
        nbytes = 2 * math.prod(dimensions)
        if shards[-1] and size + nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, dimensions))
        size += nbytes
    return shards


def _write_shard(
    folder: Path,
    index: int,
    count: int,
    tensors: list[tuple[str, tuple[int, ...]]],
    pool: _Pool,
) -> None:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file_name = "model.safetensors"
    if count > 1:
        file_name = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
    paths = [folder / name / file_name for name in ("base", *agent_names(pool.agents))]
    files = [path.open("wb") for path in paths]
    try:
        for file in files:
            file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors:
            for parts in pool.tensor(name, math.prod(shape)):
                for file, bits in zip(files, parts, strict=True):
                    file.write(bits)
    finally:
        for file in files:
            file.close()
    if count > 1:
        for path in paths:
            _add_to_index(path, [name for name, _ in tensors])


class _Pool:
    """The contents of tensors; large ones are composed of a few chunks."""

    def __init__(self, agents: int, seed: int) -> None:
        self.agents = agents
        self._seed = seed
        self._chunks: dict[int, list[np.ndarray]] = {}

    def tensor(self, name: str, n: int) -> Iterator[list[np.ndarray]]:
        """Yield the bits of a tensor of n elements, of the base and of each agent, in parts."""
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        if n < CHUNK or "norm" in name:
            yield _chunk(random, n, self.agents, name)
            return
        for start in range(0, n, CHUNK):
            number = int(random.integers(POOL_CHUNKS))
            if number not in self._chunks:
                own = np.random.default_rng([self._seed, number])
                self._chunks[number] = _chunk(own, CHUNK, self.agents, "weight")
            yield [bits[: n - start] for bits in self._chunks[number]]


def _chunk(random: np.random.Generator, n: int, agents: int, name: str) -> list[np.ndarray]:
    """Return the bfloat16 bits of n elements of the base and of each agent."""
    values = random.standard_normal(n, dtype=np.float32) * np.float32(0.02)
    if "norm" in name:
        values += np.float32(1)
    base = (values.view(np.uint32) >> 16).astype(np.uint16)
    common = random.random(n, dtype=np.float32)
    models = [base]
    for t in range(agents):
        draw = random.integers(0, 1 << 16, n, dtype=np.uint16)
        own = random.random(n, dtype=np.float32)
        chosen = np.where(draw & 1, common, own) < np.float32(DENSITIES[t % len(DENSITIES)])
        # 1 unit with probability 3/4, else 2 or 4; up or down.
        step = np.where(draw & 6, 1, np.where(draw & 8, 2, 4)).astype(np.int32)
        step = np.where(draw & 16, step, -step)
        sign, size = base & np.uint16(0x8000), (base & np.uint16(0x7FFF)).astype(np.int32)
        moved = sign | np.maximum(size + step, 8).astype(np.uint16)
        models.append(np.where(chosen, moved, base))
    return models


def _add_to_index(path: Path, names: list[str]) -> None:
    index = path.parent / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    weight_map.update(dict.fromkeys(names, path.name))
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write_side_files(folder: Path, shape: Shape) -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [],
        "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}},
    }
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "a"}
    for file_name, content in {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": kind,
    }.items():
        (folder / file_name).write_text(json.dumps(content))


def main() -> None:
    """Read the command line and make the zoo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="0.1b")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make_zoo(options.folder, options.size, options.agents, options.seed))


if __name__ == "__main__":
    main()
