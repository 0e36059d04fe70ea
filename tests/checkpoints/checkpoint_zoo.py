"""Writes small real checkpoints for the tests: safetensors' own writer, plain JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_zoo import write_shards
from hypothesis import strategies as st

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.errors import CheckpointError, RamStudioError

QWEN_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 4,
    "num_attention_heads": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
_INNER = _LEAF | st.lists(_LEAF, max_size=2)
JSON = (
    _LEAF | st.lists(_INNER, max_size=3) | st.dictionaries(st.text(max_size=6), _INNER, max_size=3)
)
"""Any JSON value, two levels deep: drawn in half the time that `st.recursive` takes."""


def small_tensors(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Return an untied model of 6 tensors with 148 elements."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "lm_head.weight": random(10, 4),
        "model.embed_tokens.weight": random(10, 4),
        "model.layers.0.mlp.up_proj.weight": random(8, 4),
        "model.layers.0.self_attn.q_proj.bias": random(4),
        "model.layers.0.self_attn.q_proj.weight": random(4, 4),
        "model.norm.weight": random(4, 4),
    }


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    shards: int = 1,
    index: bool = True,
    config: Mapping[str, Any] | None = QWEN_CONFIG,
) -> Path:
    """Write a checkpoint of that many shards, see ``engine_zoo.write_shards``."""
    write_shards(folder, tensors, shards, index=index)
    if config is not None:
        write_json(folder / "config.json", config)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def make(
    folder: Path, name: str, tensors: Mapping[str, torch.Tensor], **options: Any
) -> Checkpoint:
    """Write a checkpoint into `folder/name` and open it under that name."""
    return open_checkpoint(write_checkpoint(folder / name, tensors, **options), name=name)


def refused(
    act: Callable[[], object], *words: str, kind: type[RamStudioError] = CheckpointError
) -> str:
    """Return the message that refuses it: one line, not too long, with these words."""
    with pytest.raises(kind) as caught:
        act()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500
    for expected in words:
        assert expected in message
    return message


def raw_safetensors(header: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the bytes of a file with exactly this header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
