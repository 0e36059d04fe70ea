"""Ask models the questions of suites: stored as answered, resumed, the same prompts for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.decode import OnTokens
from ram_studio.evals.answering.engine import ChatMode, Engine, EngineName
from ram_studio.evals.answering.local import DEFAULT_BATCH_SIZE, LocalEngine
from ram_studio.evals.answering.vllm_engine import VllmEngine
from ram_studio.evals.asking import Progress, ShouldStop, SuiteRun
from ram_studio.evals.question import Question
from ram_studio.evals.report.floor import Nonsense
from ram_studio.evals.report.tables import Answer, EvalReport, ModelResult
from ram_studio.evals.sandbox import CodeSwitch, check_code_allowed
from ram_studio.evals.store.answers import AnswerStore
from ram_studio.evals.suites import (
    ALL_SUITES,
    DEFAULT_LENGTHS,
    HEALTH,
    Suite,
    SuiteSettings,
    suite_names,
)
from ram_studio.evals.suites.health import HealthRun

DEFAULT_SEED = 2026


Source = str | Path | Engine


@dataclass(frozen=True)
class EvaluationPlan:
    """What is asked of every model, and with what.

    suite: names, as a sequence or one text with commas: demo (on its own), or any of the others and
    health. limit: most questions per suite (demo: per domain), evenly over its categories; None:
    all (demo: 300). A mapping gives each suite its own; suites it does not name are asked in full.
    seed: for the suites that are generated (demo, memory). lengths: prompt lengths of the memory
    suite, in tokens of the first model. chat: "auto", "template" or "none", see `LocalEngine`.
    code: whether code that a model wrote may run, see `sandbox.check_code_allowed`. engine: what
    answers for a folder, "transformers" or "vllm". device, batch_size: of that engine.
    base: the model that health measures the others against; None: no comparison.
    """

    suite: str | Sequence[str] = "demo"
    limit: int | Mapping[str, int] | None = None
    seed: int = DEFAULT_SEED
    lengths: Sequence[int] = DEFAULT_LENGTHS
    chat: ChatMode = "auto"
    code: CodeSwitch = "auto"
    engine: EngineName = "transformers"
    device: str = "auto"
    batch_size: int = DEFAULT_BATCH_SIZE
    base: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The suites' names, health included."""
        return suite_names(self.suite, health=True)

    @property
    def suites(self) -> tuple[Suite, ...]:
        """The suites of questions."""
        return tuple(ALL_SUITES[name] for name in self.names if name != HEALTH)

    def check(self, models: Mapping[str, object]) -> None:
        """Raise EvaluationError for what cannot be, before any model is opened."""
        names = self.names
        if not models:
            raise EvaluationError("No model to evaluate was given. Name at least one model folder.")
        limits = self.limit.values() if isinstance(self.limit, Mapping) else [self.limit]
        for limit in limits:
            if limit is not None and limit < 1:
                raise EvaluationError(
                    f"The limit is {limit} questions per suite. Choose 1 or more."
                )
        if self.batch_size < 1:
            raise EvaluationError(f"The batch size is {self.batch_size}. Choose 1 or more.")
        if self.base is not None and self.base not in models:
            raise EvaluationError(
                f"The base {self.base!r} is none of the models: {', '.join(models)}."
            )
        if any(suite.runs_code for suite in self.suites):
            check_code_allowed(self.code)
        if self.engine == "vllm" and HEALTH in names:
            raise EvaluationError(
                "Health needs the model's logits, which the engine 'vllm' does not hand out. Leave "
                "the suite out, or use the engine 'transformers' for it."
            )

    def questions(self, count_tokens: Callable[[str], int]) -> dict[str, tuple[Question, ...]]:
        """Return the questions by suite; count_tokens: text -> length in the first model's own."""
        asked = {}
        for suite in self.suites:
            limit = self.limit.get(suite.name) if isinstance(self.limit, Mapping) else self.limit
            settings = SuiteSettings(count_tokens, limit, self.seed, tuple(self.lengths))
            asked[suite.name] = tuple(suite.make(settings))
        return asked


def evaluate(
    models: Mapping[str, Source],
    suite: str | Sequence[str] = "demo",
    *,
    store: AnswerStore | None = None,
    fresh: bool = False,
    on_progress: Progress | None = None,
    on_tokens: OnTokens | None = None,
    should_stop: ShouldStop | None = None,
    **settings: Any,
) -> EvalReport:
    """Ask every model in turn the same questions, greedily, and return all answers with verdicts.

    Questions are made once, with the first model's tokenizer, and asked of all. With a store, each
    batch of answers is committed before the next is begun; final answers found there under the same
    model, suite version and settings are not asked again, so a stopped run is taken up by calling
    this again. Replies that failed (a broken connection) count as wrong and are asked again.

    Args:
        models: name -> local folder, or an engine such as `EndpointEngine` (which stays open, and
            whose own chat, device and batches hold); rows come out in this order.
        suite, settings: fields of `EvaluationPlan`.
        fresh: forget stored answers to these questions and ask anew.
        on_progress: called with (model, domain, done, total); the first call for a model and domain
            tells how many answers were stored already.
        on_tokens: called while a local model answers, see `decode.decode`.
        should_stop: polled before each batch and token.

    Raises:
        EvaluationError: unusable settings, a model that cannot be asked, code that may not run.
        Stopped: `should_stop` returned True; stored answers are kept.

    Example:
        >>> report = evaluate({"base": "base", "merged": "out"}, "tool,math")  # doctest: +SKIP
        >>> report.to_frame()  # doctest: +SKIP
    """
    plan = EvaluationPlan(suite, **settings)
    plan.check(models)
    health = HealthRun(store, fresh) if HEALTH in plan.names else None
    asked: dict[str, tuple[Question, ...]] | None = None
    nonsense: Nonsense | None = None
    results: dict[str, ModelResult] = {}
    try:
        # The base first: health compares with it.
        for name in sorted(models, key=lambda name: name != plan.base):
            start = time.perf_counter()
            source = models[name]
            engine = _opened(source, plan, on_tokens) if isinstance(source, (str, Path)) else source
            path = str(engine.path)
            try:
                if asked is None:
                    asked = plan.questions(engine.count_tokens)
                    nonsense = Nonsense(asked, plan.code)
                runs = [
                    SuiteRun(name, path, engine, part, plan.code, store, fresh, nonsense=nonsense)
                    for part in plan.suites
                ]
                for run in runs:
                    run.check(asked[run.suite.name])
                answered: list[tuple[Question, Answer]] = []
                for run in runs:
                    answered += run.answers(asked[run.suite.name], on_progress, should_stop)
                measured = None
                if health:
                    if on_progress:
                        on_progress(name, HEALTH, 0, 1)
                    measured = health.measure(name, engine, is_base=name == plan.base)
                    if on_progress:
                        on_progress(name, HEALTH, 1, 1)
            finally:
                if engine is not source:
                    engine.close()
            seconds = time.perf_counter() - start
            results[name] = ModelResult.of(
                name, path, answered, plan.names, seconds=seconds, health=measured
            )
    finally:
        if health:
            health.close()
    ordered = {name: results[name] for name in models}
    return EvalReport.of(plan.names, plan.seed, asked or {}, ordered)


def _opened(folder: str | Path, plan: EvaluationPlan, on_tokens: OnTokens | None) -> Engine:
    options: dict[str, Any] = {
        "device": plan.device,
        "chat": plan.chat,
        "batch_size": plan.batch_size,
    }
    if plan.engine == "vllm":
        return VllmEngine(folder, **options)
    return LocalEngine(folder, on_tokens=on_tokens, **options)
