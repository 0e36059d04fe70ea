"""Ask models the questions of suites: the same for all, stored as they are answered, resumable."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from ram_studio.evals.answering.decode import OnTokens
from ram_studio.evals.answering.engine import Engine, ShouldStop
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.answering.vllm_engine import VllmEngine
from ram_studio.evals.asking import OnMarks, Progress, SuiteRun, ask_suites
from ram_studio.evals.lm_eval import evaluate_with_harness
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.chance_level import TrivialBaselines
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import AnswerStore, store_or_temporary
from ram_studio.evals.suites import HEALTH, apart
from ram_studio.evals.suites.health import HealthRun

Source = str | Path | Engine

_LOG = logging.getLogger(__name__)


def evaluate(
    models: Mapping[str, Source],
    settings: EvalSettings | str | Sequence[str] | None = None,
    *,
    store: AnswerStore | None = None,
    rerun: bool = False,
    on_progress: Progress | None = None,
    on_tokens: OnTokens | None = None,
    on_marks: OnMarks | None = None,
    should_stop: ShouldStop | None = None,
    **fields: Any,
) -> EvalReport:
    """Ask every model in turn the same questions and return all answers with verdicts.

    Questions are made once, with the first model's tokenizer, and asked of all. With a store, each
    batch of answers is committed before the next is begun; its final answers for the same model,
    suite version and settings are reused, so calling this again continues a stopped run. Failed
    replies (a broken connection) are in no score and are asked again.

    Args:
        models: name -> local folder, or an engine such as `EndpointEngine` (which stays open and
            has its own chat, device and batches); rows are in this order.
        settings: all of them, or suites by name, as a sequence or one text with commas.
        store: where answers are stored; None stores none.
        rerun: delete stored answers to these questions and ask again.
        on_progress: called with (model, domain, done, total); the first call for a model and domain
            gives the number of stored answers.
        on_tokens: called while a local model answers, with each step of `decode_steps`.
        on_marks: called with (model, domain, a letter for each question), see `asking.marks_of`.
        should_stop: polled before each batch and token.
        **fields: further fields of `EvalSettings`, beside suites or in place of what settings say.

    Raises:
        EvaluationError: unusable settings, a model that cannot be asked, code that may not run.
        Stopped: `should_stop` returned True; stored answers stay.

    Example:
        >>> report = evaluate({"base": "base", "merged": "out"}, "tool,math")  # doctest: +SKIP
        >>> report.to_frame()  # doctest: +SKIP
    """
    asked = EvalSettings.of(settings, **fields)
    asked.check_models(models)
    if asked.is_harness:
        return evaluate_with_harness(
            models,
            asked,
            store=store,
            rerun=rerun,
            on_progress=on_progress,
            should_stop=should_stop,
        )
    hooks = (on_progress, on_tokens, on_marks, should_stop)
    if asked.until is None:
        return _Evaluation(asked, store, rerun, *hooks).report(models)
    with store_or_temporary(store) as answers:
        for number, size in enumerate(asked.until.sizes, start=1):
            part = asked.model_copy(update={"limit": size})
            again = rerun and number == 1
            report = _Evaluation(part, answers, again, *hooks).report(models)
            rows = [row.domains.items() for row in report.models.values()]
            # Domains outside the average have few questions.
            beside = apart(asked.suites)
            scores = [score for row in rows for domain, score in row if domain not in beside]
            decided = asked.until.decide(number, scores)
            if decided.is_decided:
                break
    return replace(report, until=decided)


@dataclass
class _Evaluation:
    """A running evaluation, one model after another. questions: by suite, once they are made."""

    settings: EvalSettings
    store: AnswerStore | None
    rerun: bool
    on_progress: Progress | None
    on_tokens: OnTokens | None
    on_marks: OnMarks | None
    should_stop: ShouldStop | None
    questions: dict[str, tuple[Question, ...]] = field(default_factory=dict)
    baselines: TrivialBaselines | None = None

    @cached_property
    def health(self) -> HealthRun | None:
        """The measurement of health, None where it is not requested."""
        return HealthRun(self.store, self.rerun) if HEALTH in self.settings.suites else None

    def report(self, models: Mapping[str, Source]) -> EvalReport:
        settings, results = self.settings, dict[str, ModelAnswers]()
        try:
            # The base first: health compares with it.
            for name in sorted(models, key=lambda name: name != settings.base):
                results[name] = self.ask(name, models[name])
        finally:
            # It holds the base's distribution.
            if self.health is not None:
                self.health.close()
        ordered = {name: results[name] for name in models}
        asked = chain.from_iterable(self.questions.values())
        return EvalReport.of(settings.suites, settings.seed, asked, ordered)

    def ask(self, name: str, source: Source) -> ModelAnswers:
        start = time.perf_counter()
        settings, engine = self.settings, source
        if isinstance(engine, (str, Path)):
            engine = self._open_engine(engine)
        try:
            answered = self._ask_suites(name, engine)
            asked = settings.recorded_settings(engine)
            health = self._measure_health(name, engine)
        finally:
            if engine is not source:
                engine.close()
        seconds = time.perf_counter() - start
        more: dict[str, Any] = {"seconds": seconds, "health": health, "settings": asked}
        return ModelAnswers.of(name, str(engine.path), answered, settings.suites, **more)

    def _open_engine(self, folder: str | Path) -> Engine:
        options = self.settings.engine_options
        if self.settings.engine == "vllm":
            return VllmEngine(folder, **options)
        return LocalEngine(folder, **options, on_tokens=self.on_tokens)

    def _ask_suites(self, name: str, engine: Engine) -> list[tuple[Question, Answer]]:
        settings = self.settings
        if self.baselines is None:
            self.questions = settings.questions(engine.count_tokens)
            self.baselines = TrivialBaselines(self.questions, settings.code)
        path = str(engine.path)
        hooks: dict[str, Any] = {"baselines": self.baselines, "on_marks": self.on_marks}
        runs = [
            SuiteRun(name, path, engine, suite, settings, self.store, self.rerun, **hooks)
            for suite in settings.question_suites
        ]
        for run in runs:
            run.check(self.questions[run.suite.name])
            self._log_stored(run)
        return ask_suites(runs, self.questions, self.on_progress, self.should_stop)

    def _log_stored(self, run: SuiteRun) -> None:
        """Log the numbers of stored answers and of questions still to ask."""
        # Until an interval width is reached, questions are added by round.
        if self.store is None or self.settings.ci_width is not None:
            return
        questions = self.questions[run.suite.name]
        left = len(run.find_unanswered(questions))
        if 0 < left < len(questions):
            known = (run.name, len(questions) - left, len(questions), run.suite.name, left)
            _LOG.info('Model "%s": %d of %d answers to %s are stored; asking the other %d', *known)

    def _measure_health(self, name: str, engine: Engine) -> Mapping[str, Any] | None:
        """Return a model's health, None where it is not requested."""
        if self.health is None:
            return None
        report_progress = self.on_progress or (lambda *_: None)
        report_progress(name, HEALTH, 0, 1)
        found = self.health.measure(name, engine, is_base=name == self.settings.base)
        report_progress(name, HEALTH, 1, 1)
        return found
