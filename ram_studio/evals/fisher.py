"""Estimate the diagonal Fisher information of a model from gradients on prompts.

    F_i = mean over prompts x of (d log p(y | x) / d theta_i)^2,   y sampled from p(. | x)

y is a continuation that the model samples at temperature 1 (up to MAX_NEW_TOKENS tokens, the end
token included), so this is the Fisher information and not the "empirical" one of given answers.
Gradients are taken in float32, one prompt at a time; the accumulators need as much memory as the
model in float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE, Checkpoint
from ram_studio.checkpoints.read.describe import printable, who
from ram_studio.checkpoints.read.header import read_header
from ram_studio.checkpoints.read.shard_files import ADAPTER_CONFIG
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output_folder import check_file, whole_file
from ram_studio.engine.reading.fisher_files import FORMAT, fisher_path
from ram_studio.errors import CheckpointError, EvaluationError, OutputError, SettingsError, Stopped
from ram_studio.evals.answering.chat_template import SlowPrompts, render_chat, template_errors
from ram_studio.evals.answering.decode import Sampling, decode
from ram_studio.evals.answering.load import ending_ids, load_model
from ram_studio.evals.answering.text_encoder import encoder_of
from ram_studio.evals.suites.demo.tasks import DOMAINS, make_items
from ram_studio.resources import asset_path

MAX_NEW_TOKENS = 48
_BATCH = 64


def training_prompts(examples: int, seed: int) -> tuple[str, ...]:
    """Return prompts spread evenly over the example suite's domains.

    They come from the part of the prompt space that evaluations never use. They are the same for
    every agent, so that the merge does not learn which skill an agent has.
    """
    share = -(-examples // len(DOMAINS))
    domains = [make_items(domain, share, seed, split="train") for domain in DOMAINS]
    rows = zip(*domains, strict=True)
    return tuple(item.prompt for row in rows for item in row)[:examples]


def check_knows_examples(agent: Checkpoint) -> None:
    """Raise SettingsError for a model with another vocabulary than the example's.

    `training_prompts` are the example suite's tasks.
    """
    own = agent.folder / "tokenizer.json"
    example = asset_path("independent", "base", "tokenizer.json")
    if not own.is_file() or own.read_bytes() != example.read_bytes():
        raise SettingsError(
            f"{agent.who}the built-in prompts are the example's small tasks and say nothing "
            "about this model, which has another vocabulary. Give a text file with prompts of its "
            "tasks, one per line: ram-studio fisher --prompts FILE; a merge takes the output "
            "folder as its setting files."
        )


def estimate_fisher(
    checkpoint: Checkpoint,
    out: Path,
    prompts: Sequence[str],
    *,
    seed: int = 0,
    device: str = "auto",
    should_stop: Callable[[], bool] | None = None,
    on_text: Callable[[str], None] = lambda text: None,
) -> Path:
    """Estimate a model's Fisher information and write it to ``out`` atomically.

    Args:
        checkpoint: the model, opened. prompts: at least one, e.g. `training_prompts(64, seed)`.
        seed: of the sampled answers. should_stop: polled before each prompt. on_text: called with a
            progress line: answers sampled, gradients added.

    Raises: EvaluationError: no prompt, or a model that does not load; CheckpointError; OutputError;
        Stopped.
    """
    import torch

    check_file(out)
    files = out.parent.glob("*.safetensors")
    if any((out.parent / name).exists() for name in (CONFIG_FILE, ADAPTER_CONFIG)) or not all(
        map(_is_fisher_file, files)
    ):
        raise OutputError(
            f"{printable(out.parent)} is a model's folder, and a Fisher file in it may be read as "
            "its weights. Name a folder of its own."
        )
    chosen = tuple(prompts)
    if not chosen:
        raise EvaluationError("No prompt to estimate Fisher information on; give at least one.")
    model, tokenizer = load_model(checkpoint.folder, device)
    model = model.float()
    encoded, answers = _encode_prompts(tokenizer, checkpoint.folder, chosen), []
    for pair in _sample(model, tokenizer, encoded, seed, should_stop):
        answers.append(pair)
        on_text(f"{checkpoint.name}: {len(answers)} of {len(chosen)} answers sampled")
    totals = {
        name: torch.zeros_like(parameter, dtype=torch.float32)
        for name, parameter in model.named_parameters()
    }
    for number, (prompt, answer) in enumerate(answers, 1):
        if should_stop and should_stop():
            raise Stopped("The estimation was stopped before it was complete; nothing was written.")
        _add_squared_gradient(model, prompt, answer, totals)
        on_text(f"{checkpoint.name}: {number} of {len(chosen)} gradients added")
    _write(out, checkpoint, model, totals, chosen, seed)
    return out


def _is_fisher_file(path: Path) -> bool:
    try:
        return read_header(path, "").metadata.get("format") == FORMAT
    except CheckpointError:
        return False


def _sample(
    model: Any,
    tokenizer: Any,
    encoded: Sequence[list[int]],
    seed: int,
    should_stop: Callable[[], bool] | None,
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield (prompt ids, sampled answer ids) per prompt, in order."""
    import torch

    for start in range(0, len(encoded), _BATCH):
        batch = encoded[start : start + _BATCH]
        generator = torch.Generator(model.device).manual_seed((seed + start) % 2**63)
        rows = decode(
            model,
            batch,
            pad_id=0,  # masked: any token will do
            end_ids=ending_ids(model, tokenizer),
            max_new_tokens=MAX_NEW_TOKENS,
            sampling=Sampling(generator=generator),
            should_stop=should_stop,
        )
        yield from zip(batch, rows, strict=True)


