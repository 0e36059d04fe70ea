r"""Suite `math500`: 500 competition problems of MATH; the boxed answer counts.

Asked for in the words most models are trained with. The last `\boxed{...}` is the answer, or
without one what follows the last "answer is"; `math_answers` says what is the same as the right
one.
"""

from __future__ import annotations

import re
from typing import Any

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.published.math_answers import same
from ram_studio.evals.suites.published.rows import DataSet

DATA = DataSet(
    "math500",
    "HuggingFaceH4/MATH-500",
    "ff5b20257d8185524591543f8ff5993951537bb8",
    "test.jsonl",
    ("problem", "answer", "subject"),
    others=("MATH-500", "math_500"),
)
_PROMPT = "{problem}\n\nThink step by step. End with the answer in \\boxed{{}}."
_BOXED = re.compile(r"\\f?boxed\s*\{")
_SAID = re.compile(r"\banswer(?: is|:)\s*:?\s*(.+)", re.IGNORECASE)


def _asked(number: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": str(row.get("unique_id") or f"math500-{number:03d}"),
        "category": str(row["subject"]),
        "prompt": _PROMPT.format(problem=str(row["problem"]).strip()),
        "gold": str(row["answer"]),
        "spec": str(row["answer"]),
    }


def find_answer(text: str) -> str | None:
    """Return what an answer ends up with: the last box that closes, or what "answer is" says."""
    for found in reversed(list(_BOXED.finditer(text))):
        depth = 1
        for place in range(found.end(), len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if not depth:
                return text[found.end() : place]
    said: list[str] = _SAID.findall(text)
    return said[-1].strip().strip("*").rstrip(".") if said else None


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the boxed answer is the right one."""
    if not text.strip():
        return Verdict(False, "empty answer")
    found = find_answer(text)
    if found is None:
        return Verdict(False, "no boxed answer")
    is_correct = same(found, question.spec)
    return Verdict(is_correct, "" if is_correct else f"found {found[:60]}")


make = DATA.make(1024, _asked)
SUITE = DATA.suite(1, "MATH-500", make, judge, "competition problems with a boxed answer")
