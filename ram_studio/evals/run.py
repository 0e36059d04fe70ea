"""Ask models the questions of suites: stored as answered, resumed, the same prompts for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.decode import OnTokens
from ram_studio.evals.answering.engine import Engine, EngineName, ShouldStop
from ram_studio.evals.answering.local import DEFAULT_BATCH_SIZE, LocalEngine, check_batch_size
from ram_studio.evals.answering.vllm_engine import VllmEngine
from ram_studio.evals.asking import OnMarks, Progress, SuiteRun, ask_suites
from ram_studio.evals.how import DEFAULT_SEED, HowToAsk, by_suite
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.floor import Nonsense
from ram_studio.evals.report.tables import EvalReport, ModelResult
from ram_studio.evals.store.answers import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, HEALTH, Suite, suite_names
from ram_studio.evals.suites.health import HealthRun

__all__ = ["DEFAULT_SEED", "EvaluationPlan", "Source", "evaluate"]

Source = str | Path | Engine


@dataclass(frozen=True)
class EvaluationPlan(HowToAsk):
    """What is asked of every model, and with what; how: see `HowToAsk`.

    suite: names, as a sequence or one text with commas: demo (on its own), or any of the others and
    health. limit: most questions per suite (demo: per domain), evenly over its categories; None:
    all (demo: 300). A mapping gives each suite its own; suites it does not name are asked in full.
    engine: what answers for a folder, "transformers" or "vllm". device, batch_size: of that engine.
    base: the model that health measures the others against; None: no comparison.
    """

    suite: str | Sequence[str] = "demo"
    limit: int | Mapping[str, int] | None = None
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
        for limit in by_suite("limit", self.limit, names):
            if limit is not None and limit < 1:
                raise EvaluationError(
                    f"The limit is {limit} questions per suite. Choose 1 or more."
                )
        check_batch_size(self.batch_size)
        if self.base is not None and self.base not in models:
            raise EvaluationError(
                f"The base {self.base!r} is none of the models: {', '.join(models)}."
            )
        self.check_asking(names)
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
            asked[suite.name] = suite.questions(self.drawing(count_tokens, limit))
        return asked


def evaluate(
    models: Mapping[str, Source],
    suite: str | Sequence[str] = "demo",
    *,
    store: AnswerStore | None = None,
    fresh: bool = False,
    on_progress: Progress | None = None,
    on_tokens: OnTokens | None = None,
    on_marks: OnMarks | None = None,
    should_stop: ShouldStop | None = None,
    **settings: Any,
) -> EvalReport:
    """Ask every model in turn the same questions and return all answers with verdicts.

    Questions are made once, with the first model's tokenizer, and asked of all. With a store, each
    batch of answers is committed before the next is begun; final answers found there under the same
    model, suite version and settings are not asked again, so a stopped run is taken up by calling
    this again. Replies that failed (a broken connection) are in no score and are asked again.

    Args:
        models: name -> local folder, or an engine such as `EndpointEngine` (which stays open, and
            whose own chat, device and batches hold); rows come out in this order.
        suite, settings: fields of `EvaluationPlan`.
        fresh: forget stored answers to these questions and ask anew.
        on_progress: called with (model, domain, done, total); the first call for a model and domain
            tells how many answers were stored already.
        on_tokens: called while a local model answers, with what `decode_steps` yields.
        on_marks: called with (model, domain, a letter for each question), see `asking.marks_of`.
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
    asking = _Asking(plan, store, fresh, on_progress, on_tokens, on_marks, should_stop)
    results: dict[str, ModelResult] = {}
    try:
        # The base first: health compares with it.
        for name in sorted(models, key=lambda name: name != plan.base):
            results[name] = asking.ask(name, models[name])
    finally:
        asking.close()
    ordered = {name: results[name] for name in models}
    return EvalReport.of(plan.names, plan.seed, asking.questions, ordered)


@dataclass
class _Asking:
    """An evaluation under way: one model after another. questions: by suite, once they are made."""

    plan: EvaluationPlan
    store: AnswerStore | None
    fresh: bool
    on_progress: Progress | None
    on_tokens: OnTokens | None
    on_marks: OnMarks | None
    should_stop: ShouldStop | None
    questions: dict[str, tuple[Question, ...]] = field(default_factory=dict)
    nonsense: Nonsense | None = None

    @cached_property
    def health(self) -> HealthRun | None:
        """What measures health, None where it is not asked for."""
        return HealthRun(self.store, self.fresh) if HEALTH in self.plan.names else None

    def ask(self, name: str, source: Source) -> ModelResult:
        """Return a model's row."""
        start = time.perf_counter()
        engine = source
        if isinstance(engine, (str, Path)):
            engine = self._opened(engine)
        try:
            answered = self._answered(name, engine)
            asked = self.plan.asked_of(engine, self.plan.suites)
            health = self._measured(name, engine)
        finally:
            if engine is not source:
                engine.close()
        seconds = time.perf_counter() - start
        told: dict[str, Any] = {"seconds": seconds, "health": health, "asked": asked}
        return ModelResult.of(name, str(engine.path), answered, self.plan.names, **told)

    def _opened(self, folder: str | Path) -> Engine:
        plan = self.plan
        how: dict[str, Any] = {
            "device": plan.device,
            "chat": plan.chat,
            "batch_size": plan.batch_size,
        }
        if plan.engine == "vllm":
            return VllmEngine(folder, **how)
        return LocalEngine(folder, on_tokens=self.on_tokens, **how)

    def _answered(self, name: str, engine: Engine) -> list[tuple[Question, Answer]]:
        plan = self.plan
        if self.nonsense is None:
            self.questions = plan.questions(engine.count_tokens)
            self.nonsense = Nonsense(self.questions, plan.code)
        path = str(engine.path)
        told: dict[str, Any] = {"nonsense": self.nonsense, "on_marks": self.on_marks}
        runs = [
            SuiteRun(name, path, engine, suite, plan, self.store, self.fresh, **told)
            for suite in plan.suites
        ]
        for run in runs:
            run.check(self.questions[run.suite.name])
        return ask_suites(runs, self.questions, self.on_progress, self.should_stop)

    def _measured(self, name: str, engine: Engine) -> Mapping[str, Any] | None:
        """Return a model's health, None where it is not asked for."""
        if self.health is None:
            return None
        tell = self.on_progress or (lambda *_: None)
        tell(name, HEALTH, 0, 1)
        found = self.health.measure(name, engine, is_base=name == self.plan.base)
        tell(name, HEALTH, 1, 1)
        return found

    def close(self) -> None:
        """Let go of what health holds."""
        if self.health is not None:
            self.health.close()
