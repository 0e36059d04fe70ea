"""Suite `nq`: the 3610 open-domain questions of Natural Questions, without a document.

An answer is right when, in lower case and without articles, punctuation and extra blanks, it is one
of the acceptable ones (exact match, SQuAD's normalization). The first line counts; "the answer is"
before the answer, or a sentence after it, is allowed. F1 over words, the best over the acceptable
answers, is reported too.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.published.rows import DataSet
from ram_studio.evals.suites.suite import Tally

DATA = DataSet(
    "nq",
    "google-research-datasets/nq_open",
    "5dd9790a83002ad084ddeb7c420dc716852c6f28",
    "nq_open/validation-00000-of-00001.parquet",
    ("question", "answer"),
    others=("NQ-open.dev", "nq_open"),
    shots="nq_open/train-00000-of-00001.parquet",
)
_PROMPT = "Answer the question with a few words and nothing else.\n\nQuestion: {question}"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LEAD = re.compile(r"^(?:(?:final |short )?answer\s*:|a\s*:|.*?\banswer is:?)\s*", re.IGNORECASE)


def _fields(_: int, row: dict[str, Any]) -> dict[str, Any]:
    given = row["answer"]
    answers = [given] if isinstance(given, str) else [str(one) for one in given]
    asked = {"question": f"{str(row['question']).strip().rstrip('?')}?"}
    return {"fields": asked, "gold": answers[0], "spec": answers, "worked": answers[0]}


def normal(text: str) -> str:
    """Return a text in lower case without punctuation, articles and extra blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(text: str, wanted: str) -> float:
    """Return the harmonic mean of precision and recall of words, with repetitions."""
    ours, theirs = normal(text).split(), normal(wanted).split()
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the first line of an answer is an acceptable one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return Verdict(False, "empty answer", {"f1": 0.0})
    line = _LEAD.sub("", lines[0], count=1) or lines[min(1, len(lines) - 1)]
    # The whole line, or its first sentence: "Paris. It is the capital."
    forms = {normal(line), normal(re.split(r"[.;](?:\s|$)", line, maxsplit=1)[0])} - {""}
    wanted = {normal(one) for one in question.spec} - {""}
    best = max((f1(line, one) for one in question.spec), default=0.0)
    is_correct = bool(forms & wanted)
    return Verdict(is_correct, "" if is_correct else f"said {line[:60]!r}", {"f1": best})


def summary(tallies: Tally, facts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean F1."""
    found = [fact["f1"] for fact in facts if "f1" in fact]
    return {"F1": sum(found) / len(found)} if found else {}


make = DATA.make(64, _fields, _PROMPT)
ABOUT = "questions about the world, without a text"
SUITE = DATA.suite(
    1,
    "Natural Questions",
    make,
    judge,
    ABOUT,
    summary=summary,
    has_template=True,
    has_shots=True,
    harness=("nq_open",),
)
