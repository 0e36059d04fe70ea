"""Suite `tool-loop`: a model calls functions over several turns until the user's tasks are done.

The user gives a task in a world of files, a calendar and a shop (`tool_world`). The model calls
functions, sees their results and continues; after a reply without a call, the user gives the next
task or ends the conversation. It also ends after `MOST_TURNS` replies. Only the final state counts:
right when all tasks are done and nothing else changed, in whatever way. The difficulty, 1 to 5, is
the number of calls needed; from 2 on some depend on other calls' results, from 3 on there is a
second task. The hardest takes 7 turns with one call in each.

An answer is the conversation, one message a line, as JSON. Judging executes its calls again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from ram_studio.evals.question import NO_ANSWER, Conversation, Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.suite import Tally, visible
from ram_studio.evals.suites.tools import tool
from ram_studio.evals.suites.tools.tool_calls import Call
from ram_studio.evals.suites.tools.tool_world import (
    DAYS,
    TOOLS,
    State,
    apply_calls,
    call,
    difference,
)

MAX_NEW_TOKENS = 256
MOST_TURNS = 8
_INTRODUCTION = (
    "You look after my files, my calendar and my orders with the functions. Do what I ask and "
    "nothing else. You see what a function returns before your next reply. When all is done, say "
    "so without a call. My calendar is that of week {week}."
)
_PEOPLE = ("Ada", "Bruno", "Chidi", "Daria", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jun")
_ITEMS = ("lamp", "chair", "kettle", "tent", "radio", "clock")
_KINDS = ("small", "tall", "red", "folding", "plain", "green")
_FILES = ("plan", "notes", "list", "memo", "draft", "log", "ideas", "report")
_WORDS = ("river", "cedar", "amber", "comet", "harbor", "meadow", "copper", "winter")
_HOURS = range(8, 18)


class Goal(NamedTuple):
    """One task of the user: its text, the calls that solve it, and the look-ups needed."""

    text: str
    calls: list[Call]
    lookups: tuple[str, ...] = ()


class _World:
    """An initial state being built; tasks take unused files, events and items from it."""

    def __init__(self, drawn: Random) -> None:
        self.drawn = drawn
        self.people = drawn.sample(_PEOPLE, len(_PEOPLE))
        self.names = [f"{name}.txt" for name in drawn.sample(_FILES, len(_FILES))]
        self.items = drawn.sample(_ITEMS, len(_ITEMS))
        stock = [f"{kind} {item}" for item in _ITEMS for kind in drawn.sample(_KINDS, 3)]
        prices = drawn.sample(range(5, 100), len(stock))
        busy = {day: drawn.sample(_HOURS, 3) for day in DAYS}
        self.state: State = {
            "files": {self.names.pop(): drawn.choice(_WORDS)},
            "events": {d: {str(h): self.people[-1 - n] for n, h in enumerate(busy[d])}
                       for d in DAYS},
            "stock": dict(zip(stock, prices, strict=True)),
            "orders": {drawn.choice(stock): drawn.randint(1, 9)},
        }  # fmt: skip

    def meeting(self, person: str | None = None) -> tuple[str, int, str]:
        """Return (day, hour, person) of a free hour, or of a new event for this person."""
        day = self.drawn.choice(DAYS)
        hour = self.drawn.choice([h for h in _HOURS if str(h) not in self.state["events"][day]])
        if person is not None:
            self.state["events"][day][str(hour)] = person
        return day, hour, person or self.people.pop(0)

    def cheapest(self) -> tuple[str, str]:
        """Return a word and the cheapest item that has it in its name."""
        word = self.items.pop()
        found = {item: price for item, price in self.state["stock"].items() if word in item}
        return word, min(found, key=lambda item: found[item])

    def file(self, text: str) -> str:
        """Return the name of a new file with this text."""
        name = self.names.pop()
        self.state["files"][name] = text
        return name


def _add(world: _World) -> Goal:
    day, hour, person = world.meeting()
    text = f"Put a meeting with {person} on {day} at {hour} into my calendar."
    return Goal(text, [Call("add_event", {"day": day, "hour": hour, "person": person})])


def _order(world: _World) -> Goal:
    item, count = world.drawn.choice(list(world.state["stock"])), world.drawn.randint(2, 30)
    text = f"Order {count} of the {item!r} from the shop."
    return Goal(text, [Call("order_item", {"item": item, "count": count})])


def _write(world: _World) -> Goal:
    name, words = world.names.pop(), " ".join(world.drawn.sample(_WORDS, 2))
    return Goal(
        f"Write the file {name} with the text {words!r}.",
        [Call("write_file", {"name": name, "text": words})],
    )


def _cancel(world: _World) -> Goal:
    day, hour, person = world.meeting(world.people.pop(0))
    return Goal(
        f"Cancel my meeting with {person} on {day}.",
        [Call("cancel_event", {"day": day, "hour": hour})],
        ("list_events",),
    )


def _cheapest(world: _World) -> Goal:
    (word, item), count = world.cheapest(), world.drawn.randint(1, 20)
    text = f"Order {count} of the cheapest {word} in the shop."
    return Goal(text, [Call("order_item", {"item": item, "count": count})], ("search_items",))


def _copy(world: _World) -> Goal:
    words = " ".join(world.drawn.sample(_WORDS, 3))
    name, other = world.file(words), world.names.pop()
    return Goal(
        f"Copy what the file {name} says into the new file {other}.",
        [Call("write_file", {"name": other, "text": words})],
        ("read_file",),
    )


def _move(world: _World) -> Goal:
    day, hour, person = world.meeting(world.people.pop(0))
    free = [h for h in _HOURS if str(h) not in world.state["events"][day]]
    later = world.drawn.choice(free)
    return Goal(
        f"Move my meeting with {person} on {day} to {later} of the same day.",
        [Call("cancel_event", {"day": day, "hour": hour}),
         Call("add_event", {"day": day, "hour": later, "person": person})],
        ("list_events",),
    )  # fmt: skip


def _as_noted(world: _World) -> Goal:
    (word, item), count = world.cheapest(), world.drawn.randint(2, 20)
    name = world.file(f"{count} of the cheapest {word}")
    return Goal(
        f"The file {name} says what to order from the shop. Order it.",
        [Call("order_item", {"item": item, "count": count})],
        ("read_file", "search_items"),
    )


# By the number of calls needed.
_Kind = Callable[[_World], Goal]
_GOALS: dict[int, tuple[_Kind, ...]] = {
    1: (_add, _order, _write),
    2: (_cancel, _cheapest, _copy),
    3: (_move, _as_noted),
}
# The part of the state that they change, if not the orders: one user's two tasks change different
# parts.
_AREAS: dict[_Kind, str] = {
    _add: "events", _cancel: "events", _move: "events", _write: "files", _copy: "files"
}  # fmt: skip
_PLANS = {1: ((1,),), 2: ((2,),), 3: ((2, 1), (1, 2)), 4: ((2, 2), (3, 1)), 5: ((3, 2), (2, 3))}


def draw(drawn: Random, difficulty: int, _: int) -> dict[str, Any]:
    """Return a world with one or two tasks that together need `difficulty` calls."""
    world = _World(drawn)
    goals: list[Goal] = []
    areas: set[str] = set()
    for calls in drawn.choice(_PLANS[difficulty]):
        kinds = [kind for kind in _GOALS[calls] if _AREAS.get(kind, "orders") not in areas]
        chosen = drawn.choice(kinds)
        areas.add(_AREAS.get(chosen, "orders"))
        goals.append(chosen(world))
    texts = [goal.text for goal in goals]
    acts = [one for goal in goals for one in goal.calls]
    shown = [
        *(f"{name}(...)" for goal in goals for name in goal.lookups),
        *map(str, acts),
    ]
    return {
        "category": f"{difficulty} calls",
        "prompt": f"{_INTRODUCTION.format(week=drawn.randint(1, 52))}\n\n{texts[0]}",
        "gold": "; ".join(shown),
        "spec": {
            "state": world.state,
            "wanted": apply_calls(world.state, acts),
            "user": texts[1:],
        },
        "tools": TOOLS,
    }


class Episode:
    """A question's world, in which a model acts."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.state: State = deepcopy(question.spec["state"])
        self.messages: list[dict[str, Any]] = []
        self.calls = self.faults = self.turns = 0
        self._wishes = list(question.spec["user"])

    def take_turn(self, text: str) -> bool:
        """Execute the model's calls; return whether the user is satisfied, or gives up."""
        self.turns += 1
        calls = tool.read_calls(self.question, text)
        self.messages.append(tool.message_of(text, calls))
        for one in calls:
            found = call(self.state, one.name, one.arguments)
            self.calls += 1
            self.faults += isinstance(found, dict) and "error" in found
            content = json.dumps(found, ensure_ascii=False)
            self.messages.append({"role": "tool", "name": one.name, "content": content})
        if not calls and self._wishes:
            self.messages.append({"role": "user", "content": self._wishes.pop(0)})
            return False
        return not calls


