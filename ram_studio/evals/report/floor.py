"""What nonsense scores: the floor below which a suite says nothing about a model.

Every question is also "answered" by gibberish (seeded, of common words) and by answerers that
always say the same: a repeated word, no call, a number, and the suite's own most frequent right
answer. The best of them is the floor: a model at or below it cannot be told from one that
understands nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from ram_studio.evals.question import Question
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites import ALL_SUITES

_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or"
    " had an they which one you were all her she there would their we him been has when who"
)
_SEEDS = (1, 2)
_ALWAYS = ("the the the the the the the the", "[]", "0", "yes")


def floors(asked: Mapping[str, Sequence[Question]], code: CodeSwitch = "auto") -> dict[str, float]:
    """Return the floor of each domain: the best share of right answers that nonsense gets.

    Args:
        asked: questions by suite. code: see `sandbox.check_code_allowed`; where a suite runs what
            was written, one gibberish and one constant are enough to wait for.

    Raises: EvaluationError when code may not run here.
    """
    found: dict[str, float] = {}
    for name, questions in asked.items():
        suite = ALL_SUITES[name]
        by_domain: dict[str, list[Question]] = {}
        for question in questions:
            by_domain.setdefault(question.domain, []).append(question)
        for domain, own in by_domain.items():
            best = 0
            for said in _answerers(own, is_slow=suite.runs_code):
                right = sum(
                    suite.judge(question, text, code).is_correct
                    for question, text in zip(own, said, strict=True)
                )
                best = max(best, right)
            found[domain] = best / len(own)
    return found


def _answerers(questions: Sequence[Question], *, is_slow: bool) -> list[list[str]]:
    """Return what each answerer says to every question."""
    seeds, always = (_SEEDS[:1], _ALWAYS[:1]) if is_slow else (_SEEDS, _ALWAYS)
    gibberish = [[_gibberish(f"{seed}/{question.id}") for question in questions] for seed in seeds]
    usual, _ = Counter(question.gold for question in questions).most_common(1)[0]
    return [*gibberish, *([text] * len(questions) for text in (*always, usual))]


def _gibberish(seed: str) -> str:
    drawn = random.Random(seed)
    words = drawn.choices(_WORDS.split(), k=drawn.randint(8, 40))
    return f"{' '.join(words).capitalize()}. {drawn.randint(1, 100)}"
