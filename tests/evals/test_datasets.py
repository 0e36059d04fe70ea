"""Benchmarks that are data sets: from tiny files in the form of the published ones."""

import json
import re
from collections import Counter
from contextlib import ExitStack

import huggingface_hub
import pytest
from loopback_endpoint import serve
from loopback_hub import Repository, serving
from published_rows import HOTPOT, ROWS, SAID, SQUAD, write_rows
from typer.testing import CliRunner

from ram_studio.cli.main import commands
from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings, instructions, published
from ram_studio.evals.suites.published import math500
from ram_studio.evals.suites.unavailable import find_unavailable
from ram_studio.resources import asset_path

NAMES = [suite.name for suite in published.SUITES if suite.fetch]


@pytest.fixture
def folder(tmp_path):
    return write_rows(tmp_path)


def questions(name, folder, **settings):
    settings = {"lengths": (400,), **settings}
    return ALL_SUITES[name].make(
        SuiteSettings(lambda text: -(-len(text) // 4), data=folder, **settings)
    )


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_score_1_and_random_ones_stay_at_chance(name, folder):
    known = {q.prompt: SAID.get(name, lambda q: q.gold)(q) for q in questions(name, folder)}
    assert len(known) == (5 if name == "gsm8k" else 6 if name.startswith("ruler") else 2)
    said = {
        "right": lambda body: known[body["messages"][0]["content"]],
        "empty": lambda body: "",
        "random": lambda body: "of the and which river all. 7",
    }
    with ExitStack() as running:
        servers = {kind: running.enter_context(serve(say)) for kind, say in said.items()}
        models = {kind: EndpointEngine(server.url) for kind, server in servers.items()}
        report = evaluate(models, name, data=folder, lengths=(400,))
    for model in report.models.values():
        (score,) = model.domains.values()
        assert score.n == len(known)  # none that failed is left out
    scores = {kind: model.average.score for kind, model in report.models.items()}
    assert scores["right"] == 1.0
    assert scores["empty"] == 0.0 <= report.chance_levels[name]
    assert scores["random"] <= report.chance_levels[name] < 1.0


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("gsm8k", ["#### 1,000", "1000 it is"], ["#### 1001\n#### 1000"]),
    ("nq", ["edgar allan poe. He was a poet.", "The answer is Poe"], ["Not Edgar Allan Poe"]),
    ("math500", ["\\boxed{1} no, \\boxed{\\dfrac12}", "The answer is 0.5."], ["0.5"]),
    ("mbpp", ["def twice(n):\n    return n + n"],
     ["def twice(n):\n    raise SystemExit", "import os\ndef twice(n): return n\nos._exit(0)"]),
    ("ifeval", ["One two three. Bye now."], ["Sure:\nOne two three. Bye now.\nAnything else?"]),
])  # fmt: skip
def test_answers_are_judged_by_the_published_rules(name, right, wrong, folder):
    question, judge = questions(name, folder)[0], ALL_SUITES[name].judge
    for text in (*right, *wrong):
        assert judge(question, text, "auto").is_correct is (text in right), text


def test_one_of_rulers_answers_is_said_whatever_the_case(folder):
    for question in questions("ruler-squad", folder):
        verdict = ALL_SUITES["ruler-squad"].judge(question, "it is 10 MILES", "off")
        assert verdict.is_correct is ("10 miles" in question.spec["answers"])


def squad_of(folder, *articles):
    """Write articles of paragraphs as SQuAD does, with a question about each paragraph."""
    data = [
        {"title": f"Article {number}", "paragraphs": [
            {"context": text, "qas": [{"id": f"{number}-{place}", "question": "Which?",
                                       "answers": [{"text": text[:5]}]}]}
            for place, text in enumerate(texts)]}
        for number, texts in enumerate(articles)
    ]  # fmt: skip
    (folder / "dev-v2.0.json").write_text(json.dumps({"data": data}))
    return folder


def test_paragraphs_of_the_same_article_come_first(tmp_path):
    squad_of(tmp_path, *([f"{letter}{n} " * 20 for n in range(5)] for letter in "abcdefgh"))
    few = questions("ruler-squad", tmp_path, lengths=(230,), limit=20)
    for question in few:
        letters = set(re.findall(r"\n([a-h])\d ", question.reading[0]))
        assert letters == {question.gold[0]}
    assert {q.reading[0].count("Document ") for q in few} <= {3, 4, 5}
    # With all five of them there is room for others.
    more = questions("ruler-squad", tmp_path, lengths=(500,), limit=20)
    for question in more:
        found = [one[0] for one in re.findall(r"\n([a-h]\d) ", question.reading[0])]
        assert found.count(question.gold[0]) == 5 < len(found)


