"""Greedy or sampled text generation in batches, step by step.

Knows nothing about tasks or scores. On a CPU a model decodes with the fastest number of threads,
found by timing one step: a small model on a busy machine is fastest with one, as every tiny
operation waits for the slowest thread (40 times slower was measured, on two cores).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from random import Random
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ram_studio.errors import Stopped

# Prompts are prefilled in chunks of this many tokens over all rows: activations take 10 to 100 kB
# per token.
PREFILL_TOKENS = 16_384
# On a CPU, prompts and answers decoded together take at most this many tokens: about a gigabyte of
# keys and values for a 7 B model. Larger batches are not faster there.
CPU_TOKENS = 16_384
# A prefix that all rows share is computed once when it has at least this many tokens.
LEAST_SHARED = 16

Step = dict[int, int]
OnTokens = Callable[[Step], None]


class Sampling(NamedTuple):
    """How answers are drawn from softmax(logits / temperature) instead of taking the likeliest.

    samples: rows per prompt; the prompt is computed once and its KV cache copied. generator: torch
    generator on the model's device, which all rows share. streams: instead, one random stream for
    each row, so that no row's samples depend on the other rows of its batch. top_p: nucleus
    sampling, from the likeliest tokens that together have this probability (with streams).
    """

    samples: int = 1
    temperature: float = 1.0
    generator: Any = None
    streams: Sequence[Random] | None = None
    top_p: float = 1.0


def decode(
    model: Any, prompts: Sequence[Sequence[int]], *, sampling: Sampling | None = None, **how: Any
) -> list[list[int]]:
    """Return new token ids, with the end token when reached; adjacent rows are of one prompt.

    Args and errors are those of `decode_steps`.
    """
    samples = sampling.samples if sampling else 1
    rows: list[list[int]] = [[] for _ in range(len(prompts) * samples)]
    with closing(decode_steps(model, prompts, sampling=sampling, **how)) as steps:
        for step in steps:
            for row, token in step.items():
                rows[row].append(token)
    return rows


def decode_steps(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    pad_id: int,
    end_ids: frozenset[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    should_stop: Callable[[], bool] | None = None,
    is_done: Callable[[int], bool] | None = None,
) -> Generator[Step]:
    """Yield after every step {row: its new token} of the unfinished rows.

    Prompts are left-padded and decoded together with a KV cache, in which a shared prefix is
    computed once; on a CPU as many at a time as fit `CPU_TOKENS`, unless they are sampled from one
    generator.

    Args:
        model: a transformers causal language model in eval mode. prompts: token ids, none empty.
        sampling: None takes the most likely tokens, one row per prompt.
        should_stop: polled before each token. is_done: called after each step for every unfinished
            row; True ends the row.

    Raises: Stopped.
    """
    import torch

    together = max(1, CPU_TOKENS // (max(map(len, prompts), default=1) + max_new_tokens))
    is_shared = sampling is not None and sampling.streams is None
    if model.device.type != "cpu" or is_shared:
        together = max(1, len(prompts))
    for start in range(0, len(prompts), together):
        stop = start + together
        own = sampling
        if own is not None and own.streams is not None:
            own = own._replace(streams=own.streams[start:stop])

        def has_ended(row: int, token: int, start: int = start) -> bool:
            return token in end_ids or bool(is_done and is_done(start + row))

        ends = _Ends(pad_id, max_new_tokens, should_stop, has_ended)
        rows = prompts[start:stop]
        # As a decorator it applies while a step is computed, not while the caller works.
        with fitting_threads(model, len(rows)):
            for step in torch.inference_mode()(_decode_together)(model, rows, ends, own):
                yield {start + row: token for row, token in step.items()}


class _Ends(NamedTuple):
    """When decoding ends. has_ended: (row, its new token) -> whether the row has ended."""

    pad_id: int
    max_new_tokens: int
    should_stop: Callable[[], bool] | None
    has_ended: Callable[[int, int], bool]


def _decode_together(
    model: Any, prompts: Sequence[Sequence[int]], ends: _Ends, sampling: Sampling | None
) -> Iterator[Step]:
    """Yield the steps of these rows, see `decode_steps`."""
    import torch

    from ram_studio.evals.answering.growing_cache import make_cache

    device = model.device
    count, samples = len(prompts), 1 if sampling is None else sampling.samples
    # Which row of the answer each row of the batch is, None once it has ended.
    members: list[int | None] = list(range(count * samples))
    may_drop = sampling is None or sampling.streams is not None
    cache, is_plain = make_cache(model)

    def read(ids: Any, mask: Any) -> Any:
        """Fill the cache with more tokens, in chunks; return the logits of the next token."""
        piece = max(1, PREFILL_TOKENS // len(ids)) if is_plain else ids.shape[1]
        for start in range(0, ids.shape[1], piece):
            if ends.should_stop and ends.should_stop():
                raise Stopped(
                    "The evaluation was stopped before it was complete; nothing was stored."
                )
            stop = min(start + piece, ids.shape[1])
            seen = mask[:, : mask.shape[1] - ids.shape[1] + stop]
            logits = _next_logits(model, ids[:, start:stop], seen, cache)
        return logits

    shared = _shared_tokens(prompts) if is_plain else 0
    ids, mask = _left_padded([prompt[shared:] for prompt in prompts], ends.pad_id, device)
    if shared:
        beginning = torch.tensor([list(prompts[0][:shared])], device=device)
        read(beginning, torch.ones_like(beginning))
        cache.batch_repeat_interleave(count)
        mask = torch.cat([mask.new_ones(count, shared), mask], 1)
    for step in range(ends.max_new_tokens):
        logits = read(ids, mask)
        if step == 0 and samples > 1:
            cache.batch_repeat_interleave(samples)
            logits, mask = (value.repeat_interleave(samples, 0) for value in (logits, mask))
        tokens = _pick(logits, sampling, members).tolist()
        yield {row: tokens[i] for i, row in enumerate(members) if row is not None}
        for place, row in enumerate(members):
            if row is None or ends.has_ended(row, tokens[place]):
                tokens[place], members[place] = ends.pad_id, None
        running = [place for place, row in enumerate(members) if row is not None]
        if not running:
            break
        # Ended rows are dropped once they are half of the batch. Not where rows share a generator:
        # each row's samples would depend on the others.
        if is_plain and may_drop and 2 * len(running) <= len(members):
            index = torch.tensor(running, device=device)
            cache.batch_select_indices(index)
            mask = mask[index]
            tokens = [tokens[place] for place in running]
            members = [members[place] for place in running]
        ids = torch.tensor(tokens, device=device)[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], 1)


def _next_logits(model: Any, ids: Any, mask: Any, cache: Any) -> Any:
    """Return float32 logits "rows vocabulary" of the token that follows."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1].float()


