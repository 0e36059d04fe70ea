"""Suites `livecodebench` and `codecontests`: programs for contest problems, and tests for them.

For each problem the model writes programs and, separately, tests (an input with its output), as
many of each as `--samples`. As in CURE (arXiv 2506.03136) a program is right when it passes the
first 8 of the problem's own tests, ignoring white space; a test is right when all right programs
pass it, on problems with a right program; and the best of k is the program that passes most of the
model's own tests. Rows are those of CURE's data sets, all with standard input and output, or
CodeContests' own.

An answer is a line of JSON for each program and test. The score is that of the first program. The
prompts are our own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from ram_studio.evals.question import NO_ANSWER, SAMPLES, Conversation, Question, Reply, Verdict
from ram_studio.evals.sandbox import CodeSwitch, Limits, run_program
from ram_studio.evals.suites.code import PROMPTS, find_code
from ram_studio.evals.suites.published.rows import DataSet, Row
from ram_studio.evals.suites.suite import Suite, SuiteSettings, Tally, visible

MAX_NEW_TOKENS = 1024
MOST_TESTS = 8
"""Number of a problem's own tests to run, as in CURE."""
BEST_OF = 4
_MOST_DRAWN_TESTS = 16
_TEST_PROMPT = """{task}

Do not write the program. Write one test for it: a valid input that wrong programs are likely to \
fail on, and the output that a right program writes. Work the output out step by step first. End \
with the test in this form:

**Test Input:**
```
the input
```
**Test Output:**
```
the output
```"""
_BLOCK = r"[*:\s]*```(?:[a-z]*\n)?(.*?)```"
_INPUT = re.compile(r"test input" + _BLOCK, re.DOTALL | re.IGNORECASE)
_OUTPUT = re.compile(r"test output" + _BLOCK, re.DOTALL | re.IGNORECASE)
# For the start of Python.
_START_SECONDS = 1.0
_MOST_SECONDS = 10.0


def _cases(row: Row) -> list[tuple[str, str]]:
    if "test_input" in row:
        pairs = list(zip(row["test_input"], row["test_output"], strict=True))
    else:
        named = ("public_tests", "private_tests", "generated_tests")
        columns = [row[name] for name in named if row.get(name)]
        pairs = [pair for own in columns for pair in zip(own["input"], own["output"], strict=True)]
    if not pairs:
        raise ValueError("no test")
    return [(str(given), str(wanted)) for given, wanted in pairs[:MOST_TESTS]]


def _seconds(row: Row) -> float:
    limit = row.get("test_time_limit") or row.get("time_limit") or 1
    if isinstance(limit, Mapping):
        limit = float(limit.get("seconds") or 0) + float(limit.get("nanos") or 0) / 1e9
    return min(float(limit), _MOST_SECONDS) + _START_SECONDS


def _suite(data: DataSet, title: str, about: str) -> Suite:
    def make(settings: SuiteSettings) -> Sequence[Question]:
        fields = partial(_fields, data.name, settings.samples)
        return data.make(MAX_NEW_TOKENS, fields)(settings)

    more: dict[str, Any] = {"converse": converse, "summary": summary, "draws_samples": True}
    return data.suite(2, title, make, judge, about, runs_code=True, **more)


def _fields(name: str, samples: int, number: int, row: Row) -> dict[str, Any]:
    task, cases = str(row.get("question") or row["description"]).strip(), _cases(row)
    return {
        # The number of samples changes the answer.
        "id": f"{name}-{number:04d}-{samples}",
        "prompt": PROMPTS["program"].format(task=task),
        "gold": f"{cases[0][0]} -> {cases[0][1]}",
        "spec": {
            "samples": samples,
            "cases": cases,
            "seconds": _seconds(row),
            "test_prompt": _TEST_PROMPT.format(task=task),
        },
    }


def converse(question: Question, code: CodeSwitch = "auto") -> Conversation:
    """Request a problem's programs and tests in turn; return all of them as one reply."""
    replies, lines = list[Reply](), list[str]()
    for kind, prompt in (("program", question.prompt), ("test", question.spec["test_prompt"])):
        for draw in range(question.spec["samples"]):
            reply = yield replace(question, prompt=prompt, draw=draw)
            if reply.finish in NO_ANSWER and reply.finish != "timed_out":
                return reply
            replies.append(reply)
            lines.append(json.dumps({kind: visible(reply.text)}, ensure_ascii=False))
    late = sum(one.finish == "timed_out" for one in replies[1:])
    notes = (replies[0].note, f"{late} further requests timed out" if late else "")
    return replace(replies[0], text="\n".join(lines), note="; ".join(filter(None, notes)))


