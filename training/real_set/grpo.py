"""GRPO on all weights of a language model, with only a judge's verdicts as rewards.

A step: sample a group of answers to each of a few prompts; the reward is 1 for a right answer, less
for a partly right one (`tasks.reward`). The policy is softmax(logits / temperature), in sampling
and in the loss. Advantage: (reward - group mean) / (group standard deviation + 1e-4). Loss per
token: -min(r A, clip(r) A) + kl * KL, averaged over all sampled tokens, r the ratio of the new
probability to the one at sampling, KL (the estimator e^d - d - 1) to the base.

Sampling uses bfloat16 weights. Adam updates a float32 copy, the masters, with float32 moments, and
the weights are the masters rounded to nearest: an element counts as changed only when its bfloat16
value changed. A prompt and its answers are one row, where answers do not attend to each other, so
that a prompt is computed once; so is a common prefix of adjacent prompts.

SFT on the same questions, for comparison, is the same loss with the written solution as the only
answer and an advantage of 1: the mean negative log probability of its tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice, takewhile
from typing import Any

import torch

from ram_studio.evals.answering.decode import THREADS, Sampling, decode
from ram_studio.evals.answering.load import ending_ids, padding_id
from training.real_set.tasks import (
    MAX_NEW_TOKENS,
    Question,
    draw,
    is_right,
    questions,
    reward,
    text_of,
)

_CHUNK = 1 << 22
_CLIP_NORM = 1.0


@dataclass(frozen=True)
class Settings:
    """The settings of one agent's training.

    updates: optimizer steps on the same answers; from the second on the ratio is clipped.
    temperature: of the policy; at 1 a small model is far worse than with greedy decoding.
    kl: weight of the KL to the base. warmup: the first steps are shorter. Training ends after
    max_steps, or when a share stop_at of the validation questions is right at a check (every
    check_every steps). threads: CPU threads that compute answers; their number changes the samples.
    sft: learn the written solutions, by log probabilities at the temperature, instead of sampled
    answers.
    """

    skill: str
    seed: int = 0
    learning_rate: float = 3e-6
    prompts: int = 4
    group: int = 6
    temperature: float = 0.7
    updates: int = 1
    clip: float = 0.2
    kl: float = 0.0
    warmup: int = 2
    max_steps: int = 40
    check_every: int = 6
    validation: int = 40
    stop_at: float = 0.9
    threads: int = 2
    sft: bool = False


@dataclass(frozen=True)
class Group:
    """A prompt's answers as token ids, and their advantages."""

    prompt: list[int]
    answers: list[list[int]]
    advantages: list[float]


