"""Decoding with the cache that writes in place: the same tokens as with transformers' own."""

import functools

import pytest
import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from ram_studio.evals.answering import decode as generation
from ram_studio.evals.answering.growing_cache import LEAST_GROWTH, GrowingLayer, make_cache

CONFIGS = {
    LlamaForCausalLM: (LlamaConfig, {}),
    MistralForCausalLM: (MistralConfig, {"sliding_window": 16}),
}


SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}


def tiny(kind=LlamaForCausalLM):
    torch.manual_seed(0)
    config, more = CONFIGS[kind]
    return kind(config(**SIZES, **HEADS, **more)).eval()


@functools.cache
def plainly(kind, prompt, end_ids, limit):
    """One prompt alone, the whole text computed anew for every token; once for all settings."""
    model, ids, new = tiny(kind), list(prompt), []
    for _ in range(limit):
        with torch.inference_mode():
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
        new.append(token)
        if token in end_ids:
            break
    return new


def prompts(n):
    source = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 90, (n,), generator=source).tolist()
    return [tuple(torch.randint(0, 64, (k,), generator=source).tolist()) for k in lengths]


@pytest.mark.parametrize("kind", CONFIGS, ids=["plain", "sliding window"])
@pytest.mark.parametrize(("piece", "together"), [(16_384, 16_384), (40, 16_384), (16_384, 400)])
def test_a_batch_gives_what_each_prompt_gives_alone(kind, piece, together, monkeypatch):
    monkeypatch.setattr(generation, "PREFILL_TOKENS", piece)
    monkeypatch.setattr(generation, "CPU_TOKENS", together)
    given = prompts(9)
    # A third of the vocabulary ends an answer, so rows end at different times and are dropped.
    ends = frozenset(range(0, 64, 3))
    rows = generation.decode(tiny(kind), given, pad_id=0, end_ids=ends, max_new_tokens=80)
    assert rows == [plainly(kind, prompt, ends, 80) for prompt in given]
    assert len({len(row) for row in rows}) > 2


def test_rows_grow_past_the_room_that_was_taken():
    (prompt,) = prompts(1)
    ends, more = frozenset(), LEAST_GROWTH + 6
    (row,) = generation.decode(tiny(), [prompt], pad_id=0, end_ids=ends, max_new_tokens=more)
    assert row == list(plainly(LlamaForCausalLM, prompt, ends, more))


def test_only_plain_attention_is_replaced():
    cache, is_plain = make_cache(tiny())
    assert is_plain
    assert all(type(layer) is GrowingLayer for layer in cache.layers)
    model = tiny(MistralForCausalLM)
    cache, is_plain = make_cache(model)
    assert not is_plain
    own = DynamicCache(config=model.config)
    assert [type(layer) for layer in cache.layers] == [type(layer) for layer in own.layers]


def test_a_token_is_appended_without_a_copy_of_the_others():
    layer = GrowingLayer()
    states = torch.randn(2, 3, 10, 4)
    keys, values = layer.update(states, 2 * states)
    assert torch.equal(keys, states)
    token = torch.randn(2, 3, 1, 4)
    longer, _ = layer.update(token, token)
    assert longer.data_ptr() == keys.data_ptr()
    assert torch.equal(longer, torch.cat([states, token], 2))
    assert layer.get_seq_length() == 11
    layer.batch_select_indices(torch.tensor([1]))
    fewer, _ = layer.update(token[1:], token[1:])
    assert torch.equal(fewer, torch.cat([states, token, token], 2)[1:])
    assert torch.equal(values, 2 * states)
