"""Suite `instructions`: answers whose form a program can check, whatever they say.

A question has one to three constraints (see `constraints`). The verdict is strict and per prompt:
every constraint holds for the answer as it stands. `facts` tells for each constraint whether it
holds strictly and loosely; `accuracies` turns a model's answers into the four usual numbers.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.constraints import holds, holds_loosely
from ram_studio.evals.suites.suite import Suite, shipped

MAX_NEW_TOKENS = 400


def _asked(row: dict[str, Any]) -> dict[str, Any]:
    gold = "any answer with: " + ", ".join(map(_written, row["constraints"]))
    return {"prompt": row["prompt"], "gold": gold, "spec": row["constraints"]}


def _written(constraint: Mapping[str, Any]) -> str:
    settings = [f"{key} {value}" for key, value in constraint.items() if key != "check"]
    return " ".join([constraint["check"].replace("_", " "), *settings])


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether every constraint holds for the answer as it stands."""
    strict = [holds(text, constraint) for constraint in question.spec]
    loose = [holds_loosely(text, constraint) for constraint in question.spec]
    broken = [
        _written(constraint)
        for constraint, kept in zip(question.spec, strict, strict=True)
        if not kept
    ]
    note = f"not kept: {'; '.join(broken)}" if broken else ""
    facts = {"strict": strict, "loose": loose}
    return Verdict(not broken, note if text.strip() else "empty answer", facts)


def accuracies(facts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return prompt and instruction accuracy, strict and loose, of a model's `Answer.facts`.

    Prompt accuracy counts prompts with every constraint kept, instruction accuracy counts
    constraints. Empty input, and facts of answers that were not judged, give an empty dict.
    """
    rows = [fact for fact in facts if "strict" in fact]
    if not rows:
        return {}
    result = {}
    for kind in ("strict", "loose"):
        kept = [list(row[kind]) for row in rows]
        result[f"prompt_{kind}"] = sum(map(all, kept)) / len(kept)
        result[f"instruction_{kind}"] = sum(map(sum, kept)) / sum(map(len, kept))
    return result


make = shipped("instructions", MAX_NEW_TOKENS, _asked)
ABOUT = "constraints that can be checked, such as length and format"
SUITE = Suite(
    "instructions",
    2,
    "Instruction following",
    make,
    judge,
    ABOUT,
    summary=lambda tally, facts: accuracies(facts),
)
