"""A report as the logs of other tools: inspect's `.eval` files, lm-eval's results and samples.

Each model and domain becomes one task there. Standard errors follow those tools, with n - 1, so
that they compute the logged values again from the answers. The formats are those of inspect-ai
0.3.285 (log version 2) and lm-eval 0.4.13.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.write.output_folder import absolute, write_whole
from ram_studio.errors import OutputError, raise_as
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.eval_result import EvalResult, ModelDetails
from ram_studio.evals.report.score import DomainScore

SCORER = "ram_studio"
METRIC = "acc"
_STOPS = {"end": "stop", "empty": "stop", "length": "max_tokens"}


@dataclass(frozen=True)
class _Task:
    """A model's answers in one domain; name, model: safe for file names."""

    name: str
    model: str
    suite: str
    path: str | None
    rows: tuple[tuple[Question, Answer], ...]
    details: ModelDetails
    when: datetime

    @property
    def score(self) -> DomainScore:
        return DomainScore.of(answer for _, answer in self.rows)

    @property
    def stderr(self) -> float:
        """Standard error of a sample's mean, 0 for one answer, as in both tools."""
        n, share = self.score.n, self.score.score
        return math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else 0.0


def write_inspect(result: EvalResult, folder: str | Path) -> list[Path]:
    """Write a `.eval` log for each model and domain, `MODEL_DOMAIN.eval`, and return the paths.

    Questions that were not asked, refused or failed are samples with an error and without a score.

    Raises: OutputError.
    """
    files = {f"{task.model}_{task.name}.eval": _inspect_log(task) for task in _tasks(result)}
    return _write_logs(folder, files)


def write_lm_eval(result: EvalResult, folder: str | Path) -> list[Path]:
    """Write `MODEL/results_DATE.json` and `MODEL/samples_DOMAIN_DATE.jsonl`; return the paths.

    Questions that were not asked, refused or failed have no sample; `n-samples` counts them.

    Raises: OutputError.
    """
    files: dict[str, bytes] = {}
    models: dict[str, list[_Task]] = {}
    for task in _tasks(result):
        models.setdefault(task.model, []).append(task)
    for model, tasks in models.items():
        date = tasks[0].when.replace(tzinfo=None).isoformat().replace(":", "-")
        samples = {task.name: _samples(task) for task in tasks}
        content = _results(tasks, samples)
        files[f"{model}/results_{date}.json"] = _json(content)
        for name, rows in samples.items():
            files[f"{model}/samples_{name}_{date}.jsonl"] = b"".join(map(_json, rows))
    return _write_logs(folder, files)


LOGS: Mapping[str, Callable[[EvalResult, str | Path], list[Path]]] = {
    "inspect": write_inspect,
    "lm-eval": write_lm_eval,
}
"""By the tool that reads the logs."""


def _tasks(result: EvalResult) -> Iterator[_Task]:
    report, when, taken = result.report, datetime.now(UTC), set[tuple[str, str]]()
    for model, row in report.models.items():
        for domain, questions in report.items.items():
            found = _file_name(model), _file_name(domain)
            # Some file systems do not distinguish "A" and "a".
            while (key := (found[0].lower(), found[1].lower())) in taken:
                found = f"{found[0]}-", found[1]
            taken.add(key)
            yield _Task(
                found[1],
                found[0],
                report.suite,
                row.path,
                tuple(zip(questions, row.answers[domain], strict=True)),
                result.reproducibility.models[model],
                when,
            )


def _file_name(text: str) -> str:
    # lm-eval reads a task's name between the first and the last "_" of a file's name.
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip(".-")[:80] or "model"


def _write_logs(out: str | Path, files: Mapping[str, bytes]) -> list[Path]:
    folder = absolute(out)
    what = f"The logs cannot be written to {printable(folder)}"
    with raise_as(OutputError, what, "check that the folder above exists and is writable"):
        os.stat(folder.parent)  # a missing parent is probably a typo
        for name, data in files.items():
            write_whole(folder / name, data)
    return [folder / name for name in files]


# ------------------------------------------------------------------ inspect


def _inspect_log(task: _Task) -> bytes:
    """Return a log as inspect's recorder writes it: a zip of JSON files."""
    samples = [_inspect_sample(task, *row) for row in task.rows]
    shown = ("id", "epoch", "input", "target", "metadata", "scores", "error")
    summaries = [
        {k: s[k] for k in shown if k in s}
        | {"completed": True}
        | ({"error": s["error"]["message"]} if "error" in s else {})
        for s in samples
    ]
    spec: dict[str, Any] = {"version": 2, "eval": _inspect_spec(task), "plan": _PLAN}
    files: dict[str, Any] = {
        "_journal/start.json": spec,
        **{f"samples/{s['id']}_epoch_1.json": s for s in samples},
        "summaries.json": summaries,
        "header.json": {**spec, "status": "success", **_inspect_results(task)},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, _json(content))
    return packed.getvalue()


