"""Code: the shipped references and mutants, and judging what models write."""

import io
import os
from contextlib import nullcontext, redirect_stdout

import pytest

from ram_studio.errors import EvaluationError
from ram_studio.evals.sandbox import AnswerFault, is_sealed
from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings, code
from ram_studio.evals.suites.code import find_code, judge

QUESTIONS = GENERAL_SUITES["code"].make(SuiteSettings(len))
BY_ID = {question.id: question for question in QUESTIONS}
FUNCTION, PROGRAM, TESTS = BY_ID["function-01"], BY_ID["program-01"], BY_ID["tests-01"]

pytestmark = pytest.mark.skipif(not is_sealed(), reason="code cannot be sealed here")


def fenced(code: str) -> str:
    return f"Here you are:\n```python\n{code}\n```\nIt works."


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_shipped_solutions_pass_and_faulty_versions_fail(question, monkeypatch):
    spec = question.spec
    for given, expected in spec.get("cases", ()):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        with redirect_stdout(io.StringIO()) as written:
            exec(question.gold, {})
        assert written.getvalue().split() == expected.split()
    if question.category == "program":
        return
    for version in (spec["reference"], *spec.get("mutants", ())):
        known = {}
        exec(version, known)
        assert callable(known[spec["entry"]])
        try:
            exec(spec["tests"], known)
        except Exception:
            assert version != spec["reference"]
        else:
            assert version == spec["reference"]


@pytest.mark.parametrize("question", [
    pytest.param(q, id=q.id, marks=[] if q in (FUNCTION, PROGRAM, TESTS) else pytest.mark.slow)
    for q in QUESTIONS
])  # fmt: skip
def test_a_shipped_solution_passes(question):
    verdict = judge(question, fenced(question.gold))
    assert verdict.is_correct, verdict.note


@pytest.mark.parametrize(
    "question", [q for q in QUESTIONS if q.category == "function"][:6], ids=lambda q: q.id
)
def test_a_function_that_returns_nothing_fails(question):
    code = f"def {question.spec['entry']}(*_):\n    pass"
    assert "AssertionError" in judge(question, fenced(code)).note


@pytest.mark.parametrize(("code", "note"), [
    ("import sys; sys.exit(0)", "ended before"), ("import os; os._exit(0)", "ended before"),
    ("def count_vowels(text): return 3\ndef f(: pass", "SyntaxError"),
    ("def other(text): return 1", "NameError"), (FUNCTION.gold + "\nprint(", "SyntaxError"),
    ("import socket; socket.socket()", "PermissionError"),
    ("while True: print('x' * 999)", "too much output"),
])  # fmt: skip
def test_wrong_functions_fail_with_a_reason(code, note):
    verdict = judge(FUNCTION, fenced(code))
    assert not verdict.is_correct
    assert note in verdict.note


HELPED = FUNCTION.gold.replace("sum(", "add(")
SCRIPT = FUNCTION.gold + "\nprint(count_vowels('x'))\nif __name__ == '__main__':\n    input()"


@pytest.mark.parametrize("blocks", [
    # A script part with a guard and examples of use do no harm.
    [SCRIPT], ["from __future__ import annotations\n" + SCRIPT],
    *([FUNCTION.gold, use] for use in (
        "print(count_vowels([[1]]))", "print(count_vowels('x')", "1 / 0")),
    # What is part of the answer is kept: helpers before and after.
    [HELPED, "def add(x):\n    return sum(x)"], ["from builtins import sum as add", HELPED],
])  # fmt: skip
def test_what_stands_beside_a_right_function_does_no_harm(blocks):
    verdict = judge(FUNCTION, "".join(map(fenced, blocks)))
    assert verdict.is_correct, verdict.note


def test_programs_are_compared_line_by_line():
    assert judge(PROGRAM, fenced("a, b = map(int, input().split())\nprint(a + b, ' ')")).is_correct
    verdict = judge(PROGRAM, fenced("print(7)"))
    assert verdict.note == "for input '-10 2\\n': wrote '7\\n'"
    assert "ValueError" in judge(PROGRAM, fenced("print(int(input()))")).note


def test_unit_tests_must_accept_right_and_reject_faulty_code():
    weak = judge(TESTS, fenced("assert clamp(5, 0, 10) == 5"))
    assert weak.note == "rejects 1 of 3 faulty versions"
    assert weak.facts == {"mutants_rejected": 1, "mutants": 3}
    wrong = judge(TESTS, fenced("assert clamp(5, 0, 10) == 6"))
    assert "rejects a right version" in wrong.note
    assert judge(TESTS, fenced("assert True")).note == "no assert that calls clamp"
    own = fenced("def clamp(v, a, b): return v\nassert clamp(1, 0, 2) == 1")
    assert judge(TESTS, own).note == "defines the function itself"
    assert not judge(TESTS, fenced("assert clamp(5, 0, 10) == 5\nexit(0)")).is_correct


# A file of /proc gets its time when it is first looked at: a trace that a later process finds.
LATER_RUNS_REFUSE = """import os, time
age = time.time() - os.stat({path!r}).st_mtime
assert clamp(5, 0, 10) == 5
assert age < 0.04
"""


@pytest.mark.parametrize("name", ["wchan", "personality", "limits", "syscall"])
def test_unit_tests_that_accept_their_first_run_alone_fail(name):
    text = LATER_RUNS_REFUSE.format(path=f"/proc/{os.getpid()}/{name}")
    assert not judge(TESTS, fenced(text)).is_correct


def test_no_fixed_order_of_verdicts_passes_as_unit_tests(monkeypatch):
    """Tests that accept some runs of a judgment, whatever the version, pass by chance alone."""
    verdicts = []

    def run_tests(*_, **__):
        if not verdicts.pop():
            raise AnswerFault("refused")

    monkeypatch.setattr(code, "run_tests", run_tests)
    monkeypatch.setattr(code, "sealed_function", lambda *_, **__: nullcontext())
    runs = len(TESTS.spec["mutants"]) + code.RIGHT_RUNS
    for accepted in ({0}, set(range(code.RIGHT_RUNS)), set(range(0, 2 * code.RIGHT_RUNS, 2))):
        right = 0
        for _ in range(30):
            verdicts[:] = [run in accepted for run in reversed(range(runs))]
            right += judge(TESTS, fenced("assert clamp(5, 0, 10) == 5")).is_correct
        # At most one in 35 passes by chance: 10 of 30 do so less than once in ten million.
        assert right < 10


@pytest.mark.parametrize(("text", "source"), [
    ("Text\n```python\na = 1\n```\nmore\n```py\nb = 2\n```", "a = 1\n\nb = 2"),
    ("```\nx = 1\n```", "x = 1"), ("```python\nx = 1", "x = 1"), ("x = 1", "x = 1"),
    ("```bash\nls\n```\ndef f():\n    pass", "def f():\n    pass"),
    ("Sure.\ndef f():\n    return 1", "def f():\n    return 1"),
])  # fmt: skip
def test_code_is_found_in_blocks_or_prose(text, source):
    assert find_code(text) == source


def test_with_code_off_nothing_is_judged():
    with pytest.raises(EvaluationError, match="switched off"):
        judge(FUNCTION, fenced("x = 1"), "off")
