"""Suite `tool-made`: as many calls as the difficulty says, among functions that do not fit."""

from __future__ import annotations

from random import Random
from typing import Any

from ram_studio.evals.question import Question
from ram_studio.evals.suites.generated.family import family
from ram_studio.evals.suites.suite import Suite
from ram_studio.evals.suites.tool import MAX_NEW_TOKENS, judge

_CITIES = ("Lisbon", "Nairobi", "Osaka", "Lima", "Tallinn", "Perth", "Quito", "Tunis")
_NAMES = ("Ada", "Bruno", "Chidi", "Daria", "Elif", "Farid", "Greta", "Hugo")
_ITEMS = ("lamps", "chairs", "maps", "kettles", "tents", "radios")
_TYPES = {str: "string", int: "integer"}

# name: (what it does, argument -> values, how it is asked for)
_FUNCTIONS: dict[str, tuple[str, dict[str, tuple[Any, ...]], str]] = {
    "get_forecast": (
        "Weather forecast of a city.",
        {"city": _CITIES, "days": tuple(range(1, 11))},
        "tell me the weather in {city} for the next {days} days",
    ),
    "book_train": (
        "Book train seats to a city.",
        {"city": _CITIES, "seats": tuple(range(1, 9))},
        "book {seats} seats on the train to {city}",
    ),
    "send_reminder": (
        "Send a person a reminder after some minutes.",
        {"person": _NAMES, "minutes": tuple(range(5, 95, 5))},
        "remind {person} in {minutes} minutes",
    ),
    "order_items": (
        "Order a number of items from the shop.",
        {"item": _ITEMS, "count": tuple(range(2, 30))},
        "order {count} {item}",
    ),
    "check_stock": (
        "How many of an item a city's warehouse has.",
        {"item": _ITEMS, "city": _CITIES},
        "look up how many {item} the warehouse in {city} has",
    ),
    "set_budget": (
        "Set a person's monthly budget in euros.",
        {"person": _NAMES, "euros": tuple(range(100, 2000, 50))},
        "set {person}'s monthly budget to {euros} euros",
    ),
    "plan_visit": (
        "Plan a visit of a person to a city.",
        {"person": _NAMES, "city": _CITIES},
        "plan a visit of {person} to {city}",
    ),
    "play_music": (
        "Play music for a person at a volume from 1 to 10.",
        {"person": _NAMES, "volume": tuple(range(1, 11))},
        "play music for {person} at volume {volume}",
    ),
}


def _schema(name: str) -> dict[str, Any]:
    text, arguments, _ = _FUNCTIONS[name]
    properties = {key: {"type": _TYPES[type(values[0])]} for key, values in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


def draw(drawn: Random, difficulty: int, key: str) -> Question:
    """Return a request for so many calls, with up to as many and two more functions on offer."""
    offered = drawn.sample(list(_FUNCTIONS), min(len(_FUNCTIONS), difficulty + 2))
    calls: list[tuple[str, dict[str, Any]]] = []
    while len(calls) < difficulty:
        name = drawn.choice(offered)
        own = {k: drawn.choice(values) for k, values in _FUNCTIONS[name][1].items()}
        if (name, own) not in calls:
            calls.append((name, own))
    wishes = [_FUNCTIONS[name][2].format(**own) for name, own in calls]
    return Question(
        id=key,
        domain="tool-made",
        category=f"{difficulty} calls",
        prompt=f"Please {', then '.join(wishes)}.",
        gold="; ".join(
            f"{name}({', '.join(f'{k}={v!r}' for k, v in own.items())})" for name, own in calls
        ),
        spec=[{"name": name, "arguments": {k: [v] for k, v in own.items()}} for name, own in calls],
        max_new_tokens=MAX_NEW_TOKENS,
        tools=tuple(map(_schema, offered)),
    )


SUITE = Suite(
    "tool-made",
    1,
    "Tool use, made to order",
    family("tool-made", draw),
    judge,
    "calls drawn from templates, new for each seed",
)
