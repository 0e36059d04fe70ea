"""Merged folders are models: transformers loads them and they generate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_zoo import DTYPES, NAMES, bits_of, read_folder

from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.merge import merge

AGENTS = ("a", "b", "c")
SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save_models(folder: Path, kind: str, *, tied: bool, dtype: torch.dtype) -> None:
    """Write a base and three agents as transformers itself would."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config_type, model_type = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    model = model_type(config_type(**SMALL, tie_word_embeddings=tied)).to(dtype)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder / "base", max_shard_size="8KB")
    for number, agent in enumerate(AGENTS):
        rng = torch.Generator().manual_seed(number)
        for name, tensor in model.state_dict().items():
            change = torch.randn(tensor.shape, generator=rng) * 0.01
            is_changed = torch.rand(tensor.shape, generator=rng) < 0.4
            tensor.copy_((start[name].float() + change * is_changed).to(dtype))
        model.save_pretrained(folder / agent)


@pytest.mark.parametrize(
    ("kind", "tied", "dtype", "output"),
    [
        ("qwen2", True, "BF16", None),
        ("qwen2", False, "F32", "BF16"),
        ("llama", False, "F16", "F32"),
        ("llama", True, "BF16", "F16"),
    ],
)
def test_a_merged_model_loads_and_generates(tmp_path, kind, tied, dtype, output):
    from transformers import AutoModelForCausalLM

    save_models(tmp_path, kind, tied=tied, dtype=DTYPES[dtype])
    assert len(list((tmp_path / "base").glob("*.safetensors"))) > 1
    recipe = make_recipe(
        {
            "base": str(tmp_path / "base"),
            "agents": {agent: str(tmp_path / agent) for agent in AGENTS},
            "dtype": output and NAMES[output],
        }
    )
    merge(recipe, tmp_path / "out", max_shard_bytes=9000)
    stored = DTYPES[output or dtype]
    merged = read_folder(tmp_path / "out")
    model, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True, local_files_only=True
    )
    assert model.dtype == stored
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in model.state_dict().items():
        if name in merged:
            assert torch.equal(bits_of(tensor), bits_of(merged[name])), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied
    prompt = torch.tensor([[1, 5, 9]])
    answer = model.float().generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False
    )
    assert answer.shape[0] == 1
    assert 3 < answer.shape[1] <= 8
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    assert not torch.equal(model(prompt).logits, base.float()(prompt).logits)
