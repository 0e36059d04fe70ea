"""Which layer and which kind of module a tensor belongs to, read off its name."""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_EMBEDDING = re.compile(r"embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|wpe")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.(?:weight|bias)$")

EMBEDDING = "embedding"
HEAD = "head"
OTHER = "other"


def layer_of(name: str) -> str:
    """Return the layer label: its number as text, or "embedding", "head", "other"."""
    match = _LAYER.search(name)
    if match:
        return match.group(1)
    if _EMBEDDING.search(name):
        return EMBEDDING
    return HEAD if _HEAD.search(name) else OTHER


def module_of(name: str) -> str:
    """Return the kind of module, e.g. "q_proj", "input_layernorm"; biases are kept apart.

    ``model.layers.3.self_attn.q_proj.bias`` gives "q_proj.bias".
    """
    parts = name.split(".")
    if len(parts) == 1:
        return parts[0]
    kind = parts[-2] if not parts[-2].isdigit() else parts[-1]
    return f"{kind}.bias" if parts[-1] == "bias" else kind


def sort_layers(labels: set[str]) -> list[str]:
    """Return layer labels in the order a forward pass meets them."""
    order = {EMBEDDING: -1, OTHER: 10**9, HEAD: 10**9 + 1}
    return sorted(labels, key=lambda label: order[label] if label in order else int(label))
