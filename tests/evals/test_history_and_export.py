"""Reports out of the store, and files: nothing a model writes gets out of its place."""

import csv
import dataclasses
import io
import json
from html.parser import HTMLParser

import pytest
from marked_report import marked_report
from typer.testing import CliRunner

import ram_studio as rs
from ram_studio.cli.main import commands
from ram_studio.engine.merge_log import MERGE_LOG_FILE, PastMerge
from ram_studio.errors import EvaluationError, OutputError
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.eval_result import EvalResult, judge
from ram_studio.evals.report.export import (
    as_csv,
    as_html,
    export_report,
    export_result,
    harmless_cell,
)
from ram_studio.evals.report.history import find_runs, stored_report
from ram_studio.evals.report.skill_verdict import Specialists
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore, RunKey

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & \" ' =1+1 \x00\ud800"


def make_report(text: str = HOSTILE, name: str = "m<b>") -> EvalReport:
    item = Question("q<1>", "tool", "simple<i>", text, text, None, 8)
    right = Answer(text, True, text)
    wrong = Answer("=HYPERLINK()", False, finish="failed")
    models = {
        label: ModelAnswers(label, None, {"tool": (answer,)}, 1.0, ("tool",))
        for label, answer in ((name, right), ("other", wrong))
    }
    return EvalReport("tool", 0, {"tool": (item,)}, models)


def test_the_page_escapes_everything_and_is_self_contained():
    report = make_report()
    page = as_html(EvalResult.of(report, report.compare_all(base="other")))
    tags, attributes = set(), set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, given: (tags.add(tag), attributes.update(dict(given)))
    parser.feed(page)
    assert not tags & {"script", "img", "b", "i", "link", "iframe", "a"}
    assert not attributes & {"onerror", "src", "href"}
    assert {"table", "pre"} <= tags
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert "1 comparison was made (Holm, 5 %)." in page


def test_the_page_tells_of_loss_and_health(base_engine):
    """It told neither what was not asked, nor what agents lost, nor health at all."""
    marks = {"base": "1" * 40, "coder": "0" * 40, "other": "1" * 38 + "xx"}
    report = marked_report({name: {"tool": row} for name, row in marks.items()})
    result = judge(report, "base", Specialists({}, report, {}), everyone=["coder"])
    page = as_html(result)
    assert "Agent coder solves 100 points less of skill tool than the base" in page
    assert "other, tool: of 40 questions 2 " in page
    measured = as_html(EvalResult.of(evaluate({"base": base_engine}, "health")))
    assert "<th>Bits per byte</th>" in measured
    assert "Correct answers of n" not in measured


def test_csv_has_a_line_per_answer_and_no_formulas():
    rows = list(csv.reader(io.StringIO(as_csv(make_report(text='plain, "text"\nwith lines')))))
    assert len(rows) == 3
    assert rows[1][4] == 'plain, "text"\nwith lines'
    assert rows[2][6] == "'=HYPERLINK()"
    signs = "=+-@\uff1d\uff0b\uff0d\uff20"
    assert [harmless_cell(f"{sign}1") for sign in signs] == [f"'{sign}1" for sign in signs]


def test_json_has_scores_categories_and_answers():
    data = json.loads(export_result(EvalResult.of(make_report("x")), ".json"))
    # What got no answer is no wrong one.
    other = data["models"]["other"]["domains"]["tool"]
    assert other["score"] is None
    assert other["outcomes"]["failed"] == 1
    assert other["categories"]["simple<i>"]["n"] == 0
    assert [row["correct"] for row in data["answers"]] == [True, False]
    assert data["reproducibility"]["models"]["other"]["outcomes"]["failed"] == 1


def test_files_are_written_whole_in_known_formats_and_places(tmp_path):
    paths = [tmp_path / f"report{ending}" for ending in (".json", ".csv", ".html", ".HTML")]
    for path in (*paths, *paths):
        export_report(EvalResult.of(make_report()), path)
    assert min(path.stat().st_size for path in paths) > 100
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    with pytest.raises(EvaluationError, match=r"'r\.xlsx'.*\.json, \.csv, \.html"):
        export_report(EvalResult.of(make_report()), tmp_path / "r.xlsx")
    with pytest.raises(OutputError, match="cannot be written"):
        export_report(EvalResult.of(make_report()), tmp_path / "gone" / "r.json")


@pytest.fixture(scope="module")
def store(tmp_path_factory, base_engine, coding_engine):
    with AnswerStore(tmp_path_factory.mktemp("history") / "s") as answers:
        evaluate({"base": base_engine}, "demo", limit=6, store=answers)
        evaluate({"coding": coding_engine}, "demo", limit=4, store=answers)
        evaluate({"base": base_engine}, "health", store=answers)
        yield answers


