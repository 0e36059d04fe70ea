"""Suites `bfcl-nonlive` and `bfcl-live`: the Berkeley Function Calling Leaderboard's questions.

Questions and right answers are read from the installed bfcl-eval; calls are judged by the rules of
its checker (see `suites.tools.tool` and `bfcl_languages`; test_bfcl_agreement.py counts the
differences). The categories are the leaderboard's: simple in Python, Java and JavaScript, multiple,
parallel, parallel_multiple. Two columns are not part of the average: irrelevance (no function fits)
and live relevance (16 questions that any call passes). `bfcl_multi_turn` has the questions of
several turns.

A conversation of several messages is asked as one text. The leaderboard asks models trained for it
in their own format and others in Python syntax; here every model's own template writes the
functions, or our prompt does, so scores are close to the leaderboard's but not equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.published import bfcl_languages as languages
from ram_studio.evals.suites.published.rows import absent_package, lines_of
from ram_studio.evals.suites.suite import Suite, SuiteSettings, Summary, Tally, balance_questions
from ram_studio.evals.suites.tools import tool
from ram_studio.evals.suites.tools.tool_calls import Call

DISTRIBUTION = "bfcl-eval==2026.3.23"
MAX_NEW_TOKENS = 512
NONLIVE = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
)
LIVE = (
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
# Not averaged, as they show whether a function is called, not whether the call is right.
_APART = ("irrelevance", "relevance")
_TYPES = {
    "string": "string",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
}
ANY_CALL = "any call"
_EMPTY: dict[type, tuple[str, ...]] = {list: (), str: ("",)}
_SCHEMA_KEYS = ("description", "enum", "default", "format")

Row = Mapping[str, Any]


def question_of(domain: str, category: str, row: Row, answer: Sequence[Row]) -> Question:
    """Return the `Question` of a leaderboard question.

    Its spec is the list of expected calls; for Java and JavaScript an object that also has the
    language and the types; "any call" for relevance.

    Args:
        row: "id", "question" (one turn of messages) and "function", as in its files.
        answer: {name: {argument: acceptable values}} per call, "" among the values where the
            argument may be left out; empty where no function fits.
    """
    language = languages.LANGUAGES.get(category)
    shown = (
        [languages.describe_function(own, language) for own in row["function"]]
        if language
        else None
    )
    tools = tuple(
        {
            "type": "function",
            "function": {
                "name": function["name"],
                "description": function.get("description", ""),
                "parameters": _schema({**function["parameters"], "type": "dict"}),
            },
        }
        for function in shown or row["function"]
    )
    spec: Any = [
        {"name": name, "arguments": {k: _values(v) for k, v in arguments.items()}}
        for call in answer
        for name, arguments in call.items()
    ]
    gold = "; ".join(_format_answer(call) for call in answer) or "(no call)"
    if language:
        (function,) = row["function"]
        types = function["parameters"]["properties"]
        spec = {"language": language, "calls": spec, "types": types,
                "schema": languages.schema_of(function)}  # fmt: skip
        gold = _format_answer(
            answer[0], lambda key, value: languages.example_of(value, language, types[key])
        )
    elif _kind(category) == "relevance":
        spec, gold = ANY_CALL, f"{row['function'][0]['name']}()"
    return Question(
        id=row["id"],
        domain=domain,
        category=category,
        prompt=_format_messages(row["question"][0]),
        gold=gold,
        spec=spec,
        max_new_tokens=MAX_NEW_TOKENS,
        tools=tools,
        must_end=not spec,
        cluster=_cluster(category, str(row["id"])),
    )


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether an answer makes the expected calls, by the leaderboard's rules."""
    spec = question.spec
    if spec == ANY_CALL and text.strip():
        has_call = bool(tool.read_calls(question, text))
        return Verdict(has_call, "" if has_call else "no call found in the answer")
    if not isinstance(spec, Mapping) or not text.strip():
        return tool.judge(question, text, code)
    calls = []
    for call in tool.read_calls(question, text):
        values = languages.values_of(call.arguments, spec["language"], spec["types"])
        if isinstance(values, str):
            return Verdict(False, f"{call.name}: {values} is no text in {spec['language']} syntax")
        calls.append(Call(call.name, values))
    return tool.judge_calls(calls, spec["calls"], {spec["calls"][0]["name"]: spec["schema"]})


def _cluster(category: str, own_id: str) -> str:
    """Return a question's cluster by its id: a user's functions, or a scenario.

    Live questions are numbered "own-functions-version", and the four kinds of several turns vary
    the same scenarios.
    """
    parts = own_id.rpartition("_")[2].split("-")
    if category in LIVE and len(parts) == 3:
        return f"{category} {parts[1]}"
    return parts[0] if own_id.startswith("multi_turn") else ""


