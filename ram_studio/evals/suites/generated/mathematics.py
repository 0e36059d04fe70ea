"""Suite `math-made`: word problems in which a number of things changes step by step."""

from __future__ import annotations

from random import Random

from ram_studio.evals.question import Question
from ram_studio.evals.suites.generated.family import family
from ram_studio.evals.suites.mathematics import MAX_NEW_TOKENS, PROMPT, judge
from ram_studio.evals.suites.suite import Suite

_PEOPLE = ("Ada", "Bruno", "Chidi", "Daria", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jun")
_THINGS = ("marbles", "stamps", "apples", "cards", "shells", "candles", "buttons", "tiles")
_STEPS = ("more", "fewer", "times", "groups", "share")


def draw(drawn: Random, difficulty: int, key: str) -> Question:
    """Return a problem of difficulty + 1 steps; every number on the way is whole and above 0."""
    name, things = drawn.choice(_PEOPLE), drawn.choice(_THINGS)
    have = drawn.randint(12, 60)
    said = [f"{name} has {have} {things}."]
    kinds: list[str] = []
    for _ in range(difficulty + 1):
        kind = drawn.choice([step for step in _STEPS if step != (kinds[-1] if kinds else "")])
        text, have = _step(drawn, kind, name, things, have)
        said.append(text)
        kinds.append(kind)
    question = f"{' '.join(said)} How many {things} does {name} have now?"
    return Question(
        key,
        "math-made",
        f"{difficulty + 1} steps",
        PROMPT.format(question=question),
        str(have),
        str(have),
        MAX_NEW_TOKENS,
    )


def _step(drawn: Random, kind: str, name: str, things: str, have: int) -> tuple[str, int]:
    """Return what happens and how many there are then."""
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


SUITE = Suite(
    "math-made",
    1,
    "Mathematics, made to order",
    family("math-made", draw),
    judge,
    "problems drawn from templates, new for each seed",
)