def _encode_prompts(tokenizer: Any, folder: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Return each prompt's ids, in the model's chat template where it has one."""
    encode = encoder_of(tokenizer, folder)
    if not getattr(tokenizer, "chat_template", None):
        return [encode(prompt, True) for prompt in prompts]
    slow, special = SlowPrompts(), tokenizer.special_tokens_map
    with template_errors(folder, "Repair it."):
        template = tokenizer.get_chat_template()
        chats = ([{"role": "user", "content": prompt}] for prompt in prompts)
        texts = [render_chat(template, chat, special=special, slow=slow) for chat in chats]
    return [encode(text, False) for text in texts]


def _add_squared_gradient(
    model: Any, prompt: list[int], answer: list[int], totals: dict[str, Any]
) -> None:
    """Add (d log p(answer | prompt) / d theta)^2 to the totals, by parameter name."""
    import torch

    ids = torch.tensor([prompt + answer], device=model.device)
    with torch.enable_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.tensor(answer, device=model.device)[:, None]
        log_probability = logits.log_softmax(-1).gather(1, chosen).sum()
        model.zero_grad(set_to_none=True)
        log_probability.backward()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                totals[key].addcmul_(parameter.grad.float(), parameter.grad.float())
    model.zero_grad(set_to_none=True)


def _write(
    out: Path,
    checkpoint: Checkpoint,
    model: Any,
    totals: Mapping[str, Any],
    prompts: Sequence[str],
    seed: int,
) -> None:
    from safetensors.torch import save_file

    tensors = {name: (sum_ / len(prompts)).cpu().contiguous() for name, sum_ in totals.items()}
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    aliases = {
        name: first[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name not in tensors
    }
    lost = [
        name
        for name, info in checkpoint.tensors.items()
        if name not in tensors and name not in aliases and info.dtype in ("BF16", "F16", "F32")
    ]
    if lost:
        raise CheckpointError(
            f"{checkpoint.folder}: transformers loads it under other names than it is stored "
            f"under ({lost[0]} and {len(lost) - 1} more are not among the loaded parameters), so "
            "its Fisher information cannot be matched to its tensors."
        )
    metadata = {
        "format": FORMAT,
        "fingerprint": checkpoint.fingerprint,
        "aliases": json.dumps(aliases),
        "examples": str(len(prompts)),
        "seed": str(seed),
        "prompts": prompts_digest(prompts),
    }
    with whole_file(out) as place:
        save_file(tensors, place, metadata)


def prompts_digest(prompts: Sequence[str]) -> str:
    return hashlib.blake2b("\0".join(prompts).encode(), digest_size=16).hexdigest()


def with_fisher_files(
    recipe: Recipe,
    folder: str | Path,
    *,
    device: str = "auto",
    should_stop: Callable[[], bool] | None = None,
) -> Recipe:
    """Return a Fisher recipe with its ``files`` in ``folder``, estimated where needed.

    A recipe that names its files, or of another method, is returned unchanged. Files of the same
    model, prompts and seed are reused.

    Raises: SettingsError for agents with another vocabulary than the example's.
    """
    from ram_studio.algorithm.methods import make_settings
    from ram_studio.algorithm.methods.fisher import FisherSettings

    if recipe.method != "fisher" or recipe.settings.get("files") is not None:
        return recipe
    settings = make_settings(recipe.method, recipe.settings)
    assert isinstance(settings, FisherSettings), "the method's own"
    prompts = training_prompts(settings.examples, recipe.seed)
    for name, source in recipe.agents.items():
        agent = open_checkpoint(source, name=name)
        check_knows_examples(agent)
        path = fisher_path(folder, name)
        wanted = (FORMAT, agent.fingerprint, str(recipe.seed), prompts_digest(prompts))
        if path.is_file():
            found = read_header(path, who(name)).metadata
            keys = ("format", "fingerprint", "seed", "prompts")
            if tuple(found.get(key) for key in keys) == wanted:
                continue
        how: dict[str, Any] = {"device": device, "should_stop": should_stop}
        estimate_fisher(agent, path, prompts, seed=recipe.seed, **how)
    values = {**settings.model_dump(mode="json"), "files": str(folder)}
    return recipe.model_copy(update={"settings": values})
