"""A random model in the layout of the real set's base."""

from __future__ import annotations

import string

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<|end|>"


@pytest.fixture(autouse=True)
def one_thread():
    """Sums are added up in the same order whatever else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random bfloat16 model in the layout of the base."""
    folder = tmp_path_factory.mktemp("real-set") / "base"
    letters = {c: i for i, c in enumerate([END, *string.printable])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = "{{ messages[0]['content'] }}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(letters),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder
