"""A tensor's layer, kind of module, tower and expert, from its name.

A tower is a part beside the language model, for images or sound; it counts as one layer, so that
its own layers do not mix with the language model's of the same numbers.
"""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_EMBEDDING = re.compile(
    r"embed_(?:tokens|positions|in)|wte|wpe|(?:word|tok|position|token_type)_embeddings"
    r"|(?:^|\.)(?:embeddings|shared)\.weight$"
)
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.(?:weight|bias)$")
_TOWERS = {
    "vision": re.compile(
        r"(?:^|\.)(?:visual|vision_(?:tower|model|encoder|embed_tokens)|image_embed|embed_vision|vpm"
        r"|(?:multi_modal|mm|vision)_(?:projector|language_adapter))\."
    ),
    "audio": re.compile(
        r"(?:^|\.)(?:audio_(?:tower|model|encoder|embed|projector)|embed_audio|apm)\."
    ),
    "speech": re.compile(r"(?:^|\.)(?:talker|token2wav|code2wav)\."),
}
"""By their names in transformers' multimodal models."""
_EXPERT = re.compile(r"(?:^|\.)experts\.(?:(\d+)\.)?")
_SHARED = re.compile(r"(?:^|\.)shared_experts?(?:_gate)?\.")
_ROUTER = re.compile(
    r"(?:^|\.)(?:(?:mlp|moe|block_sparse_moe|feed_forward|ffn|mixer)\.gate|router)"
    r"\.[^.]+(?:\.[^.]+)?$|\.e_score_correction_bias$"
)

EMBEDDING = "embedding"
HEAD = "head"
OTHER = "other"
LANGUAGE = "language"
ROUTER = "router"
SHARED_EXPERT = "shared"
STACK = "experts"


def tower_of(name: str) -> str:
    """Return which part of a model a tensor belongs to: "language", "vision", "audio", "speech"."""
    found = (tower for tower, pattern in _TOWERS.items() if pattern.search(name))
    return next(found, LANGUAGE)


def layer_of(name: str) -> str:
    """Return the layer label: its number as text, "embedding", "head", "other", or a tower."""
    tower = tower_of(name)
    if tower != LANGUAGE:
        return tower
    match = _LAYER.search(name)
    if match:
        return match.group(1)
    if _EMBEDDING.search(name):
        return EMBEDDING
    return HEAD if _HEAD.search(name) else OTHER


def expert_of(name: str) -> str | None:
    """Return which part of a mixture of experts a tensor is, None where it is none.

    An expert's number as text, "experts" for a stack of all, "shared" for an expert of all tokens
    (with its gate), "router" for the router.
    """
    if (match := _EXPERT.search(name)) is not None:
        return match.group(1) or STACK
    if _SHARED.search(name):
        return SHARED_EXPERT
    return ROUTER if _ROUTER.search(name) else None


def module_of(name: str) -> str:
    """Return the kind of module, e.g. "q_proj", "input_layernorm"; biases are kinds of their own.

    ``model.layers.3.self_attn.q_proj.bias`` gives "q_proj.bias". A tower's and an expert's modules
    differ from the language model's of the same name: "vision q_proj", "expert up_proj".
    """
    parts = name.split(".")
    if len(parts) == 1:
        return parts[0]
    expert, tower = expert_of(name), tower_of(name)
    if expert == ROUTER:
        kind = ROUTER
    elif expert == STACK and parts[-2] == "experts":
        kind = f"expert {parts[-1]}"  # a stack's tensors are often not modules themselves
    else:
        kind = parts[-2] if not parts[-2].isdigit() else parts[-1]
        kind = f"{'shared ' if expert == SHARED_EXPERT else ''}{'expert ' if expert else ''}{kind}"
    kind = kind if tower == LANGUAGE else f"{tower} {kind}"
    return f"{kind}.bias" if parts[-1] == "bias" else kind


def sort_layers(labels: set[str]) -> list[str]:
    """Return layer labels in the order of a forward pass; towers last."""
    order = {EMBEDDING: -1, OTHER: 10**9, HEAD: 10**9 + 1}
    order |= {tower: 10**9 + 2 + i for i, tower in enumerate(_TOWERS)}
    return sorted(labels, key=lambda label: order[label] if label in order else int(label))
