"""Suites `bfcl-nonlive` and `bfcl-live`: the Berkeley Function Calling Leaderboard's questions.

Questions and right answers are read from the installed bfcl-eval; calls are judged by the rules of
its checker (see `suites.tool`; where the two differ is counted in test_bfcl_agreement.py). The
categories are the leaderboard's: simple, multiple, parallel, parallel_multiple; irrelevance is a
column of its own, beside the average. Left out: Java and JavaScript, whose calls are written in
their own syntax, live_relevance (16 questions that any call passes), and what takes several turns.

A conversation of several messages is asked as one text. The leaderboard asks models that are
trained for it through their own format and others in Python syntax; here every model's own template
writes the functions, or our words do, so figures lie near the leaderboard's and are not its.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ram_studio.evals.question import Question
from ram_studio.evals.suites.benchmarks.wheel import lines_of
from ram_studio.evals.suites.suite import Suite, SuiteSettings, balanced
from ram_studio.evals.suites.tool import judge

DISTRIBUTION = "bfcl-eval==2026.3.23"
MAX_NEW_TOKENS = 512
NONLIVE = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
LIVE = (
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
)
_TYPES = {
    "string": "string",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
}
_KEPT = ("description", "enum", "default", "format")

Row = Mapping[str, Any]


def question_of(domain: str, category: str, row: Row, answer: Sequence[Row]) -> Question:
    """Return a question of the leaderboard as one of ours.

    Args:
        row: "id", "question" (one turn of messages) and "function", as in its files.
        answer: {name: {argument: acceptable values}} per call, "" among the values where the
            argument may be left out; empty where no function fits.
    """
    tools = tuple(
        {
            "type": "function",
            "function": {
                "name": function["name"],
                "description": function.get("description", ""),
                "parameters": _schema({**function["parameters"], "type": "dict"}),
            },
        }
        for function in row["function"]
    )
    spec = [
        {"name": name, "arguments": {k: _values(v) for k, v in arguments.items()}}
        for call in answer
        for name, arguments in call.items()
    ]
    return Question(
        id=row["id"],
        domain=domain,
        category=category,
        prompt=_said(row["question"][0]),
        gold="; ".join(_written(call) for call in answer) or "(no call)",
        spec=spec,
        max_new_tokens=MAX_NEW_TOKENS,
        tools=tools,
        must_end=not spec,
    )


def _said(messages: Sequence[Row]) -> str:
    texts = [str(message["content"]).strip() for message in messages]
    if [message["role"] for message in messages] in (["user"], ["system", "user"]):
        return "\n\n".join(texts)
    roles = [str(message["role"]).capitalize() for message in messages]
    return "\n\n".join(f"{role}: {text}" for role, text in zip(roles, texts, strict=True))


def _written(call: Row) -> str:
    ((name, arguments),) = call.items()
    shown = {key: values[0] for key, values in arguments.items() if values and "" not in values}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def _schema(given: Row) -> dict[str, Any]:
    """Return a JSON schema; their "any" is a schema without a type."""
    result = {key: given[key] for key in _KEPT if key in given}
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
    return [None if value == "" else _accepted(value) for value in values]


def _accepted(value: Any) -> Any:
    """Objects hold lists of acceptable values; objects within those are exact."""
    if isinstance(value, dict):
        return {
            key: [None if one == "" else _exact(one) for one in values]
            for key, values in value.items()
        }
    return [_accepted(part) for part in value] if isinstance(value, list) else value


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: [_exact(one)] for key, one in value.items()}
    return [_exact(part) for part in value] if isinstance(value, list) else value


def _make(name: str, categories: Sequence[str]) -> Callable[[SuiteSettings], tuple[Question, ...]]:
    def make(settings: SuiteSettings) -> tuple[Question, ...]:
        questions = []
        for category in categories:
            file = f"BFCL_v4_{category}.json"
            is_apart = "irrelevance" in category
            answers: dict[str, Any] = {}
            if not is_apart:
                rows = lines_of("bfcl_eval", f"data/possible_answer/{file}", DISTRIBUTION)
                answers = {row["id"]: row["ground_truth"] for row in rows}
            domain = _apart(name) if is_apart else name
            questions += [
                question_of(domain, category, row, answers.get(row["id"], ()))
                for row in lines_of("bfcl_eval", f"data/{file}", DISTRIBUTION)
            ]
        return balanced(questions, settings.limit)

    return make


def _apart(name: str) -> str:
    return f"{name} irrelevance"


SUITES = tuple(
    Suite(name, 1, title, _make(name, categories), judge, apart=(_apart(name),))
    for name, title, categories in (
        ("bfcl-nonlive", "BFCL, non-live", NONLIVE),
        ("bfcl-live", "BFCL, live", LIVE),
    )
)