def test_documents_repeat_where_the_library_runs_out(tmp_path):
    squad_of(tmp_path, ["a0 " * 20, "a1 " * 20], ["b0 " * 20])
    for question in questions("ruler-squad", tmp_path, lengths=(1000,)):
        verdict = ALL_SUITES["ruler-squad"].judge(question, question.gold, "off")
        assert 0.95 < verdict.facts["filled"] <= 1
        assert verdict.note == ""
        found = Counter(re.findall(r"\n(\w\d) ", question.reading[0]))
        assert max(found.values()) - min(found.values()) == 1
        assert set(found) == {"a0", "a1", "b0"}


def test_a_text_that_is_shorter_than_asked_says_so(tmp_path):
    squad_of(tmp_path, ["a0 " * 20, "a1 " * 2000])
    with serve(lambda body: "a0 a0") as server:
        models = {"m": EndpointEngine(server.url)}
        report = evaluate(models, "ruler-squad", data=tmp_path, lengths=(500,))
    (answer,) = report.models["m"].answers["ruler-squad"]
    assert answer.is_correct
    assert answer.note == "the text fills 30% of its length"
    domains = EvalResult.of(report).models["m"].domains
    assert domains["ruler-squad"].summary == {"texts below 90% of their length": 1.0}


def test_further_figures_are_told_as_their_publishers_do(folder):
    replies = iter(["Sure:\nOne two three. Bye now.\nMore?", "Elbe", "Allan Poe", "1845"])
    with serve(lambda body: next(replies)) as server:
        engine = EndpointEngine(server.url, parallel=1)
        report = evaluate({"m": engine}, "ifeval,nq", data=folder)
    figures = {d: r.summary for d, r in EvalResult.of(report).models["m"].domains.items()}
    assert figures["nq"] == {"F1": (0.8 + 1) / 2}
    # Loosely, first and last lines do not count.
    assert figures["ifeval"] == {
        "prompt level, strict": 0.5,
        "prompt level, loose": 1.0,
        "instruction level, strict": 2 / 3,
        "instruction level, loose": 1.0,
    }


def test_a_text_is_made_of_documents_to_the_length(folder):
    short = questions("ruler-hotpotqa", folder, lengths=(220,), limit=2)
    long = questions("ruler-hotpotqa", folder, lengths=(330,), limit=2)
    assert questions("ruler-hotpotqa", folder, lengths=(220,), limit=2, seed=9) == short
    for question in (*short, *long):
        text, asked = question.reading
        assert text in question.prompt
        assert question.gold in text
        assert question.gold not in asked
    counts = [[q.reading[0].count("Document ") for q in asked] for asked in (short, long)]
    assert max(counts[0]) < min(counts[1]) <= 12
    for lengths, said in {(20,): "20 tokens is too short", (): "No length was given"}.items():
        with pytest.raises(EvaluationError, match=said):
            questions("ruler-squad", folder, lengths=lengths, limit=2)
    # The Hub's form of the same rows.
    flat = [{**row, "id": row["_id"], "context": {
        "title": [title for title, _ in row["context"]],
        "sentences": [sentences for _, sentences in row["context"]],
    }} for row in HOTPOT]  # fmt: skip
    (folder / "ruler-hotpotqa.jsonl").write_text("\n".join(map(json.dumps, flat)))
    assert questions("ruler-hotpotqa", folder, lengths=(220,), limit=2) == short


def test_rows_of_rulers_own_generator_are_asked_as_they_stand(tmp_path):
    ask = "Answer the question based on the given documents."
    row = {
        "index": 7,
        "input": f"{ask}\n\nDocument 1:\nThe Elbe is long.\n\n{ask}\n\nQuestion: What is long?",
        "outputs": ["The Elbe", "Elbe"],
        "length": 60,
        "answer_prefix": " Answer:",
    }
    (tmp_path / "qa_1").mkdir()
    (tmp_path / "qa_1" / "validation.jsonl").write_text(json.dumps(row))
    (tmp_path / "qa_2.jsonl").write_text(json.dumps({**row, "input": row["input"] + " Answer:"}))
    for name in ("ruler-squad", "ruler-hotpotqa"):
        (question,) = questions(name, tmp_path)
        assert question.reading[0].strip().endswith(ask)
        assert question.reading[1].endswith("Question: What is long?")
        assert ALL_SUITES[name].judge(question, "the elbe", "off").is_correct
    assert questions("ruler-squad", tmp_path)[0].prompt == row["input"] + " Answer:"


