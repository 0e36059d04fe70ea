"""Suite `demo`: seeded held-out questions in the example agents' domains, strict 0/1 verifiers.

Prompts are continued without a chat template. They are split by a hash of their text: the example
agents are trained on one part, a second part stops their training, and evaluations use the third.
This module imports neither torch nor transformers.
"""

import random
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Literal

from ram_studio.errors import EvalSettingsError
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.demo import code, follow, memory, tool
from ram_studio.evals.suites.demo.item import Item, without_full_stop
from ram_studio.evals.suites.suite import Suite, SuiteSettings

SKILL_DOMAINS = ("code", "tool", "memory")
RETENTION_DOMAIN = "follow"
DOMAINS = (*SKILL_DOMAINS, RETENTION_DOMAIN)
# For example agents whose name differs from their domain.
AGENT_DOMAINS = {"coding": "code", "following": "follow"}

Split = Literal["train", "validation", "test"]

_MODULES: dict[str, ModuleType] = {"code": code, "tool": tool, "memory": memory, "follow": follow}
DEFAULT_LIMIT = 300
# The longest right answer takes about 40 tokens of the example's tokenizer.
MAX_NEW_TOKENS = 48
# Share of hard items in every skill domain, in training and in evaluation.
HARD_SHARE = 0.75
# A domain is exhausted when this many draws in a row gave nothing new.
_MAX_FRUITLESS_DRAWS = 500


def split_of(prompt: str) -> Split:
    """Return a prompt's split, from its text alone: 1/8 test, 1/8 validation, the rest train."""
    bucket = zlib.crc32(prompt.encode()) % 8
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


def draw_item(domain: str, rng: random.Random, split: Split, hard: bool | None = None) -> Item:
    """Return one random item of `domain` whose prompt belongs to `split`; repeats happen.

    `hard` None draws hard items with probability `HARD_SHARE`.
    """
    hard = rng.random() < HARD_SHARE if hard is None else hard
    draw: Callable[[random.Random, bool], Item] = _module(domain).draw
    while True:
        item = draw(rng, hard)
        if split_of(item.prompt) == split:
            return item


def make_items(domain: str, n: int, seed: int, split: Split = "test") -> list[Item]:
    """Return `n` items of a domain with different prompts, the same ones for the same arguments.

    The first k items of a larger n are the items of n = k, so a short run is a prefix of a long
    one. Prompts of the "test" split never occur in the example agents' training.

    Raises: EvaluationError: unknown domain, negative n, or fewer than n different prompts exist.
    """
    _module(domain)
    if n < 0:
        raise EvalSettingsError(f"Domain {domain!r} cannot have {n} items. Choose 0 or more.")
    # A string seed goes through SHA-512 in `random`, so it does not depend on the process's hash
    # seed.
    rng = random.Random(f"{domain}/{seed}")
    items: dict[str, Item] = {}
    while len(items) < n:
        # Decided before searching for a new prompt: otherwise easy ones, which are fewer, would
        # become rare.
        hard = rng.random() < HARD_SHARE
        for _ in range(_MAX_FRUITLESS_DRAWS):
            item = draw_item(domain, rng, split, hard)
            if item.prompt not in items:
                break
        else:
            raise EvalSettingsError(
                f"Domain {domain!r} gave {len(items)} different {split} prompts, {n} were asked "
                f"for. Set the limit to {len(items)} or less."
            )
        items[item.prompt] = item
    return list(items.values())


def score(item: Item, text: str) -> bool:
    """Return whether `text`, a model's whole answer, is right. Never raises, for any text."""
    return bool(_module(item.domain).is_correct(item, text))


def _module(domain: str) -> ModuleType:
    if domain not in _MODULES:
        raise EvalSettingsError(f"Unknown domain {domain!r}. Choose one of: {', '.join(DOMAINS)}.")
    return _MODULES[domain]


def make(settings: SuiteSettings, split: Split = "test") -> tuple[Question, ...]:
    """Return `limit` (300) items of each domain; those of the "test" split are held out."""
    limit = DEFAULT_LIMIT if settings.limit is None else settings.limit
    return tuple(
        Question(
            id=f"{domain}-{settings.seed}-{number:04d}",
            domain=domain,
            category=domain,
            prompt=item.prompt,
            gold=item.gold,
            spec=item,
            max_new_tokens=MAX_NEW_TOKENS,
            is_raw=True,
            is_hard=item.is_hard,
        )
        for domain in DOMAINS
        for number, item in enumerate(make_items(domain, limit, settings.seed, split))
    )


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return the strict verifier's verdict; the demo's programs are never executed.

    The full stop of the shared style may follow a right answer.
    """
    assert isinstance(question.spec, Item)
    plain = without_full_stop(text)
    return Verdict(score(question.spec, text if plain is None else plain))


ABOUT = "the example agents' four domains"
SUITE = Suite("demo", 2, "Example agents", make, judge, ABOUT, apart=(RETENTION_DOMAIN,))
