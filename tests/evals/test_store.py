"""The store: commits, resuming keys, several processes, damage."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.store import AnswerStore, RunKey, default_store_path

ORIGIN = {"software": {"torch": "2.0"}, "seed": 7}
KEY = RunKey("f" * 64, "math", 1, {"chat": "none", "seed": 0})


def row(number: int, *, finish: str = "end", correct: bool = True):
    question = Question(f"q-{number:02d}", "math", "easy", f"{number}?", "4", None, 8)
    told = (correct, "why" * correct, {"parts": [1, number]}, 0.25, finish, ORIGIN)
    return question, Answer(f"it's {number} \x00 ☃", *told, f"<{number}?>", 3)


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def test_what_was_recorded_comes_back_from_a_store_opened_anew(tmp_path):
    given = [row(1), row(2, correct=False)]
    with AnswerStore(tmp_path / "deep" / "s.sqlite3") as store:
        run = store.open_run(KEY, model="one", path="/models/one")
        store.record(run, given)
    with AnswerStore(tmp_path / "deep" / "s.sqlite3") as store:
        found = store.answers(run)
        assert [row.answer for row in found] == [answer for _, answer in given]
        assert found[0].question == Question("q-01", "math", "easy", "1?", "4", None, 0)
        (known,) = store.runs()
        assert (known.model, known.answered, known.correct, known.seconds) == ("one", 2, 1, 0.5)
        assert known.settings == {"chat": "none", "seed": 0}


def test_equal_keys_share_a_run_and_any_difference_makes_another(store):
    run = store.open_run(KEY, model="one")
    assert store.open_run(KEY, model="renamed") == run
    assert store.runs()[0].model == "renamed"
    others = [
        RunKey("e" * 64, "math", 1, KEY.settings),
        RunKey("f" * 64, "tool", 1, KEY.settings),
        RunKey("f" * 64, "math", 2, KEY.settings),
        RunKey("f" * 64, "math", 1, {**KEY.settings, "seed": 1}),
    ]
    assert len({run, *(store.open_run(key, model="x") for key in others)}) == 5


def test_answers_of_the_same_key_come_from_another_file(tmp_path):
    with AnswerStore(tmp_path / "theirs") as theirs:
        run = theirs.open_run(KEY, model="their name", path="/their/place")
        theirs.record(run, [row(1), row(2, finish="failed", correct=False), row(3)])
        other = theirs.open_run(RunKey("e" * 64, "math", 1, {}), model="another")
        theirs.record(other, [row(4)])
    with AnswerStore(tmp_path / "ours") as ours:
        run = ours.open_run(KEY, model="ours")
        ours.record(run, [row(1, correct=False)])
        ours.adopt(run, KEY, tmp_path / "theirs")
        ours.adopt(run, KEY, tmp_path / "missing")
        assert [
            (a.question.id, a.answer.is_correct, a.answer.origin) for a in ours.answers(run)
        ] == [
            ("q-01", False, ORIGIN),
            ("q-03", True, ORIGIN),
        ]
        assert [(known.model, known.path) for known in ours.runs()] == [("ours", None)]
    assert not (tmp_path / "missing").exists()


def test_how_a_merge_was_made_is_stored(tmp_path):
    with AnswerStore(tmp_path / "s") as store:
        old = store.open_run(KEY, model="one")
        store.record(old, [row(1)])
    made = {"recipe": {"method": "ram+"}, "agents": {"a": {"lambda": 1.1}}, "seconds": 2.0}
    with AnswerStore(tmp_path / "s") as store:
        assert (store.runs()[0].answered, store.runs()[0].merge) == (1, None)
        run = store.open_run(
            RunKey("e" * 64, "math", 1, {}), model="two", merge={"recipe": {"method": "ram+"}}
        )
        store.set_merge(run, made)
        # What is known by now is not lost to a run that has only just begun.
        store.open_run(RunKey("e" * 64, "math", 1, {}), model="two", merge={"recipe": {}})
        assert store.merge_of(run) == store.runs()[0].merge == made
        assert store.merge_of(old) is None


def test_a_failed_attempt_is_stored_until_an_answer_replaces_it(store):
    run = store.open_run(KEY, model="one")
    for finish, answered in (("failed", 0), ("end", 1)):
        store.record(run, [row(1, finish=finish, correct=bool(answered))])
        (known,) = store.runs()
        assert (known.answered, known.correct, len(store.answers(run))) == (answered, answered, 1)


def test_forgetting_a_run_leaves_the_others(store):
    runs = [store.open_run(RunKey(x, "math", 1, {}), model=x) for x in ("a", "b")]
    for run in runs:
        store.record(run, [row(1)])
    assert store.open_run(RunKey("a", "math", 1, {}), model="a", rerun=True) == runs[0]
    assert [len(store.answers(run)) for run in runs] == [0, 1]


def test_a_failed_batch_leaves_nothing_broken_text_is_readable(store):
    run = store.open_run(KEY, model="one")
    question, _ = row(1)
    with pytest.raises(TypeError):
        store.record(run, [row(1), (row(2)[0], Answer("", True, facts={"not json": object()}))])
    assert store.answers(run) == []
    # What lm-eval's tasks ask is as anybody's data set has it.
    question = replace(question, prompt="a\ud800b", gold="a\ud800b", category="a\ud800b")
    store.record(run, [(question, Answer("a\ud800b", True, seconds=0.0))])
    assert [row.answer.text for row in store.answers(run)] == ["a?b"]


WRITER = """
import sys, time
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.store import AnswerStore, RunKey
with AnswerStore(sys.argv[1]) as store:
    run = store.open_run(RunKey(sys.argv[2], "math", 1, {}), model="m")
    for i in range(int(sys.argv[3])):
        question = Question(f"q-{i:04d}", "math", "c", "p" * 2000, "g", None, 8)
        store.record(run, [(question, Answer("x" * 2000, True, seconds=0.0, prompt="p"))])
        print(i, flush=True)
