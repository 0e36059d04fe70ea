"""Tasks of lm-eval: how its samples are read, and, where it is installed, a task run for real."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ram_studio.errors import EvaluationError
from ram_studio.evals import lm_eval
from ram_studio.evals.lm_eval import evaluate_with_harness, rows_of
from ram_studio.evals.report.eval_report import skills_of
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.history import score_of, stored_report
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import RunKey
from ram_studio.evals.suites import HARNESS_SUITES
from ram_studio.evals.suites.demo.tasks import make_items, score
from ram_studio.resources import asset_path

TASKS = Path(__file__).with_name("lm_eval_tasks")


def sample(doc_id: int, value, metric: str = "exact_match", **more) -> dict:
    return {
        "doc_id": doc_id,
        "doc": {"question": f"What is {doc_id}?"},
        "target": str(doc_id),
        "arguments": [(f"Q: What is {doc_id}? A:", {"until": ["\n"]})],
        "resps": [[f" it is {doc_id}"]],
        "filtered_resps": [str(doc_id)],
        "filter": "none",
        "metrics": [metric],
        metric: value,
        **more,
    }


def test_samples_become_questions_replies_and_verdicts():
    rows = rows_of({"samples": {"sums": [sample(1, 1.0), sample(0, False)]}}, {})
    (first, answer), (second, other) = rows
    told = (first.id, first.domain, first.prompt, first.gold)
    assert told == ("sums/none/000000", "sums", "What is 0?", "0")
    assert (answer.text, answer.prompt) == (" it is 0", "Q: What is 0? A:")
    assert (answer.is_correct, other.is_correct) == (False, True)
    assert second.id == "sums/none/000001"


def test_filters_are_columns_and_the_first_metric_counts():
    both = [sample(0, True, filter="strict"), sample(0, 0.0, filter="loose")]
    domains = [row[0].domain for row in rows_of({"samples": {"g": both}}, {})]
    # As the task has them: what its authors name first is what is published.
    assert domains == ["g (strict)", "g (loose)"]
    mixed = sample(0, 0.3, "bleu") | {"metrics": ["bleu", "acc"], "acc": 1}
    ((_, answer),) = rows_of({"samples": {"t": [mixed]}}, {})
    assert answer.is_correct
    assert answer.facts == {"bleu": 0.3, "acc": 1}
    shown = sample(0, 1, doc={"problem": "1 + 1?", "solution": "2"})
    ((question, _),) = rows_of({"samples": {"m": [shown]}}, {})
    assert question.prompt == "1 + 1?"
    weighed = sample(0, 1.0, resps=[[[-1.5, False]], [[-0.5, True]]], filtered_resps=[[1, 2]])
    ((_, answer),) = rows_of({"samples": {"t": [weighed]}}, {})
    assert answer.text == "[[1, 2]]"


def test_the_first_filter_makes_the_average_in_the_store_too(store):
    samples = [sample(0, name == "a", filter=name) for name in "ba"]
    run = store.open_run(RunKey("f", "lm-eval:g", 1, {}), model="m")
    store.record(run, rows_of({"samples": {"g": samples}}, {}))
    assert score_of(store.runs()[0]).score == 0.0
    assert stored_report(store, store.runs()).models["m"].average.score == 0.0
    # Of a suite of one's own every domain counts.
    assert skills_of(["mine"], ["sums (easy)", "sums (hard)"]) == ("sums (easy)", "sums (hard)")


def test_results_without_right_and_wrong_are_refused():
    with pytest.raises(EvaluationError, match=r"Task t .* no metric of right and wrong"):
        rows_of({"samples": {"t": [sample(0, 0.4, "bleu")]}}, {})
    for nothing in ({"samples": {}}, {}):
        with pytest.raises(EvaluationError, match="returned no answers"):
            rows_of(nothing, {})


def test_shots_and_the_forgetting_recipe_reach_the_harness(monkeypatch, store):
    calls = []

    def simple_evaluate(**given):
        calls.append(given)
        return {"samples": {given["tasks"][0]: [sample(0, 1.0, "acc")]}}

    found = SimpleNamespace(all_tasks=HARNESS_SUITES["forgetting"])
    fakes = {
        "lm_eval": SimpleNamespace(simple_evaluate=simple_evaluate),
        "lm_eval.tasks": SimpleNamespace(TaskManager=lambda include_path: found),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(lm_eval, "find_spec", lambda name: fakes[name])
    monkeypatch.setattr(lm_eval, "versions", lambda *names: {"lm_eval": "0"})
    monkeypatch.setattr(lm_eval._Runner, "_harness_model", None)
    models = {"m": asset_path("independent", "base")}
    for shots in (None, 5, 5):
        report = evaluate(models, suites="forgetting", shots=shots, store=store)
    # Answers after other examples are others; the same are not asked for again.
    assert [call["num_fewshot"] for call in calls] == [None] * 4 + [5] * 4
    assert sum(run.settings.get("shots") == 5 for run in store.runs()) == 4
    assert tuple(report.items) == HARNESS_SUITES["forgetting"]
    told = report.models["m"].settings
    assert (told["prompts"], told["shots"]) == ("lm-eval", 5)


def test_without_lm_eval_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("ram_studio.evals.lm_eval.find_spec", lambda name: None)
    with pytest.raises(EvaluationError, match=r'pip install "ram-studio\[lm-eval\]"'):
        evaluate({"m": asset_path("independent", "tool")}, "gsm8k", prompts="lm-eval")


@pytest.fixture
def local_task(tmp_path):
    """A folder with one task whose data are local: twelve calls of the example's tool domain."""
    pytest.importorskip("lm_eval", reason="lm-eval is an extra and not installed here")
    items = make_items("tool", 12, 2026)
    data = tmp_path / "calls.jsonl"
    data.write_text("".join(json.dumps({"prompt": i.prompt, "gold": i.gold}) + "\n" for i in items))
    folder = tmp_path / "tasks"
    folder.mkdir()
    text = (TASKS / "ram_calls.yaml").read_text().replace("CALLS_JSONL", str(data))
    (folder / "ram_calls.yaml").write_text(text)
    return folder, items


