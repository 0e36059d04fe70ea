"""Function calls, compared by name, types and values; `generated` draws the requests.

Calls are read by `tool_calls` and compared as values: names, types and values must be right,
unknown arguments are wrong, optional ones may be left out, calls may be in any order. Text is
compared without case, blanks and `,./-_*^`.

These are the rules of the Berkeley Function Calling Leaderboard's checker; the remaining
differences are listed and counted in tests/evals/test_bfcl_agreement.py.

Any text without a call passes irrelevance, so a model that never calls a function passes it too: it
is a domain outside the average. An answer that was cut off, or only repeats itself, does not pass
it. An empty answer is wrong everywhere.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ram_studio.evals.question import NO_ANSWER, Question, Reply, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.suite import repeated_share
from ram_studio.evals.suites.tools.tool_calls import Call, parse_calls

MAX_NEW_TOKENS = 320
IRRELEVANCE = "irrelevance"

JSON_TYPES = {str: "string", int: "integer"}
_IGNORED = re.compile(r"[ ,./\-_*^]+")
_TYPES: dict[str, Any] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def function_schema(name: str, about: str, arguments: Mapping[str, type]) -> dict[str, Any]:
    """Return the JSON schema of a function; all arguments, texts and integers, are required."""
    properties = {key: {"type": JSON_TYPES[kind]} for key, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the answer makes exactly the expected calls."""
    if not text.strip():
        return Verdict(False, "empty answer")
    calls = read_calls(question, text)
    if not question.spec:
        if calls:
            return Verdict(False, f"calls {calls[0].name}, though no function fits")
        is_loop = repeated_share([text.lower().split()]) > 0.5
        return Verdict(not is_loop, "only repeats itself" if is_loop else "")
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in question.tools}
    return judge_calls(calls, question.spec, schemas)


def read_calls(question: Question, text: str) -> list[Call]:
    """Return an answer's calls, with every argument named."""
    keys = {
        tool["function"]["name"]: list(tool["function"]["parameters"]["properties"])
        for tool in question.tools
    }
    return [
        call.with_named_arguments(keys[call.name]) if call.name in keys else call
        for call in parse_calls(text)
    ]


def message_of(text: str, calls: Sequence[Call]) -> dict[str, Any]:
    """Return a model's text and calls as a message, see `Question.messages`."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["calls"] = [{"name": one.name, "arguments": one.arguments} for one in calls]
    return message


def whole_reply(reply: Reply, messages: Sequence[Mapping[str, Any]], note: str = "") -> Reply:
    """Return one reply for a whole conversation, from its last reply: one message a line, as JSON.

    A conversation that exceeds the context ends, and is judged as it is; one that never began has
    no text.
    """
    is_grown = bool(messages) and reply.finish == "too_long"
    if reply.finish in NO_ANSWER and not is_grown:
        return reply
    text = "\n".join(json.dumps(message, ensure_ascii=False) for message in messages)
    note = "; ".join(filter(None, (note, reply.note)))
    return replace(reply, text=text, finish="length" if is_grown else reply.finish, note=note)


def judge_calls(
    calls: Sequence[Call],
    wanted_calls: Sequence[Mapping[str, Any]],
    schemas: Mapping[str, Mapping[str, Any]],
) -> Verdict:
    """Return whether these are exactly the expected calls.

    Args:
        wanted_calls: {"name", "arguments": {argument: acceptable values, None among them where it
            may be left out}} each. schemas: of the arguments, by function.
    """
    if not calls:
        return Verdict(False, "no call found in the answer")
    if len(calls) != len(wanted_calls):
        return Verdict(False, f"{len(calls)} calls instead of {len(wanted_calls)}")
    faults = [[_fault(call, wanted, schemas) for wanted in wanted_calls] for call in calls]
    if _pairs_up(faults):
        return Verdict(True)
    # The first call without a match, compared with the expected one of its name if there is one.
    row = next((row for row in faults if all(row)), faults[0])
    call = calls[faults.index(row)]
    named = [i for i, wanted in enumerate(wanted_calls) if wanted["name"] == call.name]
    return Verdict(False, (row[named[0]] if named else row[0]) or "the same call twice")


def _pairs_up(faults: Sequence[Sequence[str]]) -> bool:
    """Return whether calls and expected calls can be matched one to one without a fault."""
    owner: dict[int, int] = {}

    def give(row: int, tried: set[int]) -> bool:
        for column, fault in enumerate(faults[row]):
            if not fault and column not in tried:
                tried.add(column)
                # A matched column becomes free if its row finds another.
                if column not in owner or give(owner[column], tried):
                    owner[column] = row
                    return True
        return False

    return all(give(row, set()) for row in range(len(faults)))


def _fault(call: Call, wanted: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return a call's fault, "" for none."""
    if call.name != wanted["name"]:
        return f"calls {call.name} instead of {wanted['name']}"
    properties = schemas[call.name]["properties"]
    needed = schemas[call.name].get("required", ())
    for key, value in call.arguments.items():
        if key not in properties:
            return f"{call.name} has no argument {key}"
        good = wanted["arguments"].get(key, [None])
        if value is None and None in good and key not in needed:
            continue
        if key not in wanted["arguments"]:
            return f"{call.name}: {key} was not requested"
        if not _has_type(value, properties[key], good):
            return f"{call.name}: {key} is {value!r:.60}, not of type {properties[key]['type']}"
        if _is_left_out(value, good):
            continue
        if not any(_equal(value, one) for one in good):
            return f"{call.name}: {key} is {value!r:.60}"
    missing = [
        key
        for key, values in wanted["arguments"].items()
        if key not in call.arguments and (None not in values or key in needed)
    ]
    return f"{call.name}: {missing[0]} is missing" if missing else ""


def _is_left_out(value: Any, good: Sequence[Any]) -> bool:
    """Return whether an optional argument is empty, which equals leaving it out."""
    return None in good and (value is None or value == "" or value == [])


def _has_type(value: Any, schema: Mapping[str, Any], good: Sequence[Any]) -> bool:
    """Return whether a value has the schema's type, or that of a right value."""
    kind = schema.get("type")
    if kind is None or any(type(value) is type(one) for one in good if not _is_list(one)):
        return True
    # bool is an int to Python, but not to a schema.
    if isinstance(value, bool) != (kind == "boolean") or not isinstance(value, _TYPES[kind]):
        return _is_list(value) and any(map(_is_list, good))
    if kind == "array":
        parts = [part for one in good if _is_list(one) for part in one]
        return all(_has_type(part, schema.get("items", {}), parts) for part in value)
    return True


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _equal(value: Any, good: Any) -> bool:
    if isinstance(value, str) and isinstance(good, str):
        return _plain(value) == _plain(good)
    if isinstance(value, list) and isinstance(good, list):
        return len(value) == len(good) and all(map(_equal, value, good))
    if isinstance(value, dict) and isinstance(good, dict):
        return value.keys() <= good.keys() and all(
            any(_equal(value.get(key), one) for one in values)
            or _is_left_out(value.get(key), values)
            for key, values in good.items()
        )
    return bool(value == good) and isinstance(value, str) == isinstance(good, str)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')
