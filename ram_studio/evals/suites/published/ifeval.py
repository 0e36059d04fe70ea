"""Suite `ifeval`: 541 prompts with one to three instructions that a program can check.

The score is strict and per prompt: the unchanged answer follows every instruction. The three other
usual accuracies (per instruction, loose) are reported too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.suites.instructions import accuracies, gold_of, judge, problem_of
from ram_studio.evals.suites.published.rows import DataSet
from ram_studio.evals.suites.suite import Tally

DATA = DataSet(
    "ifeval",
    "google/IFEval",
    "966cd89545d6b6acfd7638bc708b98261ca58e84",
    "ifeval_input_data.jsonl",
    ("key", "prompt", "instruction_id_list", "kwargs"),
    others=("ifeval_input_data", "input_data"),
)


def _fields(_: int, row: dict[str, Any]) -> dict[str, Any]:
    names = [str(name) for name in row["instruction_id_list"]]
    # A table has a column for every argument; those of other instructions are empty.
    given = [{k: v for k, v in dict(own or {}).items() if v is not None} for own in row["kwargs"]]
    parts = list(zip(names, given, strict=True))
    for name, own in parts:
        if why := problem_of(name, own):
            raise EvaluationError(f"ifeval, key {row['key']}: {why}.")
    spec = [{"check": name, "settings": own} for name, own in parts]
    return {
        "id": f"ifeval-{row['key']}",
        "category": names[0].partition(":")[0],
        "fields": {"question": str(row["prompt"])},
        "gold": gold_of(spec),
        "spec": spec,
    }


def summary(tallies: Tally, facts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return prompt and instruction accuracy, strict and loose."""
    return {name.replace("_", " level, "): n for name, n in accuracies(facts).items()}


make = DATA.make(1280, _fields, "{question}")
ABOUT = "instructions that a program can check"
_MORE: dict[str, Any] = {"summary": summary, "has_template": True, "harness": ("ifeval",)}
SUITE = DATA.suite(1, "IFEval", make, judge, ABOUT, **_MORE)
