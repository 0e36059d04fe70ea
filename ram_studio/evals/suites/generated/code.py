"""Suite `code-made`: functions on lists of numbers, put together from steps; run in the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ram_studio.evals.question import Question
from ram_studio.evals.suites.code import MAX_NEW_TOKENS, judge
from ram_studio.evals.suites.generated.family import family
from ram_studio.evals.suites.suite import Suite

Values = list[int]
# What a step does with the number k, in words, in Python and here.
Step = tuple[str, str, Callable[[Values, int], Values]]
_STEPS: tuple[Step, ...] = (
    ("add {k} to every number", "[v + {k} for v in values]", lambda vs, k: [v + k for v in vs]),
    (
        "multiply every number by {k}",
        "[v * {k} for v in values]",
        lambda vs, k: [v * k for v in vs],
    ),
    (
        "keep only the numbers greater than {k}",
        "[v for v in values if v > {k}]",
        lambda vs, k: [v for v in vs if v > k],
    ),
    (
        "drop every number that {k} divides",
        "[v for v in values if v % {k}]",
        lambda vs, k: [v for v in vs if v % k],
    ),
    ("reverse the order", "values[::-1]", lambda vs, k: vs[::-1]),
    ("sort them from small to large", "sorted(values)", lambda vs, k: sorted(vs)),
    (
        "keep each number's first occurrence only",
        "list(dict.fromkeys(values))",
        lambda vs, k: list(dict.fromkeys(vs)),
    ),
    ("leave out the first {k} numbers", "values[{k}:]", lambda vs, k: vs[k:]),
)
_ENTRY = "changed"
_TESTS = 6


def draw(drawn: Random, difficulty: int, key: str) -> Question:
    """Return a function of difficulty + 1 steps, with tests that each step matters to."""
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
    return Question(
        id=key,
        domain="code-made",
        # The kind of judging, see the suite `code`.
        category="function",
        prompt=(
            f"Write a Python function `{_ENTRY}(values)` that takes a list of whole numbers and "
            f"does this with it, in this order: {'; then '.join(words)}. It returns the list that "
            "results.\n\nReply with the complete Python function in one code block."
        ),
        gold=reference,
        spec={"entry": _ENTRY, "tests": tests, "reference": reference},
        max_new_tokens=MAX_NEW_TOKENS,
    )


def _run(chosen: list[tuple[Step, int]], values: Values) -> Values:
    for (_, _, step), k in chosen:
        values = step(values, k)
    return values


def _all_matter(chosen: list[tuple[Step, int]], inputs: list[Values]) -> bool:
    """Return whether leaving any step out would be noticed."""
    whole = [_run(chosen, values) for values in inputs]
    rests = [[*chosen[:i], *chosen[i + 1 :]] for i in range(len(chosen))]
    return all([_run(rest, values) for values in inputs] != whole for rest in rests)


SUITE = Suite(
    "code-made",
    1,
    "Code, made to order",
    family("code-made", draw),
    judge,
    "functions drawn from templates, new for each seed",
    runs_code=True,
)
