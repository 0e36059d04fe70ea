"""Tool use: reading calls in every format, and comparing them as values."""

import json
import time

import pytest
from right_answers import calls_of

from ram_studio.evals.question import Question
from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites.tools.tool import judge
from ram_studio.evals.suites.tools.tool_calls import Call, parse_calls

QUESTIONS = GENERAL_SUITES["tool"].make(SuiteSettings(len))
CALL = {"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}
PARSED = [Call("get_weather", {"city": "Rome", "days": 2})]
TEXT = json.dumps(CALL)


def python(calls: list[dict]) -> list[str]:
    return [
        f"{c['name']}({', '.join(f'{k}={v!r}' for k, v in c['arguments'].items())})" for c in calls
    ]


def told(calls: list[dict]) -> list[dict]:
    """As in the interface of OpenAI: arguments are a text."""
    functions = [{**call, "arguments": json.dumps(call["arguments"])} for call in calls]
    return [{"id": "x", "type": "function", "function": function} for function in functions]


FORMATS = {
    "hermes": lambda calls: "\n".join(
        f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls),
    "json list": json.dumps,
    "fenced": lambda calls: f"Sure!\n```json\n{json.dumps(calls, indent=2)}\n```\nDone.",
    "json in a row": lambda calls: "; ".join(map(json.dumps, calls)),
    "parameters": lambda calls: "<|python_tag|>" + "\n".join(
        json.dumps({"name": call["name"], "parameters": call["arguments"]}) for call in calls),
    "openai": lambda calls: json.dumps({"tool_calls": told(calls)}),
    "mistral": lambda calls: "[TOOL_CALLS] " + json.dumps(calls),
    "python": lambda calls: f"[{', '.join(python(calls))}]",
    "python fence": lambda calls: "\n".join(("```python", *python(calls), "```")),
}  # fmt: skip


@pytest.mark.parametrize("form", list(FORMATS))
def test_right_calls_pass_in_every_format_and_any_order(form):
    for question in QUESTIONS:
        calls = calls_of(question)
        if not calls:
            continue
        for order in (calls, calls[::-1]):
            verdict = judge(question, FORMATS[form](order))
            assert verdict.is_correct, (question.id, verdict.note)


def test_a_missing_an_extra_or_a_changed_call_fails():
    for question in QUESTIONS:
        calls = calls_of(question)
        if not calls:
            assert judge(question, "I cannot look that up, but I guess so.").is_correct
            assert judge(question, "[]").is_correct
            first = question.tools[0]["function"]["name"]
            assert not judge(question, json.dumps([{"name": first, "arguments": {}}])).is_correct
            continue
        *others, last = json.loads(json.dumps(calls))
        last["arguments"][next(iter(last["arguments"]))] = "something else"
        # The same call twice in place of two different ones.
        twice = [[calls[0]] * len(calls)] if others else []
        for wrong in (calls[1:], [*calls, calls[0]], [*others, last], *twice):
            assert not judge(question, json.dumps(wrong)).is_correct, wrong
        first, *others = json.loads(json.dumps(calls))
        first["arguments"]["mood"] = "good"
        assert "no argument mood" in judge(question, json.dumps([first, *others])).note


ROME = '{"city": "Rome", "days": 2}'
SPELLINGS = {
    "json": TEXT, "a list": f"[{TEXT}]", "in prose": f"Let me see. {TEXT} That is it.",
    "an open tag": f"<tool_call>{TEXT}", "fenced": f"```\n{TEXT}\n```",
    "args": '{"name": "get_weather", "args": {"city": "Rome", "days": 2}}',
    "parameters": f'{{"type": "function", "name": "get_weather", "parameters": {ROME}}}',
    "python": "get_weather(city='Rome', days=2)",
    "a python list": "[get_weather(city='Rome', days=2)]",
    "tags in a tag": "<tool_call><function=get_weather><parameter=city>\nRome\n</parameter>"
    "<parameter=days>2</parameter></function></tool_call>",
    "llama": f"<function=get_weather>{ROME}</function>",
    "deepseek": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ROME}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek r1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    f"```json\n{ROME}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek r1 without its marks": f"functionget_weather\n```json\n{ROME}\n```",
    "gemma": "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:2}"
    "<end_function_call>",
    "gemma 3": '```tool_code\nprint(get_weather(city="Rome", days=2))\n```',
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{ROME}<|tool_call_end|><|tool_calls_section_end|>",
    "kimi without its marks": f"functions.get_weather:0{ROME}",
    "gpt-oss": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    f"{ROME}<|call|>",
    "gpt-oss by role": "<|start|>assistant to=functions.get_weather<|channel|>commentary json"
    f"<|message|>{ROME}",
    "gpt-oss without its marks": f"commentary to=functions.get_weather json{ROME}",
    "mistral": f"[TOOL_CALLS]get_weather[ARGS]{ROME}",
    "mistral without its mark": f"get_weather{ROME}",
    "mistral with an id": f"[TOOL_CALLS]get_weather[CALL_ID]a1b2[ARGS]{ROME}",
}  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_one_call_is_read_from_every_spelling(text):
    assert parse_calls(text) == PARSED


@pytest.mark.parametrize("text", [
    "", "I would call get_weather for Rome.", "get_weather(city=Rome)", "[1, 2, 3]",
    "get_weather(city=open('x'))", "get_weather(**{'city': 'Rome'})", "import os",
    "get_weather(city='Rome'", '{"name": 5, "arguments": {}}', '{"city": "Rome"}',
    '{"name": "f", "arguments": [1]}', "(lambda: 0)(x=1)", "f(x='\\d')(y=1)",
    # Functions on offer said again, and things that merely have a name.
    '{"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {}}}',
    '{"name": "f", "description": "F."}', '{"name": "Nora", "age": 7}',
])  # fmt: skip
def test_what_is_no_call_gives_none(text):
    assert parse_calls(text) == []


