"""Suite `mbpp`: 500 short Python tasks (11 to 510, the test split), each with three tests.

The task and its tests are shown, in the words of its authors, without examples. The answer and the
tests run together in one sealed process, as published: the model knows the tests anyway, and some
of them use classes that the answer defines. A mark shows that the tests' end was reached, not an
earlier exit. So an answer can do no harm, but one that attacks its judge can pass, unlike in the
suites `code` and `humaneval`, where the two are separate.
"""

from __future__ import annotations

import ast
import builtins
import secrets
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch, run_program
from ram_studio.evals.suites.code import find_code
from ram_studio.evals.suites.published.rows import DataSet, Row
from ram_studio.evals.suites.suite import SuiteSettings, reading, rows_to_questions

TEST_SPLIT = range(11, 511)
DATA = DataSet(
    "mbpp",
    "google-research-datasets/mbpp",
    "7bc94ee8bd8f4b07324968e85b7b54f505cba1e5",
    "full/test-00000-of-00001.parquet",
    ("task_id", "text|prompt", "code", "test_list"),
    others=("sanitized-mbpp",),
    shots="full/prompt-00000-of-00001.parquet",
)
_PROMPT = (
    "{question}\n\nThese tests must pass:\n\n{tests}\n\nReply with Python code in one code block, "
    "without the tests."
)
_RUN = """space = {{"__name__": "answer"}}
exec(compile({answer!r}, "answer", "exec"), space)
exec(compile({tests!r}, "tests", "exec"), space)
print()
print({mark!r})
"""


def _fields(_: int, row: dict[str, Any]) -> dict[str, Any]:
    """Read a row of the full or the sanitized version."""
    tests = [str(test) for test in row["test_list"]]
    before = [str(row.get("test_setup_code") or ""), *map(str, row.get("test_imports") or ())]
    text = str(row.get("text") or row.get("prompt")).strip()
    return {
        "id": f"mbpp-{int(row['task_id']):04d}",
        "category": "function",
        "fields": {"question": text, "tests": "\n".join(tests)},
        "worked": f"```python\n{str(row['code']).strip()}\n```",
        "gold": str(row["code"]),
        "spec": {"entry": _entry(tests), "tests": "\n".join([*filter(None, before), *tests])},
    }


def _entry(tests: list[str]) -> str | None:
    """Return the function under test: the first that the first test calls, if any."""
    try:
        tree = ast.parse(tests[0])
    except (SyntaxError, ValueError, IndexError):
        return None
    called = [node.func.id for node in ast.walk(tree)
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]  # fmt: skip
    return next((name for name in called if not hasattr(builtins, name)), None)


def _tasks(settings: SuiteSettings) -> list[Row]:
    """Return the test split's rows; EvaluationError where there are none."""
    rows = []
    for number, row in enumerate(DATA.rows(settings)):
        with reading(DATA.name, number):
            if int(row["task_id"]) in TEST_SPLIT:
                rows.append(row)
    if not rows:
        raise EvaluationError(
            f"The rows of mbpp have no task of the test split ({TEST_SPLIT.start} to "
            f"{TEST_SPLIT.stop - 1}). Give the file with all tasks, or the test split's."
        )
    return rows


def judge(question: Question, text: str, code: CodeSwitch = "auto") -> Verdict:
    """Run the answer's code with the tests.

    Raises: EvaluationError: code may not run here, see `sandbox.check_code_allowed`.
    """
    if not text.strip():
        return Verdict(False, "empty answer")
    source, mark = find_code(text, question.spec["entry"]), secrets.token_hex(16)
    program = _RUN.format(answer=source, tests=question.spec["tests"], mark=mark)
    result = run_program(program, code=code)
    if result.outcome != "done":
        return Verdict(False, result.reason)
    is_over = result.output.rstrip("\n").rsplit("\n", 1)[-1] == mark
    return Verdict(is_over, "" if is_over else "it ended before the tests did")


make = rows_to_questions(DATA.name, 512, _tasks, _fields, _PROMPT, DATA.examples)
ABOUT = "500 short Python tasks with their tests"
SUITE = DATA.suite(1, "MBPP", make, judge, ABOUT, runs_code=True, has_template=True, has_shots=True)
