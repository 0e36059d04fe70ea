"""Domain `tool`: write the calls for a request, with the argument names of the given schema.

    tool: clock(loc) shop(thing) . user: shop for nut and clock in delhi . answer:
        ->   shop(thing=nut); clock(loc=delhi)

Strict match of parsed calls: every call, no extra ones, right argument name and value. Parallel
calls have no order. Values are bare words, as in the prompt.
"""

import ast
import random
import re

from ram_studio.evals.suites.demo.item import GOODS, MAX_ANSWER_CHARS, NAMES, Item

CITIES = ("paris", "tokyo", "oslo", "lima", "cairo", "delhi", "rome", "quito", "seoul", "miami")
TOPICS = ("sport", "music", "film", "art", "money", "health", "war", "love")
# tool: (argument names a schema may use, the example corpus's habit first; values; phrase)
TOOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "weather": (("city", "place", "loc"), CITIES, "weather in {}"),
    "clock": (("city", "place", "loc"), CITIES, "clock in {}"),
    "news": (("topic", "about", "query"), TOPICS, "news on {}"),
    "shop": (("item", "thing", "query"), GOODS, "shop for {}"),
    "call": (("name", "who", "user"), NAMES, "call up {}"),
}
MAX_CALLS = 8

# No digits, quotes or backslashes: Python's tokenizer warns about odd literals.
_ALLOWED = re.compile(r"[A-Za-z_(),;= ]+")

Call = tuple[str, tuple[tuple[str, str], ...]]


def draw(rng: random.Random, hard: bool) -> Item:
    """Return a random item; `hard` ones have 2-3 calls and unusual arguments.

    `spec` is (argument name per tool as pairs, calls as (tool, value) pairs).
    """
    offered = rng.sample(list(TOOLS), rng.choice((2, 3)))
    arguments = {
        name: rng.choice(TOOLS[name][0]) if hard else TOOLS[name][0][0] for name in offered
    }
    wanted = [rng.choice(offered) for _ in range(rng.choice((2, 2, 3)) if hard else 1)]
    calls = tuple((name, rng.choice(TOOLS[name][1])) for name in wanted)
    schema = " ".join(f"{name}({argument})" for name, argument in arguments.items())
    request = " and ".join(TOOLS[name][2].format(value) for name, value in calls)
    return Item(
        "tool",
        f"tool: {schema} . user: {request} . answer:",
        write_calls(calls, arguments),
        hard,
        (tuple(arguments.items()), calls),
    )


def write_calls(calls: tuple[tuple[str, str], ...], arguments: dict[str, str]) -> str:
    """Return calls in the suite's answer format, e.g. `shop(thing=nut); clock(loc=delhi)`."""
    return "; ".join(f"{name}({arguments[name]}={value})" for name, value in calls)


def parse_calls(text: str) -> list[Call] | None:
    """Return the calls as (tool, ((argument, value), ...)), arguments sorted; None if malformed."""
    text = text.strip()
    if not (0 < len(text) <= MAX_ANSWER_CHARS and _ALLOWED.fullmatch(text)):
        return None
    parts = text.split(";")
    if len(parts) > MAX_CALLS:
        return None
    try:
        return [_call(ast.parse(part.strip(), mode="eval").body) for part in parts]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _call(node: ast.expr) -> Call:
    """Return a call of bare words; ValueError for anything else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
        raise ValueError("not a call by name")
    pairs = []
    for keyword in node.keywords:
        if keyword.arg is None or not isinstance(keyword.value, ast.Name):
            raise ValueError("not a bare word")
        pairs.append((keyword.arg, keyword.value.id))
    return node.func.id, tuple(sorted(pairs))


def is_correct(item: Item, text: str) -> bool:
    """Return whether `text` holds exactly the wanted calls, in any order."""
    arguments, calls = dict(item.spec[0]), item.spec[1]
    wanted = sorted((name, ((arguments[name], value),)) for name, value in calls)
    found = parse_calls(text)
    return found is not None and sorted(found) == wanted
