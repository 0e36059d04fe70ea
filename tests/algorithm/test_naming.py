"""Names as published models have them, and what is read off them."""

from __future__ import annotations

import pytest

from ram_studio.algorithm import naming

# Name: layer, module, tower, expert.
NAMES = """
model.layers.3.self_attn.q_proj.bias: 3, q_proj.bias, language, -
visual.blocks.3.attn.qkv.weight: vision, vision qkv, vision, -
model.visual.patch_embed.proj.weight: vision, vision proj, vision, -
model.language_model.layers.7.mlp.up_proj.weight: 7, up_proj, language, -
vision_tower.vision_model.encoder.layers.2.mlp.fc1.bias: vision, vision fc1.bias, vision, -
multi_modal_projector.linear_1.weight: vision, vision linear_1, vision, -
thinker.audio_tower.layers.0.fc1.weight: audio, audio fc1, audio, -
talker.model.layers.0.mlp.up_proj.weight: speech, speech up_proj, speech, -
model.layers.0.mlp.experts.17.up_proj.weight: 0, expert up_proj, language, 17
model.layers.0.block_sparse_moe.experts.3.w1.weight: 0, expert w1, language, 3
model.layers.0.mlp.experts.gate_up_proj: 0, expert gate_up_proj, language, experts
model.layers.0.mlp.gate.weight: 0, router, language, router
model.layers.0.mlp.gate.e_score_correction_bias: 0, router, language, router
model.layers.0.block_sparse_moe.gate.weight: 0, router, language, router
model.layers.0.mlp.router.bias: 0, router.bias, language, router
model.layers.0.mlp.shared_expert.up_proj.weight: 0, shared expert up_proj, language, shared
model.layers.0.mlp.shared_expert_gate.weight: 0, shared expert shared_expert_gate, language, shared
model.layers.0.mlp.gate_proj.weight: 0, gate_proj, language, -
model.layers.1.mlp.gate: 1, mlp, language, -
backbone.layers.1.mixer.gate.weight: 1, router, language, router
backbone.layers.1.mixer.gate.e_score_correction_bias: 1, router, language, router
model.layers.1.block_sparse_moe.e_score_correction_bias: 1, router, language, router
backbone.layers.1.mixer.shared_experts.up_proj.weight: 1, shared expert up_proj, language, shared
backbone.embeddings.weight: embedding, embeddings, language, -
shared.weight: embedding, shared, language, -
bert.embeddings.position_embeddings.weight: embedding, position_embeddings, language, -
roberta.embeddings.token_type_embeddings.weight: embedding, token_type_embeddings, language, -
model.decoder.embed_positions.weight: embedding, embed_positions, language, -
roberta.encoder.layer.11.output.dense.bias: 11, dense.bias, language, -
decoder.block.2.layer.1.EncDecAttention.q.weight: 2, q, language, -
model.vision_tower.embeddings.weight: vision, vision embeddings, vision, -
"""


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_what_a_tensor_is_is_read_off_its_name(line: str) -> None:
    name, said = line.split(": ")
    found = naming.layer_of(name), naming.module_of(name), naming.tower_of(name)
    assert [*found, naming.expert_of(name) or "-"] == said.split(", ")


def test_towers_come_last() -> None:
    labels = {"vision", "audio", "head", "10", "2", "other", "embedding"}
    assert naming.sort_layers(labels) == [
        "embedding", "2", "10", "other", "head", "vision", "audio",
    ]  # fmt: skip
