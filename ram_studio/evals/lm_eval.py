"""Tasks of lm-eval (EleutherAI's evaluation harness) on model folders, as a report like any other.

The harness asks and judges by its own rules; its result for every item goes to the store and into
the report, so that intervals, paired comparisons, history and exports work as for the shipped
suites. It is an extra (`pip install "ram-studio[lm-eval]"`), and its tasks load their data from the
Hub unless they are local. Tasks that run code are never allowed to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ram_studio.errors import (
    EvalSettingsError,
    EvaluationError,
    RamStudioError,
    Stopped,
    did_you_mean,
)
from ram_studio.evals.answering.engine import ShouldStop, finish_reason, reason_of, versions
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.asking import Progress
from ram_studio.evals.prompts import stored_wording
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.eval_report import HARNESS, EvalReport, ModelAnswers
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import AnswerStore, RunKey, store_or_temporary

HARNESS_VERSION = 2
"""Version of this adapter: raised when it reads the harness's results differently."""

# On a CPU a larger batch is not faster, and the harness pads it to its longest prompt.
CPU_BATCH_SIZE = 16


def evaluate_with_harness(
    models: Mapping[str, Any],
    asked: EvalSettings,
    *,
    include_path: str | Path | None = None,
    store: AnswerStore | None = None,
    rerun: bool = False,
    on_progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
) -> EvalReport:
    """Run lm-eval's tasks on every model in turn and return all answers with its verdicts.

    Each task of each model is stored when it is done and then reused; a stopped task starts over. A
    column of the report is a task, or one of its answer filters where it has several; "right" is
    the task's first metric that is 0 or 1 for every item.

    Args:
        models: name -> local folder.
        asked: of its fields, tasks or suites, limit (most items per task, the first ones), shots,
            chat and device apply.
        include_path: folder with the user's task files (YAML).
        store, rerun: as for `run.evaluate`.
        on_progress: called with (model, task, done, total) as tasks begin and end. should_stop:
            polled between tasks.

    Raises:
        EvaluationError: lm-eval is not installed, an unknown task, one without a metric of right
            and wrong, one that fails (such as data that cannot be downloaded).
        Stopped: `should_stop` returned True; finished tasks are stored.
    """
    asked.check_models(models)
    names = asked.harness_tasks
    if not all(isinstance(folder, str | Path) for folder in models.values()):
        raise EvaluationError("lm-eval asks model folders here, not endpoints. Name folders.")
    _check_installed()
    with contextlib.redirect_stdout(sys.stderr):
        manager = _manager(names, include_path)
    items: list[Question] = []
    results: dict[str, ModelAnswers] = {}

    def report_progress(model: str, task: str, done: int) -> None:
        if should_stop and should_stop() and not done:
            raise Stopped("The evaluation was stopped; finished tasks were stored.")
        if on_progress:
            on_progress(model, task, done, 1)

    for model, folder in models.items():
        start = time.perf_counter()
        engine = LocalEngine(folder, device=asked.device, chat=asked.chat)
        runner = _Runner(model, engine, manager, asked.limit, _digest(include_path), asked.shots)
        answered: list[tuple[Question, Answer]] = []
        with store_or_temporary(store) as answers:
            for task in names:
                report_progress(model, task, 0)
                answered += runner.answers(task, answers, rerun)
                report_progress(model, task, 1)
        questions = [question for question, _ in answered]
        items = items or questions
        if [question.id for question in questions] != [question.id for question in items]:
            raise EvaluationError(
                f'lm-eval asked model "{model}" other items than the models before it, so '
                "they cannot be compared. Evaluate again with --rerun."
            )
        seconds = time.perf_counter() - start
        suites = [f"{HARNESS}{task}" for task in names]
        results[model] = ModelAnswers.of(
            model, str(folder), answered, suites, seconds=seconds, settings=runner.recorded_settings
        )
    report = EvalReport.of(names, 0, items, results)
    return replace(report, suite=f"{HARNESS}{report.suite}")


def _check_installed() -> None:
    if find_spec("lm_eval") is None:
        raise EvaluationError(
            "lm-eval is not installed, and the engine 'lm-eval' needs it. Install it with: "
            'pip install "ram-studio[lm-eval]".'
        )


def _manager(names: Sequence[str], include_path: str | Path | None) -> Any:
    """Return the harness's task manager.

    Raises: EvaluationError for a task it does not know.
    """
    from lm_eval.tasks import TaskManager

    if include_path is not None and not Path(include_path).is_dir():
        raise EvalSettingsError(
            f"{include_path} is not a folder of tasks. Give one with YAML files."
        )
    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    for name in names:
        if name not in manager.all_tasks:
            hint = did_you_mean(name, manager.all_tasks) or "."
            raise EvalSettingsError(
                f"lm-eval has no task {name!r}{hint} `lm-eval ls tasks` lists all."
            )
    return manager


