"""Logs of other tools: what inspect and lm-eval read in them is what the report says."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ram_studio.cli.report import check_exports
from ram_studio.errors import OutputError
from ram_studio.evals.lm_eval import rows_of
from ram_studio.evals.publish.logs import write_inspect, write_lm_eval
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.eval_result import EvalResult

HOSTILE = "</script> \" ' \x00\ud800 \u2028"
READERS = os.environ.get("RAM_STUDIO_LOG_READERS")


@pytest.fixture
def result() -> EvalResult:
    """Two models, five questions each in two domains; one question of each was refused."""
    models, items = {}, {}
    for model, marks in (("base", "10110"), ("owner/merge: 1", "11100")):
        answers = {}
        for domain in ("tool", "needle (4k)"):
            ids = [f"{domain[:4]}-{i}" for i in range(6)]
            items[domain] = tuple(
                Question(i, domain, f"kind {i[-1]}", f"{i}? {HOSTILE}", "gold", None, 8)
                for i in ids
            )
            said = [Answer(f"said {HOSTILE}", mark == "1", prompt="sent") for mark in marks]
            said[0] = dataclasses.replace(said[0], facts={"f1": 0.5}, finish="length", note="cut")
            answers[domain] = (*said, Answer("", False, "too many", finish="refused"))
        models[model] = ModelAnswers(model, "/m", answers, 1.0, ("tool",), settings={"chat": True})
    return EvalResult.of(EvalReport("tool,memory", 0, items, models))


NAMES = {"base": "base", "owner/merge: 1": "owner-merge-1"}
TASKS = {"tool": "tool", "needle (4k)": "needle-4k"}


def test_lm_evals_samples_come_back_as_the_answers(result: EvalResult, tmp_path: Path) -> None:
    write_lm_eval(result, tmp_path / "out")
    for model, name in NAMES.items():
        (results,) = (tmp_path / "out" / name).glob("results_*.json")
        told = json.loads(results.read_text())
        assert told["n-samples"]["needle-4k"] == {"original": 6, "effective": 5}
        for domain, task in TASKS.items():
            (file,) = (tmp_path / "out" / name).glob(f"samples_{task}_*.jsonl")
            rows = rows_of(
                {"samples": {task: list(map(json.loads, file.read_text().split("\n")[:-1]))}}, {}
            )
            answers = result.report.models[model].answers[domain][:5]
            assert [a.is_correct for _, a in rows] == [a.is_correct for a in answers]
            assert {(a.text, a.prompt) for _, a in rows} == {("said " + clean(HOSTILE), "sent")}
            assert told["results"][task]["acc,none"] == 0.6


def test_models_that_differ_in_case_have_files_of_their_own(result, tmp_path):
    """Where a file system does not tell "A" from "a", one replaced the other."""
    base, other = result.report.models.values()
    models = {"A": base, "a": other}
    models = {n: dataclasses.replace(own, name=n) for n, own in models.items()}
    both = EvalResult.of(dataclasses.replace(result.report, models=models))
    for write in (write_inspect, write_lm_eval):
        names = [str(path).lower() for path in write(both, tmp_path / write.__name__)]
        assert len(set(names)) == len(names)


def test_inspects_log_has_every_question_none_scored_if_refused(
    result: EvalResult, tmp_path: Path
) -> None:
    files = write_inspect(result, tmp_path / "out")
    assert {f.name for f in files} == {
        f"{m}_{t}.eval" for m in NAMES.values() for t in TASKS.values()
    }
    with zipfile.ZipFile(files[0]) as log:
        header = json.loads(log.read("header.json"))
        last = json.loads(log.read("samples/tool-5_epoch_1.json"))
        first = json.loads(log.read("samples/tool-0_epoch_1.json"))
    (found,) = header["results"]["scores"]
    assert (found["scored_samples"], found["unscored_samples"]) == (5, 1)
    assert "scores" not in last
    assert last["error"]["message"] == "too many"
    assert first["output"]["choices"][0]["stop_reason"] == "max_tokens"


def test_a_folder_that_cannot_be_made_and_a_tool_that_is_unknown(
    result: EvalResult, tmp_path: Path
) -> None:
    with pytest.raises(OutputError, match="The logs cannot be written to"):
        write_inspect(result, tmp_path / "gone" / "logs")
    check_exports(["inspect=logs", "lm-eval=logs", "a=b.html"])
    for wrong in ("inspect=", "inspct=logs", "report.txt"):
        with pytest.raises(Exception, match=r"is none of inspect=DIR, lm-eval=DIR"):
            check_exports([wrong])
    # A file in its place was found after the evaluation.
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file is not a folder"):
        check_exports([f"inspect={tmp_path / 'file'}"])


def clean(text: str) -> str:
    """Return a text as files hold it: half a character is a question mark."""
    return text.encode("utf-8", "replace").decode()


READ = """
import json, sys
from pathlib import Path
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
from inspect_ai.scorer import SampleScore, accuracy, stderr, value_to_float
from lm_eval.loggers import EvaluationTracker
from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.utils import (get_file_task_name, get_latest_filename, get_results_filenames,
    get_sample_results_filenames, make_table)