def test_a_call_without_arguments_needs_none():
    assert parse_calls("<tool_call>f</tool_call>") == [Call("f", {})]
    assert parse_calls('{"name": "f"}') == parse_calls('{"name": "f", "arguments": {}}')
    assert parse_calls('[{"type": "function", "function": "f", "id": "1"}]') == [Call("f", {})]


def test_constants_of_other_languages_and_nested_values_are_read():
    (call,) = parse_calls("f(a=true, b=null, c=[1, -2.5], d={'k': [False]})")
    assert call.arguments == {"a": True, "b": None, "c": [1, -2.5], "d": {"k": [False]}}
    assert parse_calls("city.population(city='Lima')")[0].name == "city.population"


@pytest.mark.parametrize("text", [
    "[" * 20_000, '{"a":' * 5000, "(" * 9000, "f(" * 5000, "functions." * 2000,
    "functions.f " + "<|a|> " * 3000, "<tool_call>f" + "<arg_key>" * 2000,
])  # fmt: skip
def test_hostile_nesting_is_read_quickly(text):
    # Of this process alone: others may keep it waiting.
    start = time.process_time()
    assert parse_calls(text) == []
    assert time.process_time() - start < 5


def question(kind: str, good: list, needed: bool = True) -> Question:
    schema = {"type": kind, **({"items": {"type": "number"}} if kind == "array" else {})}
    tool = {"function": {"name": "f", "parameters": {"properties": {"x": schema}}}}
    spec = [{"name": "f", "arguments": {"x": good if needed else [*good, None]}}]
    return Question("q", "tool", "simple", "?", "", spec, 9, (tool,))


@pytest.mark.parametrize(("kind", "good", "right", "wrong"), [
    ("integer", 3, [3], [3.0, "3"]),
    ("integer", 1, [1], [True]),
    ("number", 3, [3.0], []),
    ("number", 2.5, [2.5], ["2.5"]),
    ("boolean", True, [True], [1, "true"]),
    # Case, blanks and some punctuation of text do not count, and the rest does.
    ("string", "New York", ["new york", "New-York.", " N_E/W*York^", "new,york"],
     ["New York:", "New York\n", "'New York'", "New Yor"]),
    ("string", "Nora's", ['nora"s'], []),
    ("string", "10:30", ["10:30"], ["1030"]),
    ("string", "5", [], [5]),
    ("array", [1, 2], [[1, 2.0]], [[2, 1], ["1", "2"]]),
    # Keys of an object may be optional, and unknown ones are wrong.
    ("object", {"a": [1, 2], "b": ["x", None]}, [{"a": 2}, {"a": 1, "b": "X"}, {"a": 1, "b": None}],
     [{"b": "x"}, {"a": 3}, {"a": 1, "c": 1}, {"a": None}]),
])  # fmt: skip
def test_types_and_values(kind, good, right, wrong):
    for values, is_right in ((right, True), (wrong, False)):
        for value in values:
            assert judge(question(kind, [good]), as_call(value)).is_correct is is_right, value


@pytest.mark.parametrize(
    ("kind", "good", "nothing"),
    [("string", "low", ""), ("string", "low", None), ("array", [1], []), ("array", [1], None)],
)
def test_an_optional_argument_may_be_missing_but_not_wrong(kind, good, nothing):
    optional, needed = question(kind, [good], needed=False), question(kind, [good])
    assert judge(optional, '{"name": "f", "arguments": {}}').is_correct
    assert judge(question(kind, ["a", good]), as_call(good)).is_correct  # one of several
    assert judge(optional, as_call(good)).is_correct
    assert judge(optional, as_call(nothing)).is_correct
    assert not judge(needed, as_call(nothing)).is_correct
    assert not judge(optional, as_call("high")).is_correct


def as_call(value: object) -> str:
    return json.dumps({"name": "f", "arguments": {"x": value}})


def test_the_reason_names_the_argument():
    assert judge(question("integer", [3]), "f(x=4)").note == "f: x is 4"
    assert judge(question("integer", [3]), "f(x='3')").note == "f: x is '3', not of type integer"
    assert judge(question("integer", [3]), "g(x=3)").note == "calls g instead of f"
    assert judge(question("integer", [3]), "f()").note == "f: x is missing"


def test_arguments_by_place_get_the_names_of_the_function():
    (call,) = parse_calls('get_weather("Rome", days=2)')
    assert (call.positional, call.arguments) == (("Rome",), {"days": 2})
    assert call.with_named_arguments(["city", "days"]) == PARSED[0]
    # One too many, or the same twice, is an argument that no function has.
    (many,) = parse_calls('get_weather("Rome", 2, 3)')
    assert many.with_named_arguments(["city", "days"]).arguments["argument 3"] == 3
    (twice,) = parse_calls('get_weather("Rome", city="Oslo")')
    assert twice.with_named_arguments(["city"]).arguments == {"city": "Oslo", "city twice": "Rome"}


@pytest.mark.parametrize("text", ["Use the function get_weather to see.", "a{b}", "call:x{", "f{}"])
def test_prose_with_names_and_brackets_is_no_call_with_arguments(text):
    assert all(not call.arguments for call in parse_calls(text))
