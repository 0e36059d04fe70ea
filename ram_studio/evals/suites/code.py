"""Suite `code`: write functions, programs and unit tests, which run in the sandbox.

- `function`: a function must pass every test (the share of such questions is the accuracy, ACC);
- `program`: a program must turn each input into the expected output, compared line by line without
  trailing white space (ACC as well);
- `unit tests`: tests written for a described function must accept a right version of it and reject
  every faulty one (UT). The right version is run several times, at random positions among the
  faulty ones: a process can leave traces for later ones (times of files in /proc), so in a known
  order tests that accept only their first run would pass.

The answer's code and its judge never share a process: see `ram_studio.evals.sandbox.process`.
Code under test is not `__main__`, so that a script part does not run.
"""

import ast
import re
from random import SystemRandom
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import (
    AnswerFault,
    CodeSwitch,
    run_program,
    run_tests,
    sealed_function,
)
from ram_studio.evals.suites.suite import Suite, shipped_questions

MAX_NEW_TOKENS = 512
MAX_CODE_CHARS = 50_000
RIGHT_RUNS = 4
"""Number of unit test runs on the right version."""

# Possessive (no backtracking), so that 50 kB of blanks are read once.
_FENCED = re.compile(r"```[ \t]*+([\w+-]*+)[ \t]*+\n(.*?)(?:\n[ \t]*+```|\Z)", re.DOTALL)
_START = re.compile(r"^(?:def |class |import |from |@|async def |assert )", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:def |class |import |from |@|async def )", re.MULTILINE)
PROMPTS = {
    "function": "{task}\n\nReply with the complete Python function in one code block.",
    "program": (
        "{task}\n\nThe program reads standard input and writes standard output. Reply with the "
        "complete Python program in one code block."
    ),
    "unit tests": (
        "{task}\n\nDo not write the function itself. Reply with one code block of 3 to 8 Python "
        "`assert` statements that call `{entry}` and would uncover faulty versions of it. Use "
        "nothing else."
    ),
}


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[row["category"]].format(task=row["task"], entry=row.get("entry")),
        "gold": row["tests"] if row["category"] == "unit tests" else row["reference"],
        "spec": row,
    }


def find_code(text: str, entry: str | None = None) -> str:
    """Return the Python code of an answer: its code blocks, else all from the first line of code.

    Blocks marked as another language are left out, as are invalid ones when others are valid
    Python; the rest are joined, as models often split one program. With `entry`, blocks after the
    one that defines this function count only if they define something too: unrequested usage
    examples are often wrong.
    """
    blocks = [
        body
        for language, body in _FENCED.findall(text[:MAX_CODE_CHARS])
        if language.lower() in ("", "python", "py", "python3")
    ]
    blocks = [body for body in blocks if _is_python(body)] or blocks
    defining = [i for i, body in enumerate(blocks) if entry and defines(body, entry)]
    if defining:
        first = defining[0] + 1
        blocks = blocks[:first] + [body for body in blocks[first:] if _DEFINITION.search(body)]
    if blocks:
        return "\n\n".join(blocks)
    start = _START.search(text)
    return text[start.start() if start else 0 :][:MAX_CODE_CHARS]


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    # SyntaxWarning: odd literals, where warnings are errors.
    except (SyntaxError, SyntaxWarning, ValueError, MemoryError, RecursionError):
        return False
    return True


def defines(source: str, entry: str) -> bool:
    """Return whether a source defines a function of this name at the top level."""
    return bool(re.search(rf"^(?:async )?def {re.escape(entry)}\b", source, re.MULTILINE))


def judge(question: Question, text: str, code: CodeSwitch = "auto") -> Verdict:
    """Run the answer's code and return whether it meets the task.

    Raises: EvaluationError: code may not run here, see `sandbox.check_code_allowed`.
    """
    if not text.strip():
        return Verdict(False, "empty answer")
    source = find_code(text, question.spec.get("entry"))
    if question.category == "function":
        return judge_function(source, question.spec, code)
    if question.category == "program":
        return _judge_program(source, question.spec["cases"], code)
    return _judge_tests(source, question.spec, code)


def judge_function(source: str, spec: dict, code: CodeSwitch) -> Verdict:
    """Run a task's tests here, on the results of the answer's function.

    Args:
        spec: entry: the function's name; tests: source that calls it; prelude: further source that
            they need, if any. Both come with the task, never from a model.
    """
    # Asserts run under `python -O` too.
    tests = compile(spec["tests"], "tests", "exec", dont_inherit=True, optimize=0)
    try:
        with sealed_function(source, spec["entry"], code=code) as function:
            known: dict[str, Any] = {}
            exec(compile(spec.get("prelude", ""), "prelude", "exec", dont_inherit=True), known)
            exec(tests, {**known, spec["entry"]: function})
    except AnswerFault as fault:
        return Verdict(False, str(fault))
    except AssertionError as error:
        return Verdict(False, f"AssertionError: {_line_of(error, spec['tests'])}")
    except EvaluationError:
        raise
    except Exception as error:  # the result has a type that the test does not expect
        return Verdict(False, f"{type(error).__name__}: {_line_of(error, spec['tests'])}")
    return Verdict(True)


def _line_of(error: Exception, tests: str) -> str:
    """Return the line of the tests that raised error."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != "tests":
        trace = trace.tb_next
    return tests.splitlines()[trace.tb_lineno - 1] if trace else ""


def _judge_program(source: str, cases: list[list[str]], code: CodeSwitch) -> Verdict:
    for given, expected in cases:
        result = run_program(source, given, code=code)
        if result.outcome != "done":
            return Verdict(False, f"for input {given!r:.60}: {result.reason}")
        if _lines(result.output) != _lines(expected):
            return Verdict(False, f"for input {given!r:.60}: wrote {result.output!r:.60}")
    return Verdict(True)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _judge_tests(source: str, spec: dict, code: CodeSwitch) -> Verdict:
    if spec["entry"] not in source or "assert" not in source:
        return Verdict(False, f"no assert that calls {spec['entry']}")
    if re.search(rf"\bdef\s+{re.escape(spec['entry'])}\b", source):
        return Verdict(False, "defines the function itself")
    right, faulty = spec["reference"], spec["mutants"]
    versions = [right] * RIGHT_RUNS + list(faulty)
    SystemRandom().shuffle(versions)
    rejected = 0
    for version in versions:
        fault = _fault_of(source, version, spec["entry"], code)
        if fault and version == right:
            note = f"rejects a right version: {fault}"
            return Verdict(False, note, {"mutants_rejected": 0, "mutants": len(faulty)})
        rejected += bool(fault)
    is_correct = rejected == len(faulty)
    note = "" if is_correct else f"rejects {rejected} of {len(faulty)} faulty versions"
    return Verdict(is_correct, note, {"mutants_rejected": rejected, "mutants": len(faulty)})


def _fault_of(tests: str, version: str, entry: str, code: CodeSwitch) -> str:
    """Return why the tests reject this version of the function, "" if they accept it."""
    try:
        with sealed_function(version, entry, code=code) as function:
            run_tests(tests, entry, function, code=code)
    except AnswerFault as fault:
        return str(fault)
    return ""


make = shipped_questions("code", MAX_NEW_TOKENS, _fields)
ABOUT = "programs and unit tests, run in a locked process"
SUITE = Suite("code", 4, "Code", make, judge, ABOUT, runs_code=True)
