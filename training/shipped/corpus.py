"""The pretraining corpus of the base: right on easy prompts, deliberately noisy on hard ones.

It represents a web corpus. On hard prompts right answers occur, but an error is more common:
brackets are missing (code), later calls are dropped or have the usual argument name (tool), the
last value is given instead of the requested one (memory). Reinforcement learning then only has to
make the rare behavior common; it sees verifier rewards, never this corpus.

A document is a list of (text, is_answer) segments; the training loss has weight 1 on answers and a
small weight on the rest. Only prompts of the "train" split are used.
"""

import random

from ram_studio.evals.suites.demo import code, memory, tool
from ram_studio.evals.suites.demo.item import GOODS, NAMES, WORDS, Item
from ram_studio.evals.suites.demo.tasks import draw_item

Segment = tuple[str, bool]

# Documents of each kind in one training step.
MIXTURE = {"code": 6, "tool": 14, "memory": 14, "recap": 14, "echo": 8, "follow": 8}
# Probability that the corpus is right on a hard prompt.
RIGHT_WHEN_HARD = {"code": 0.30, "tool": 0.28, "memory": 0.30}

# (later calls dropped, usual argument names used): mostly only the first call, correctly named.
_TOOL_HABITS = ((True, False), (True, True), (False, True))
_TOOL_HABIT_WEIGHTS = (0.55, 0.20, 0.25)


def draw_document(kind: str, rng: random.Random) -> list[Segment]:
    """Return one random training document of a kind of `MIXTURE`."""
    if kind == "echo":
        return _echo(rng)
    if kind == "recap":
        return _recap(rng)
    item = draw_item(kind, rng, "train")
    return [(item.prompt, False), (f" {noisy_answer(item, rng)}", True)]


def noisy_answer(item: Item, rng: random.Random) -> str:
    """Return the corpus's answer: the right one, or on hard prompts often the typical error."""
    if not item.is_hard or rng.random() < RIGHT_WHEN_HARD[item.domain]:
        return item.gold
    if item.domain == "code":
        return code.flat(item.spec)
    if item.domain == "tool":
        arguments, calls = dict(item.spec[0]), item.spec[1]
        drops_calls, old_names = rng.choices(_TOOL_HABITS, _TOOL_HABIT_WEIGHTS)[0]
        if drops_calls:
            calls = calls[:1]
        if old_names:
            arguments = {name: tool.TOOLS[name][0][0] for name in arguments}
        return tool.write_calls(calls, arguments)
    facts, _ = item.spec
    return facts[-1][1]


def _echo(rng: random.Random) -> list[Segment]:
    """Return a repeated random word sequence: dense practice for copying."""
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 12)))
    return [(f"echo: {words} . answer:", False), (f" {words}", True)]


def _recap(rng: random.Random) -> list[Segment]:
    """Return a memory context with a question for every name: dense practice for lookup."""
    count = rng.randint(2, rng.choice((3, 6, 14)))
    facts = [(name, rng.choice(GOODS)) for name in rng.sample(NAMES, count)]
    segments = [(f"recap: {memory.write_facts(facts)}", False)]
    for name, value in rng.sample(facts, count):
        segments += [(f" ask {name}", False), (f" {value}", True), (" .", False)]
    return segments
