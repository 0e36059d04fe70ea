"""Several answers to each question, drawn with other seeds: the mean share, and pass@k.

The first of them is the answer that tables, tests and verdicts are made of: one fair draw. All of
them make the mean share of right answers, whose error is that of questions (answers to one question
are alike), and pass@k, the chance that one of k draws is right, by the unbiased estimate

    1 - C(n - c, k) / C(n, k),    c of n draws right         (Chen et al. 2021)

which with k = n is the best of n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ram_studio.evals.question import Answer, Question

FACT = "samples"
"""The key in `Answer.facts`: whether each of the draws that was answered is right."""


def with_samples(
    drawn: Sequence[Sequence[tuple[Question, Answer]]],
) -> list[tuple[Question, Answer]]:
    """Return the first draw's answers, each with what became of all draws of its question.

    drawn: by draw the same questions in the same order.
    """
    if len(drawn) == 1:
        return list(drawn[0])
    result = []
    for row in zip(*drawn, strict=True):
        question, first = row[0]
        marks = [answer.is_correct for _, answer in row if answer.is_scored]
        result.append((question, replace(first, facts={**first.facts, FACT: marks})))
    return result


def sample_scores(answers: Iterable[Answer]) -> dict[str, Any] | None:
    """Return {"samples", "questions", "mean", "ci95", "pass_at": {"1": share, ...}}; None
    without draws.

    Only questions with all their draws answered count. ci95 is the normal interval of the mean over
    questions, cut at 0 and 1.
    """
    rows = [answer.facts[FACT] for answer in answers if answer.facts.get(FACT)]
    if not rows:
        return None
    n = max(map(len, rows))
    right = [sum(row) for row in rows if len(row) == n]
    shares = [c / n for c in right]
    mean = math.fsum(shares) / len(shares)
    squares = math.fsum((share - mean) ** 2 for share in shares)
    half = 1.96 * math.sqrt(squares / max(1, len(shares) - 1) / len(shares))
    return {
        "samples": n,
        "questions": len(shares),
        "mean": mean,
        "ci95": [max(0.0, mean - half), min(1.0, mean + half)],
        "pass_at": {str(k): math.fsum(_pass(n, c, k) for c in right) / len(right) for k in _ks(n)},
    }


def _pass(n: int, c: int, k: int) -> float:
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _ks(n: int) -> list[int]:
    """Return 1, 2, 4, ... and n."""
    return sorted({*(2**i for i in range(n.bit_length()) if 2**i <= n), n})
