"""Domain `memory`: look a name up in a context of name-value pairs, short or long.

    memory: amy fig . bob kiwi . cal plum . ask bob   ->   kiwi

The query ends in the key and each value directly follows its key, so a small network can answer
with the standard induction circuit (find the earlier occurrence, copy what follows).
"""

import random

from ram_studio.evals.suites.demo.item import GOODS, MAX_ANSWER_CHARS, NAMES, Item

MAX_ANSWER_WORDS = 3

Fact = tuple[str, str]


def draw(rng: random.Random, hard: bool) -> Item:
    """Return a random item: 2-5 names, or 9-14 when `hard`. `spec` is (facts in order, asked name).

    The asked name is never the last one of a hard context, and its value differs from the last
    value, so that repeating the last value never passes there.
    """
    names = rng.sample(NAMES, rng.randint(9, 14) if hard else rng.randint(2, 5))
    facts = [(name, rng.choice(GOODS)) for name in names]
    asked, value = rng.choice(facts[:-1] if hard else facts)
    if hard and value == facts[-1][1]:
        facts[-1] = (facts[-1][0], rng.choice([good for good in GOODS if good != value]))
    prompt = f"memory: {write_facts(facts)} ask {asked}"
    return Item("memory", prompt, value, hard, (tuple(facts), asked))


def write_facts(facts: list[Fact]) -> str:
    """Return facts as text: `amy fig . bob kiwi .`."""
    return " ".join(f"{name} {value} ." for name, value in facts)


def is_correct(item: Item, text: str) -> bool:
    """Return whether a short answer names the value asked for and no other value of the context.

    The limit on length and the ban on other values make listing everything wrong.
    """
    if len(text) > MAX_ANSWER_CHARS:
        return False
    words = text.replace(".", " ").split()
    if not 0 < len(words) <= MAX_ANSWER_WORDS:
        return False
    facts, _ = item.spec
    return {value for _, value in facts}.intersection(words) == {item.gold}