def judge(question: Question, text: str, code: CodeSwitch = "auto") -> Verdict:
    """Run the programs on the problem's tests and on the model's own.

    Raises: EvaluationError: code may not run here, see `sandbox.check_code_allowed`.
    """
    programs, tests = _parse_programs(text)
    limits = Limits(seconds=question.spec["seconds"])
    own = [_read_test(test) for test in tests]
    right, passes, note = [], [], ""
    for number, program in enumerate(programs):
        faults = (_fault(program, case, code, limits) for case in question.spec["cases"])
        fault = next(filter(None, faults), "")
        right.append(not fault)
        passes.append(
            [test is not None and not _fault(program, test, code, limits) for test in own]
        )
        note = note if number else fault
    facts: dict[str, Any] = {"right": right, "passes": passes}
    if len(right) > 1:
        facts[SAMPLES] = right
    return Verdict(right[0], note, facts)


def _parse_programs(text: str) -> tuple[list[str], list[str]]:
    """Return the programs and tests of an answer; a text in another form is a program."""
    try:
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        programs = [str(row["program"]) for row in rows if "program" in row]
        tests = [str(row["test"]) for row in rows if "test" in row]
    except (ValueError, TypeError, KeyError, RecursionError):
        programs, tests = [], []
    found = programs or [text]
    # The last of several versions counts.
    last = [one[max(0, one.rfind("```python")) :] for one in found]
    return [find_code(one) for one in last], tests


def _read_test(text: str) -> tuple[str, str] | None:
    """Return the last test in a text, None without one."""
    given, wanted = _INPUT.findall(text), _OUTPUT.findall(text)
    return (given[-1], wanted[-1]) if given and wanted else None


def _fault(program: str, case: tuple[str, str], code: CodeSwitch, limits: Limits) -> str:
    """Return why a program fails a test, "" where it passes."""
    given, wanted = case
    if not program.strip():
        return "no program"
    result = run_program(program, given.rstrip("\n") + "\n", code=code, limits=limits)
    if result.outcome != "done":
        return f"for input {given!r:.60}: {result.reason}"
    is_equal = result.output.split() == wanted.split()
    return "" if is_equal else f"for input {given!r:.60}: wrote {result.output!r:.60}"


def best_of(k: int, right: Sequence[bool], passes: Sequence[Sequence[bool]]) -> float:
    """Return an unbiased estimate of how often the best of k programs by k tests is right.

    It is the mean over all draws of k of the n programs and k of the tests, of the share of right
    ones among the programs that pass most tests. Draws of a part of the tests
    use at most 16 of them.

    Args: right: of n programs; passes: by program, of the model's own tests.
    """
    width = min((len(row) for row in passes), default=0)
    drawn = range(width if k >= width else min(width, _MOST_DRAWN_TESTS))
    draws = list(combinations(drawn, min(k, len(drawn))))
    counts = ([sum(row[test] for test in draw) for row in passes] for draw in draws)
    return math.fsum(_right_on_top(k, right, own) for own in counts) / len(draws)


def _right_on_top(k: int, right: Sequence[bool], passed: Sequence[int]) -> float:
    """Return the mean share of right programs among the best, over all draws of k programs."""
    below, found = 0, 0.0
    for count in sorted(set(passed)):
        tied = [is_right for is_right, own in zip(right, passed, strict=True) if own == count]
        # Draws whose best programs pass this many tests; tied programs are equally likely.
        draws = math.comb(below + len(tied), k) - math.comb(below, k)
        found += draws * sum(tied) / len(tied)
        below += len(tied)
    return found / math.comb(below, k)


def summary(tallies: Tally, facts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of right tests, and the best of 4 and of all with its standard error."""
    rows = [fact for fact in facts if fact.get("passes") and fact["passes"][0]]
    known = [fact for fact in rows if any(fact["right"])]
    shares = []
    for fact in known:
        solved = [
            own for own, is_right in zip(fact["passes"], fact["right"], strict=True) if is_right
        ]
        shares.append(sum(map(all, zip(*solved, strict=True))) / len(solved[0]))
    found = {}
    if shares:
        found["unit tests right"] = math.fsum(shares) / len(shares)
    samples = min((len(fact["right"]) for fact in rows), default=1)
    for k in sorted({min(BEST_OF, samples), samples} - {1}):
        each = [best_of(k, fact["right"], fact["passes"]) for fact in rows]
        mean = math.fsum(each) / len(each)
        name = f"best of {k} by its own tests"
        found[name] = mean
        if len(each) > 1:
            squares = math.fsum((one - mean) ** 2 for one in each)
            found[f"{name}, standard error"] = math.sqrt(squares / (len(each) - 1) / len(each))
    return found


def _data(name: str, repository: str) -> DataSet:
    columns = ("question|description", "test_input|public_tests")
    own = repository.partition("/")[2]
    return DataSet(name, repository, None, f"test/{own}.json", columns, others=(own,))


SUITES = (
    _suite(_data("livecodebench", "Gen-Verse/LiveCodeBench"), "LiveCodeBench",
           "contest programs and tests for them, by CURE's rules"),
    _suite(_data("codecontests", "Gen-Verse/CodeContests"), "CodeContests",
           "contest programs and tests for them, by CURE's rules"),
)  # fmt: skip