def test_a_tasks_function_is_found_among_what_its_tests_call(tmp_path):
    tests = (
        ("assert set(similar((3, 4), (5, 4))) == set((4,))", "similar"),
        ("assert round(area(2), 2) == 12.57", "area"),
        ("assert len(str(digits(7))) == 1", "digits"),
    )
    rows = [
        # As in the sanitized version.
        {"source_file": "x", "task_id": 20 + n, "prompt": "Write it.", "code": "def f(): pass",
         "test_imports": ["import math"], "test_list": [test]}
        for n, (test, _) in enumerate(tests)
    ]  # fmt: skip
    (tmp_path / "sanitized-mbpp.json").write_text(json.dumps(rows))
    made = questions("mbpp", tmp_path)
    assert [question.spec["entry"] for question in made] == [name for _, name in tests]
    assert made[0].spec["tests"].startswith("import math\nassert set(")


def test_every_instruction_of_ifeval_has_a_check():
    # The authors' registry.
    families = {
        "keywords": "existence frequency forbidden_words letter_frequency",
        "language": "response_language",
        "length_constraints": "number_sentences number_paragraphs number_words "
        "nth_paragraph_first_word",
        "detectable_content": "number_placeholders postscript",
        "detectable_format": "number_bullet_lists constrained_response json_format title "
        "number_highlighted_sections multiple_sections",
        "combination": "two_responses repeat_prompt",
        "startend": "end_checker quotation",
        "change_case": "capital_word_frequency english_capital english_lowercase",
        "punctuation": "no_comma",
    }
    names = [f"{family}:{kind}" for family, kinds in families.items() for kind in kinds.split()]
    assert (len(names), set(names)) == (25, set(instructions.CHECKS))


def following(instruction, *settings):
    return {"key": 9, "prompt": "p", "instruction_id_list": [instruction], "kwargs": settings}


FORM = "row 1 is not in the form .*"
HALF = "holds half a character"
WAR = {"keyword": "war", "relation": "at least"}


@pytest.mark.parametrize(("name", "content", "said"), [
    ("gsm8k", None, "holds nothing. Put gsm8k.jsonl .*columns question, answer.*--data FOLDER"),
    ("gsm8k", {"question": "q"}, "row 1: column answer is missing; it has question"),
    ("gsm8k", {"question": "q", "answer": "5"}, 'row 1: the answer has no "#### <number>"'),
    ("gsm8k", {"question": "\ud800", "answer": "#### 5"}, HALF),
    ("math500", {**ROWS["math500"][0], "subject": "\ud800"}, HALF),
    ("ruler-hotpotqa", {**HOTPOT[0], "question": "\ud800"}, HALF),
    ("gsm8k", "{", "line 1 is not JSON"), ("gsm8k", "[1]", "expected a list of objects"),
    ("gsm8k", "", "holds no row"),
    ("ifeval", following("keywords:frequency", WAR),
     "key 9: keywords:frequency has missing .*frequency"),
    ("ifeval", following("keywords:frequency", {**WAR, "keyword": 5, "frequency": 1}),
     "key 9: keywords:frequency has arguments .*'int' object has no attribute 'lower'"),
    ("ifeval", following("keywords:rhyme", WAR), "key 9: there is no check of 'keywords:rhyme'"),
    ("ifeval", following("punctuation:no_comma"), FORM + "argument 2 is shorter"),
    ("ifeval", {**following(""), "instruction_id_list": []}, FORM + "IndexError"),
    ("nq", {"question": "q", "answer": []}, FORM + "IndexError"),
    ("codecontests", {"description": "d", "public_tests": {"input": [""], "output": [""]},
                      "time_limit": {"seconds": 10**400}}, FORM + "OverflowError"),
    ("mbpp", {"task_id": "x", "text": "", "code": "", "test_list": []}, FORM + "ValueError"),
    ("ruler-hotpotqa", {"question": "q", "answer": "a", "context": [["t"]]}, FORM + "ValueError"),
    ("ruler-hotpotqa", {"input": "q", "outputs": []}, "row 1: outputs holds no answer"),
    ("math500", f"{json.dumps(ROWS['math500'][0])}\n" * 2,
     "2 questions have the id 'test/algebra/1.json'. Give each row of the data an id of its own."),
    ("ruler-squad", {"input": "q", "outputs": None}, FORM + "TypeError"),
    ("ruler-squad", {"question": "q", "answers": [], "context": "c"}, FORM + "TypeError"),
])  # fmt: skip
def test_it_is_said_what_is_missing_before_anything_is_asked(name, content, said, tmp_path):
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / f"{name}.jsonl").write_text(text)
    with serve(lambda body: "5") as server:
        models = {"m": EndpointEngine(server.url)}
        with pytest.raises(EvaluationError, match=said):
            evaluate(models, f"math,{name}", data=tmp_path)
    assert not server.requests


