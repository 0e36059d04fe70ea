"""BFCL's tasks of several turns: on a small package made by hand, and on bfcl-eval where it is."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bfcl_answers import said_by
from loopback_endpoint import serve
from scripted import end_of

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.question import Question, Reply
from ram_studio.evals.run import evaluate
from ram_studio.evals.sandbox import is_sealed, switch
from ram_studio.evals.suites.published import bfcl_multi_turn as multi_turn
from ram_studio.evals.suites.suite import SuiteSettings

pytestmark = pytest.mark.skipif(not is_sealed(), reason="this kernel seals no process")

SOURCE = """
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context import MORE

class TicketAPI:
    def _load_scenario(self, scenario, long_context=False):
        self.tickets = scenario["tickets"] + MORE * long_context
        self._calls = 0

    def list_tickets(self):
        self._calls += 1
        return {"tickets": self.tickets}

    def open_ticket(self, title, priority=1):
        self.tickets.append([title, priority])
        return len(self.tickets)

    def close_ticket(self, number):
        return {"closed": self.tickets.pop(number)}

    def peek(self, path):
        return open(path).read()
"""
DOCS = [
    {"name": name, "parameters": {"type": "dict", "properties": own, "required": []}}
    for name, own in {
        "list_tickets": {},
        "open_ticket": {"title": {"type": "string"}, "priority": {"type": "integer"}},
        "close_ticket": {"number": {"type": "integer"}},
        "peek": {"path": {"type": "string"}},
    }.items()
]
TRUTH = [["open_ticket(title='lamp', priority=2)"], [], ["close_ticket(0)", "list_tickets()"]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one task of each kind, in an environment's site-packages."""
    place = tmp_path / "lib/python3.12/site-packages/bfcl_eval"
    for folder in (multi_turn._SOURCES, "data/multi_turn_func_doc", "data/possible_answer"):
        (place / folder).mkdir(parents=True)
    (place / multi_turn._SOURCES / "ticket_api.py").write_text(SOURCE)
    (place / multi_turn._SOURCES / "long_context.py").write_text("MORE = [['noise', 0]]\n")
    lines = "".join(f"{json.dumps(doc)}\n" for doc in DOCS)
    (place / "data/multi_turn_func_doc/ticket_api.json").write_text(lines)
    for category in multi_turn.CATEGORIES:
        wishes = [[{"role": "user", "content": text}] for text in ("Open.", "Hm.", "Close, list.")]
        row = {
            "id": f"multi_turn_{category}_0",
            "question": wishes,
            "initial_config": {"TicketAPI": {"tickets": [["tent", 1]]}},
            "involved_classes": ["TicketAPI"],
        }
        if category == "miss_func":
            row |= {"missed_function": {"2": ["close_ticket"]}, "question": [*wishes[:2], []]}
        file = f"BFCL_v4_multi_turn_{category}.json"
        (place / "data" / file).write_text(json.dumps(row))
        answer = {"id": row["id"], "ground_truth": TRUTH}
        (place / "data/possible_answer" / file).write_text(json.dumps(answer))
    return tmp_path


def talk(question: Question, turns: Sequence[Sequence[str]]) -> Reply:
    """Return the conversation of a model that says these steps in each turn, then ends the turn."""
    said = (text for steps in turns for text in (*steps, "Done."))
    return end_of(multi_turn.converse(question), (Reply(text, "prompt", "end") for text in said))


def is_right(question: Question, turns: Sequence[Sequence[str]]) -> bool:
    return multi_turn.judge(question, talk(question, turns).text).is_correct


RIGHT = [[f"[{', '.join(calls)}]"] if calls else [] for calls in TRUTH]


