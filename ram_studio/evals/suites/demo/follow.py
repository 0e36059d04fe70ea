"""Domain `follow`: plain instructions, matched exactly. It measures an agent's forgetting.

do: say fig 3 times . answer:   ->   fig fig fig
"""

import random

from ram_studio.evals.suites.demo.item import MAX_ANSWER_CHARS, WORDS, Item


def draw(rng: random.Random, hard: bool) -> Item:
    """Return a random item: say, repeat, swap or count. `hard` is ignored: all are easy."""
    kind = rng.choice(("say", "repeat", "swap", "count"))
    if kind == "say":
        words, times = rng.sample(WORDS, rng.randint(1, 2)), rng.randint(1, 4)
        order, answer = f"say {' '.join(words)} {times} times", " ".join(words * times)
    elif kind == "repeat":
        words = rng.sample(WORDS, rng.randint(2, 5))
        order, answer = f"repeat {' '.join(words)}", " ".join(words)
    elif kind == "swap":
        first, second = rng.sample(WORDS, 2)
        order, answer = f"swap {first} {second}", f"{second} {first}"
    else:
        start = rng.randint(1, 6)
        stop = rng.randint(start + 1, 9)
        order, answer = f"count {start} to {stop}", " ".join(map(str, range(start, stop + 1)))
    return Item("follow", f"do: {order} . answer:", answer)


def is_correct(item: Item, text: str) -> bool:
    """Return whether `text` is the expected answer, ignoring surrounding white space only."""
    return len(text) <= MAX_ANSWER_CHARS and text.strip() == item.gold