def test_a_file_that_cannot_be_asked_spoils_no_other_suite(tmp_path):
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "q"}')
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(SQUAD))
    asked = ("gsm8k", "ruler-squad", "math")
    found = find_unavailable(asset_path("independent", "base"), asked, 20, tmp_path)
    # Texts may be longer than the shortest.
    assert found.keys() == {"gsm8k", "math"}
    assert "column answer is missing" in found["gsm8k"]
    assert "the context has 256" in found["math"]


def test_the_hub_is_asked_for_the_pinned_revision_once(tmp_path, monkeypatch, caplog):
    data = math500.DATA
    content = "\n".join(json.dumps(row) for row in ROWS["math500"]).encode()
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        for status in (None, 503):
            hub.status, hub.requests[:] = status, []
            with pytest.raises(EvaluationError, match=r"no questions here: .*Put math500\.jsonl"):
                questions("math500", None)
            # Nobody waits for one try after another to learn that there is nothing to be had.
            assert len(hub.requests) == 1
    listed = CliRunner().invoke(commands, ["suites", "--json"])
    (row,) = (r for r in json.loads(listed.stdout)["suites"] if r["name"] == "math500")
    assert "not on this machine" in row["absent"]
    with serving() as hub:
        commits = {"f" * 40: {}, data.revision: {data.file: content}}
        hub.repositories[f"datasets/{data.repository}"] = Repository(commits, {"main": "f" * 40})
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        assert len(questions("math500", None)) == 2
    huggingface_hub.close_session()
    with pytest.raises(EvaluationError, match=r"could not be downloaded .*Put gsm8k\.jsonl"):
        questions("gsm8k", None)
    assert not caplog.records
    # The Hub has gone: what is in the cache is there.
    assert len(questions("math500", None)) == 2
    assert not ALL_SUITES["math500"].absent(None)


def test_languages_need_langdetect_and_it_is_said_so(folder, monkeypatch):
    row = {**ROWS["ifeval"][0], "instruction_id_list": ["language:response_language"],
           "kwargs": [{"language": "de"}]}  # fmt: skip
    (folder / "ifeval.jsonl").write_text(json.dumps(row))
    monkeypatch.setattr(instructions, "find_spec", lambda name: None)
    with pytest.raises(EvaluationError, match=r"response_language.*ram-studio\[ifeval\]"):
        questions("ifeval", folder)


def test_parquet_is_read_with_pyarrow_or_it_is_said_so(tmp_path, monkeypatch):
    (tmp_path / "gsm8k.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(EvaluationError, match=r"ram-studio\[datasets\]"):
        questions("gsm8k", tmp_path)


def test_the_command_line_takes_the_folder_and_the_mode(folder):
    def run(*words):
        return CliRunner().invoke(commands, ["evaluate", "m", "--no-store", "--json", *words])

    with serve(lambda body: "#### 1000") as server:
        at = f"--endpoint={server.url}"
        done = run(at, "--suite=gsm8k", f"--data={folder}")
        told = json.loads(done.stdout)
        assert told["models"]["m"]["domains"]["gsm8k"]["correct"] == 1
        sizes = ("--mode=memagent", "--chunk-tokens=60", "--memory-tokens=9")
        done = run(at, "--suite=ruler-squad", "--lengths=250", f"--data={folder}", *sizes)
        told = json.loads(done.stdout)
        asked = told["reproducibility"]["models"]["m"]["settings"]
        assert (asked["mode"], asked["chunk_tokens"], asked["memory_tokens"]) == ("memagent", 60, 9)
        assert sum(body["max_tokens"] == 9 for _, _, body in server.requests) >= 6
        done = run(at, "--suite=gsm8k", f"--data={folder}", *sizes)
        assert "None of these suites has long texts" in str(done.exception)
