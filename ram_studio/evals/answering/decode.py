"""Greedy (or sampled) text generation in batches, through transformers, from a local folder.

Knows nothing about tasks or scores. Only safetensors weights are opened and no remote code is run.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.engine import reason_of

# Below this size one CPU thread decodes fastest. On a busy two-core machine two were measured 40
# times slower: every tiny operation waits for the thread that is not running.
ONE_THREAD_BELOW_PARAMETERS = 50_000_000
# Smaller models are computed in float32 whatever their dtype: as fast, and the same answers on
# every machine.
FLOAT32_BELOW_BYTES = 2 * 1024**3
# A prompt is read in pieces of so many tokens over all rows: the layers between hold 10 to 100 kB
# for each of them.
PREFILL_TOKENS = 16_384
# On a CPU, prompts and answers decoded together take at most so many tokens: about a gigabyte of
# keys and values for a 7 B model. More rows make nothing faster there.
CPU_TOKENS = 16_384

OnTokens = Callable[[dict[int, int]], None]


def resolve_device(device: str) -> str:
    """Return the device to use: "auto" is "cuda" when torch has a GPU, else "cpu".

    Raises:
        EvaluationError: a CUDA device is named and torch sees none.
    """
    import torch

    if device == "auto":
        # On ZeroGPU torch claims a GPU that is only there where one was lent, which is named then.
        is_lent = os.environ.get("SPACES_ZERO_GPU") == "true"
        return "cuda" if torch.cuda.is_available() and not is_lent else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise EvaluationError(
            f"Device {device!r} was asked for, but torch sees no CUDA device. Use 'cpu' or 'auto'."
        )
    return device


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars inside the block; callers report progress themselves."""
    logging = transformers().utils.logging
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


@contextmanager
def fitting_threads(model: Any) -> Iterator[None]:
    """Use one torch thread inside the block if the model is small and on a CPU; restore after."""
    import torch

    size = sum(parameter.numel() for parameter in model.parameters())
    before = torch.get_num_threads()
    if model.device.type == "cpu" and size < ONE_THREAD_BELOW_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# The library is not made for two threads at once: it puts another module in its own place when it
# is imported, and while it loads a model all threads make their modules without data.
_ONE_AT_A_TIME = threading.RLock()


def transformers() -> Any:
    """Return the library, imported by one thread at a time."""
    with _ONE_AT_A_TIME:
        import transformers

        return transformers


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a local model folder; it does not need the weights.

    Raises:
        EvaluationError: the folder has no config or no tokenizer, or the tokenizer does not load.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise EvaluationError(
            f"{folder} has no config.json. Expected a local model folder in the transformers "
            "layout; check the path, or download the model first."
        )
    if not any(
        (folder / name).is_file()
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")
    ):
        raise EvaluationError(
            f"{folder} has no tokenizer (tokenizer.json or tokenizer_config.json). "
            "Copy the base model's tokenizer files into it."
        )
    with _loading_errors(folder):
        return transformers().AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )


@contextmanager
def _loading_errors(folder: Path) -> Iterator[None]:
    # Broken files surface as many types (OSError, ValueError, RuntimeError, safetensors' own); all
    # mean one thing.
    try:
        with _ONE_AT_A_TIME, quiet_transformers():
            yield
    except Stopped:
        raise
    except Exception as error:
        raise EvaluationError(
            f"{folder} does not load as a causal language model: {reason_of(error)} "
            "Check that its config, tokenizer and safetensors files are complete and match."
        ) from error


