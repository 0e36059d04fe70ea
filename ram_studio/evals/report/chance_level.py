"""The chance level: the best score of trivial baselines, below which a score is not informative.

Every question is also "answered" by random words (seeded) and by constant baselines: a repeated
word, no call, a number, and the suite's most frequent right answer. The best of them is the chance

level: scores at or below it are not informative.

The baselines that got a question right are stored with every answer to it (`Verdict.facts`), so
that a report has its chance level from any source of answers.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ram_studio.evals.question import Question, QuestionsBySuite
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites import ALL_SUITES

BASELINES = "trivial"
"""The key in `Verdict.facts`: the trivial baselines that got the question right."""

_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or"
    " had an they which one you were all her she there would their we him been has when who"
)
_SEEDS = (1, 2)
_ALWAYS = ("the the the the the the the the", "[]", "0", "yes")


class TrivialBaselines:
    """The trivial baselines; each answers a question once.

    Args:
        asked: all questions by suite, for the most frequent right answer.
        code: see `sandbox.check_code_allowed`; a suite that runs code gets one random and one
            constant answer only, to save time.
    """

    def __init__(self, asked: QuestionsBySuite, code: CodeSwitch = "auto") -> None:
        self._code = code
        self._golds: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for name, own in asked.items():
            for question in own:
                self._golds[name, question.domain][question.gold] += 1
        self._known: dict[tuple[str, str], list[str]] = {}

    def right(self, suite: str, question: Question) -> list[str]:
        """Return the names of the baselines that get a question right.

        Raises: EvaluationError when code may not run here.
        """
        key = (suite, question.digest)
        if key not in self._known:
            self._known[key] = self._right_baselines(suite, question)
        return self._known[key]

    def _right_baselines(self, suite: str, question: Question) -> list[str]:
        judge, is_slow = ALL_SUITES[suite].judge, ALL_SUITES[suite].runs_code
        seeds, always = (_SEEDS[:1], _ALWAYS[:1]) if is_slow else (_SEEDS, _ALWAYS)
        baselines = {
            f"random words {seed}": _random_words(f"{seed}/{question.id}") for seed in seeds
        }
        baselines |= {f"always {text!r}": text for text in always}
        ((usual, _),) = self._golds[suite, question.domain].most_common(1)
        # The constant is part of the name, as it differs between sets of questions.
        baselines[f"usual {usual[:80]!r}"] = usual
        return [
            name for name, text in baselines.items() if judge(question, text, self._code).is_correct
        ]


def chance_level(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the score of the best trivial baseline, None where an answer lacks it.

    Args: facts: of one answer to each question.
    """
    right: Counter[str] = Counter()
    total = 0
    for fact in facts:
        if BASELINES not in fact:
            return None
        right.update(fact[BASELINES])
        total += 1
    return max(right.values(), default=0) / total if total else None


def _random_words(seed: str) -> str:
    drawn = random.Random(seed)
    words = drawn.choices(_WORDS.split(), k=drawn.randint(8, 40))
    return f"{' '.join(words).capitalize()}. {drawn.randint(1, 100)}"
