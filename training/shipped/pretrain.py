"""Pretrain the example base model from random weights: next-token loss on the example corpus.

Equation: minimize sum_t w_t * (-log p(token_t | tokens before)) / sum_t w_t with w = 1 on answers,
0.1 on the rest and 0 on padding; AdamW, linear warm-up, cosine decay. The result is rounded once to
bfloat16.

From some random weights a model never learns to look a name up, which needs two layers together:
the loss does not fall, however long the training, and rewards cannot reinforce what a base never
does by chance. So a base that fails on easy prompts, where the corpus is always right, is abandoned
early, and another starts from other random weights.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ram_studio.evals.answering.load import quiet_transformers
from ram_studio.evals.suites.demo.tasks import SKILL_DOMAINS, make_items
from training.shipped.corpus import MIXTURE, draw_document
from training.shipped.reinforce import VALIDATION_ITEMS, VALIDATION_SEED, greedy_score, stopwatch
from training.shipped.tokenizer import EOS_ID, PAD_ID, VOCABULARY

PROMPT_WEIGHT = 0.1
_ATTEMPTS_APART = 1000
"""Offset between the seeds of one seed's attempts and those of other seeds."""


@dataclass(frozen=True)
class Architecture:
    """Qwen2 shape of the example: about 0.85 M parameters, tied embeddings."""

    hidden: int = 128
    layers: int = 4
    feed_forward: int = 384
    heads: int = 4
    key_value_heads: int = 2
    context: int = 256


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of pretraining; `steps` of sum(MIXTURE) documents each.

    floor: share of easy validation prompts that a base has to answer in every skill; look_after:
    steps after which a base below it is abandoned; attempts: their maximum; the last is never
    abandoned.
    """

    steps: int = 2200
    learning_rate: float = 2.5e-3
    warmup: int = 50
    weight_decay: float = 0.05
    micro_batches: int = 4
    floor: float = 0.8
    look_after: int = 900
    attempts: int = 4


def new_model(architecture: Architecture, seed: int) -> Any:
    """Return a randomly initialized float32 `Qwen2ForCausalLM`, the same one for the same seed."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=architecture.hidden,
        intermediate_size=architecture.feed_forward,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.key_value_heads,
        max_position_embeddings=architecture.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The library's 0.02 is for wide models; scaling by fan-in gives a narrow one larger
            # initial weights.
            if parameter.dim() == 2 and "embed" not in name:
                parameter.normal_(0.0, 0.7 * parameter.shape[1] ** -0.5)
    return model


def encode_document(
    tokenizer: Any, segments: list[tuple[str, bool]]
) -> tuple[list[int], list[float]]:
    """Return token ids and one loss weight per token, the end-of-text token included."""
    ids: list[int] = []
    weights: list[float] = []
    for text, is_answer in segments:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        ids += tokens
        weights += [1.0 if is_answer else PROMPT_WEIGHT] * len(tokens)
    # Stopping is part of an answer.
    return [*ids, EOS_ID], [*weights, 1.0 if segments[-1][1] else PROMPT_WEIGHT]


def pretrain(
    tokenizer: Any,
    *,
    architecture: Architecture,
    settings: PretrainSettings,
    seed: int,
    on_step: Callable[[int, float, Any], None] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Train a base model and return (model with bfloat16-representable float32 weights, record).

    Args:
        tokenizer: the example tokenizer.
        seed: of the initial weights and all documents.
        on_step: called with (step, loss, model) after every step; steps restart with each attempt.
    """
    attempts: list[dict[str, Any]] = []
    for number in range(settings.attempts):
        model = new_model(architecture, seed + _ATTEMPTS_APART * number)
        rng = random.Random(f"pretrain/{seed}/{number}" if number else f"pretrain/{seed}")
        is_last = number == settings.attempts - 1
        attempts.append(attempt(model, tokenizer, settings, rng, on_step, may_stop=not is_last))
        if is_up(attempts[-1]["easy"], settings):
            break
    record = {
        "architecture": asdict(architecture),
        "settings": asdict(settings),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attempts": attempts,
    }
    return model, record


def attempt(
    model: Any,
    tokenizer: Any,
    settings: PretrainSettings,
    rng: random.Random,
    on_step: Callable[[int, float, Any], None] | None = None,
    *,
    may_stop: bool,
) -> dict[str, Any]:
    """Train `model` in place, round it, and return its record.

    rng: draws the documents; may_stop: abandon it by the rule of `settings`.
    """
    import torch

    optimizer = torch.optim.AdamW(
        model.train().parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=settings.weight_decay,
    )
    losses, tokens = [], 0
    seconds = stopwatch()
    for step in range(settings.steps):
        if may_stop and step == settings.look_after:
            if not is_up(easy_scores(model.eval(), tokenizer), settings):
                break
            model.train()
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, settings)
        documents = [
            encode_document(tokenizer, draw_document(kind, rng))
            for kind, count in MIXTURE.items()
            for _ in range(count)
        ]
        loss = accumulate_gradient(model, documents, settings.micro_batches)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += sum(len(ids) for ids, _ in documents)
        if step % 50 == 0 or step == settings.steps - 1:
            losses.append([step, round(loss, 4)])
        if on_step:
            on_step(step, loss, model)
    round_to_bfloat16(model.eval())
    return {"tokens": tokens, "losses": losses, "easy": easy_scores(model, tokenizer), **seconds()}


def is_up(easy: Mapping[str, float], settings: PretrainSettings) -> bool:
    """Return whether a base answers enough easy prompts of every skill."""
    return min(easy.values()) >= settings.floor


def easy_scores(model: Any, tokenizer: Any) -> dict[str, float]:
    """Return the share of easy validation prompts that a model answers right, by skill."""
    found = {}
    for domain in SKILL_DOMAINS:
        items = make_items(domain, VALIDATION_ITEMS, VALIDATION_SEED, "validation")
        easy = [item for item in items if not item.is_hard]
        found[domain] = round(greedy_score(model, tokenizer, easy), 4)
    return found


def round_to_bfloat16(model: Any) -> None:
    """Round every weight to the nearest bfloat16 value in place; the dtype is unchanged."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))


def save_model(model: Any, folder: Path) -> None:
    """Write bfloat16 safetensors, config and generation config to `folder`."""
    import copy

    import torch

    with quiet_transformers():
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    # The safetensors writer makes its file readable only by the owner.
    (folder / "model.safetensors").chmod(0o644)


def _schedule(step: int, settings: PretrainSettings) -> float:
    """Return the learning-rate factor at a step: linear warm-up, half a cosine down to 0.4 %."""
    cosine = 0.5 + 0.5 * math.cos(math.pi * step / settings.steps)
    return min(1.0, (step + 1) / settings.warmup) * cosine + 0.004


def accumulate_gradient(
    model: Any, documents: list[tuple[list[int], list[float]]], parts: int
) -> float:
    """Add the step's gradient to the model and return its loss; similar lengths share a batch."""
    import torch
    import torch.nn.functional as F

    documents = sorted(documents, key=lambda document: len(document[0]))
    total_weight = sum(sum(weights[1:]) for _, weights in documents)
    size = -(-len(documents) // parts)
    total = 0.0
    for start in range(0, len(documents), size):
        batch = documents[start : start + size]
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row, _ in batch])
        weights = torch.tensor([row + [0.0] * (width - len(row)) for _, row in batch])
        # Padding is on the right, so causal attention already excludes it from every counted
        # position.
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / total_weight
        loss.backward()
        total += loss.item()
    return total