@pytest.mark.filterwarnings("default")
def test_a_local_lm_eval_task_agrees_with_our_suite(local_task, store):
    folder, items = local_task
    models = {name: asset_path("independent", name) for name in ("tool", "base")}
    how = {"include_path": folder, "store": store}
    asked = EvalSettings(tasks="ram_calls", device="cpu")
    report, again = (evaluate_with_harness(models, asked, **how) for _ in range(2))
    assert list(report.items) == ["ram_calls (exact)", "ram_calls (first-word)"]
    ours = evaluate(models, "demo", limit=12, device="cpu")
    for name in models:
        answers = report.models[name].answers["ram_calls (exact)"]
        texts = [answer.text.strip() for answer in ours.models[name].answers["tool"]]
        assert [answer.text.strip() for answer in answers] == texts
        exact = [text == item.gold for text, item in zip(texts, items, strict=True)]
        assert [answer.is_correct for answer in answers] == exact
        assert again.models[name].answers == report.models[name].answers
        assert sum(score(i, a.text) for i, a in zip(items, answers, strict=True)) >= sum(exact)
    assert report.models["tool"].domains["ram_calls (exact)"].correct >= 9
    assert report.models["tool"].skills == ("ram_calls (exact)",)
    json.dumps(as_json(EvalResult.of(report)), allow_nan=False)


@pytest.mark.filterwarnings("default")
def test_tasks_that_do_not_exist_are_told(local_task):
    folder, _ = local_task
    model = {"tool": asset_path("independent", "tool")}
    with pytest.raises(EvaluationError, match=r"no task 'ram_cals', did you mean 'ram_calls'"):
        evaluate_with_harness(model, EvalSettings(tasks="ram_cals"), include_path=folder)
    with pytest.raises(EvaluationError, match="is not a folder of tasks"):
        evaluate_with_harness(model, EvalSettings(tasks="ram_calls"), include_path=folder / "none")
