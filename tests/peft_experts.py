"""A base with stacks of experts and a LoRA on them, as transformers and peft write them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedConfig

EXPERTS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_experts_per_tok": 2,
}
STACKS = ["experts.gate_up_proj", "experts.down_proj"]


def expert_model(config: PreTrainedConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def train_experts(
    folder: Path, config: PreTrainedConfig, **options: object
) -> dict[str, torch.Tensor]:
    """Save a base and a LoRA on its experts; return what peft makes of them."""
    from peft import LoraConfig, get_peft_model

    whole = expert_model(config)
    whole.save_pretrained(folder / "base")
    asked = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj"], "target_parameters": STACKS}
    made = get_peft_model(whole, LoraConfig(**{**asked, **options}))
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    made.save_pretrained(folder / "adapter")
    made.merge_and_unload().save_pretrained(folder / "merged")
    return load_file(folder / "merged" / "model.safetensors")
