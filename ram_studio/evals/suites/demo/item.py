"""Common parts of all domains: the `Item` record, the words of prompts, and the shared style.

In shared style every answer ends with exactly one full stop:

    do: say fig 3 times . answer:   ->   fig fig fig .

One set of example agents is rewarded in this style only. The suite accepts right answers with or
without it, so that models of all sets answer the same questions.
"""

from dataclasses import dataclass, field
from typing import Any

# fmt: off
NAMES = (
    "amy", "bob", "cal", "dan", "eve", "fay", "gus", "hal",
    "ivy", "jon", "kim", "leo", "mia", "ned", "ola", "pam",
)
GOODS = (
    "kiwi", "plum", "fig", "pear", "lime", "corn", "rice", "bean",
    "milk", "salt", "tea", "nut", "egg", "ham", "jam", "pie",
)
# fmt: on
WORDS = NAMES + GOODS

FULL_STOP = " ."
# No right answer is nearly this long. Longer model output is rejected before parsing.
MAX_ANSWER_CHARS = 200


@dataclass(frozen=True)
class Item:
    """One prompt with its right answer.

    domain: "code", "tool", "memory" or "follow". prompt: the exact text given to the model; the
    answer is expected to continue it after one space. gold: one right answer (verifiers may accept
    equivalent ones).
    is_hard: drawn from the hard part of the domain. spec: the prompt's source data, for the
    verifier, in the domain module's own form.
    """

    domain: str
    prompt: str
    gold: str
    is_hard: bool = False
    spec: tuple[Any, ...] = field(default=(), repr=False)


def without_full_stop(text: str) -> str | None:
    """Return an answer in shared style without its full stop, None for any other style."""
    body, ending, rest = text.rstrip().partition(FULL_STOP)
    return body if ending and not rest and "." not in body else None
