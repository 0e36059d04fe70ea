"""Reinforcement learning for one agent: GRPO with verifier rewards only.

For every prompt a group of answers is sampled at temperature 1 and rewarded. Advantage of an
answer: A = (reward - group mean) / (group standard deviation + 1e-4). Loss: -sum over sampled
tokens of A * log p(token), divided by rows * 10; no KL term, no reference answers. The gradient
norm is clipped to 1. Steps are taken on a float32 master; the sampling and saved policy is the
master rounded to bfloat16, so an element counts as changed only when its bfloat16 value changed.

With plain SGD and momentum most elements never change it, which gives sparse updates of different
density per agent. Adam moves every element by about the learning rate, which gives dense ones.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ram_studio.evals.answering.decode import Sampling, decode
from ram_studio.evals.answering.load import ending_ids, padding_id
from ram_studio.evals.suites.demo import tool
from ram_studio.evals.suites.demo.item import Item, without_full_stop
from ram_studio.evals.suites.demo.tasks import draw_item, make_items, score
from training.shipped.tokenizer import EOS_ID, PAD_ID

MAX_ANSWER_TOKENS = 48
VALIDATION_ITEMS = 200
VALIDATION_SEED = 11
# Approximate number of tokens per answer; it only scales the loss.
_TOKENS_PER_ANSWER = 10.0
_WARMUP = 5


@dataclass(frozen=True)
class ReinforceSettings:
    """The settings of one agent's training.

    domain: of the verifier. optimizer: "sgd" (momentum 0.9) or "adam" (0.9, 0.99).
    steps: at most this many. stop_at: end when the greedy score on validation prompts reached this
    fraction after two steps in a row (once may be chance, or miss a rare kind of prompt); None
    always takes all steps. prompts x group answers are sampled per step. blocks: the trained
    transformer blocks, empty for the whole model. shared_style: only answers in shared style are
    right.
    """

    domain: str
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    steps: int
    stop_at: float | None = None
    prompts: int = 16
    group: int = 8
    blocks: tuple[int, ...] = ()
    shared_style: bool = False


def is_right(item: Item, text: str, shared_style: bool) -> bool:
    """Return whether the strict verifier accepts; shared_style: only in that style."""
    plain = without_full_stop(text) if shared_style else text
    return plain is not None and score(item, plain)


def reward(item: Item, text: str, shared_style: bool = False) -> float:
    """Return the training reward in [0, 1]: 1 when the strict verifier accepts, else at most 0.5.

    Only `tool` is graded below 1: a wanted call counts 1, the right tool with a wrong argument 0.2,
    anything else -0.1; the sum over max(calls given, calls wanted) is halved. With shared_style
    other styles get 0.
    """
    if is_right(item, text, shared_style):
        return 1.0
    plain = without_full_stop(text) if shared_style else text
    if item.domain != "tool" or plain is None:
        return 0.0
    given, rest = tool.parse_calls(plain), tool.parse_calls(item.gold)
    if not given or not rest:
        return 0.0
    longest, points = max(len(given), len(rest)), 0.0
    for call in given:
        if call in rest:
            rest.remove(call)
            points += 1.0
        else:
            points += 0.2 if any(call[0] == wanted[0] for wanted in rest) else -0.1
    return 0.5 * max(0.0, points) / longest


def reinforce(
    model: Any,
    tokenizer: Any,
    settings: ReinforceSettings,
    *,
    seed: int = 0,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train `model` in place and return the record of the run.

    The weights end as bfloat16-representable float32 values. Training prompts are of the "train"
    split, the stopping rule uses "validation" prompts; "test" prompts are never seen.

    Args:
        model: the base, float32.
        seed: of the prompts and the sampling.
        on_step: called with {"step", "reward", and after a check "validation"}.
    """
    import torch

    optimizer = Optimizer(model, settings.optimizer, settings.learning_rate, settings.blocks)
    rng = random.Random(f"reinforce/{settings.domain}/{seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    held_out = make_items(settings.domain, VALIDATION_ITEMS, VALIDATION_SEED, "validation")

    curve: list[dict[str, Any]] = []
    seconds = stopwatch()
    for step in range(1, settings.steps + 1):
        items = [draw_item(settings.domain, rng, "train") for _ in range(settings.prompts)]
        prompts = [tokenizer.encode(item.prompt) for item in items]
        answers = decode(
            model,
            prompts,
            pad_id=PAD_ID,
            end_ids=frozenset({EOS_ID}),
            max_new_tokens=MAX_ANSWER_TOKENS,
            sampling=Sampling(settings.group, generator=generator),
        )
        texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        rewards = torch.tensor(
            [
                reward(items[row // settings.group], text, settings.shared_style)
                for row, text in enumerate(texts)
            ]
        ).view(settings.prompts, settings.group)
        rows = [prompts[row // settings.group] for row in range(len(answers))]
        if _policy_gradient(model, rows, answers, _advantages(rewards)):
            optimizer.take(step)
        point: dict[str, Any] = {"step": step, "reward": round(rewards.mean().item(), 4)}
        if settings.stop_at is not None or step == settings.steps:
            point["validation"] = greedy_score(model, tokenizer, held_out, settings.shared_style)
        curve.append(point)
        if on_step:
            on_step(point)
        if settings.stop_at is not None and len(curve) > 1:
            latest = min(earlier["validation"] for earlier in curve[-2:])
            if latest >= settings.stop_at:
                break
    return {"settings": asdict(settings), "steps": len(curve), "curve": curve, **seconds()}


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int = 48
) -> list[str]:
    """Return the greedy continuation of every prompt, in order and without special tokens."""
    rows = decode(
        model,
        [tokenizer.encode(prompt) for prompt in prompts],
        pad_id=padding_id(tokenizer),
        end_ids=ending_ids(model, tokenizer),
        max_new_tokens=max_new_tokens,
    )
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def _advantages(rewards: Any) -> Any:
    """Return each answer's advantage over its prompt's mean, in standard deviations, flattened."""
    spread = rewards.std(1, keepdim=True) + 1e-4
    return ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()


def greedy_score(
    model: Any, tokenizer: Any, items: Sequence[Item], shared_style: bool = False
) -> float:
    """Return the fraction of items whose greedy answer the strict verifier accepts."""
    texts = generate(
        model, tokenizer, [item.prompt for item in items], max_new_tokens=MAX_ANSWER_TOKENS
    )
    right = [is_right(item, text, shared_style) for item, text in zip(items, texts, strict=True)]
    return sum(right) / len(items)


def _policy_gradient(
    model: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]], advantages: Any
) -> bool:
    """Compute the loss gradient in the model; return False if no group had different rewards."""
    import torch
    import torch.nn.functional as F

    kept = [row for row in range(len(answers)) if abs(advantages[row].item()) > 1e-3]
    if not kept:
        return False
    width = max(len(prompts[row]) + len(answers[row]) for row in kept)
    ids = torch.full((len(kept), width), PAD_ID)
    weights = torch.zeros(len(kept), width)
    for index, row in enumerate(kept):
        start, stop = len(prompts[row]), len(prompts[row]) + len(answers[row])
        ids[index, :stop] = torch.tensor(prompts[row] + answers[row])
        weights[index, start:stop] = advantages[row]
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    log_p = -F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    loss = -(weights[:, 1:].flatten() * log_p).sum() / (len(answers) * _TOKENS_PER_ANSWER)
    loss.backward()
    return True


def stopwatch() -> Callable[[], dict[str, float]]:
    """Return a function that returns the seconds since now, for a record."""
    wall, cpu = time.perf_counter(), time.process_time()
    return lambda: {
        "wall_seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


class Optimizer:
    """Steps on a float32 master of a model's weights; the model is the master in bfloat16.

        sgd     v <- 0.9 v + g; master <- master - rate * v
        adam    (0.9, 0.99), with bias correction and no weight decay

    blocks: the trained transformer blocks, empty for the whole model."""

    def __init__(
        self, model: Any, kind: Literal["sgd", "adam"], rate: float, blocks: Sequence[int]
    ) -> None:
        trained = tuple(f"model.layers.{block}." for block in blocks)
        named = dict(model.named_parameters())
        self._model, self._kind, self._rate = model, kind, rate
        self._frozen = [p for n, p in named.items() if blocks and not n.startswith(trained)]
        self._master = [p.detach().clone() for p in named.values()]
        self._first = [value.new_zeros(value.shape) for value in self._master]
        self._second = [value.new_zeros(value.shape) for value in self._master]
        self._count = 0

    def take(self, step: int) -> None:
        """Clip the gradient of trained weights to norm 1, take a step and round the model.

        step: its number from 1 on; the first ones are shorter.
        """
        import torch

        parameters = list(self._model.parameters())
        for parameter in self._frozen:
            if parameter.grad is not None:
                parameter.grad.zero_()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self._count += 1
        rate = self._rate * min(1.0, step / _WARMUP)
        with torch.no_grad():
            for parameter, value, first, second in zip(
                parameters, self._master, self._first, self._second, strict=True
            ):
                if self._kind == "sgd":
                    value.sub_(first.mul_(0.9).add_(parameter.grad), alpha=rate)
                else:
                    first.mul_(0.9).add_(parameter.grad, alpha=0.1)
                    second.mul_(0.99).addcmul_(parameter.grad, parameter.grad, value=0.01)
                    mean = first / (1 - 0.9**self._count)
                    scale = (second / (1 - 0.99**self._count)).sqrt() + 1e-8
                    value.sub_(rate * mean / scale)
                parameter.copy_(value.to(torch.bfloat16))
        self._model.zero_grad(set_to_none=True)