def _pick(logits: Any, sampling: Sampling | None, members: Sequence[int | None]) -> Any:
    """Return token ids "rows": the most likely ones, or sampled."""
    if sampling is None:
        return logits.argmax(-1)
    import torch

    weights = (logits / sampling.temperature).softmax(-1)
    if sampling.streams is None:
        return torch.multinomial(weights, 1, generator=sampling.generator)[:, 0]
    streams = sampling.streams
    drawn = [0.0 if row is None else streams[row].random() for row in members]
    weights, order = weights.sort(-1, descending=True)
    before = weights.cumsum(-1) - weights
    below = (weights * (before < sampling.top_p)).cumsum(-1)
    goal = torch.tensor(drawn, device=logits.device, dtype=below.dtype)[:, None] * below[:, -1:]
    # The first token at which the cumulative sum exceeds the random number; tokens outside top_p
    # add 0.
    chosen = (below <= goal).sum(-1, keepdim=True).clamp(max=below.shape[-1] - 1)
    return order.gather(-1, chosen)[:, 0]


def _shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Return the length of the prompts' common prefix, less than a whole prompt; 0 if too short."""
    first, last = min(map(list, prompts)), max(map(list, prompts))
    most = min(map(len, prompts)) - 1
    shared = next((i for i in range(most) if first[i] != last[i]), most)
    return shared if len(prompts) > 1 and shared >= LEAST_SHARED else 0


def _left_padded(prompts: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[Any, Any]:
    """Return (ids, mask), int64 "rows tokens"; the mask is 0 for padding."""
    import torch

    width = max(len(prompt) for prompt in prompts)
    ids = [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


# Number of timed steps for each number of threads; the fastest counts.
_TIMES = 2
_MOST_ROWS = 32
THREADS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number of threads for a model on a CPU: set by the caller, or the fastest one found.

Each number of threads rounds sums differently, so a choice by timing may change answers.
"""


@contextmanager
def fitting_threads(model: Any, rows: int = 1) -> Iterator[None]:
    """Use the fastest number of torch threads for a model on a CPU inside the block; restore after.

    rows: how many answers are decoded together; the first time decides for the model, where
        `THREADS` has none.
    """
    import torch

    before = torch.get_num_threads()
    if model.device.type == "cpu" and before > 1:
        if model not in THREADS:
            THREADS[model] = _fastest(model, min(rows, _MOST_ROWS), before)
        torch.set_num_threads(THREADS[model])
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fastest(model: Any, rows: int, most: int) -> int:
    """Return 1 or `most`, whichever computes one token of this many rows faster."""
    import torch

    ids = torch.zeros((rows, 1), dtype=torch.int64)
    seconds: dict[int, float] = {}
    with torch.inference_mode():
        model(input_ids=ids, use_cache=False)
        for threads in (1, most) * _TIMES:
            torch.set_num_threads(threads)
            start = time.perf_counter()
            model(input_ids=ids, use_cache=False)
            seconds[threads] = min(time.perf_counter() - start, seconds.get(threads, 1e9))
    return min(seconds, key=seconds.__getitem__)