class Trainer:
    """One agent in training: the model, its float32 masters and moments, and its learning curve.

    Args:
        model: the base, trained in place. Its weights have bfloat16 values, in any compute dtype.
        base: the base's weights by name, for KL and density; they may be mapped from a file.
    """

    def __init__(
        self, model: Any, tokenizer: Any, settings: Settings, base: Mapping[str, torch.Tensor]
    ) -> None:
        self.model, self.tokenizer, self.settings, self.base = (
            model.eval(),
            tokenizer,
            settings,
            base,
        )
        THREADS[model] = settings.threads
        self.weights = dict(model.named_parameters())
        self.masters = {
            name: p.detach().to(torch.float32, copy=True) for name, p in self.weights.items()
        }
        self.first = {name: torch.zeros_like(p) for name, p in self.masters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.masters.items()}
        self.step, self.updates_taken = 0, 0
        self.curve: list[dict[str, Any]] = []

    @property
    def is_done(self) -> bool:
        """Whether the last step was taken, or the last check was good enough."""
        checked = [point["validation"] for point in self.curve if "validation" in point]
        is_good = bool(checked) and checked[-1] >= self.settings.stop_at
        return is_good or self.step >= self.settings.max_steps

    @property
    def is_best(self) -> bool:
        """Whether the last step ended with the best check, or an equally good one."""
        scores = [point["validation"] for point in self.curve if "validation" in point]
        return "validation" in self.curve[-1] and scores[-1] == max(scores)

    def take_step(self) -> dict[str, Any]:
        """Sample, judge, update, and check when due; return the new point of the curve."""
        start, settings = time.monotonic(), self.settings
        self.step += 1
        groups, point = self._solve() if settings.sft else self._sample()
        sampled = time.monotonic()
        useful = [group for group in groups if any(group.advantages)]
        old: dict[int, torch.Tensor] = {}
        for _ in range(settings.updates if useful else 0):
            point["kl_loss"] = self._backward(useful, old)
            point["gradient_norm"] = self._update()
        point["useful_prompts"] = len(useful)
        point["seconds"] = round(time.monotonic() - start, 1)
        point["sampling_seconds"] = round(sampled - start, 1)
        if self.step % settings.check_every == 0 or self.step == settings.max_steps:
            point |= self.check(groups)
        self.curve.append(point)
        return point

    def check(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Return the greedy validation score, the KL to the base on these answers, the density."""
        start = time.monotonic()
        settings = self.settings
        held_out = draw(settings.skill, "validation", settings.validation)
        texts = answers(self.model, self.tokenizer, held_out)
        right = sum(map(is_right, held_out, texts))
        with torch.inference_mode():
            own = [self._log_p(row) for row in together(groups)]
            with self._base_weights():
                d = torch.cat([self._log_p(row) for row in together(groups)]) - torch.cat(own)
        return {
            "validation": right / len(held_out),
            "kl": (d.exp() - d - 1).mean().item(),
            "density": self.density(0.0),
            "density_1e-5": self.density(1e-5),
            "check_seconds": round(time.monotonic() - start, 1),
        }

    def density(self, epsilon: float) -> float:
        """Return the share of bfloat16 weights that differ from the base by more than epsilon."""
        changed = 0
        for name, weight in self.weights.items():
            own, base = weight.detach().flatten(), self.base[name].flatten()
            for piece, other in zip(own.split(_CHUNK), base.split(_CHUNK), strict=True):
                gap = (piece.float() - other.to(piece.device).float()).abs()
                changed += int((gap > epsilon).sum())
        return changed / sum(p.numel() for p in self.weights.values())

    def state(self) -> dict[str, Any]:
        """Return the state that a later run needs to continue exactly."""
        names = ("masters", "first", "second", "step", "updates_taken", "curve")
        return {**{name: getattr(self, name) for name in names}, "dtype": self.model.dtype}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with its compute settings; its tensors are copied."""
        for weight in self.weights.values():  # only the weights: buffers stay float32
            weight.data = weight.data.to(state["dtype"])
        for kind in ("masters", "first", "second"):
            for name, value in getattr(self, kind).items():
                value.copy_(state[kind][name])
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(self.masters[name].bfloat16())
        self.step, self.updates_taken = state["step"], state["updates_taken"]
        self.curve = list(state["curve"])

    def _ask(self) -> tuple[list[Question], list[list[int]]]:
        """Return the step's questions, and their prompts as tokens."""
        settings, first = self.settings, (self.step - 1) * self.settings.prompts
        stream = questions(settings.skill, "train", settings.seed)
        asked = list(islice(stream, first, first + settings.prompts))
        return asked, [chat_tokens(self.tokenizer, q.prompt) for q in asked]

    def _solve(self) -> tuple[list[Group], dict[str, Any]]:
        asked, prompts = self._ask()
        end = self.tokenizer.eos_token_id
        solved = [self.tokenizer.encode(q.solution, add_special_tokens=False) for q in asked]
        groups = [Group(p, [[*own, end]], [1.0]) for p, own in zip(prompts, solved, strict=True)]
        return groups, {"step": self.step}

    def _sample(self) -> tuple[list[Group], dict[str, Any]]:
        settings = self.settings
        asked, prompts = self._ask()
        # One random generator per step, so that a resumed run draws the same samples.
        seed = random.Random(f"sample/{settings.skill}/{settings.seed}/{self.step}").getrandbits(60)
        dice = torch.Generator(self.model.device).manual_seed(seed)
        sampling = Sampling(settings.group, settings.temperature, dice)
        rows = _decode(self.model, self.tokenizer, prompts, settings.skill, sampling)
        texts = [self.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
        groups, rewards, right = [], [], 0
        for i, (question, prompt) in enumerate(zip(asked, prompts, strict=True)):
            own = slice(i * settings.group, (i + 1) * settings.group)
            earned = torch.tensor([reward(question, text) for text in texts[own]])
            advantages = (earned - earned.mean()) / (earned.std() + 1e-4)
            groups.append(Group(prompt, rows[own], advantages.tolist()))
            rewards.append(earned.mean().item())
            right += int((earned == 1).sum())
        point = {
            "step": self.step,
            "reward": round(sum(rewards) / len(rewards), 4),
            "right": round(right / len(rows), 4),
            "answer_tokens": round(sum(map(len, rows)) / len(rows), 1),
            "sample": texts[0],
        }
        return groups, point

    def _backward(self, groups: Sequence[Group], old: dict[int, torch.Tensor]) -> float:
        """Compute the loss gradient in the model; return the mean KL term.

        old: log probabilities at the first update, by row; filled there.
        """
        settings = self.settings
        total = sum(len(answer) for group in groups for answer in group.answers)
        kl_sum = 0.0
        for place, row in enumerate(together(groups)):
            reference = None
            if settings.kl:
                with torch.no_grad(), self._base_weights():
                    reference = self._log_p(row)
            log_p = self._log_p(row)
            ratio = (log_p - old.setdefault(place, log_p.detach())).exp()
            advantage = torch.tensor(
                [
                    a
                    for group in row
                    for a, answer in zip(group.advantages, group.answers, strict=True)
                    for _ in answer
                ],
                device=log_p.device,
            )
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            loss = -torch.minimum(ratio * advantage, clipped * advantage)
            if reference is not None:
                d = reference - log_p
                term = d.exp() - d - 1
                kl_sum += term.sum().item()
                loss = loss + settings.kl * term
            (loss.sum() / total).backward()
        return kl_sum / total

    def _log_p(self, groups: Sequence[Group]) -> torch.Tensor:
        """Return float32 log probabilities of all answers' tokens, one after the other."""
        row = pack(groups, self.model.device)
        logits = self.model(
            input_ids=row.ids[None],
            attention_mask=row.mask[None, None],
            position_ids=row.positions[None],
            logits_to_keep=row.sources,
            use_cache=False,
        ).logits[0]
        logits = logits.float() / self.settings.temperature
        return logits.log_softmax(-1).gather(-1, row.ids[row.chosen, None])[:, 0]

    @contextmanager
    def _base_weights(self) -> Iterator[None]:
        """Give the model the base's weights inside the block."""
        own = {name: weight.data for name, weight in self.weights.items()}
        try:
            for name, weight in self.weights.items():
                weight.data = self.base[name].to(weight.device, weight.dtype)
            yield
        finally:
            for name, weight in self.weights.items():
                weight.data = own[name]

    def _update(self) -> float:
        """Take a step of Adam with the model's gradients, clipped to norm 1; return the norm."""
        settings = self.settings
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.weights.values()]).item()
        scale = min(1.0, _CLIP_NORM / (norm + 1e-6))
        self.updates_taken += 1
        rate = settings.learning_rate * min(1.0, self.updates_taken / (settings.warmup + 1))
        with torch.no_grad():
            for name, weight in self.weights.items():
                flat = [
                    value.view(-1).split(_CHUNK)
                    for value in (
                        weight,
                        weight.grad,
                        self.masters[name],
                        self.first[name],
                        self.second[name],
                    )
                ]
                for pieces in zip(*flat, strict=True):
                    adam(*pieces, rate=rate, scale=scale, count=self.updates_taken)
                weight.grad = None
        return round(norm, 4)


