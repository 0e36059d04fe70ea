"""Writes the golden checkpoints and, from tests/reference.py alone, what must come out of them.

    python tests/golden/make_golden.py

A bfloat16 base of two shards with an untied head, three agents (one of them stored in float32), the
same numbers on every machine: they come from a counter, not from a library's random numbers. The
authors' script cannot give expected values where an agent has no unique element (it divides by
zero); RAM Studio's answer there, lambda = 1 + r alpha, is part of the file ("twins").
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import reference  # noqa: E402

AGENTS = {"coding": "BF16", "tool": "BF16", "memory": "F32"}
SHAPES = {
    "model.embed_tokens.weight": (10, 4),
    "model.layers.0.mlp.up_proj.weight": (6, 7),
    "model.layers.1.mlp.up_proj.weight": (7, 6),
    "model.norm.weight": (5,),
    "lm_head.weight": (10, 4),
}
SECOND_SHARD = ("model.norm.weight", "lm_head.weight")
EPSILONS = (0.0, 1e-5, 1e-3)
SETTINGS = {
    "ram": {"rule": "ram", "shared": "mean", "r": 0.0, "alpha": 0.0},
    "ram+": {"rule": "ram+", "shared": "mean", "r": 0.1, "alpha": 2.0},
    "ram+s ties": {"rule": "ram+s", "shared": "ties", "r": 0.3, "alpha": 0.0},
}
BYTES = {"BF16": 2, "F32": 4}


def draw(*what: object) -> float:
    """Return a number in [0, 1) that belongs to these words."""
    digest = hashlib.sha256("/".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:6], "little") / 2**48


def base_value(name: str, i: int) -> float:
    if i < 2:
        return (0.0, -0.0)[i]
    value = Fraction(2 * draw("base", name, i) - 1) / 8
    return float(reference.nearest(value, "BF16"))


def agent_value(agent: str, name: str, i: int, base: float) -> float:
    """Return the base's number, or one a few places away; every overlap occurs."""
    members = int(draw("members", name, i) * 8)  # one bit per agent
    if not members >> list(AGENTS).index(agent) & 1:
        return base
    steps = 1 + int(4 * draw("steps", agent, name, i))
    if draw("sign", agent, name, i) < 0.5:
        steps = -steps
    dtype = AGENTS[agent]
    # float32 moves by a fraction of bfloat16's step, down to changes below 1e-5.
    size = reference.spacing(Fraction(base), "BF16") / (1 if dtype == "BF16" else 37)
    return float(reference.nearest(Fraction(base) + steps * size, dtype))


def stored(values: list[float], dtype: str) -> bytes:
    """Return the bytes of numbers that the dtype holds exactly."""
    data = b"".join(struct.pack("<f", value) for value in values)
    if dtype == "F32":
        return data
    return b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))


def write_shard(path: Path, tensors: dict[str, list[float]], dtype: str) -> None:
    """Write a safetensors file by hand: length, JSON header, data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        begin, end = end, end + BYTES[dtype] * len(values)
        header[name] = {"dtype": dtype, "shape": SHAPES[name], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(stored(values, dtype) for values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_checkpoint(folder: Path, tensors: dict[str, list[float]], dtype: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        {n: v for n, v in tensors.items() if (n in SECOND_SHARD) == second}
        for second in (False, True)
    ]
    weight_map = {}
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_shard(folder / file, part, dtype)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(folder / "config.json", {"model_type": "qwen2", "tie_word_embeddings": False})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


Tensors = dict[str, list[float]]


def expected(base: Tensors, agents: list[Tensors], epsilon: float) -> dict[str, object]:
    """Return counts per tensor, ratios of the model, and merged values as float64 hex."""
    n = len(agents)
    counts = {
        name: reference.pattern_counts(base[name], [a[name] for a in agents], epsilon)
        for name in SHAPES
    }
    overlap = reference.shared_counts(reference.add_counts(counts.values()), n)
    rho = [reference.ratio(row) for row in overlap]
    methods = {}
    for title, s in SETTINGS.items():
        factors = [reference.scaling(x, s["rule"], s["r"], s["alpha"]) for x in rho]
        methods[title] = {
            "lambda": factors,
            "merged": {
                name: [
                    reference.merged(x, ys, epsilon, factors, s["shared"]).hex()
                    for x, ys in zip(
                        base[name], zip(*(a[name] for a in agents), strict=True), strict=True
                    )
                ]
                for name in SHAPES
            },
        }
    return {
        "epsilon": epsilon,
        "patterns": counts,
        "overlap": overlap,
        "rho": [None if x == float("inf") else x for x in rho],
        "methods": methods,
    }


def main() -> None:
    sizes = {name: math.prod(shape) for name, shape in SHAPES.items()}
    base = {n: [base_value(n, i) for i in range(size)] for n, size in sizes.items()}
    agents = {
        agent: {n: [agent_value(agent, n, i, x) for i, x in enumerate(base[n])] for n in SHAPES}
        for agent in AGENTS
    }
    write_checkpoint(HERE / "base", base, "BF16")
    for agent, tensors in agents.items():
        write_checkpoint(HERE / agent, tensors, AGENTS[agent])
    everyone = list(agents.values())
    cases = {
        "three": [expected(base, everyone, epsilon) for epsilon in EPSILONS],
        "twins": [expected(base, [agents["coding"], agents["coding"]], 1e-5)],
    }
    write_json(HERE / "expected.json", {"settings": SETTINGS, "cases": cases})


if __name__ == "__main__":
    main()
