"""Suite `instructions`: answers whose form a program can check, whatever they say.

A question has one to three of IFEval's instructions (see `constraints`). The verdict is strict and
per prompt: every instruction is followed by the answer as it stands.
"""

from typing import Any

from ram_studio.evals.suites.constraints import accuracies, gold_of, judge
from ram_studio.evals.suites.suite import Suite, shipped

MAX_NEW_TOKENS = 400


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    spec = row["constraints"]
    return {"prompt": row["prompt"], "gold": gold_of(spec), "spec": spec}


make = shipped("instructions", MAX_NEW_TOKENS, _fields)
ABOUT = "constraints that can be checked, such as length and format"
SUITE = Suite(
    "instructions",
    3,
    "Instruction following",
    make,
    judge,
    ABOUT,
    summary=lambda tally, facts: accuracies(facts),
)
