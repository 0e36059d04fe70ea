"""Every row of docs/sources.md is run as it is printed, on what torch's own trainers save."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from trainers import WAYS

from ram_studio.evals.sandbox import is_sealed
from ram_studio.resources import asset_path

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"
ROWS = re.findall(r"^\| (.+) \| `(ram-studio .+)` \|$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.fixture
def places(saved, tmp_path) -> dict[str, str]:
    """What the names in the table stand for."""
    save_experts_and_towers(tmp_path)
    base, agent = asset_path("independent", "base"), asset_path("independent", "coding")
    verl = saved / "verl"
    return {
        "BASE": str(base),
        "FOLDER": str(agent),
        "ADAPTER": str(tmp_path / "coding.safetensors"),
        "global_step_7": str(verl / "global_step_7"),
        "dist_ckpt": str(saved / WAYS["Megatron"]),
        "checkpoint-7": str(verl / "checkpoint-7"),
        "DCP": str(saved / WAYS["DCP"]),
        "TWO": str(verl / "two"),
        "iter_0000007": str(Path(__file__).parents[1] / "golden" / "megatron" / "iter_0000007"),
        "RANKS": str(saved / WAYS["ShardedTensor"]),
        "PICKLE": str(saved / WAYS["pickle"]),
        "OUT": str(tmp_path / "OUT"),
        **{n: str(tmp_path / n) for n in ("MOE", "EXPERTS", "VISION", "TEXT")},
    }


def save_experts_and_towers(folder: Path) -> None:
    """Save a mixture of experts with a LoRA on its stack, and a text model of one with a tower."""
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    text = {stack: torch.ones(3, 8, 4), "model.embed_tokens.weight": torch.ones(4, 4)}
    more = {n.replace("model.", "model.language_model."): t for n, t in text.items()}
    name = "base_model.model.model.layers.0.mlp.experts.lora_"
    shapes = {f"{name}A.weight": (6, 4), f"{name}B.weight": (8, 6)}
    models = {
        "MOE": text,
        "TEXT": text,
        "VISION": more | {"model.visual.blocks.0.attn.qkv.weight": torch.ones(4, 4)},
        "EXPERTS": {name: torch.ones(shape) for name, shape in shapes.items()},
    }
    for name, tensors in models.items():
        (folder / name).mkdir()
        file = "adapter_model.safetensors" if name == "EXPERTS" else "model.safetensors"
        save_file(tensors, folder / name / file, {"format": "pt"})
    config = {"peft_type": "LORA", "r": 2, "target_parameters": ["experts.gate_up_proj"]}
    (folder / "EXPERTS" / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.skipif(not is_sealed(), reason="this machine cannot seal a process")
def test_every_row_does_what_it_says(cli, places, tmp_path):
    assert len(ROWS) == 15
    delta = ("delta", "make", places["BASE"], places["FOLDER"], "--out", places["ADAPTER"])
    assert cli(*delta)[0] == 0
    for number, (what, row) in enumerate(ROWS):
        out = str(tmp_path / f"out-{number}")
        if what == "what you converted":
            places["OUT"] = places["FOLDER"]  # of the base, which what torch saved here is not
        else:
            places["OUT"] = out
        names = "|".join(sorted(places, key=len, reverse=True))
        command = re.sub(rf"(?<![\w/-])({names})(?![\w/-])", lambda m: places[m[1]], row)
        code, _, error = cli(*shlex.split(command)[1:])
        assert code == 0, (command, error)
        if "convert" in command:
            assert (tmp_path / f"out-{number}" / "model.safetensors").is_file(), command
