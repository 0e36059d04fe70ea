"""The three skills: their questions, and binary judges of answers.

- `math`: word problems of two steps, numbers up to 200; the answer is one line that ends with the
  result;
- `tool`: one or two calls of six declared functions as JSON and nothing else, with times and
  durations in words in the request;
- `memory`: two facts of a long text lead from a person via a place to a code, among the same facts
  about other people.

A hash of a question's text (for `memory`, of the text it is about) determines its split, so
training, validation and test questions are disjoint for all seeds.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import operator
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
SKILLS = ("math", "tool", "memory")
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MAX_NEW_TOKENS = {"math": 40, "tool": 64, "memory": 24}
# Tenths of the drawn questions for training and for validation; the others are for the test.
_TRAIN, _VALIDATION = 6, 2

# fmt: off
_PEOPLE = (
    "Abel", "Berta", "Carlo", "Dunja", "Emre", "Frida", "Goran", "Hilde", "Ines", "Jonas", "Katja",
    "Luis", "Marta", "Nils", "Olga", "Pablo", "Rosa", "Selim", "Tilda", "Ugo", "Vera", "Wanda",
)
_THINGS = (
    "apples", "stamps", "marbles", "books", "cards", "shells", "pencils", "tickets", "eggs",
)
_ADJECTIVES = (
    "quiet", "old", "narrow", "bright", "dusty", "heavy", "early", "distant", "wooden", "cold",
    "green", "hollow", "slow", "round", "pale", "broken", "warm", "empty", "small", "yellow",
)
_PLACES = (
    "bakery", "library", "harbor", "museum", "garage", "theater", "school", "market", "station",
    "mill", "hotel", "farm", "clinic", "tower", "cinema", "garden", "office", "factory",
)
_FAR_PLACES = ("bank", "gym", "chapel", "pharmacy")
_DAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays")
_CITIES = (
    "Oslo", "Lima", "Kyoto", "Cairo", "Quito", "Hanoi", "Turin", "Perth", "Accra", "Riga", "Dakar",
)
_MONEY = {
    "euros": "EUR", "US dollars": "USD", "yen": "JPY", "pounds": "GBP", "Swiss francs": "CHF",
}
_TEXTS = (
    "I will be late", "the parcel is here", "call me back", "dinner is ready", "we won the game",
    "the train is full", "happy birthday", "bring some bread",
)
_LABELS = ("gym", "school", "medicine", "meeting", "market", "swimming", "piano")
_HOURS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
)
# fmt: on


@dataclass(frozen=True)
class Question:
    """One question.

    gold: the right answer: the number, the calls as JSON, or "place, code". solution: a right
    answer in a model's form, for training on answers instead of rewards.
    """

    skill: str
    prompt: str
    gold: str
    solution: str = ""


def questions(skill: str, split: Split, seed: int = 0) -> Iterator[Question]:
    """Yield questions of a split endlessly, without duplicates."""
    rng, seen = random.Random(f"{skill}/{split}/{seed}"), set()
    while True:
        drawn = _DRAW[skill](rng)
        if split_of(drawn[0]) == split and drawn[0].prompt not in seen:
            seen.add(drawn[0].prompt)
            yield from drawn[: PER_TEXT[split]]


def draw(skill: str, split: Split, count: int, seed: int = 0) -> list[Question]:
    """Return the first questions of a split."""
    return list(islice(questions(skill, split, seed), count))


def split_of(question: Question) -> Split:
    """Return the split of a question and all others about its text."""
    text = text_of(question) or question.prompt
    place = hashlib.sha256(text.encode()).digest()[0] * 10 // 256
    if place < _TRAIN:
        return "train"
    return "validation" if place < _TRAIN + _VALIDATION else "test"


def text_of(question: Question) -> str:
    """Return the text that a question shares with the following ones, empty where it has none."""
    return question.prompt.rpartition("\n")[0] if question.skill == "memory" else ""


def is_right(question: Question, answer: str) -> bool:
    """Return whether an answer, without special tokens, is right."""
    if question.skill == "tool":
        return _is_json(answer, json.loads(question.gold))
    if question.skill == "math":
        is_line = "\n" not in answer.strip()
        return is_line and _NUMBER.findall(answer)[-1:] == [question.gold]
    place, code = question.gold.split(", ")
    return place in answer and set(_NUMBER.findall(answer)) == {code}


# A minus directly after a number or bracket is an operator.
_NUMBER = re.compile(r"(?<![\w)])-?\d+(?:[.,]\d+)*|\d+(?:[.,]\d+)*")
# The question, its calculation, its result.
Story = tuple[str, str, int]


def reward(question: Question, answer: str) -> float:
    """Return 1.0 for a right answer, and less for a partly right one.

    A call counts for its name and each argument, at its position in the list; for `memory` the
    place and the code count half each; for `math` a calculation with the right result counts.
    """
    if is_right(question, answer):
        return 1.0
    if question.skill == "tool":
        return 0.9 * _share_of_calls(answer, json.loads(question.gold))
    if question.skill == "memory":
        place, code = question.gold.split(", ")
        return 0.5 * ((place in answer) + (set(_NUMBER.findall(answer)) == {code}))
    return 0.3 * ("\n" not in answer.strip() and float(question.gold) in _results(answer))


def _results(answer: str) -> list[float]:
    """Return the result of each calculation of two steps or more in an answer."""
    found = []
    for text in re.findall(r"[\d(][\d\s+*/().-]*", answer):
        with contextlib.suppress(SyntaxError, ValueError, ZeroDivisionError):
            tree = ast.parse(text.strip(), mode="eval").body
            if sum(isinstance(node, ast.BinOp) for node in ast.walk(tree)) > 1:
                found.append(_value(tree))
    return found


def _value(tree: ast.expr) -> float:
    if isinstance(tree, ast.Constant):
        return float(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_value(tree.left), _value(tree.right))
    raise ValueError(ast.dump(tree))


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _share_of_calls(answer: str, wanted: list[dict[str, Any]]) -> float:
    found = _parse(answer)
    if not isinstance(found, list) or not found:
        return 0.0
    shares = []
    for own, call in zip(found, wanted, strict=False):
        facts, own_facts = _facts(call), _facts(own)
        shares.append(len(facts & own_facts) / len(facts | own_facts))
    return sum(shares) / max(len(found), len(wanted))


def _facts(call: Any) -> set[str]:
    """Return the name and the arguments of a call, each as text."""
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        return {""}
    return {_text(call.get("name")), *map(_text, call["arguments"].items())}


def _is_json(answer: str, wanted: Any) -> bool:
    return _text(_parse(answer)) == _text(wanted)


def _parse(answer: str) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    # Text distinguishes 1, 1.0 and true, which Python's == does not.
    return json.dumps(value, sort_keys=True)


def _math(rng: random.Random) -> Question:
    story, steps, number = rng.choice(_STORIES)(rng)
    ask = "Reply with one line: the calculation and its result."
    return Question("math", f"{story}\n{ask}", str(number), f"{steps} = {number}")


def _boxes(rng: random.Random) -> Story:
    name, what = rng.choice(_PEOPLE), rng.choice(_THINGS)
    a, b, c = rng.randint(11, 200), rng.randint(3, 12), rng.randint(3, 15)
    story = f"{name} has {a} {what} and buys {b} boxes with {c} {what} each."
    return f"{story} How many {what} does {name} have now?", f"{a} + {b} * {c}", a + b * c


def _gift(rng: random.Random) -> Story:
    (name, other), what = rng.sample(_PEOPLE, 2), rng.choice(_THINGS)
    a, c = rng.randint(60, 200), rng.randint(11, 99)
    b = rng.randint(11, a - 10)
    story = f"{name} has {a} {what}, gives {b} of them to {other} and then finds {c} more."
    steps = f"{a} - {b} + {c}"
    return f"{story} How many {what} does {name} have at the end?", steps, a - b + c


def _sales(rng: random.Random) -> Story:
    what = rng.choice(_THINGS)
    a, b, c = rng.randint(11, 60), rng.randint(11, 60), rng.randint(2, 9)
    story = f"A shop sells {a} {what} in the morning and {b} in the afternoon, each for {c} euros."
    return f"{story} How many euros does it take in that day?", f"({a} + {b}) * {c}", (a + b) * c


def _shares(rng: random.Random) -> Story:
    (name, other), what = rng.sample(_PEOPLE, 2), rng.choice(_THINGS)
    b, each = rng.randint(3, 9), rng.randint(8, 22)
    c = rng.randint(2, each - 2)
    story = (
        f"{b * each} {what} are shared equally among {b} children. {name}, who is one of them, "
        f"gives {c} to {other}."
    )
    return f"{story} How many {what} does {name} keep?", f"{b * each} / {b} - {c}", each - c


def _together(rng: random.Random) -> Story:
    (name, other), what = rng.sample(_PEOPLE, 2), rng.choice(_THINGS)
    a = rng.randint(40, 200)
    b, is_more = rng.randint(11, a - 10), rng.random() < 0.5
    words, sign = ("more", "+") if is_more else ("fewer", "-")
    story = f"{name} has {a} {what}. {other} has {b} {words} than {name}."
    total = 2 * a + (b if is_more else -b)
    return f"{story} How many {what} do they have together?", f"{a} + {a} {sign} {b}", total


def _pages(rng: random.Random) -> Story:
    name, b, c = rng.choice(_PEOPLE), rng.randint(6, 24), rng.randint(3, 8)
    a = rng.randint(b * c, 200)
    story = f"A book has {a} pages. {name} reads {b} pages a day for {c} days."
    return f"{story} How many pages are left?", f"{a} - {b} * {c}", a - b * c


def _bags(rng: random.Random) -> Story:
    name, what = rng.choice(_PEOPLE), rng.choice(_THINGS)
    b, n, c = rng.randint(4, 12), rng.randint(4, 16), rng.randint(3, 9)
    story = f"{name} puts {b * n} {what} into bags of {b} and sells each bag for {c} euros."
    return f"{story} How many euros does {name} get?", f"{b * n} / {b} * {c}", n * c


_STORIES = (_boxes, _gift, _sales, _shares, _together, _pages, _bags)


def _tool(rng: random.Random) -> Question:
    kinds = rng.sample(_REQUESTS, rng.choice((1, 2, 2)))
    said, calls = zip(*(kind(rng) for kind in kinds), strict=True)
    request = ", then ".join(said)
    ask = (
        f"Functions:\n{_DECLARED}\n"
        "Reply with the calls in the order of the request, as plain JSON on one line, such as "
        '[{"name": "set_timer", "arguments": {"minutes": 5}}].\n'
        f"Request: {request[0].upper()}{request[1:]}."
    )
    wanted = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return Question("tool", ask, json.dumps(wanted), json.dumps(wanted))


_DECLARED = """set_alarm(time: "HH:MM", label: string)
set_timer(minutes: integer)
send_message(to: string, text: string)
get_weather(city: string, days: integer)
convert_money(amount: integer, source: ISO code, target: ISO code)
book_table(people: integer, time: "HH:MM")"""

Call = tuple[str, dict[str, Any]]


def _time(rng: random.Random) -> tuple[str, str]:
    """Return a time in words and as HH:MM."""
    hour, minutes = rng.randint(7, 22), rng.choice((0, 15, 30, 45))
    return f"{hour}:{minutes:02}" if minutes else f"{hour} o'clock", f"{hour:02}:{minutes:02}"


def _alarm(rng: random.Random) -> tuple[str, Call]:
    (words, time), label = _time(rng), rng.choice(_LABELS)
    call = {"time": time, "label": label}
    return f"set an alarm at {words} with the label {label}", ("set_alarm", call)


def _timer(rng: random.Random) -> tuple[str, Call]:
    words, minutes = rng.choice(_DURATIONS)
    return f"set a timer to {words}", ("set_timer", {"minutes": minutes})


_DURATIONS = (
    *((f"{minutes} minutes", minutes) for minutes in range(5, 60, 5)),
    ("half an hour", 30),
    ("one hour", 60),
    ("an hour and a half", 90),
    ("two hours", 120),
)


def _message(rng: random.Random) -> tuple[str, Call]:
    name, text = rng.choice(_PEOPLE), rng.choice(_TEXTS)
    return f'send a message to {name}: "{text}"', ("send_message", {"to": name, "text": text})


def _weather(rng: random.Random) -> tuple[str, Call]:
    city = rng.choice(_CITIES)
    days, words = rng.choice(
        (
            (1, "for one day"),
            (3, "for three days"),
            (7, "for a week"),
            (14, "for two weeks"),
            (2, "for two days"),
        )
    )
    return f"get the weather in {city} {words}", ("get_weather", {"city": city, "days": days})


def _money(rng: random.Random) -> tuple[str, Call]:
    (source, a), (target, b) = rng.sample(sorted(_MONEY.items()), 2)
    amount = rng.randint(2, 990)
    call = {"amount": amount, "source": a, "target": b}
    return f"convert {amount} {source} to {target}", ("convert_money", call)


def _table(rng: random.Random) -> tuple[str, Call]:
    (words, time), guests = _time(rng), rng.randint(1, 8)
    who = "one friend" if guests == 1 else f"{_HOURS[guests - 1]} friends"
    call = {"people": guests + 1, "time": time}
    return f"book a table for me and {who} at {words}", ("book_table", call)


_REQUESTS = (_alarm, _timer, _message, _weather, _money, _table)


# Questions about one text, which is then computed once.
PER_TEXT: dict[Split, int] = {"train": 4, "validation": 10, "test": 10}


def _memory(rng: random.Random) -> list[Question]:
    """Return ten two-hop questions about one text of 600 to 1,000 tokens."""
    count = rng.randint(15, len(_PEOPLE))
    people = rng.sample(_PEOPLE, count)
    places = [
        f"{a} {p}"
        for a, p in zip(
            rng.choices(_ADJECTIVES, k=count), rng.sample(_PLACES + _FAR_PLACES, count), strict=True
        )
    ]
    codes = [str(code) for code in rng.sample(range(1000, 10_000), count)]
    facts = [f"{name} works in the {place}." for name, place in zip(people, places, strict=True)]
    facts += [f"The code of the {p} is {c}." for p, c in zip(places, codes, strict=True)]
    for name in people:
        verbs = rng.sample(("likes", "collects", "paints", "sells"), 2)
        facts += [f"{name} {verb} {rng.choice(_THINGS)}." for verb in verbs]
    facts += [f"The {place} is closed on {rng.choice(_DAYS)}." for place in places[::2]]
    rng.shuffle(facts)
    found = []
    for at in rng.sample(range(count), 10):
        name, place, code = people[at], places[at], codes[at]
        ask = f"Where does {name} work, and what is the code of that place? Reply in one sentence."
        solution = f"{name} works in the {place}, and its code is {code}."
        found.append(Question("memory", f"{' '.join(facts)}\n{ask}", f"{place}, {code}", solution))
    return found


_DRAW: dict[str, Callable[[random.Random], list[Question]]] = {
    "math": lambda rng: [_math(rng)],
    "tool": lambda rng: [_tool(rng)],
    "memory": _memory,
}
