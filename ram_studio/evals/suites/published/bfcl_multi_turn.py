"""Suite `bfcl-multi-turn`: the leaderboard's tasks of several turns, on its own classes.

Questions, right calls and the called classes are read from bfcl-eval: installed here, or in the
folder of `--data` (another environment, its site-packages, or the package). Its modules are never
imported: their text runs in the sandbox (`tools.bfcl_world`), and so does every call of a model.
Before each reply all earlier calls are repeated in a new process.

The rules are the leaderboard's: up to 20 replies with calls a turn; a reply without a call ends the
turn; after each turn the objects' state must equal that of the right calls, and all their results
must have been returned. Functions are shown to the model as in `bfcl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import NO_ANSWER, Conversation, Question, Verdict
from ram_studio.evals.sandbox import AnswerFault, CodeSwitch, Limits, sealed_function
from ram_studio.evals.suites.published.bfcl import DISTRIBUTION, MAX_NEW_TOKENS, question_of
from ram_studio.evals.suites.suite import (
    Suite,
    SuiteSettings,
    Tally,
    balance_questions,
    json_lines,
    reading,
    visible,
)
from ram_studio.evals.suites.tools import bfcl_world, tool

NAME = "bfcl-multi-turn"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
MOST_STEPS = 20
_MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
_ABSENT = (
    f"its tasks come with a package: pip install --no-deps {DISTRIBUTION}, here or in an "
    "environment of its own, which --data names"
)
_LIMITS = Limits(seconds=30.0)
_SOURCES = "eval_checker/multi_turn_eval/func_source_code"
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}

Row = Mapping[str, Any]


def find_package(data: str | Path | None) -> Path | None:
    """Return the package's folder: in a folder of data or an environment, or installed."""
    places: list[Path] = []
    if data is not None:
        folder = Path(data).expanduser()
        places = [folder, folder / "bfcl_eval", *folder.glob("lib/python*/site-packages/bfcl_eval")]
    if (found := find_spec("bfcl_eval")) is not None:
        places += map(Path, found.submodule_search_locations or ())
    return next((one for one in places if (one / _SOURCES).is_dir()), None)


def absent(data: str | Path | None) -> str:
    """Return why the questions are not available, "" where they are."""
    return "" if find_package(data) else _ABSENT


def make(settings: SuiteSettings) -> Sequence[Question]:
    """Return the leaderboard's questions, of all four kinds.

    Raises: EvaluationError where the package is missing or not as expected.
    """
    package = find_package(settings.data)
    if package is None:
        raise EvaluationError(f"Suite {NAME} cannot be asked: {_ABSENT}.")
    questions = []
    for category in CATEGORIES:
        file = f"BFCL_v4_multi_turn_{category}.json"
        try:
            rows = json_lines(package / "data" / file)
            answers = json_lines(package / "data" / "possible_answer" / file)
        except (OSError, ValueError) as error:
            raise EvaluationError(f"{package} is not {DISTRIBUTION}: {error}.") from error
        truth = {row["id"]: row["ground_truth"] for row in answers}
        for number, row in enumerate(rows):
            with reading(f"{NAME} {category}", number):
                questions.append(_question(package, category, row, truth[row["id"]]))
    return balance_questions(questions, settings.limit)


def _question(package: Path, category: str, row: Row, truth: Sequence[Sequence[str]]) -> Question:
    docs = [doc for name in row["involved_classes"] for doc in _docs(package, _MODULES[name])]
    later = row.get("missed_function", {})
    asked = question_of(NAME, category, {**row, "function": docs}, ())
    spec = {
        "package": str(package),
        "classes": {name: _MODULES[name] for name in row["involved_classes"]},
        "config": row["initial_config"],
        "is_long": category == "long_context",
        "user": [
            "\n\n".join(str(m["content"]) for m in turn) or _MORE_FUNCTIONS
            for turn in row["question"]
        ],
        "later": {name: int(turn) for turn, names in later.items() for name in names},
        "truth": [list(calls) for calls in truth],
    }
    gold = "; ".join(call for calls in truth for call in calls)
    return replace(asked, gold=gold, spec=spec, must_end=False, max_new_tokens=MAX_NEW_TOKENS)