def test_tasks_of_several_turns_are_judged_by_state(package: Path) -> None:
    made = multi_turn.make(SuiteSettings(len, data=package))
    # The four kinds vary one scenario.
    assert [question.cluster for question in made] == ["0"] * 4
    base, missing, *_, long = made
    assert (base.id, base.prompt) == ("multi_turn_base_0", "Open.")
    answer = talk(base, RIGHT)
    verdict = multi_turn.judge(base, answer.text)
    assert (verdict.is_correct, verdict.facts) == (True, {"turns": 3, "calls": 3})
    messages = [json.loads(line) for line in answer.text.splitlines()]
    given = [one["content"] for one in messages if one["role"] == "tool"]
    assert given == ["2", '{"closed": ["tent", 1]}', '{"tickets": [["lamp", 2]]}']
    assert is_right(long, RIGHT)
    # Another way to the same state is right; what must be returned may be returned before.
    detour = [["list_tickets()", *RIGHT[0]], [], TRUTH[2]]
    assert is_right(base, detour)
    for wrong, why in (
        ([[], [], []], "turn 1: no call"),
        ([["open_ticket(title='lamp')"], *RIGHT[1:]], "turn 1: TicketAPI differs in tickets"),
        ([RIGHT[0], [], ["close_ticket(0)"]], "turn 3: no call gave"),
        ([["open_ticket(title='lamp', priority=2, urgent=True)"], *RIGHT[1:]], "turn 1: TicketAPI"),
    ):
        verdict = multi_turn.judge(base, talk(base, wrong).text)
        assert (verdict.is_correct, verdict.note[: len(why)]) == (False, why)
    assert multi_turn.judge(base, "").note == "empty answer"
    assert multi_turn.judge(base, "no conversation").note == "0 of 3 turns ended"
    # A function that is withheld comes with the turn that needs it.
    names = {one["function"]["name"] for one in next(multi_turn.converse(missing)).tools}
    assert names == {"list_tickets", "open_ticket", "peek"}
    assert multi_turn._MORE_FUNCTIONS in talk(missing, RIGHT).text


def test_model_calls_stay_in_the_sandbox_and_end(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_turn, "MOST_STEPS", 3)
    base, *_ = multi_turn.make(SuiteSettings(len, data=package))
    secret = package / "secret"
    secret.write_text("secret")
    reply = talk(base, [[f"peek(path={str(secret)!r})", *["list_tickets()"] * 3]])
    _, refused, *_ = map(json.loads, reply.text.splitlines())
    assert "Error during execution" in refused["content"]
    assert reply.note == "stopped after 3 replies in turn 1"
    assert multi_turn.judge(base, reply.text).note == "0 of 3 turns ended"


def test_with_code_on_calls_are_made_where_nothing_is_sealed(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "is_sealed", lambda: False)

    def say(body: dict[str, Any]) -> str:
        return "Done." if body["messages"][1:] else "list_tickets()"

    with serve(say) as server:
        models = {"m": EndpointEngine(server.url)}
        report = evaluate(models, "bfcl-multi-turn", data=package, limit=1, code="on")
    (answer,) = report.models["m"].answers["bfcl-multi-turn"]
    assert "tent" in answer.text


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_turn, "find_spec", lambda name: None)
    assert "pip install --no-deps bfcl-eval" in multi_turn.absent(tmp_path)
    with pytest.raises(EvaluationError, match="which --data names"):
        multi_turn.make(SuiteSettings(len, data=tmp_path))
    (tmp_path / multi_turn._SOURCES).mkdir(parents=True)
    assert multi_turn.absent(tmp_path) == ""
    with pytest.raises(EvaluationError, match="is not bfcl-eval=="):
        multi_turn.make(SuiteSettings(len, data=tmp_path))


PYTHON = os.environ.get("RAM_STUDIO_BFCL_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="RAM_STUDIO_BFCL_PYTHON names no Python with bfcl-eval")
def test_verdicts_are_those_of_the_leaderboards_checker() -> None:
    ask = partial(said_by, str(PYTHON), "run_bfcl.py")
    drawn = random.Random(0)
    rows, ours = [], []
    for question in multi_turn.make(SuiteSettings(len, limit=40, data=ask("where"))):
        truth = question.spec["truth"]
        right = [[f"[{', '.join(calls)}]"] if calls else [] for calls in truth]
        number = drawn.choice([n for n, calls in enumerate(truth) if calls])
        less = [*right[:number], [], *right[number + 1 :]]
        short = [calls[: -1 if n == number else None] for n, calls in enumerate(truth)]
        shorter = [[f"[{', '.join(calls)}]"] if calls else [] for calls in short]
        twice = [[*steps, *steps] if n == number else steps for n, steps in enumerate(right)]
        for turns in (right, [[] for _ in truth], less, shorter, twice):
            rows.append([question.id, [[step[1:-1] for step in steps] for steps in turns]])
            ours.append(is_right(question, turns))
    assert ours == ask("multi-turn", given=rows)
    assert ours[::5] == [True] * 40
    assert not any(ours[1::5])