def _kind(category: str) -> str:
    return category.removeprefix("live_")


def _format_messages(messages: Sequence[Row]) -> str:
    texts = [str(message["content"]).strip() for message in messages]
    if [message["role"] for message in messages] in (["user"], ["system", "user"]):
        return "\n\n".join(texts)
    roles = [str(message["role"]).capitalize() for message in messages]
    return "\n\n".join(f"{role}: {text}" for role, text in zip(roles, texts, strict=True))


def _format_answer(call: Row, show: Callable[[str, Any], Any] = lambda key, value: value) -> str:
    """Return a right call for display; show: (argument, value) -> displayed value."""
    ((name, arguments),) = call.items()
    stated = {key: values[0] for key, values in arguments.items() if values and "" not in values}
    return str(Call(name, {key: show(key, value) for key, value in stated.items()}))


def _schema(given: Row) -> dict[str, Any]:
    """Return a JSON schema; their "any" is a schema without a type."""
    result = {key: given[key] for key in _SCHEMA_KEYS if key in given}
    if given.get("type") in _TYPES:
        result["type"] = _TYPES[given["type"]]
    if isinstance(given.get("items"), Mapping):
        result["items"] = _schema(given["items"])
    if isinstance(given.get("properties"), Mapping):
        result["properties"] = {name: _schema(own) for name, own in given["properties"].items()}
    if result.get("type") == "object" and "properties" in result:
        result["required"] = list(given.get("required", ()))
    return result


def _values(values: Sequence[Any]) -> list[Any]:
    return [None if value == "" else _acceptable(value) for value in values]


def _acceptable(value: Any) -> Any:
    """Read acceptable values: an object has lists of them; objects inside those are exact."""
    if isinstance(value, dict):
        return {
            # BFCL searches a bare text in place of a list like a list: it also contains "".
            key: [None if one == "" else _exact(one) for one in (*values, *_EMPTY[type(values)])]
            for key, values in value.items()
        }
    return [_acceptable(part) for part in value] if isinstance(value, list) else value


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: [_exact(one)] for key, one in value.items()}
    return [_exact(part) for part in value] if isinstance(value, list) else value


def nonlive_summary(tallies: Tally, facts: Sequence[Row]) -> dict[str, float]:
    """Return the leaderboard's figures: the means over languages and over the four kinds."""
    shares = {name: right / asked for name, (right, asked) in tallies.items() if asked}
    simple = [shares[name] for name in NONLIVE if name.startswith("simple") and name in shares]
    kinds = [shares[name] for name in NONLIVE[3:6] if name in shares]
    if not simple or len(kinds) < 3:
        return {}
    mean = sum(simple) / len(simple)
    return {"simple": mean, "non-live, as the leaderboard": (mean + sum(kinds)) / 4}


def live_summary(tallies: Tally, facts: Sequence[Row]) -> dict[str, float]:
    """Return the leaderboard's figure: all questions of the four kinds have equal weight."""
    own = [tallies[name] for name in LIVE[:4] if name in tallies and tallies[name][1]]
    if len(own) < 4:
        return {}
    return {"live, as the leaderboard": sum(r for r, _ in own) / sum(n for _, n in own)}


def _suite(name: str, title: str, categories: Sequence[str], about: str, summary: Summary) -> Suite:
    apart = {c: f"{name} {_kind(c)}" for c in categories if _kind(c) in _APART}

    def make(settings: SuiteSettings) -> tuple[Question, ...]:
        questions = []
        for category in categories:
            file = f"BFCL_v4_{category}.json"
            answers: dict[str, Any] = {}
            if category not in apart:
                rows = lines_of("bfcl_eval", f"data/possible_answer/{file}", DISTRIBUTION)
                answers = {row["id"]: row["ground_truth"] for row in rows}
            questions += [
                question_of(apart.get(category, name), category, row, answers.get(row["id"], ()))
                for row in lines_of("bfcl_eval", f"data/{file}", DISTRIBUTION)
            ]
        return balance_questions(questions, settings.limit)

    absent = absent_package("bfcl_eval", DISTRIBUTION)
    beside = tuple(apart.values())
    return Suite(name, 3, title, make, judge, about, apart=beside, summary=summary, absent=absent)


BY_EXPERTS = "the leaderboard's questions, made by experts: Python, Java, JavaScript"
BY_USERS = "the leaderboard's questions that users asked"
SUITES = (
    _suite("bfcl-nonlive", "BFCL, non-live", NONLIVE, BY_EXPERTS, nonlive_summary),
    _suite("bfcl-live", "BFCL, live", LIVE, BY_USERS, live_summary),
)
