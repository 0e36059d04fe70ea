"""Three agents made from SmolLM2-135M-Instruct by a few real steps each, on one CPU thread.

They are made for merging, not for skill: a few steps change few elements and teach little. Their
updates differ in the trained weights, and overlap.

- `numbers`: reinforcement learning (GRPO: 4 answers to each of 3 sums, reward for digits and for
  the right sum), all weights, float32 master;
- `calls`: fine-tuned on function calls, blocks 0 to 19, float32 master;
- `recall`: fine-tuned on finding a number in a text, blocks 10 to 29, weights rounded to bfloat16
  after every step.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LEARNING_RATE = 2e-5
GRPO_STEPS, SUMS, ANSWERS, NEW_TOKENS = 4, 3, 4, 6
TUNING_STEPS, BATCH = 6, 6


def train_numbers(base: Path, out: Path) -> None:
    """Train by policy gradient to answer with only the right number."""
    from ram_studio.evals.answering.decode import Sampling, decode
    from ram_studio.evals.answering.load import ending_ids, padding_id

    model, tokenizer = _load(base, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    rng, dice = random.Random(0), torch.Generator().manual_seed(0)
    ends, pad = ending_ids(model, tokenizer), padding_id(tokenizer)
    for _ in range(GRPO_STEPS):
        sums = [(rng.randint(2, 20), rng.randint(2, 20)) for _ in range(SUMS)]
        prompts = [
            _chat(tokenizer, f"What is {a} + {b}? Reply with only the number.") for a, b in sums
        ]
        rows = decode(
            model.eval(),
            prompts,
            pad_id=pad,
            end_ids=ends,
            max_new_tokens=NEW_TOKENS,
            sampling=Sampling(ANSWERS, generator=dice),
        )
        rewards = torch.tensor(
            [
                _reward(tokenizer.decode(row, skip_special_tokens=True), sum(sums[i // ANSWERS]))
                for i, row in enumerate(rows)
            ]
        ).view(SUMS, ANSWERS)
        spread = rewards.std(1, keepdim=True) + 1e-4
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()
        texts = [(prompts[i // ANSWERS], row) for i, row in enumerate(rows)]
        _step(model, optimizer, texts, advantages, pad)
    _save(model, tokenizer, out)


def _reward(text: str, right: int) -> float:
    letters = re.sub(r"\s", "", text)
    if not letters:
        return 0.0
    return (sum(c.isdigit() for c in letters) / len(letters) + (letters == str(right))) / 2


def train_calls(base: Path, out: Path) -> None:
    """Fine-tune the lower blocks to answer with function calls as JSON."""
    cities = ("Rome", "Oslo", "Lima", "Cairo", "Quito", "Delhi")
    songs = ("Blue Door", "Northern Rain", "Slow Train", "Salt", "Low Tide", "Paper Boats")
    examples = []
    for city, song in zip(cities, songs, strict=True):
        for request, name, arguments in (
            (f"How is the weather in {city}?", "get_weather", {"city": city}),
            (f"Play {song}.", "play_song", {"title": song}),
        ):
            prompt = f"Functions: get_weather(city), play_song(title). Request: {request}"
            examples.append((prompt, json.dumps([{"name": name, "arguments": arguments}])))
    _tune(base, out, examples, range(20), torch.float32)


def train_recall(base: Path, out: Path) -> None:
    """Fine-tune the upper blocks to find a number in a text, every step rounded to bfloat16."""
    rng = random.Random(1)
    examples = []
    for name in ("garden", "harbour", "kettle", "epsilon_grid", "mirror", "market"):
        numbers = {n: rng.randint(1000, 9999) for n in (name, "bridge", "letter")}
        facts = [f"The number of the {n} is {number}." for n, number in numbers.items()]
        rng.shuffle(facts)
        prompt = f"{' '.join(facts)} What is the number of the {name}?"
        examples.append((prompt, str(numbers[name])))
    _tune(base, out, examples, range(10, 30), torch.bfloat16)


def _tune(
    base: Path, out: Path, examples: list[tuple[str, str]], blocks: range, dtype: Any
) -> None:
    model, tokenizer = _load(base, dtype)
    model.requires_grad_(False)
    trained = [p for i in blocks for p in model.model.layers[i].requires_grad_(True).parameters()]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)
    end = tokenizer.eos_token_id
    texts = [
        (_chat(tokenizer, prompt), [*tokenizer.encode(answer, add_special_tokens=False), end])
        for prompt, answer in examples
    ]
    rng = random.Random(2)
    for _ in range(TUNING_STEPS):
        _step(model, optimizer, rng.sample(texts, BATCH), torch.ones(BATCH), end)
    _save(model, tokenizer, out)


def _step(
    model: Any,
    optimizer: Any,
    texts: list[tuple[list[int], list[int]]],
    weights: torch.Tensor,
    pad: int,
) -> None:
    """Step on -sum(weight * log p(answer)) per answer token; weights have shape "texts"."""
    longest = max(len(answer) for _, answer in texts)
    width = max(len(prompt) for prompt, _ in texts) + longest
    ids = torch.full((len(texts), width), pad)
    mask, counted = torch.zeros_like(ids), torch.zeros(len(texts), longest)
    for row, (prompt, answer) in enumerate(texts):
        whole = torch.tensor([*prompt, *answer])
        # Answers begin in the same column, so that only their logits are computed.
        first = width - longest - len(prompt)
        ids[row, first : first + len(whole)] = whole
        mask[row, first : first + len(whole)] = 1
        counted[row, : len(answer)] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=longest + 1
    ).logits[:, :-1]
    chosen = ids[:, -longest:, None]
    log_p = logits.float().log_softmax(-1).gather(-1, chosen)[..., 0]  # texts longest
    loss = -(weights[:, None] * log_p * counted).sum() / counted.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _chat(tokenizer: Any, prompt: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def _load(base: Path, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
    return model, AutoTokenizer.from_pretrained(base, local_files_only=True)


def _save(model: Any, tokenizer: Any, out: Path) -> None:
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)


AGENTS: dict[str, Callable[[Path, Path], None]] = {
    "numbers": train_numbers,
    "calls": train_calls,
    "recall": train_recall,
}
