"""Score models on a suite: the same prompts for all, greedy answers, strict verifiers."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.decode import generate, load_model
from ram_studio.evals.report.tables import Answer, EvalReport, ModelResult
from ram_studio.evals.suites.demo.tasks import SUITES, Item, make_items, score

DEFAULT_SEED = 2026
DEFAULT_LIMIT = 300
DEFAULT_BATCH_SIZE = 128
# The longest right answer takes about 40 tokens of the example's tokenizer.
MAX_NEW_TOKENS = 48

Progress = Callable[[str, str, int, int], None]
ShouldStop = Callable[[], bool]


def evaluate(
    models: Mapping[str, str | Path],
    *,
    suite: str = "demo",
    limit: int = DEFAULT_LIMIT,
    device: str = "auto",
    batch_size: int = DEFAULT_BATCH_SIZE,
    seed: int = DEFAULT_SEED,
    on_progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
) -> EvalReport:
    """Load every model in turn and score it on the same held-out prompts.

    Args:
        models: name -> local model folder; rows come out in this order.
        suite: a key of `SUITES`.
        limit: items per domain, 1 or more.
        device: "auto", "cpu", "cuda" or "cuda:N".
        batch_size: prompts decoded together; it changes speed and memory, not the prompts.
        seed: chooses the prompts. Only reports with equal seeds are comparable item by item.
        on_progress: called with (model, domain, done, total) at a domain's start and after every
            batch.
        should_stop: polled before each batch and token.

    Returns:
        An `EvalReport` with every answer. `seconds` of a model includes loading it.

    Raises:
        EvaluationError: no model, unknown suite, bad limit or batch size, or a model that does not
            load.
        Stopped: `should_stop` returned True.
    """
    if not models:
        raise EvaluationError("No model to evaluate was given. Name at least one model folder.")
    _check(batch_size)
    items = suite_items(suite, limit, seed)
    results = {}
    for name, path in models.items():
        start = time.perf_counter()
        model, tokenizer = load_model(path, device)
        answers = _answers(name, model, tokenizer, items, batch_size, on_progress, should_stop)
        results[name] = ModelResult(name, str(path), answers, time.perf_counter() - start)
        # Let go of one model before the next is loaded: two large ones may not fit.
        del model, tokenizer
    return EvalReport(suite, seed, limit, items, results)


def evaluate_loaded(
    name: str,
    model: Any,
    tokenizer: Any,
    *,
    path: str | None = None,
    suite: str = "demo",
    limit: int = DEFAULT_LIMIT,
    batch_size: int = DEFAULT_BATCH_SIZE,
    seed: int = DEFAULT_SEED,
    on_progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
) -> EvalReport:
    """Score a model that is already in memory, e.g. a merge nobody wrote to disk.

    The model is used where it is, in its dtype, and must be in eval mode. To get what a saved
    bfloat16 checkpoint would score, round its weights to bfloat16 first. `EvalReport.joined` puts
    rows together.

    Args and errors: as `evaluate`; `path` is only recorded.
    """
    _check(batch_size)
    items = suite_items(suite, limit, seed)
    start = time.perf_counter()
    answers = _answers(name, model, tokenizer, items, batch_size, on_progress, should_stop)
    result = ModelResult(name, path, answers, time.perf_counter() - start)
    return EvalReport(suite, seed, limit, items, {name: result})


def suite_items(suite: str, limit: int, seed: int) -> dict[str, tuple[Item, ...]]:
    """Return the held-out items of every domain of a suite.

    Raises:
        EvaluationError: unknown suite, limit below 1, or more items than a domain has.
    """
    if suite not in SUITES:
        raise EvaluationError(f"Unknown suite {suite!r}. Choose one of: {', '.join(SUITES)}.")
    if limit < 1:
        raise EvaluationError(f"The limit is {limit} items per domain. Choose 1 or more.")
    return {domain: tuple(make_items(domain, limit, seed)) for domain in SUITES[suite]}


def _check(batch_size: int) -> None:
    if batch_size < 1:
        raise EvaluationError(f"The batch size is {batch_size}. Choose 1 or more.")


def _answers(
    name: str,
    model: Any,
    tokenizer: Any,
    items: dict[str, tuple[Item, ...]],
    batch_size: int,
    on_progress: Progress | None,
    should_stop: ShouldStop | None,
) -> dict[str, tuple[Answer, ...]]:
    answers = {}
    for domain, members in items.items():

        def report(done: int, domain: str = domain, total: int = len(members)) -> None:
            if on_progress:
                on_progress(name, domain, done, total)

        report(0)
        try:
            texts = generate(
                model,
                tokenizer,
                [item.prompt for item in members],
                max_new_tokens=MAX_NEW_TOKENS,
                batch_size=batch_size,
                should_stop=should_stop,
                on_batch=report,
            )
        # Torch says both "out of memory" and "ids outside the embedding" this way.
        except (RuntimeError, IndexError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise EvaluationError(
                f'Model "{name}" failed while answering the {domain} prompts: {reason} '
                "Check that its tokenizer fits its vocabulary; if memory ran out, "
                "use a smaller batch size."
            ) from error
        answers[domain] = tuple(
            Answer(text, score(item, text)) for item, text in zip(members, texts, strict=True)
        )
    return answers