@dataclass
class _Runner:
    """One model in the harness, loaded when the first task has to be run.

    limit: most items per task. task_files: digest of the user's task files. shots: few-shot
    examples before each item, from the task's own split; None for its own number.
    """

    name: str
    engine: LocalEngine
    manager: Any
    limit: Any
    task_files: str | None
    shots: int | None = None

    @property
    def recorded_settings(self) -> dict[str, Any]:
        """The settings of the questions, for reports."""
        how = {k: v for k, v in self.engine.identity.items() if k != "fingerprint"}
        shots = {} if self.shots is None else {"shots": self.shots}
        return {**how, **stored_wording({"engine": "lm-eval", **shots})}

    def answers(self, task: str, store: AnswerStore, rerun: bool) -> list[tuple[Question, Answer]]:
        """Return a task's questions with their answers, from the store or by running it."""
        software = versions("torch", "transformers", "lm_eval")
        key = RunKey.of(
            self.engine.identity,
            f"{HARNESS}{task}",
            HARNESS_VERSION,
            engine="lm-eval",
            lm_eval=software["lm_eval"],
            limit=self.limit,
            tasks=self.task_files,
            **({} if self.shots is None else {"shots": self.shots}),
        )
        run = store.open_run(key, model=self.name, path=str(self.engine.path), rerun=rerun)
        if not store.answers(run):
            # In one transaction, so that a stored task is complete.
            store.record(run, rows_of(self.run(task), {"software": dict(software)}))
        return [(row.question, row.answer) for row in store.answers(run)]

    def run(self, task: str) -> Mapping[str, Any]:
        """Return the harness's results.

        Raises: EvaluationError for any failure inside it.
        """
        import lm_eval

        try:
            with contextlib.redirect_stdout(sys.stderr):
                found = lm_eval.simple_evaluate(
                    model=self._harness_model,
                    tasks=[task],
                    limit=self.limit,
                    num_fewshot=self.shots,
                    apply_chat_template=self.engine.is_chat,
                    log_samples=True,
                    bootstrap_iters=0,
                    task_manager=self.manager,
                )
            return dict(found or {})
        except (RamStudioError, KeyboardInterrupt):
            raise
        # Tasks download, parse and compute, so they can raise any error.
        except Exception as error:
            raise EvaluationError(
                f'Model "{self.name}": lm-eval could not run task {task}: {reason_of(error)} '
                "Finished tasks are stored if there is a store. Check that the task's data can be "
                "downloaded or is in the cache."
            ) from error

    @cached_property
    def _harness_model(self) -> Any:
        from lm_eval.api.registry import get_model

        device, is_small = self.engine.device, self.engine.identity["dtype"] == "float32"
        return get_model("hf").create_from_arg_obj(
            {
                "pretrained": str(self.engine.path),
                "dtype": "float32" if is_small else "auto",
                "trust_remote_code": False,
            },
            {"batch_size": CPU_BATCH_SIZE if device == "cpu" else "auto", "device": device},
        )


def _digest(folder: str | Path | None) -> str | None:
    """Return a digest of a folder of tasks, None without one."""
    if folder is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder)}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def rows_of(results: Mapping[str, Any], origin: Mapping[str, Any]) -> list[tuple[Question, Answer]]:
    """Return the harness's result for every item as questions and answers.

    Args: results: of `simple_evaluate` with samples. origin: see `Answer`.

    Raises: EvaluationError: a task has no item, or no metric that is 0 or 1 for every item.
    """
    rows: list[tuple[Question, Answer]] = []
    for task, samples in (results.get("samples") or {}).items():
        filters = list(dict.fromkeys(str(sample.get("filter", "none")) for sample in samples))
        for rank, chosen in enumerate(filters):
            # Sorted by their ids, a task's first filter comes first: it makes the average.
            place = chosen if len(filters) == 1 else f"{rank} {chosen}"
            own = [s for s in samples if str(s.get("filter", "none")) == chosen]
            metric = _metric(task, own)
            domain = task if len(filters) == 1 else f"{task} ({chosen})"
            rows += [_row(task, domain, place, sample, metric, origin) for sample in own]
    if not rows:
        raise EvaluationError("lm-eval returned no answers. Choose a larger limit or other tasks.")
    # In the store's order.
    return sorted(rows, key=lambda row: row[0].id)


def _metric(task: str, samples: Sequence[Mapping[str, Any]]) -> str:
    names = list(samples[0].get("metrics") or ())
    for name in names:
        # True and 1.0 count as 1; a text does not.
        if all(sample.get(name) in (0, 1) for sample in samples):
            return str(name)
    raise EvaluationError(
        f"Task {task} of lm-eval has no metric of right and wrong for each item (it has "
        f"{', '.join(map(str, names)) or 'none'}). Run lm-eval itself for its figures."
    )


def _row(
    task: str,
    domain: str,
    place: str,
    sample: Mapping[str, Any],
    metric: str,
    origin: Mapping[str, Any],
) -> tuple[Question, Answer]:
    prompt = _prompt(sample.get("arguments"))
    own_id, gold = f"{task}/{place}/{int(sample['doc_id']):06d}", str(sample.get("target", ""))
    asked = Question(own_id, domain, task, _item_text(sample, prompt), gold, None, 0, is_raw=True)
    text = _text(sample)
    facts = {
        str(name): sample[name]
        for name in sample.get("metrics") or ()
        if isinstance(sample.get(name), (bool, int, float, str))
    }
    finish, note = finish_reason(text, True, 0)
    return asked, Answer(text, bool(sample[metric]), note, facts, 0.0, finish, origin, prompt)


def _item_text(sample: Mapping[str, Any], prompt: str) -> str:
    """Return the item's own text: the prompt around it may differ by the models' templates."""
    document = sample.get("doc")
    if not isinstance(document, Mapping):
        return prompt
    for name in ("question", "prompt", "query", "input", "text", "problem", "goal", "sentence"):
        if isinstance(document.get(name), str):
            return str(document[name])
    return json.dumps(document, ensure_ascii=False, default=str)


def _prompt(arguments: Any) -> str:
    first = next(iter(arguments.values()) if isinstance(arguments, Mapping) else iter(arguments))
    return str(first["arg_0"] if isinstance(first, Mapping) else first[0])


def _text(sample: Mapping[str, Any]) -> str:
    """Return the model's answer; in multiple choice, the harness's filtered one."""
    answer: Any = sample.get("resps")
    while isinstance(answer, (list, tuple)) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, str):
        return answer
    return json.dumps(sample.get("filtered_resps"), default=str)
