"""Tiny rows in the form of the published benchmarks, with their right answers."""

import json
from pathlib import Path

HOTPOT = [
    {"_id": f"h{n}", "question": f"Who met number {n}?", "answer": f"Person {n}",
     "context": [[f"Title {n}", [f"Person {n} met ", f"number {n}."]],
                 [f"Other {n}", ["Nothing here. " * 9]]]}
    for n in range(6)
]  # fmt: skip
SQUAD = {"data": [{"title": "Rivers", "paragraphs": [
    {"context": f"River {n} is {n}0 miles long. It ends in a lake.", "qas": [
        {"id": f"s{n}", "question": f"How long is river {n}?",
         "answers": [{"text": f"{n}0 miles", "answer_start": 11}]},
        {"id": f"x{n}", "question": "Why?", "answers": [], "is_impossible": True}]}
    for n in range(1, 7)
]}]}  # fmt: skip
EMPTY = dict.fromkeys(("num_words", "relation", "keywords", "end_phrase"))
PAIR = """class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

def add(p):
    return p.a + p.b"""
ROWS = {
    "mbpp": [
        {"task_id": 11, "text": "Write a function to double a number.",
         "code": "def twice(n):\n    return 2 * n", "test_setup_code": "ZERO = 0",
         "test_list": ["assert twice(2) == 4", "assert twice(0) == ZERO"]},
        # Its tests use a class that the answer defines.
        {"task_id": 12, "text": "Write a class Pair and a function that adds its parts.",
         "code": PAIR, "test_list": ["assert add(Pair(1, 2)) == 3"], "test_setup_code": ""},
        {"task_id": 600, "text": "Of the train split.", "code": "", "test_list": ["assert 1"]},
    ],
    "gsm8k": [{"question": f"What are {n} thousand?", "answer": f"It is {n}*1000.\n#### {n},000"}
              for n in range(1, 6)],
    "math500": [
        {"problem": "What is half of one?", "answer": "\\frac{1}{2}", "subject": "Algebra",
         "level": 1, "unique_id": "test/algebra/1.json"},
        {"problem": "Where is it?", "answer": "(3, \\pi)", "subject": "Geometry", "level": 2},
    ],
    "ifeval": [
        {"key": 1, "prompt": "Write two words and end with 'Bye now.'",
         "instruction_id_list": ["length_constraints:number_words", "startend:end_checker"],
         "kwargs": [{**EMPTY, "num_words": 4, "relation": "at least"},
                    {**EMPTY, "end_phrase": "Bye now."}]},
        {"key": 2, "prompt": "Name the river Elbe in bold.",
         "instruction_id_list": ["keywords:existence"],
         "kwargs": [{**EMPTY, "keywords": ["Elbe"]}]},
    ],
    "nq": [{"question": "who wrote the raven", "answer": ["Edgar Allan Poe", "Poe"]},
           {"question": "when was it written", "answer": ["1845"]}],
    "ruler-hotpotqa": HOTPOT,
    "ruler-2wiki": [{**row, "type": "comparison", "evidences": []} for row in HOTPOT],
    "ruler-squad": SQUAD,
}  # fmt: skip
# What the canonical answer is where it is not the gold itself.
SAID = {
    "gsm8k": lambda q: f"So it is.\n#### {q.gold}",
    "math500": lambda q: f"It is $\\boxed{{{q.gold}}}$.",
    "ifeval": lambda q: "The Elbe it is. Bye now.",
    "mbpp": lambda q: f"Here:\n```python\n{q.gold}\n```",
    "nq": lambda q: f"The {q.gold}.",
}


def write_rows(folder: Path) -> Path:
    """Write every suite's rows as their publishers do; return the folder."""
    for name, rows in ROWS.items():
        if isinstance(rows, list):
            text = "\n".join(json.dumps(row) for row in rows)
            (folder / f"{name}.jsonl").write_text(text)
    (folder / "dev-v2.0.json").write_text(json.dumps(SQUAD))
    return folder


def function(name, required, description="Area.", **properties):
    parameters = {"type": "dict", "properties": properties, "required": [required]}
    return {"name": name, "description": description, "parameters": parameters}


TEXT = {"type": "string", "description": "Unit."}
SIDES = {"description": "Sides.", "items": {"type": "integer"}}
AREA = function(
    "geometry.area", "width", "Area of a rectangle.",
    width={"type": "float", "description": "Width."},
    size={"type": "tuple", "items": {"type": "integer"}},
    unit={"type": "string", "enum": ["cm", "m"], "default": "m"},
    tag={"type": "any"},
)  # fmt: skip
ONE = {"geometry.area": {"width": [2.5], "size": [[1, 2]], "unit": ["m", ""]}}
TWO = {"geometry.area": {"width": [4], "unit": ["cm"]}}
JAVA = function(
    "Area.of", "id",
    id={"type": "long", "description": "Number."}, sides={**SIDES, "type": "ArrayList"},
    names={"type": "HashMap", "description": "Names."}, unit={**TEXT, "type": "any"},
)  # fmt: skip
SCRIPT = function(
    "areaOf", "unit",
    unit={**TEXT, "type": "String"}, sides={**SIDES, "type": "array", "items": {"type": "float"}},
    options={"type": "dict", "description": "Options."},
)  # fmt: skip
OF = {
    "simple_java": (
        {"Area.of": {"id": [5], "sides": [[1, 2]], "names": [{"a": ["b"], "n": [3]}],
                     "unit": ["Unit.CM", ""]}}, JAVA),
    "simple_javascript": (
        {"areaOf": {"unit": ["cm"], "sides": [[1.5, 2]],
                    "options": [{"deep": [True], "of": ["x"]}]}}, SCRIPT),
}  # fmt: skip
HEAD = "from typing import List\n\n\ndef twice(v: int) -> int:\n    return 2 * v\n\n\n"
TASK = {
    "task_id": "HumanEval/0",
    "prompt": f'{HEAD}def total(values: List[int]) -> int:\n    """Twice the sum."""\n',
    "entry_point": "total",
    "canonical_solution": "    return twice(sum(values))\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == twice(3)\n"
    "    assert candidate([]) == 0\n",
}
