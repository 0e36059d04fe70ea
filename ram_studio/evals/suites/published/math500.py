r"""Suite `math500`: 500 competition problems of MATH; the boxed answer counts.

The prompt uses the words of most models' training. The last `\boxed{...}` is the answer, or without
one the text after the last "answer is". Plain numbers and words are compared here, everything else
by math-verify, in a sealed process with a limit on computing time: some answers would take hours.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from ram_studio.evals.question import TIMED_OUT, Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.sandbox.worker import OutOfTime, Worker, WorkerEnded
from ram_studio.evals.suites.published.rows import DataSet
from ram_studio.evals.suites.suite import find_box

SECONDS = 3.0
"""Longest computing time for one comparison."""
MAX_CHARS = 400

DATA = DataSet(
    "math500",
    "HuggingFaceH4/MATH-500",
    "ff5b20257d8185524591543f8ff5993951537bb8",
    "test.jsonl",
    ("problem", "answer", "subject"),
    others=("MATH-500", "math_500"),
)
COMPARER = Worker(
    "mathematics", "compares answers", "math_verify", SECONDS, memory_bytes=2**30, is_sealed=True
)
_PROMPT = "{question}\n\nThink step by step. End with the answer in \\boxed{}."
_ANSWER = re.compile(r"\banswer(?: is|:)\s*+:?\s*+(.+)", re.IGNORECASE)
_LAYOUT = re.compile(r"\\[,!;: ]|\\?\$|~|\s|\.\s*$")
_BASE = re.compile(r"_\{(\d+)\}$")
_WORDS = re.compile(r"\\(?:text|textbf|mbox|mathrm)\{([^{}]*)\}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+|[+-]?\d+/[1-9]\d*")
_IN_BASE = re.compile(r"\d+_\d+")


def _fields(number: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": str(row.get("unique_id") or f"math500-{number:03d}"),
        "category": str(row["subject"]),
        "fields": {"question": str(row["problem"]).strip()},
        "worked": row.get("solution") or "",
        "gold": str(row["answer"]),
        "spec": str(row["answer"]),
    }


def find_answer(text: str) -> str | None:
    """Return the final answer: the last closed box, or the text after "answer is"."""
    found = find_box(text)
    if found is not None:
        return found
    answers: list[str] = _ANSWER.findall(text)
    return answers[-1].strip().strip("*").rstrip(".") if answers else None


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the boxed answer is the right one."""
    if not text.strip():
        return Verdict(False, "empty answer")
    found = find_answer(text)
    if found is None:
        return Verdict(False, "no boxed answer")
    is_same = compare_plainly(found, question.spec)
    if is_same is None:
        try:
            is_same = bool(COMPARER.ask({"found": found, "wanted": question.spec})["same"])
        except OutOfTime:
            note = f"found {found[:60]}, which took longer than {SECONDS:g} s to compare"
            return Verdict(False, note, {TIMED_OUT: True})
        except WorkerEnded:
            return Verdict(False, f"found {found[:60]}, which took too much memory to compare")
    return Verdict(is_same, "" if is_same else f"found {found[:60]}")


def compare_plainly(found: str, wanted: str) -> bool | None:
    """Return whether two plain numbers or texts are equal; None for anything else."""
    ours, theirs = _plain(found), _plain(wanted)
    if ours == theirs or len(found) > MAX_CHARS:
        return ours == theirs
    if _NUMBER.fullmatch(ours) and _NUMBER.fullmatch(theirs):
        return _fraction(ours) == _fraction(theirs)
    if _IN_BASE.fullmatch(ours) and _IN_BASE.fullmatch(theirs):
        return False
    if _WORDS.fullmatch(wanted.strip()):
        return ours.strip("()").casefold() == theirs.strip("()").casefold()
    return None


def _plain(text: str) -> str:
    return _BASE.sub(r"_\1", _LAYOUT.sub("", _WORDS.sub(r"\1", text)))


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


make = DATA.make(1024, _fields, _PROMPT)
ABOUT = "competition problems with a boxed answer"
_HARNESS = ("minerva_math500",)
SUITE = DATA.suite(
    2, "MATH-500", make, judge, ABOUT, has_template=True, has_shots=True, harness=_HARNESS
)