import datasets
told = {"inspect": {}, "lm-eval": {}, "tables": []}
for file in sorted(Path(sys.argv[1]).glob("*.eval")):
    log = read_eval_log(str(file))
    assert len(read_eval_log_sample_summaries(str(file))) == len(log.samples)
    as_float = value_to_float()
    scores = [SampleScore(score=s.scores["ram_studio"].model_copy(
        update={"value": as_float(s.scores["ram_studio"].value)}))
        for s in log.samples if s.scores]
    metrics = log.results.scores[0].metrics
    told["inspect"][file.name] = {
        "status": log.status, "task": log.eval.task, "model": log.eval.model,
        "errors": sum(s.error is not None for s in log.samples),
        "stored": [metrics["accuracy"].value, metrics["stderr"].value],
        "own": [accuracy()(scores), stderr()(scores)],
        "texts": [s.output.completion for s in log.samples],
        "prompts": [s.messages[0].text for s in log.samples],
    }
for folder in sorted(p for p in Path(sys.argv[2]).iterdir()):
    files = [f.as_posix() for f in folder.iterdir()]
    results = json.loads(Path(get_latest_filename(get_results_filenames(files))).read_text())
    told["tables"].append(make_table(results))
    for file in get_sample_results_filenames(files):
        rows = list(datasets.load_dataset("json", data_files=file, split="train"))
        task = get_file_task_name(Path(file).name)
        marks = [row["acc"] for row in rows]
        told["lm-eval"][f"{folder.name}/{task}"] = {
            "stored": [results["results"][task][k] for k in ("acc,none", "acc_stderr,none")],
            "own": [mean(marks), mean_stderr(marks)],
            "texts": [row["resps"][0][0] for row in rows],
            "prompts": [row["arguments"]["gen_args_0"]["arg_0"] for row in rows],
        }
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.skipif(READERS is None, reason="inspect and lm-eval: make test-logs")
def test_inspect_and_lm_eval_read_what_was_written(result: EvalResult, tmp_path: Path) -> None:
    write_inspect(result, tmp_path / "inspect")
    write_lm_eval(result, tmp_path / "lm-eval")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "inspect"), str(tmp_path / "lm-eval")],
        env={**os.environ, "PYTHONPATH": str(READERS), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["inspect"]) == {f"{m}_{t}.eval" for m in NAMES.values() for t in TASKS.values()}
    assert set(told["lm-eval"]) == {f"{m}/{t}" for m in NAMES.values() for t in TASKS.values()}
    said = f"said {clean(HOSTILE)}"
    for log in told["inspect"].values():
        assert (log["status"], log["errors"]) == ("success", 1)
        assert log["texts"] == [said] * 5 + [""]
        assert set(log["prompts"][:5]) == {"sent"}
    for samples in told["lm-eval"].values():
        assert samples["texts"] == [said] * 5
        assert set(samples["prompts"]) == {"sent"}
    for found in (*told["inspect"].values(), *told["lm-eval"].values()):
        # By hand: 3 of 5, and the standard deviation of a sample over the root of its size.
        assert found["own"] == pytest.approx([0.6, math.sqrt(0.6 * 0.4 / 4)])
        assert found["stored"] == pytest.approx(found["own"])
    assert all("|acc" in table and "needle-4k" in table for table in told["tables"])