def converse(question: Question, code: CodeSwitch = "off") -> Conversation:
    """Let the model act until the user is satisfied, or for `MOST_TURNS` turns."""
    episode = Episode(question)
    for _ in range(MOST_TURNS):
        reply = yield replace(question, messages=tuple(episode.messages))
        if reply.finish in NO_ANSWER or episode.take_turn(visible(reply.text)):
            return tool.whole_reply(reply, episode.messages)
    return tool.whole_reply(reply, episode.messages, f"stopped after {MOST_TURNS} turns")


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the world is in the expected state after the model's turns."""
    episode = Episode(question)
    for turn in _parse_turns(text)[:MOST_TURNS]:
        if episode.take_turn(turn):
            break
    facts = {"turns": episode.turns, "calls": episode.calls, "faults": episode.faults}
    if not text.strip():
        return Verdict(False, "empty answer", facts)
    note = difference(episode.state, question.spec["wanted"])
    return Verdict(not note, note, facts)


def _parse_turns(text: str) -> list[str]:
    """Return the model's texts by turn; a text that is not a conversation is one turn."""
    try:
        messages = [json.loads(line) for line in text.split("\n") if line.strip()]
        return [str(m["content"]) for m in messages if m["role"] == "assistant"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return [text]


def summary(tallies: Tally, facts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean number of turns, and the share of calls that returned an error."""
    found = [fact for fact in facts if "turns" in fact]
    calls = sum(fact["calls"] for fact in found)
    if not found:
        return {}
    faults = sum(fact["faults"] for fact in found)
    return {
        "turns": sum(fact["turns"] for fact in found) / len(found),
        "calls with an error": faults / calls if calls else 0.0,
    }