def test_the_past_is_one_table_of_runs_and_merges(store, tmp_path):
    frame = rs.history(store.path)
    asked = set(zip(frame["model"], frame["suite"], strict=True))
    assert asked == {("base", "demo"), ("base", "health"), ("coding", "demo")}
    demo = frame.query("model == 'coding' and suite == 'demo'").iloc[0]
    # The skills, as a check averages them: retention is no part of it.
    assert (demo["n"], demo["score"]) == (12, demo["correct"] / 12)
    assert demo["low95"] < demo["score"] < demo["high95"]
    assert frame["method"].isna().all()
    recipe = {"method": "ram+", "settings": {"r": 0.1}}
    when, agents = "2026-01-01T00:00:00+00:00", {"a": {"lambda": 1.1}}
    past = PastMerge("1", when, "merged", "", None, "/gone", "f" * 32, "ram+", recipe, agents)
    other = dataclasses.replace(past, id="2", name="never asked", fingerprint="e" * 32)
    lines = [json.dumps(dataclasses.asdict(merge)) for merge in (past, other)]
    (tmp_path / MERGE_LOG_FILE).write_text("\n".join(lines))
    with AnswerStore(tmp_path / "s") as answers:
        answers.open_run(RunKey("f" * 32, "math", 1, {}), model="of that folder")
        made = {"recipe": {"method": "ties", "settings": {"density": 0.2}}, "agents": {}}
        answers.open_run(RunKey("d" * 32, "math", 1, {}), model="in memory", merge=made)
    rows = rs.history(tmp_path / "s").set_index("model")
    methods = {"in memory": "ties", "of that folder": "ram+", "never asked": "ram+"}
    assert dict(rows["method"]) == methods
    made = rows.loc["of that folder"]
    assert (made["settings"], made["agents"]) == ({"r": 0.1}, agents)
    assert list(rows["run"].isna()) == [False, False, True]


def test_listed_runs_are_json_with_whole_scores_by_domain(store):
    done = CliRunner().invoke(commands, ["history", "--store", str(store.path), "--json"])
    runs = {(run["model"], run["suite"]): run["domains"] for run in json.loads(done.stdout)}
    code = runs["coding", "demo"]["code"]
    assert (code["n"], code["effective_n"]) == (4, None)
    assert code["ci95"][0] <= code["score"] <= code["ci95"][1]


def test_stored_runs_become_a_report_of_their_common_questions(store, base_engine, coding_engine):
    runs = [run for run in store.runs() if run.suite == "demo"]
    report = stored_report(store, sorted(runs, key=lambda run: run.model))
    # Two of one name are told apart, also where they are behind URLs.
    prints = [run.fingerprint for run in runs]
    for told, urls in ((prints, prints), (2 * ["http:/"], ("http://a/v1#m", "http://b/v1#m"))):
        both = zip(runs, urls, strict=True)
        same = [dataclasses.replace(run, model="m", fingerprint=url) for run, url in both]
        names = list(stored_report(store, same).models)
        assert len(names) == 2
        assert all(n.startswith(f"m ({t[:6]}") for n, t in zip(names, told, strict=True))
    assert list(report.models) == ["base", "coding"]
    # The key leaves the usual ones out; a result names them all the same.
    told = report.models["base"].settings
    assert (told["prompts"], told["shots"]) == ("own", 0)
    assert {len(items) for items in report.items.values()} == {4}
    fresh = evaluate({"base": base_engine, "coding": coding_engine}, "demo", limit=4)
    assert list(report.items) == list(fresh.items), "in the suite's order"
    for name, row in fresh.models.items():
        assert list(report.models[name].domains.items()) == list(row.domains.items())
        assert report.models[name].average.score == row.average.score
    assert len(report.compare_all(base="base")) == 4
    code = EvalResult.of(report).models["base"].domains["code"]
    assert code.categories["code"].n == 4


def test_of_two_runs_of_a_suite_one_is_told_whole(tmp_path):
    question = Question("q", "math", "c", "What?", "1", None, 8)
    with AnswerStore(tmp_path / "s") as store:
        for heat, is_correct in ((0.0, True), (1.0, False)):
            key = RunKey("f" * 32, "math", 6, {"temperature": heat})
            run = store.open_run(key, model="m", path=f"folder at {heat}")
            store.record(run, [(question, Answer("1", is_correct, seconds=0.0))])
        for numbers in ((1, 2), (2, 1)):
            runs = find_runs(store, numbers)
            row = stored_report(store, runs).models["m"]
            assert row.average.correct == runs[0].correct
            assert row.settings["temperature"] == runs[0].settings["temperature"]
            assert row.path == runs[0].path


def test_runs_are_found_by_number(store):
    numbers = [run.id for run in store.runs()]
    assert [run.id for run in find_runs(store, numbers[::-1])] == numbers[::-1]
    with pytest.raises(EvaluationError, match=r"no run 99\. It has: 1, 2, 3"):
        find_runs(store, [99])


def test_runs_that_cannot_be_compared_are_refused(store, tmp_path, base_engine, coding_engine):
    health = [run for run in store.runs() if run.suite == "health"]
    with pytest.raises(EvaluationError, match="No stored run with questions"):
        stored_report(store, health)
    with AnswerStore(tmp_path / "s") as other:
        evaluate({"base": base_engine}, "demo", limit=1, seed=1, store=other)
        evaluate({"coding": coding_engine}, "demo", limit=1, seed=2, store=other)
        with pytest.raises(EvaluationError, match="no question in common"):
            stored_report(other, other.runs())