_PLAN = {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": {}}


def _inspect_spec(task: _Task) -> dict[str, Any]:
    ids = [question.id for question, _ in task.rows]
    return {
        "eval_id": _digest(task.name, task.model, task.when.isoformat()),
        "run_id": _digest(task.model, task.when.isoformat()),
        "created": task.when.isoformat(),
        "task": task.name,
        "task_id": _digest(task.name),
        "dataset": {"name": task.name, "samples": len(ids), "sample_ids": ids},
        "model": f"ram-studio/{task.model}",
        "config": {"epochs": 1},
        "packages": dict(task.details.software),
        "scorers": [{"name": SCORER}],
        "metadata": {"suites": task.suite, "settings": task.details.settings},
    }


def _inspect_results(task: _Task) -> dict[str, Any]:
    score, total = task.score, len(task.rows)
    metrics = {} if not score.n else {"accuracy": score.score, "stderr": task.stderr}
    found = {
        "name": SCORER,
        "scorer": SCORER,
        "scored_samples": score.n,
        "unscored_samples": total - score.n,
        "metrics": {name: {"name": name, "value": value} for name, value in metrics.items()},
        "metadata": {"ci95": list(score.ci95)},
    }
    results = {"total_samples": total, "completed_samples": score.n, "scores": [found]}
    when = task.when.isoformat()
    return {"results": results, "stats": {"started_at": when, "completed_at": when}}


def _inspect_sample(task: _Task, question: Question, answer: Answer) -> dict[str, Any]:
    reply = {"role": "assistant", "content": answer.text, "source": "generate"}
    request = {"role": "user", "content": answer.prompt or question.prompt, "source": "input"}
    sample: dict[str, Any] = {
        "id": question.id,
        "epoch": 1,
        "input": question.prompt,
        "target": question.gold,
        "messages": [request, reply],
        "output": {
            "model": f"ram-studio/{task.model}",
            "choices": [{"message": reply, "stop_reason": _STOPS.get(answer.finish, "unknown")}],
        },
        "metadata": {"category": question.category, "finish": answer.finish},
        "total_time": answer.seconds,
    }
    if answer.is_scored:
        value = "C" if answer.is_correct else "I"
        verdict = {"value": value, "answer": answer.text, "explanation": answer.note}
        return sample | {"scores": {SCORER: {**verdict, "metadata": dict(answer.facts)}}}
    message = answer.note or answer.finish
    return sample | {"error": {"message": message, "traceback": "", "traceback_ansi": ""}}


# ------------------------------------------------------------------ lm-eval


def _samples(task: _Task) -> list[dict[str, Any]]:
    rows = []
    for number, (question, answer) in enumerate(task.rows):
        doc = {"id": question.id, "question": question.prompt, "category": question.category}
        prompt = answer.prompt or question.prompt
        row = {
            "doc_id": number,
            "doc": doc,
            "target": question.gold,
            "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {}}},
            "resps": [[answer.text]],
            "filtered_resps": [answer.text],
            "filter": "none",
            "metrics": [METRIC],
            "doc_hash": _digest(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": _digest(prompt),
            "target_hash": _digest(question.gold),
            METRIC: float(answer.is_correct),
        }
        if answer.is_scored:
            rows.append(row)
    return rows


def _results(tasks: list[_Task], samples: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    def by_task(what: Callable[[_Task], Any]) -> dict[str, Any]:
        return {task.name: what(task) for task in tasks}

    hashes = ("doc_hash", "prompt_hash", "target_hash")
    metric = {"metric": METRIC, "aggregation": "mean", "higher_is_better": True}
    first = tasks[0]
    return {
        "results": by_task(
            lambda task: {
                "alias": task.name,
                f"{METRIC},none": task.score.score if task.score.n else None,
                f"{METRIC}_stderr,none": task.stderr if task.score.n else None,
            }
        ),
        "group_subtasks": by_task(lambda task: []),
        "configs": by_task(
            lambda task: {
                "task": task.name,
                "output_type": "generate_until",
                "num_fewshot": _shots(task),
                "metric_list": [metric],
                "metadata": {"version": __version__, "suites": task.suite},
            }
        ),
        "versions": by_task(lambda task: __version__),
        "n-shot": by_task(_shots),
        "higher_is_better": by_task(lambda task: {METRIC: True}),
        "n-samples": by_task(lambda t: {"original": len(t.rows), "effective": t.score.n}),
        "config": {
            "model": "ram-studio",
            "model_args": f"pretrained={first.path or first.model}",
            **first.details.settings,
        },
        "date": first.when.timestamp(),
        "model_source": "ram-studio",
        "model_name": first.path or first.model,
        "model_name_sanitized": first.model,
        "task_hashes": {
            name: _digest("".join(row[key] for row in rows for key in hashes))
            for name, rows in samples.items()
        },
    }


def _shots(task: _Task) -> int:
    shots = task.details.settings.get("shots", 0)
    return shots if isinstance(shots, int) else 0


def _json(content: Any) -> bytes:
    # A model may have written half a surrogate pair, which readers reject.
    return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
