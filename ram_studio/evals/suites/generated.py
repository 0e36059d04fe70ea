"""Families of questions drawn from templates: any number, new ones for every seed.

No model can have seen them. The difficulty, 1 to 5, sets the number of steps. Question i of a seed
does not depend on the number of questions, so a smaller limit gives a prefix of a larger one.

- `math`: word problems in which a number of things changes step by step;
- `tool`: as many calls as the difficulty, with functions that do not fit; no function fits every
  fifth request;
- `tool-loop`: tasks for functions over several turns, see there;
- `code-generated`: functions on lists of numbers, composed of steps; run in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

from ram_studio.errors import EvalSettingsError
from ram_studio.evals.prompts import after_examples, word
from ram_studio.evals.question import Question
from ram_studio.evals.suites import code, mathematics
from ram_studio.evals.suites.suite import Make, Suite, SuiteSettings
from ram_studio.evals.suites.tools import tool, tool_loop
from ram_studio.evals.suites.tools.tool_calls import Call

USUAL_LIMIT = 60
IRRELEVANT_EVERY = 5
HARDEST = 5
_FRUITLESS = 200

Draw = Callable[[Random, int, int], dict[str, Any]]
"""Random generator, difficulty and index of the question -> gold, spec, category and further
fields, as in `suite.RowFields`; may return duplicates."""


def _family(name: str, max_new_tokens: int, draw: Draw, template: str = "") -> Make:
    """Return the `make` of a family: each question has its own random generator.

    template: of draws with "fields" and "worked", see `suite.RowFields`.
    """

    def make(settings: SuiteSettings) -> tuple[Question, ...]:
        difficulty = settings.difficulty
        if not 1 <= difficulty <= HARDEST:
            raise EvalSettingsError(f"The difficulty is {difficulty}. Choose 1 to {HARDEST}.")

        def read(source: Random, number: int) -> tuple[dict[str, Any], str]:
            own = {"domain": name, **draw(source, difficulty, number)}
            if "fields" in own:
                own["prompt"] = word(name, template, own.pop("fields"), settings.templates)
            return own, own.pop("worked", "")

        # With a seed that no setting gives, so that all models see the same ones.
        split = (Random(f"{name}-{difficulty}-shots/{i}") for i in range(settings.shots))
        shown = [(own["prompt"], worked) for own, worked in (read(drawn, 0) for drawn in split)]
        start = f"{name}-{difficulty}-{settings.seed}"
        found: dict[str, Question | None] = {prompt: None for prompt, _ in shown}
        for number in range(USUAL_LIMIT if settings.limit is None else settings.limit):
            drawn = Random(f"{start}/{number}")
            for _ in range(_FRUITLESS):
                fields, _ = read(drawn, number)
                prompt = fields["prompt"]
                if prompt not in found:
                    break
            else:
                raise EvalSettingsError(
                    f"Suite {name} has no more than {number} different questions of difficulty "
                    f"{difficulty}. Ask fewer, or harder ones."
                )
            fields["prompt"] = after_examples(prompt, shown)
            key = f"{start}-{number:05d}"
            found[prompt] = Question(key, max_new_tokens=max_new_tokens, **fields)
        return tuple(question for question in found.values() if question is not None)

    return make


_PEOPLE = ("Ada", "Bruno", "Chidi", "Daria", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jun")
_THINGS = ("marbles", "stamps", "apples", "cards", "shells", "candles", "buttons", "tiles")
_CHANGES = ("more", "fewer", "times", "groups", "share")


def _problem(drawn: Random, difficulty: int, _: int) -> dict[str, Any]:
    """Return a problem of difficulty + 1 steps; every intermediate number is a positive integer."""
    name, things = drawn.choice(_PEOPLE), drawn.choice(_THINGS)
    have = drawn.randint(12, 60)
    sentences = [f"{name} has {have} {things}."]
    last = ""
    for _ in range(difficulty + 1):
        last = drawn.choice([change for change in _CHANGES if change != last])
        text, have = _draw_change(drawn, last, name, things, have)
        sentences.append(text)
    question = f"{' '.join(sentences)} How many {things} does {name} have now?"
    answer = {"gold": str(have), "spec": str(have), "worked": f"Answer: {have}"}
    return {"category": f"{difficulty + 1} steps", "fields": {"question": question}, **answer}


def _draw_change(drawn: Random, kind: str, name: str, things: str, have: int) -> tuple[str, int]:
    """Return the sentence of a step, and the number after it."""
    parts = [n for n in (2, 3, 4, 5, 6) if have % n == 0]
    if kind == "share" and parts:
        n = drawn.choice(parts)
        return f"{name} shares all {things} evenly among {n} boxes and keeps one box.", have // n
    if kind == "fewer" and have > 4:
        less = drawn.randint(2, have - 2)
        return f"Then {less} {things} are lost.", have - less
    if kind == "times" and have <= 2000:
        n = drawn.choice((2, 3))
        word = {2: "twice", 3: "three times"}[n]
        return f"A machine turns them into {word} as many {things}.", n * have
    if kind == "groups":
        groups, each = drawn.randint(2, 6), drawn.randint(3, 12)
        return f"Each of {groups} friends gives {name} {each} {things}.", have + groups * each
    more = drawn.randint(3, 40)
    return f"{name} finds {more} more {things}.", have + more


# Argument names and their values.
_VALUES: dict[str, tuple[Any, ...]] = {
    "city": ("Lisbon", "Nairobi", "Osaka", "Lima", "Tallinn", "Perth", "Quito", "Tunis"),
    "person": _PEOPLE[:8],
    "item": ("lamps", "chairs", "maps", "kettles", "tents", "radios"),
    "days": tuple(range(1, 11)),
    "seats": tuple(range(1, 9)),
    "minutes": tuple(range(5, 95, 5)),
    "count": tuple(range(2, 30)),
    "euros": tuple(range(100, 2000, 50)),
    "volume": tuple(range(1, 11)),
}
# Name: description, arguments, request.
_FUNCTIONS = {
    "get_forecast": ("Weather forecast of a city.", ("city", "days"),
                     "tell me the weather in {city} for the next {days} days"),
    "book_train": ("Book train seats to a city.", ("city", "seats"),
                   "book {seats} seats on the train to {city}"),
    "send_reminder": ("Send a person a reminder after some minutes.", ("person", "minutes"),
                      "remind {person} in {minutes} minutes"),
    "order_items": ("Order a number of items from the shop.", ("item", "count"),
                    "order {count} {item}"),
    "check_stock": ("How many of an item a city's warehouse has.", ("item", "city"),
                    "look up how many {item} the warehouse in {city} has"),
    "set_budget": ("Set a person's monthly budget in euros.", ("person", "euros"),
                   "set {person}'s monthly budget to {euros} euros"),
    "plan_visit": ("Plan a visit of a person to a city.", ("person", "city"),
                   "plan a visit of {person} to {city}"),
    "play_music": ("Play music for a person at a volume from 1 to 10.", ("person", "volume"),
                   "play music for {person} at volume {volume}"),
}  # fmt: skip


def _schema(name: str) -> dict[str, Any]:
    about, arguments, _ = _FUNCTIONS[name]
    return tool.function_schema(name, about, {key: type(_VALUES[key][0]) for key in arguments})


def _request(drawn: Random, difficulty: int, number: int) -> dict[str, Any]:
    """Return a request for `difficulty` calls, with up to that many and two more functions."""
    names = drawn.sample(list(_FUNCTIONS), len(_FUNCTIONS))
    count = min(len(names) - 1, difficulty + 2)
    offered, absent = names[:count], names[count:]
    is_served = (number + 1) % IRRELEVANT_EVERY > 0
    calls: list[Call] = []
    while len(calls) < difficulty:
        name = drawn.choice(offered if is_served else absent)
        made = Call(name, {key: drawn.choice(_VALUES[key]) for key in _FUNCTIONS[name][1]})
        if made not in calls:
            calls.append(made)
    wishes = [_FUNCTIONS[one.name][2].format(**one.arguments) for one in calls]
    shared = {
        "prompt": f"Please {', then '.join(wishes)}.",
        "tools": tuple(map(_schema, offered)),
    }
    if not is_served:
        none = {"gold": "(no call)", "spec": [], "must_end": True}
        return {**shared, **none, "domain": tool.IRRELEVANCE, "category": tool.IRRELEVANCE}
    wanted = [
        {"name": one.name, "arguments": {key: [value] for key, value in one.arguments.items()}}
        for one in calls
    ]
    gold = "; ".join(map(str, calls))
    return {**shared, "category": f"{difficulty} calls", "gold": gold, "spec": wanted}


Values = list[int]
# A step with the number k, in words, in Python, and as a function.
Step = tuple[str, str, Callable[[Values, int], Values]]
_STEPS: tuple[Step, ...] = (
    ("add {k} to every number", "[v + {k} for v in values]", lambda vs, k: [v + k for v in vs]),
    ("multiply every number by {k}", "[v * {k} for v in values]",
     lambda vs, k: [v * k for v in vs]),
    ("keep only the numbers greater than {k}", "[v for v in values if v > {k}]",
     lambda vs, k: [v for v in vs if v > k]),
    ("drop every number that {k} divides", "[v for v in values if v % {k}]",
     lambda vs, k: [v for v in vs if v % k]),
    ("reverse the order", "values[::-1]", lambda vs, k: vs[::-1]),
    ("sort them from small to large", "sorted(values)", lambda vs, k: sorted(vs)),
    ("keep each number's first occurrence only", "list(dict.fromkeys(values))",
     lambda vs, k: list(dict.fromkeys(vs))),
    ("leave out the first {k} numbers", "values[{k}:]", lambda vs, k: vs[k:]),
)  # fmt: skip
_ENTRY = "changed"
_TESTS = 6


def _function(drawn: Random, difficulty: int, _: int) -> dict[str, Any]:
    """Return a function of difficulty + 1 steps, with tests that depend on each step."""
    while True:
        chosen = [(step, drawn.randint(2, 5)) for step in drawn.sample(_STEPS, difficulty + 1)]
        inputs = [
            [drawn.randint(-9, 15) for _ in range(drawn.randint(6, 11))] for _ in range(_TESTS)
        ]
        if _all_matter(chosen, inputs):
            break
    words = [text.format(k=k) for (text, _, _), k in chosen]
    body = "".join(f"    values = {python.format(k=k)}\n" for (_, python, _), k in chosen)
    reference = f"def {_ENTRY}(values):\n{body}    return values\n"
    tests = "\n".join(f"assert {_ENTRY}({v!r}) == {_run(chosen, v)!r}" for v in [*inputs, []])
    return {
        # The type of check, see the suite `code`.
        "category": "function",
        "fields": {
            "question": f"Write a Python function `{_ENTRY}(values)` that takes a list of whole "
            f"numbers and does this with it, in this order: {'; then '.join(words)}. It returns "
            "the list that results."
        },
        "worked": f"```python\n{reference}```",
        "gold": reference,
        "spec": {"entry": _ENTRY, "tests": tests, "reference": reference},
    }


def _run(chosen: list[tuple[Step, int]], values: Values) -> Values:
    for (_, _, step), k in chosen:
        values = step(values, k)
    return values


def _all_matter(chosen: list[tuple[Step, int]], inputs: list[Values]) -> bool:
    """Return whether leaving out any step would change a result."""
    whole = [_run(chosen, values) for values in inputs]
    rests = [[*chosen[:i], *chosen[i + 1 :]] for i in range(len(chosen))]
    return all([_run(rest, values) for values in inputs] != whole for rest in rests)


def _suite(
    name: str,
    version: int,
    title: str,
    judged_by: ModuleType,
    draw: Draw,
    template: str = "",
    **more: Any,
) -> Suite:
    make = _family(name, judged_by.MAX_NEW_TOKENS, draw, template)
    more |= {"has_template": bool(template), "has_shots": bool(template)}
    return Suite(name, version, title, make, judged_by.judge, **more)


TOOL = _suite("tool", 6, "Tool use", tool, _request, apart=(tool.IRRELEVANCE,),
              about="function calls drawn from templates, new for each seed")  # fmt: skip
MATH = _suite("math", 6, "Mathematics", mathematics, _problem, mathematics.PROMPT,
              about="word problems drawn from templates, new for each seed")  # fmt: skip
CODE = _suite("code-generated", 1, "Code, generated", code, _function,
              code.PROMPTS["function"], runs_code=True,
              about="functions drawn from templates, new for each seed")  # fmt: skip
LOOP = _suite("tool-loop", 1, "Tool loop", tool_loop, tool_loop.draw,
              converse=tool_loop.converse, summary=tool_loop.summary,
              about="acting by functions, up to 8 turns, judged by the final state")  # fmt: skip
SUITES = (MATH, TOOL, CODE, LOOP)
