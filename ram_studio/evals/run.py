"""Ask models the questions of suites: stored as answered, resumed, the same prompts for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.decode import OnTokens
from ram_studio.evals.answering.engine import ChatMode, Decoding, Engine, EngineName
from ram_studio.evals.answering.local import DEFAULT_BATCH_SIZE, LocalEngine
from ram_studio.evals.answering.vllm_engine import VllmEngine
from ram_studio.evals.asking import OnMarks, Progress, ShouldStop, SuiteRun
from ram_studio.evals.pieces import PieceReader, Pieces
from ram_studio.evals.question import Question
from ram_studio.evals.report.floor import Nonsense
from ram_studio.evals.report.samples import with_samples
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
from ram_studio.evals.suites.suite import DEFAULT_DIFFICULTY

DEFAULT_SEED = 2026
MOST_SAMPLES = 64
GREEDY = Decoding()

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
    base: the model that health measures the others against; None: no comparison. max_tokens: where
    answers are cut off, of all suites or by suite; the suite's own where left out. decoding: how
    they are written; its seed counts from `seed`. samples: answers to each question, see `samples`.
    difficulty: of generated families, 1 to 5. data: folder with the rows of suites that are a data
    set; None: the Hub's cache, or the Hub. pieces: how suites about long texts are read piece by
    piece; None: whole.
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
    max_tokens: int | Mapping[str, int] | None = None
    decoding: Decoding = GREEDY
    samples: int = 1
    difficulty: int = DEFAULT_DIFFICULTY
    data: str | Path | None = None
    pieces: Pieces | None = None

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
        self._check_budget()
        if self.batch_size < 1:
            raise EvaluationError(f"The batch size is {self.batch_size}. Choose 1 or more.")
        if self.base is not None and self.base not in models:
            raise EvaluationError(
                f"The base {self.base!r} is none of the models: {', '.join(models)}."
            )
        if self.pieces is not None:
            self.pieces.check()
            if not any(suite.has_texts for suite in self.suites):
                known = [name for name, suite in ALL_SUITES.items() if suite.has_texts]
                raise EvaluationError(
                    f"None of these suites has texts to read in pieces: {', '.join(names)}. Ask "
                    f"{', '.join(known)}, or leave the mode out."
                )
        if any(suite.runs_code for suite in self.suites):
            check_code_allowed(self.code)
        if self.engine == "vllm" and HEALTH in names:
            raise EvaluationError(
                "Health needs the model's logits, which the engine 'vllm' does not hand out. Leave "
                "the suite out, or use the engine 'transformers' for it."
            )

    def _check_budget(self) -> None:
        """Raise EvaluationError for budgets and draws that cannot be."""
        given = self.max_tokens if isinstance(self.max_tokens, Mapping) else {"": self.max_tokens}
        for name, most in given.items():
            if name and name not in self.names:
                raise EvaluationError(
                    f"A budget of tokens is given for suite {name!r}, which is not asked. Choose "
                    f"from: {', '.join(self.names)}."
                )
            if most is not None and most < 1:
                raise EvaluationError(f"An answer may take {most} tokens. Choose 1 or more.")
        self.decoding.check()
        if not 1 <= self.samples <= MOST_SAMPLES:
            raise EvaluationError(
                f"The number of samples is {self.samples}. Choose 1 to {MOST_SAMPLES}."
            )
        if self.samples > 1 and not self.decoding.temperature:
            raise EvaluationError(
                "Several samples of the likeliest answer are all the same. Give a temperature "
                "above 0, such as the paper's 1.0 with top-p 0.95."
            )

    def draws(self) -> tuple[Decoding, ...]:
        """Return how each sample is written: the same but for the seed."""
        return tuple(replace(self.decoding, seed=self.seed + i) for i in range(self.samples))

    def questions(self, count_tokens: Callable[[str], int]) -> dict[str, tuple[Question, ...]]:
        """Return the questions by suite; count_tokens: text -> length in the first model's own."""
        asked = {}
        for suite in self.suites:
            limit = self.limit.get(suite.name) if isinstance(self.limit, Mapping) else self.limit
            settings = SuiteSettings(
                count_tokens, limit, self.seed, tuple(self.lengths), self.difficulty, self.data
            )
            budget = self.max_tokens
            most = budget.get(suite.name) if isinstance(budget, Mapping) else budget
            asked[suite.name] = tuple(
                q if most is None else replace(q, max_new_tokens=most) for q in suite.make(settings)
            )
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
    this again. Replies that failed (a broken connection) count as wrong and are asked again.

    Args:
        models: name -> local folder, or an engine such as `EndpointEngine` (which stays open, and
            whose own chat, device and batches hold); rows come out in this order.
        suite, settings: fields of `EvaluationPlan`.
        fresh: forget stored answers to these questions and ask anew.
        on_progress: called with (model, domain, done, total); the first call for a model and domain
            tells how many answers were stored already.
        on_tokens: called while a local model answers, see `decode.decode`.
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
                reader = PieceReader(engine, plan.pieces) if plan.pieces else None
                runs = [
                    SuiteRun(
                        name,
                        path,
                        reader if reader and part.has_texts else engine,
                        part,
                        plan.code,
                        store,
                        fresh,
                        nonsense=nonsense,
                        on_marks=on_marks,
                    )
                    for part in plan.suites
                ]
                drawn: list[list[tuple[Question, Answer]]] = []
                for number, decoding in enumerate(plan.draws()):
                    engine.decoding = decoding
                    for run in () if number else runs:
                        run.check(asked[run.suite.name])
                    tell = _of_all(on_progress, number, plan.samples)
                    rows = [run.answers(asked[run.suite.name], tell, should_stop) for run in runs]
                    drawn.append([row for own in rows for row in own])
                answered = with_samples(drawn)
                identity = (reader or engine).identity
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
                name,
                path,
                answered,
                plan.names,
                seconds=seconds,
                health=measured,
                asked={k: v for k, v in identity.items() if k != "fingerprint"},
            )
    finally:
        if health:
            health.close()
    ordered = {name: results[name] for name in models}
    return EvalReport.of(plan.names, plan.seed, asked or {}, ordered)


def _of_all(on_progress: Progress | None, number: int, samples: int) -> Progress | None:
    """Return what tells the progress of one draw as that of all of them."""
    if on_progress is None or samples == 1:
        return on_progress
    return lambda model, domain, done, total: on_progress(
        model, domain, number * total + done, samples * total
    )


def _opened(folder: str | Path, plan: EvaluationPlan, on_tokens: OnTokens | None) -> Engine:
    options: dict[str, Any] = {
        "device": plan.device,
        "chat": plan.chat,
        "batch_size": plan.batch_size,
    }
    if plan.engine == "vllm":
        return VllmEngine(folder, **options)
    return LocalEngine(folder, on_tokens=on_tokens, **options)