def answers(model: Any, tokenizer: Any, asked: Sequence[Question]) -> list[str]:
    """Return the greedy answers to questions of one skill; a common text is computed once."""
    rows: list[list[int]] = []
    for _, own in groupby(asked, key=text_of):
        questions = list(own)
        prompts = [chat_tokens(tokenizer, q.prompt) for q in questions]
        rows += _decode(model, tokenizer, prompts, questions[0].skill)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def _decode(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    skill: str,
    sampling: Sampling | None = None,
) -> list[list[int]]:
    return decode(
        model,
        prompts,
        pad_id=padding_id(tokenizer),
        end_ids=ending_ids(model, tokenizer),
        max_new_tokens=MAX_NEW_TOKENS[skill],
        sampling=sampling,
    )


def adam(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    master: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    rate: float,
    scale: float,
    count: int,
) -> None:
    """Update a float32 master and its moments in place, betas 0.9 and 0.999; round it to weight."""
    gradient = gradient.float() * scale
    first.lerp_(gradient, 0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    divisor = (second / (1 - 0.999**count)).sqrt_().add_(1e-8)
    master.addcdiv_(first, divisor, value=-rate / (1 - 0.9**count))
    weight.copy_(master.bfloat16())


@dataclass(frozen=True)
class Row:
    """Prompts with a common prefix, and their answers, as one row of tokens.

    mask: "tokens tokens", True where the first attends to the second. sources: for each token of
    the answers the position whose logits predict it. chosen: the positions of those tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    sources: torch.Tensor
    chosen: torch.Tensor


def pack(groups: Sequence[Group], device: Any = "cpu") -> Row:
    """Return a row in which a prompt attends to itself, and an answer to its prompt and itself."""
    shared = len(common_prefix([group.prompt for group in groups]))
    ids, positions = groups[0].prompt[:shared], list(range(shared))
    # For each token: its prompt (0: of all) and its answer (0: of none).
    owners = [(0, 0)] * shared
    sources, chosen = [], []
    for at, group in enumerate(groups, 1):
        own = group.prompt[shared:]
        ids, positions = ids + own, [*positions, *range(shared, len(group.prompt))]
        owners += [(at, 0)] * len(own)
        end = len(ids) - 1
        for number, answer in enumerate(group.answers, 1):
            start = len(ids)
            sources += [end, *range(start, start + len(answer) - 1)]
            chosen += range(start, start + len(answer))
            ids = ids + answer
            positions += range(len(group.prompt), len(group.prompt) + len(answer))
            owners += [(at, number)] * len(answer)
    prompt, answer = torch.tensor(owners).T
    place = torch.arange(len(ids))
    is_own = (prompt[None, :] == prompt[:, None]) & (
        (answer[None, :] == 0) | (answer[None, :] == answer[:, None])
    )
    mask = (place[None, :] <= place[:, None]) & ((prompt[None, :] == 0) | is_own)
    return Row(
        *(torch.tensor(v, device=device) for v in (ids, positions)),
        mask.to(device),
        *(torch.tensor(v, device=device) for v in (sources, chosen)),
    )


def together(groups: Sequence[Group]) -> list[list[Group]]:
    """Return adjacent groups that share more than half of their prompts, as rows."""
    rows: list[list[Group]] = []
    for group in groups:
        prompts = [rows[-1][0].prompt, group.prompt] if rows else []
        if rows and 2 * len(common_prefix(prompts)) > max(map(len, prompts)):
            rows[-1].append(group)
        else:
            rows.append([group])
    return rows


def common_prefix(prompts: Sequence[list[int]]) -> list[int]:
    """Return the common prefix of all prompts."""
    first, last = min(prompts), max(prompts)
    alike = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(takewhile(bool, alike))]


def chat_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Return a prompt in the model's chat format."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))
