"""Checks on Ray: each model with each suite is a task; its answers return to the one store.

Models answer on nodes with cores or GPUs. This process judges and stores, by the usual code, and
makes the report from the stored answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ram_studio.engine.parts.ray_cluster import (
    check_visible,
    connect_ray,
    cores_of_a_node,
    gather,
    task_options,
)
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.engine import Decoding, ShouldStop
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.asking import Progress, SuiteRun, reader_of
from ram_studio.evals.question import Question, Reply
from ram_studio.evals.report.chance_level import TrivialBaselines
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.run import evaluate
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import AnswerStore, store_or_temporary
from ram_studio.evals.suites import ALL_SUITES, HEALTH

Rows = list[tuple[Question, Reply]]


def evaluate_on_ray(
    models: Mapping[str, str | Path],
    address: str,
    settings: EvalSettings | str | Sequence[str] | None = None,
    *,
    store: AnswerStore | None = None,
    rerun: bool = False,
    on_progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
    **fields: Any,
) -> EvalReport:
    """Ask models in folders that all nodes see, and return the same report as ``evaluate``.

    A task's answers are stored when it ends, and stored answers are reused.

    Args: address: of a cluster, or "local"; device "auto" takes a GPU per model where there are
        GPUs; the others as for ``evaluate``.

    Raises: EvaluationError, also for engines other than transformers and for health, whose model
    must be in this process; SettingsError without Ray, or for a folder that a node does not see;
    Stopped.
    """
    asked = EvalSettings.of(settings, **fields)
    asked.check_models(models)
    is_plain = asked.engine == "transformers" and asked.chunk_sizes is None and asked.until is None
    if not is_plain or HEALTH in asked.suites or asked.paraphrases > 1:
        raise EvaluationError(
            "On Ray, models use the engine 'transformers', read texts whole and answer one wording "
            "of each question; health is not measured. Leave out the suite, the mode, "
            "--ci-width, --paraphrases or the engine, or leave out --ray."
        )
    with contextlib.ExitStack() as undo:
        ray = undo.enter_context(connect_ray(address))
        store = undo.enter_context(store_or_temporary(store))
        device = asked.device
        if device == "auto":
            device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
        options = {**asked.engine_options, "device": "cpu"}
        engines = {n: LocalEngine(p, **options) for n, p in models.items()}
        check_visible(ray, [str(engine.path) for engine in engines.values()])
        for engine in engines.values():
            # The device of the answers, so that local and remote answers have one identity.
            engine.device = device.split(":")[0]
        _ask_remotely(ray, asked, engines, store, rerun, on_progress, should_stop)
        return evaluate(engines, asked, store=store, on_progress=on_progress)


def _ask_remotely(
    ray: Any,
    settings: EvalSettings,
    engines: Mapping[str, LocalEngine],
    store: AnswerStore,
    rerun: bool,
    on_progress: Progress | None,
    should_stop: ShouldStop | None,
) -> None:
    """Answer and store all questions without a stored answer."""
    first = settings.base or next(iter(engines))
    asked = settings.questions(engines[first].count_tokens)
    baselines = TrivialBaselines(asked, settings.code)
    device = next(iter(engines.values())).device
    cores = 1 if device == "cuda" else cores_of_a_node(ray)
    task = ray.remote(**task_options(device, cores))(_answer)
    tasks: dict[Any, str] = {}
    runs: list[tuple[SuiteRun, LocalEngine, Decoding]] = []
    every = product(engines.items(), settings.decodings, settings.question_suites)
    for (name, engine), decoding, part in every:
        if part.draws_samples and decoding != settings.decodings[0]:
            continue
        path = str(engine.path)
        run = SuiteRun(name, path, engine, part, settings, store, rerun, baselines=baselines)
        run.check(asked[part.name])
        engine.decoding = decoding
        missing = run.find_unanswered(asked[part.name])
        run.rerun = False  # it is empty now
        if missing:
            task_id = task.remote(len(runs), missing, part.name, path, device, settings, decoding)
            tasks[task_id] = f"{part.name} of {name}"
            runs.append((run, engine, decoding))

    def poll() -> None:
        if should_stop is not None and should_stop():
            raise Stopped("Stopped; received answers are stored.")

    def take_result(result: tuple[int, Rows, Mapping[str, str]]) -> None:
        run, engine, decoding = runs[result[0]]
        run.take(result[1], result[2])
        engine.decoding = decoding
        run.answers(asked[run.suite.name], on_progress)

    gather(ray, tasks, poll, take_result)


def _answer(
    number: int,
    questions: Sequence[Question],
    suite: str,
    path: str,
    device: str,
    settings: EvalSettings,
    decoding: Decoding,
) -> tuple[int, Rows, Mapping[str, str]]:
    """Return one model's replies and software versions, in a worker."""
    engine = LocalEngine(path, **{**settings.engine_options, "device": device})
    engine.decoding = decoding
    try:
        reader = reader_of(engine, ALL_SUITES[suite], settings)
        rows = [row for batch in reader.answer(questions) for row in batch]
        return number, rows, engine.software
    finally:
        engine.close()
