"""Suite `gsm8k`: 1319 grade-school word problems; the number after `####` counts.

Published scores usually use lm-eval's prompt with five examples: `--prompts lm-eval`.
"""

from __future__ import annotations

import re
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites import mathematics
from ram_studio.evals.suites.published.rows import DataSet

DATA = DataSet(
    "gsm8k",
    "openai/gsm8k",
    "e53f048856ff4f594e959d75785d2c2d37b678ee",
    "main/test-00000-of-00001.parquet",
    ("question", "answer"),
    shots="main/train-00000-of-00001.parquet",
)
_PROMPT = '{question}\n\nThink step by step. End with a line of the form "#### <number>".'
_MARKED = re.compile(r"####\s*(.*)")


def _fields(number: int, row: dict[str, Any]) -> dict[str, Any]:
    found = _MARKED.search(str(row["answer"]))
    answer = mathematics.find_number(found[1]) if found else None
    if answer is None:
        raise EvaluationError(
            f'gsm8k, row {number + 1}: the answer has no "#### <number>": '
            f"{str(row['answer'])[-60:]!r}."
        )
    question = str(row["question"]).strip()
    answers = {"gold": str(answer), "spec": str(answer), "worked": row["answer"]}
    return {"fields": {"question": question}, **answers}


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the first number after #### is right; without ####, judge as `math` does."""
    for line in _MARKED.findall(text):
        if mathematics.find_number(line) is not None:
            return mathematics.judge(question, line)
    return mathematics.judge(question, text)


SUITE = DATA.suite(
    3,
    "GSM8K",
    DATA.make(512, _fields, _PROMPT),
    judge,
    "grade-school word problems",
    has_template=True,
    has_shots=True,
    harness=("gsm8k",),
)
