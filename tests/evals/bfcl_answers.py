"""Right answers to BFCL's questions, answers spoilt in one known way each, and our view of both.

A question as `run_bfcl.py` writes it has "functions" and "answer": one {name: {argument: acceptable
values}} per call, where "" among the values marks an argument that may be left out.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ram_studio.evals.question import Question
from ram_studio.evals.suites.published.bfcl import question_of
from ram_studio.evals.suites.published.bfcl_languages import LANGUAGES, format_value

Calls = list[dict[str, dict[str, Any]]]
Case = tuple[str, Any]


def said_by(python: str, script: str, *arguments: str, given: Any = None) -> Any:
    """Return what a script here writes as JSON in another Python's environment."""
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script)), *arguments],
        input=None if given is None else json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def our_question(category: str, key: str, row: dict[str, Any]) -> Question:
    """Return a BFCL question as the suites ask it."""
    given = {
        "id": key,
        "question": [[{"role": "user", "content": "?"}]],
        "function": row["functions"],
    }
    return question_of("bfcl", category, given, row["answer"])


def as_json(calls: Calls) -> str:
    """Return calls as our prompt asks for them."""
    return json.dumps(
        [{"name": n, "arguments": arguments} for call in calls for n, arguments in call.items()]
    )


def as_python(calls: Calls) -> str:
    """Return calls in Python syntax."""
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for call in calls
        for name, arguments in call.items()
    ]
    return f"[{', '.join(written)}]"


def _one(value: Any, pick: int) -> Any:
    """Return a concrete value: of an object's acceptable values the first or last each."""
    if isinstance(value, dict):
        stated = {key: [one for one in values if one != ""] for key, values in value.items()}
        return {
            key: kept[pick]
            for key, kept in stated.items()
            if kept and (pick != 0 or "" not in value[key])
        }
    if isinstance(value, list):
        return [_one(part, pick) for part in value]
    return value


def gold(row: dict[str, Any], pick: int = 0, optional: bool = False) -> Calls:
    """Return a right answer: the first (0) or last (-1) acceptable values."""
    result: Calls = []
    for call in row["answer"]:
        for name, arguments in call.items():
            kept = {}
            for key, values in arguments.items():
                stated = [value for value in values if value != ""]
                if stated and (optional or "" not in values):
                    kept[key] = _one(stated[pick], pick)
            result.append({name: kept})
    return result


def _spoilt_values(value: Any) -> Iterator[Case]:
    if isinstance(value, bool):
        yield "other value", not value
        yield "boolean as number", int(value)
        yield "boolean as text", str(value)
    elif isinstance(value, int):
        yield "other value", value + 1
        yield "integer as float", float(value)
        yield "number as text", str(value)
        yield "integer as boolean", bool(value)
    elif isinstance(value, float):
        yield "other value", value + 0.5
        yield "number as text", str(value)
        if value == int(value):
            yield "float as integer", int(value)
    elif isinstance(value, str):
        yield "other value", value + "x"
        yield "other case", value.swapcase()
        yield "a full stop more", value + "."
        yield "a comma and a space more", value.replace(" ", ", ", 1) + " "
        yield "other punctuation", f"-_{value}/*^"
        yield "in single quotes", f"'{value}'"
        yield "in double quotes", f'"{value}"'
        yield "a line break more", value + "\n"
        yield "a tabulator more", value.replace(" ", "\t", 1) + "\t"
        yield "a colon more", value + ":"
        yield "text as list", [value]
        yield "empty text", ""
    elif isinstance(value, list):
        yield "list reversed", value[::-1]
        yield "list shortened", value[:-1]
        yield "list repeated", value + value[-1:]
        yield "list emptied", []
        yield "list as text", json.dumps(value)
        yield "list as element", value[0] if value else 0
        yield "list of texts", [str(part) for part in value]
        yield "list in list", [value]
        for name, part in _spoilt_values(value[-1]) if value else ():
            yield f"last element: {name}", [*value[:-1], part]
    elif isinstance(value, dict):
        yield "object emptied", {}
        yield "object with another key", {**value, "another_key": 1}
        yield "object as text", json.dumps(value)
        yield "object in list", [value]
        for key in list(value)[:2]:
            yield "object without a key", {k: v for k, v in value.items() if k != key}
            for name, part in _spoilt_values(value[key]):
                yield f"value in object: {name}", {**value, key: part}
    yield "null", None


def in_language(calls: Calls, category: str, row: dict[str, Any]) -> Calls:
    """Return calls with every argument as a text in the category's language, where it has one."""
    if category not in LANGUAGES:
        return calls
    properties = row["functions"][0]["parameters"]["properties"]

    def text(key: str, value: Any) -> str:
        return format_value(value, LANGUAGES[category], properties.get(key, {"type": "any"}))

    return [
        {name: {k: v if v is None else text(k, v) for k, v in arguments.items()}}
        for call in calls
        for name, arguments in call.items()
    ]


def answers(row: dict[str, Any]) -> Iterator[Case]:
    """Yield (what was done, calls): right answers first, then one fault in one call each."""
    right = gold(row)
    yield "right: first values", right
    yield "right: last values", gold(row, -1)
    yield "right: with the optional ones", gold(row, 0, True)
    yield "right: with the optional ones, last values", gold(row, -1, True)
    yield "no call", []
    if not right:
        return
    yield "a call left out", right[1:]
    yield "a call made twice", [*right, right[-1]]
    if len(right) > 1:
        yield "right: reversed order", right[::-1]
        yield "right: first call last", [*right[1:], right[0]]
        yield "one call in place of all", [right[0]] * len(right)
    for number, call in enumerate((right, gold(row, -1, True))):
        for position in sorted({0, len(right) - 1}):
            yield from _spoilt_calls(call, position, row, only_values=bool(number))


def _spoilt_calls(
    right: Calls, position: int, row: dict[str, Any], *, only_values: bool
) -> Iterator[Case]:
    ((name, arguments),) = right[position].items()

    def changed(new_name: str, new: dict[str, Any]) -> Calls:
        result = copy.deepcopy(right)
        result[position] = {new_name: new}
        return result

    if not only_values:
        yield "wrong name", changed(name + "_x", arguments)
        others = [f["name"] for f in row["functions"] if f["name"] != name]
        for other in others[:1]:
            yield "name of another function", changed(other, arguments)
        yield "an unknown argument", changed(name, {**arguments, "unknown_argument": 1})
        function = next(f for f in row["functions"] if f["name"] == name)
        wanted = row["answer"][position][name]
        unasked = [k for k in function["parameters"]["properties"] if k not in wanted]
        for key in unasked[:1]:
            yield "an argument nobody asked for", changed(name, {**arguments, key: 1})
            yield "an argument nobody asked for, null", changed(name, {**arguments, key: None})
    for key, value in arguments.items():
        rest = {k: v for k, v in arguments.items() if k != key}
        yield "an argument left out", changed(name, rest)
        for kind, spoilt in _spoilt_values(value):
            yield kind, changed(name, {**arguments, key: spoilt})
