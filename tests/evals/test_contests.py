"""Contest problems: programs, the model's own tests for them, and the best of several by those."""

import json
import math
from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest
from loopback_endpoint import serve

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.question import Reply
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings
from ram_studio.evals.suites.published.contests import best_of, converse

# In the form of CURE's data, and of CodeContests.
SUM = {
    "question": "Print the sum of the numbers on a line.",
    "test_time_limit": 1,
    "test_input": ["1 2\n", "4\n"],
    "test_output": ["3\n", " 4 \n"],
    "example_input": ["1 2"],
}
DOUBLE = {"name": "d", "description": "Print twice a number.", "time_limit": {"seconds": 2},
          "public_tests": {"input": ["3"], "output": ["6"]},
          "private_tests": {"input": ["0"], "output": ["0"]},
          "generated_tests": {"input": [], "output": []}}  # fmt: skip
RIGHT = "print(sum(map(int, input().split())))"
FIRST = "print(input().split()[0])"
PROGRAMS = (FIRST, RIGHT, "x = 1 /", f"{RIGHT}  # again")
TESTS = (("5 5", "10"), ("7", "7"), None, ("2 2", "5"))


def said(body: dict) -> str:
    """Return what is drawn with a seed: a program or a test."""
    draw = body.get("seed", 2026) // 1000 - 2
    if "Test Input" not in body["messages"][0]["content"]:
        return f"First:\n```python\nprint('no')\n```\nBetter:\n```python\n{PROGRAMS[draw]}\n```"
    if TESTS[draw] is None:
        return "I cannot."
    given, wanted = TESTS[draw]
    return f"So.\n**Test Input:**\n```\n{given}\n```\n\n**Test Output:**\n```plain\n{wanted}\n```"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "LiveCodeBench.json").write_text(json.dumps([SUM]))
    (tmp_path / "codecontests.jsonl").write_text(json.dumps(DOUBLE))
    return tmp_path


def test_programs_are_judged_by_given_and_chosen_by_own_tests(folder, store):
    how = {"data": folder, "temperature": 1.0, "top_p": 0.95, "samples": 4}
    with serve(said) as server:
        models = {"m": EndpointEngine(server.url, "m", parallel=1)}
        report = evaluate(models, "livecodebench", store=store, **how)
        assert len(server.requests) == 8
        again = evaluate(models, "livecodebench", store=store, **how)
        assert len(server.requests) == 8
    (answer,) = report.models["m"].answers["livecodebench"]
    assert answer.facts["right"] == [False, True, False, True]
    # By program, of the model's own tests: the third is none, the last is wrong.
    solved = [True, True, False, False]
    assert answer.facts["passes"] == [[False, True, False, False], solved, [False] * 4, solved]
    assert not answer.is_correct
    assert "wrote '1" in answer.note
    for one in (report, again):
        found = EvalResult.of(one).models["m"].domains["livecodebench"]
        assert found.samples.mean == 0.5
        assert found.samples.pass_at["2"] == pytest.approx(1 - 1 / 6)
        # Both right programs pass two of their four tests; together they are on top.
        assert found.summary == {"unit tests right": 0.5, "best of 4 by its own tests": 1.0}


def test_greedy_answers_are_one_program_and_one_test(folder):
    with serve(said) as server:
        models = {"m": EndpointEngine(server.url, "m")}
        report = evaluate(models, "codecontests,livecodebench", data=folder)
        assert len(server.requests) == 4
    assert report.models["m"].average.score == 0.0
    (question,) = ALL_SUITES["codecontests"].make(SuiteSettings(len, data=folder))
    assert (question.spec["cases"], question.spec["seconds"]) == ([("3", "6"), ("0", "0")], 3.0)
    judge = ALL_SUITES["codecontests"].judge
    for text, is_right in [("print(2 * int(input()))", True), ("print(6)", False), ("", False)]:
        assert judge(question, text, "auto").is_correct is is_right
    short = replace(question, spec={**question.spec, "seconds": 0.3})
    endless = judge(short, "while True: pass", "auto")
    assert "timeout" in endless.note


@pytest.mark.parametrize("mark", ["\u2028", "\x85"])
def test_a_line_break_of_unicode_parts_no_answer(folder, mark):
    (question,) = ALL_SUITES["codecontests"].make(SuiteSettings(len, data=folder))
    (asked := converse(question)).send(None)
    program = f"```python\n# twice{mark}\nprint(2 * int(input()))\n```"
    asked.send(Reply(program, "", "end"))
    with pytest.raises(StopIteration) as ended:
        asked.send(Reply(said({"messages": [{"content": "Test Input"}]}), "", "end"))
    verdict = ALL_SUITES["codecontests"].judge(question, ended.value.value.text, "auto")
    assert verdict.is_correct, verdict.note
    assert len(verdict.facts["passes"][0]) == 1


def test_rows_come_from_a_folder_alone(tmp_path):
    suite = ALL_SUITES["livecodebench"]
    assert suite.fetch is None
    assert "--data FOLDER" in suite.absent(None)
    with pytest.raises(
        EvaluationError, match=r"livecodebench has no questions here.*--data FOLDER"
    ):
        suite.make(SuiteSettings(len))
    (tmp_path / "livecodebench.json").write_text(json.dumps([{**SUM, "test_input": []}]))
    with pytest.raises(EvaluationError, match="livecodebench, row 1 is not in the form"):
        suite.make(SuiteSettings(len, data=tmp_path))


def brute_force(k: int, right: list[bool], passes: list[list[bool]]) -> float:
    """Draw all programs and tests there are to draw; among the best, one by lot."""
    found = []
    programs, tests = range(len(right)), range(len(passes[0]))
    for drawn, own in product(combinations(programs, k), combinations(tests, k)):
        counts = {p: sum(passes[p][t] for t in own) for p in drawn}
        best = [p for p in drawn if counts[p] == max(counts.values())]
        found.append(sum(right[p] for p in best) / len(best))
    return math.fsum(found) / len(found)


def test_the_estimate_of_best_of_k_is_that_of_all_draws():
    drawn = Random(5)
    for _ in range(60):
        n = drawn.randint(1, 6)
        right = [drawn.random() < 0.4 for _ in range(n)]
        passes = [[drawn.random() < (0.8 if r else 0.3) for _ in range(n)] for r in right]
        for k in range(1, n + 1):
            assert best_of(k, right, passes) == pytest.approx(brute_force(k, right, passes))
        # One of one is the mean; tests that say nothing choose by lot.
        assert best_of(1, right, passes) == pytest.approx(sum(right) / n)
        blind = best_of(n, right, [[False] * n for _ in right])
        assert blind == pytest.approx(sum(right) / n)
