"""Domain `code`: turn spoken steps into one arithmetic expression, checked by running it.

    code: f takes x , plus 9 then times 5 . answer:   ->   (x+9)*5

The verifier never executes model output. It parses the text, walks the tree with an evaluator that
knows whole numbers, `x`, `+`, `-` and `*`, and compares the values with the steps at several x.
"""

import ast
import operator
import random
import re
from collections.abc import Callable
from typing import Any

from ram_studio.evals.suites.demo.item import MAX_ANSWER_CHARS, Item

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
_MEANS: dict[Any, Callable[[int, int], int]] = {
    "plus": operator.add,
    "minus": operator.sub,
    "times": operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
# At most 4 steps, so polynomials of degree 4 or less: 7 points distinguish any two of them.
TEST_POINTS = (-3, 0, 1, 2, 5, 7, 11)
MAX_DIGITS = 6
MAX_DEPTH = 40

_ALLOWED = re.compile(r"[0-9x+\-*() ]+")
# `0x5` and `5x` would reach Python's number tokenizer; this language has neither.
_DIGIT_THEN_X = re.compile(r"[0-9]x")
_TOO_MANY_DIGITS = re.compile(rf"[0-9]{{{MAX_DIGITS + 1},}}")

Step = tuple[str, int]


def draw(rng: random.Random, hard: bool) -> Item:
    """Return a random item; `hard` ones need brackets."""
    while True:
        count = rng.choice((2, 3, 3, 4) if hard else (1, 2, 2, 3))
        steps = tuple(
            (rng.choice(("plus", "minus", "times", "times")), rng.randint(2, 9))
            for _ in range(count)
        )
        if needs_brackets(steps) == hard:
            break
    spoken = " then ".join(f"{name} {number}" for name, number in steps)
    return Item("code", f"code: f takes x , {spoken} . answer:", bracket_steps(steps), hard, steps)


def needs_brackets(steps: tuple[Step, ...]) -> bool:
    """Return whether a multiplication follows a sum, so that brackets matter."""
    summed = False
    for name, _ in steps:
        if name == "times" and summed:
            return True
        summed = summed or name != "times"
    return False


def flat(steps: tuple[Step, ...]) -> str:
    """Return the expression without brackets: the example corpus's mistake on hard prompts."""
    return "x" + "".join(f"{OPERATORS[name]}{number}" for name, number in steps)


def bracket_steps(steps: tuple[Step, ...]) -> str:
    """Return the expression with every step but the first applied to a bracket: always right."""
    text = "x"
    for index, (name, number) in enumerate(steps):
        text = f"({text})" if index else text
        text += f"{OPERATORS[name]}{number}"
    return text


def is_correct(item: Item, text: str) -> bool:
    """Return whether `text` is an expression equal to the item's steps at every test point."""
    text = text.strip()
    if not (0 < len(text) <= MAX_ANSWER_CHARS and _ALLOWED.fullmatch(text)):
        return False
    if _DIGIT_THEN_X.search(text) or _TOO_MANY_DIGITS.search(text):
        return False
    try:
        tree = ast.parse(text, mode="eval").body
        return all(_value(tree, x) == _apply_steps(item.spec, x) for x in TEST_POINTS)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _apply_steps(steps: tuple[Step, ...], x: int) -> int:
    for name, number in steps:
        x = _MEANS[name](x, number)
    return x


def _value(node: ast.expr, x: int, depth: int = 0) -> int:
    """Evaluate a tree of int, x, + - * and unary minus; anything else raises ValueError."""
    if depth > MAX_DEPTH:
        raise ValueError("expression too deep")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id == "x":
        return x
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, x, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _MEANS:
        sides = _value(node.left, x, depth + 1), _value(node.right, x, depth + 1)
        return _MEANS[type(node.op)](*sides)
    raise ValueError("not an expression of x, whole numbers, +, - and *")