"""


def writer(path: Path, fingerprint: str, count: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), fingerprint, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_a_killed_writer_loses_nothing_that_was_recorded(tmp_path):
    with writer(tmp_path / "s", "a", 10**6) as process:
        next(line for line in process.stdout if int(line) >= 40)
        process.kill()
        process.communicate()
    with AnswerStore(tmp_path / "s") as store:
        run = store.open_run(RunKey("a", "math", 1, {}), model="m")
        items = [answer.question.id for answer in store.answers(run)]
    assert len(items) >= 41
    assert items == [f"q-{i:04d}" for i in range(len(items))]


def test_two_processes_write_into_one_new_store(tmp_path):
    processes = [writer(tmp_path / "s", name, 30) for name in ("a", "b")]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    with AnswerStore(tmp_path / "s") as store:
        assert [run.answered for run in store.runs()] == [30, 30]


def test_a_store_with_overwritten_pages_is_refused(tmp_path):
    path = tmp_path / "s"
    with AnswerStore(path) as store:
        run = store.open_run(KEY, model="one")
        for number in range(60):
            store.record(run, [row(number)])
    content = bytearray(path.read_bytes())
    content[4096:-4096] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(EvaluationError, match="is damaged"):
        AnswerStore(path)


def test_files_that_are_no_stores_are_refused_and_left_alone(tmp_path):
    (tmp_path / "noise").write_bytes(b"noise" * 1000)
    execute(tmp_path / "other", "CREATE TABLE notes (text)")
    AnswerStore(tmp_path / "newer").close()
    execute(tmp_path / "newer", "PRAGMA user_version = 7")
    for path, said in (
        (tmp_path / "noise", r"is damaged.*Move the file away"),
        (tmp_path / "noise" / "s", "cannot be used"),
        (tmp_path, "cannot be used"),
        (tmp_path / "other", "another program"),
        (tmp_path / "newer", r"format 7.*reads format 1"),
    ):
        with pytest.raises(EvaluationError, match=said):
            AnswerStore(path)
    assert (tmp_path / "noise").read_bytes() == b"noise" * 1000


def test_the_default_path_lies_in_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path))
    assert default_store_path() == tmp_path / "answers.sqlite3"
    monkeypatch.delenv("RAM_STUDIO_HOME")
    assert default_store_path().name == "answers.sqlite3"
    assert "ram-studio" in default_store_path().parts