def load_model(path: str | Path, device: str = "auto") -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer from a local folder.

    Args:
        path: folder with config, safetensors weights and tokenizer files.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Returns:
        (model in eval mode, tokenizer). Small models are computed in float32, others as stored.

    Raises:
        EvaluationError: the folder is missing, has no tokenizer or no safetensors, or does not
            load.
    """
    import torch

    folder = Path(path)
    tokenizer = load_tokenizer(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise EvaluationError(
            f"{folder} has no *.safetensors file. Only safetensors weights are opened; "
            "convert the model first."
        )
    target = resolve_device(device)
    nbytes = sum(file.stat().st_size for file in weights)
    with _loading_errors(folder):
        model = transformers().AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32 if nbytes < FLOAT32_BELOW_BYTES else "auto",
        )
    return model.to(target).eval(), tokenizer


class Sampling(NamedTuple):
    """How answers are drawn from softmax(logits / temperature) instead of taking the likeliest.

    samples: rows per prompt; the prompt is computed once and its KV cache copied. generator: torch
    generator on the model's device.
    """

    samples: int = 1
    temperature: float = 1.0
    generator: Any = None


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


def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    pad_id: int,
    end_ids: frozenset[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_tokens: OnTokens | None = None,
) -> list[list[int]]:
    """Return new token ids, with the end token when reached; adjacent rows are of one prompt.

    Prompts are left-padded and decoded together with a KV cache; on a CPU as many at a time as fit
    `CPU_TOKENS`, unless they are sampled.

    Args:
        model: a transformers causal language model in eval mode.
        prompts: token ids, none empty.
        sampling: None takes the most likely tokens, one row per prompt.
        should_stop: polled before each token. on_tokens: called after every step with {row: its new
            token} of the rows still going on.

    Raises: Stopped.
    """
    together = max(1, CPU_TOKENS // (max(map(len, prompts), default=1) + max_new_tokens))
    if model.device.type != "cpu" or sampling is not None:
        together = max(1, len(prompts))
    result: list[list[int]] = []
    for start in range(0, len(prompts), together):
        result += _decode_together(
            model,
            _left_padded(prompts[start : start + together], pad_id, model.device),
            _Ends(pad_id, end_ids, max_new_tokens),
            sampling,
            should_stop,
            on_tokens and _shifted(on_tokens, start),
        )
    return result


class _Ends(NamedTuple):
    pad_id: int
    end_ids: frozenset[int]
    max_new_tokens: int


def _decode_together(
    model: Any,
    padded: tuple[Any, Any],
    ends: _Ends,
    sampling: Sampling | None,
    should_stop: Callable[[], bool] | None,
    on_tokens: OnTokens | None,
) -> list[list[int]]:
    """Return new token ids of these rows (ids, mask), see `decode`."""
    import torch

    from ram_studio.evals.answering.growing_cache import make_cache

    device = model.device
    ids, mask = padded
    count, samples = len(ids), 1 if sampling is None else sampling.samples
    rows: list[list[int]] = [[] for _ in range(count * samples)]
    # Which row of the answer each row of the batch is, None once it has ended.
    members: list[int | None] = list(range(len(rows)))
    with torch.inference_mode(), fitting_threads(model):
        cache, is_plain = make_cache(model)
        piece = max(1, PREFILL_TOKENS // count) if is_plain else ids.shape[1]
        for step in range(ends.max_new_tokens):
            for start in range(0, ids.shape[1], piece):
                if should_stop and should_stop():
                    raise Stopped(
                        "The evaluation was stopped before it was complete; nothing was kept."
                    )
                stop = min(start + piece, ids.shape[1])
                seen = mask[:, : mask.shape[1] - ids.shape[1] + stop]
                logits = _next_logits(model, ids[:, start:stop], seen, cache)
            if step == 0 and samples > 1:
                cache.batch_repeat_interleave(samples)
                logits, mask = (value.repeat_interleave(samples, 0) for value in (logits, mask))
            tokens = _pick(logits, sampling).tolist()
            running = [row for row in members if row is not None]
            for place, row in enumerate(members):
                if row is None:
                    tokens[place] = ends.pad_id
                    continue
                rows[row].append(tokens[place])
                if tokens[place] in ends.end_ids:
                    members[place] = None
            if on_tokens:
                on_tokens({row: rows[row][-1] for row in running})
            kept = [place for place, row in enumerate(members) if row is not None]
            if not kept:
                break
            # Ended rows are dropped once they are half of the batch. Not while sampling: what a
            # row draws would depend on the others.
            if is_plain and sampling is None and 2 * len(kept) <= len(members):
                index = torch.tensor(kept, device=device)
                cache.batch_select_indices(index)
                mask = mask[index]
                tokens = [tokens[place] for place in kept]
                members = [members[place] for place in kept]
            ids = torch.tensor(tokens, device=device)[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
    return rows


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


def _pick(logits: Any, sampling: Sampling | None) -> Any:
    """Return token ids "rows": the most likely ones, or sampled."""
    if sampling is None:
        return logits.argmax(-1)
    import torch

    weights = (logits / sampling.temperature).softmax(-1)
    return torch.multinomial(weights, 1, generator=sampling.generator)[:, 0]


def _shifted(on_tokens: OnTokens, first: int) -> OnTokens:
    return lambda tokens: on_tokens({first + row: token for row, token in tokens.items()})


def _left_padded(prompts: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[Any, Any]:
    """Return (ids, mask), int64 "rows tokens"; the mask is 0 for filling."""
    import torch

    width = max(len(prompt) for prompt in prompts)
    ids = [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def padding_id(tokenizer: Any) -> int:
    """Return the id that fills short rows of a batch."""
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    return int(tokenizer.eos_token_id or 0)


def ending_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a text: the generation config may name several of them."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(int(value) for value in (*ids, tokenizer.eos_token_id) if value is not None)