@lru_cache(maxsize=32)
def _docs(package: Path, module: str) -> tuple[Row, ...]:
    return tuple(json_lines(package / "data" / "multi_turn_func_doc" / f"{module}.json"))


@lru_cache(maxsize=64)
def _text(package: str, module: str) -> str:
    return (Path(package) / _SOURCES / f"{module}.py").read_text("utf-8")


def _run(question: Question, call: str, values: Row, code: CodeSwitch) -> Any:
    """Return the result of a function of `bfcl_world`, run in the sandbox.

    Raises: AnswerFault; EvaluationError where code may not run here.
    """
    spec = question.spec
    modules = (*spec["classes"].values(), "long_context")
    world = {key: spec[key] for key in ("classes", "config", "is_long")}
    world["modules"] = {name: _text(spec["package"], name) for name in modules}
    given = json.dumps({"world": world, **values})
    source = Path(bfcl_world.__file__).read_text("utf-8")
    source += f"\n\n_GIVEN = json.loads({given!r})\n\ndef run():\n    return {call}(**_GIVEN)\n"
    with sealed_function(source, "run", code=code, limits=_LIMITS) as run:
        return run()


def converse(question: Question, code: CodeSwitch = "auto") -> Conversation:
    """Execute the calls of a model, turn by turn.

    Raises: EvaluationError: code may not run here.
    """
    spec, messages = question.spec, list[dict[str, Any]]()
    steps: list[list[tuple[str, Any]]] = []
    for turn, wish in enumerate(spec["user"]):
        if turn:
            messages.append({"role": "user", "content": wish})
        # The functions available by this turn.
        tools = tuple(
            t for t in question.tools if spec["later"].get(t["function"]["name"], 0) <= turn
        )
        for _ in range(MOST_STEPS + 1):
            request = replace(question, messages=tuple(messages), tools=tools)
            reply = yield request
            if reply.finish in NO_ANSWER:
                return tool.whole_reply(reply, messages)
            text = visible(reply.text)
            calls = tool.read_calls(request, text)
            messages.append(tool.message_of(text, calls))
            if not calls:
                break
            steps.append([(one.name, dict(one.arguments)) for one in calls])
            try:
                results = _run(question, "act", {"steps": steps}, code)
            except AnswerFault as fault:
                note = f"the calls could not be made: {fault}"
                return tool.whole_reply(reply, messages, note)
            for one, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "name": one.name, "content": result})
        else:
            note = f"stopped after {MOST_STEPS} replies in turn {turn + 1}"
            return tool.whole_reply(reply, messages, note)
    return tool.whole_reply(reply, messages)


def judge(question: Question, text: str, code: CodeSwitch = "auto") -> Verdict:
    """Return whether a conversation's calls are right, by the leaderboard's rules.

    Raises: EvaluationError: code may not run here.
    """
    truth = question.spec["truth"]
    turns: list[list[list[Any]]] = [[] for _ in truth]
    ended = 0
    try:
        messages = [json.loads(line) for line in text.split("\n") if line.strip()]
        for message in (one for one in messages if one["role"] == "assistant"):
            calls = [[one["name"], one["arguments"]] for one in message.get("calls", ())]
            turns[ended] += [calls] if calls else []
            ended += not calls
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        ended = 0
    facts = {"turns": ended, "calls": sum(len(step) for steps in turns for step in steps)}
    if ended < len(truth):
        return Verdict(
            False, f"{ended} of {len(truth)} turns ended" if text else "empty answer", facts
        )
    try:
        note = _run(question, "check", {"turns": turns, "truth": truth}, code)
    except AnswerFault as fault:
        note = str(fault)
    return Verdict(not note, str(note), facts)


def summary(tallies: Tally, facts: Sequence[Row]) -> dict[str, float]:
    """Return the leaderboard's figure: the mean over the four kinds."""
    shares = [right / asked for right, asked in tallies.values() if asked]
    return {"multi-turn, as the leaderboard": sum(shares) / 4} if len(shares) == 4 else {}


SUITE = Suite(
    NAME, 2, "BFCL, multi-turn", make, judge,
    "the leaderboard's tasks of several turns, judged by state",
    runs_code=True, summary=summary, absent=absent, converse=converse,
)  # fmt: skip
