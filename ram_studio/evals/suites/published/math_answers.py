r"""Whether two answers of mathematics, written in LaTeX or plainly, are the same.

Both are brought into one form (spaces, `\left`, `\dfrac`, units, degrees, thousands); equal texts
are equal. Lists, sets, intervals and matrices are compared part by part. Other expressions are read
and computed: whole numbers, decimals and fractions exactly, the rest at three places for its
variables (two formulas that agree there to nine digits are taken as one).

What models write is computed by the few rules below and never by a library that evaluates it: such
ones take Python for an answer, or hours for `9^{9^{9^9}}`. Every step here is bounded.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable
from fractions import Fraction
from random import Random

MOST_CHARS = 400
_TOLERANCE = 1e-9
_LARGEST = 1e12
_PLACES = tuple(
    {name: Random(f"{place}/{name}").uniform(0.4, 1.9) for name in "abcdfghjklmnopqrstuvwxyz"}
    for place in range(3)
)

_DROPPED = re.compile(
    r"\\(?:left|right|big|Big|bigl|bigr|displaystyle|limits)(?![a-zA-Z])|(?<!\\)\\[!,;: ]"
    r"|~|\\?\$|\\[()\[\]]|\^\{?\\circ\}?|\\degree|\\?%|°"
)
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
# What follows a number as a word is its unit.
_UNIT = re.compile(r"(?<=[\d})])\s*\\(?:text|mbox|mathrm)\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*$")
_PLAIN_UNIT = re.compile(r"(?<=\d)\s+[a-zA-Z][a-zA-Z ]*(?:\^\{?\d\}?)?$")
_SAME = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\cdot": "*", "\\times": "*",
    "\\div": "/", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne", "−": "-", "–": "-", "{,}": "",
    "\\lbrace": "\\{", "\\rbrace": "\\}", "π": "\\pi", "∞": "\\infty", "√": "\\sqrt",
}  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_RATIO = re.compile(r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}|\\frac(\d)(\d)|(\d+)/(\d+))")
_NAMED = re.compile(r"^[a-zA-Z](?:\([a-z]\))?(?:=|\\in)(?=.)")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "\\{": "\\}"}


def same(said: str, wanted: str) -> bool:
    """Return whether two answers are the same; never raises, whatever they hold."""
    if len(said) > MOST_CHARS or len(wanted) > MOST_CHARS:
        return said.strip() == wanted.strip()
    return _same(normal(said), normal(wanted))


def normal(text: str) -> str:
    """Return an answer in the form in which texts are compared."""
    text = text.strip().rstrip(".").strip().removeprefix("$").removesuffix("$").strip()
    text = _PLAIN_UNIT.sub("", _UNIT.sub("", text))
    for old, new in _SAME.items():
        text = text.replace(old, new)
    text = _DROPPED.sub("", _WRAPPED.sub(r"\1", text)).strip().rstrip(".")
    text = _THOUSANDS.sub(lambda found: found[1].replace(",", ""), text)
    text = re.sub(r"\s+", "", text)
    # A single letter is the choice among several answers.
    choice = re.fullmatch(r"\(?([A-Z])\)?", text)
    return choice[1] if choice else text


def _same(said: str, wanted: str) -> bool:
    if said == wanted:
        return True
    if not said or not wanted:
        return False
    ours, theirs = _without_name(said), _without_name(wanted)
    if (ours != said) != (theirs != wanted):
        # "x = 5" where 5 is wanted, or the other way round.
        return _same(ours, theirs)
    mine, other = _parts(said), _parts(wanted)
    if mine is not None or other is not None:
        return mine is not None and other is not None and _same_parts(*mine, *other)
    if said.count("=") == wanted.count("=") == 1:
        left, right = said.split("="), wanted.split("=")
        return all(_same(a, b) for a, b in zip(left, right, strict=True))
    if said.isalpha() and wanted.isalpha() and max(len(said), len(wanted)) > 1:
        return said.lower() == wanted.lower()
    exact, other_exact = _ratio(said), _ratio(wanted)
    if exact is not None and other_exact is not None:
        return exact == other_exact
    return _same_values(said, wanted)


def _without_name(text: str) -> str:
    return _NAMED.sub("", text, count=1) if text.count("=") <= 1 else text


def _ratio(text: str) -> Fraction | None:
    if _NUMBER.fullmatch(text):
        return Fraction(text.rstrip(".") or "0")
    found = _RATIO.fullmatch(text)
    if not found:
        return None
    sign, *parts = found.groups()
    top, bottom = (int(part) for part in parts if part is not None)
    return Fraction(-top if sign == "-" else top, bottom) if bottom else None


def _parts(text: str) -> tuple[str, list[str]] | None:
    """Return (kind, parts) of a matrix, set, interval, tuple or list; None for anything else."""
    if found := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in found[2].split("\\\\") if row]
        return f"matrix {len(rows)}", [cell for row in rows for cell in row]
    if "\\cup" in text:
        return "union", text.split("\\cup")
    for opening, closing in _PAIRS.items():
        if text.startswith(opening):
            other = "])" if opening in "([" else closing
            if any(text.endswith(end) for end in ([closing] if opening == "\\{" else other)):
                inner = _cut(text[len(opening) : -len(closing)])
                if inner is not None and len(inner) > 1:
                    kind = "set" if opening == "\\{" else opening + text[-1]
                    return kind, inner
                if opening == "\\{" and inner is not None:
                    return "set", inner
    whole = _cut(text)
    return ("list", whole) if whole is not None and len(whole) > 1 else None


def _cut(text: str) -> list[str] | None:
    """Return the parts between commas outside of all brackets; None where brackets do not match."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return None
        if sign == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return None if depth else [*parts, text[start:]]


def _same_parts(kind: str, ours: list[str], other: str, theirs: list[str]) -> bool:
    free = {"set", "list", "union"}
    if len(ours) != len(theirs) or (kind != other and not {kind, other} <= {"set", "list"}):
        return False
    if kind not in free:
        return all(_same(a, b) for a, b in zip(ours, theirs, strict=True))
    # In any order: each of ours takes one of theirs that nothing took yet.
    left = list(theirs)
    for part in ours:
        found = next((one for one in left if _same(part, one)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_values(said: str, wanted: str) -> bool:
    try:
        for place in _PLACES:
            ours, theirs = _Reader(said, place).whole(), _Reader(wanted, place).whole()
            # Large whole numbers differ in digits that a float does not have.
            if not abs(ours) < _LARGEST or not abs(theirs) < _LARGEST:
                return False
            if abs(ours - theirs) > _TOLERANCE * max(1.0, abs(ours), abs(theirs)):
                return False
    except (ValueError, ArithmeticError, RecursionError, KeyError):
        return False
    return True


_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "\\sin": cmath.sin, "\\cos": cmath.cos, "\\tan": cmath.tan, "\\ln": cmath.log,
    "\\log": cmath.log10, "\\exp": cmath.exp, "\\arcsin": cmath.asin, "\\arccos": cmath.acos,
    "\\arctan": cmath.atan,
}  # fmt: skip
_CONSTANTS: dict[str, complex] = {"\\pi": math.pi, "e": math.e, "i": 1j}
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|"}
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+\.?\d*|\.\d+|.", re.DOTALL)


class _Reader:
    """Computes an expression while reading it: sums of products of powers.

    Raises: ValueError for anything else; ArithmeticError and KeyError for what has no value.
    """

    def __init__(self, text: str, place: dict[str, float]) -> None:
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0
        self._variables = place

    def whole(self) -> complex:
        """Return the value of the whole expression."""
        value = self._sum()
        if self._next():
            raise ValueError("something follows the expression")
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._next()
        if not token or (wanted and token not in wanted):
            raise ValueError(f"found {token!r}")
        self._at += 1
        return token

    def _sum(self) -> complex:
        sign = -1 if self._next() in ("+", "-") and self._take() == "-" else 1
        terms = [sign * self._product()]
        while self._next() in ("+", "-"):
            sign = -1 if self._take() == "-" else 1
            terms.append(sign * self._product())
        return sum(terms)

    def _product(self) -> complex:
        value = self._power()
        while (token := self._next()) and token not in "+-)]}|,=":
            if token in ("*", "/"):
                self._take()
            factor = self._power()
            value = value / factor if token == "/" else value * factor
        return value

    def _power(self) -> complex:
        value = self._atom()
        while self._next() in ("^", "!"):
            is_power = self._take() == "^"
            value = complex(value) ** self._argument() if is_power else _factorial(value)
        return value

    def _argument(self) -> complex:
        """Read what a command takes: a group in braces, or a single sign."""
        if self._next() == "{":
            return self._group("{")
        if self._next()[:1].isdigit() and len(self._next()) > 1:
            # \frac12 is 1/2.
            digits = self._take()
            self._at -= 1
            self._tokens[self._at : self._at + 1] = list(digits)
        if self._next() == "-":
            self._take()
            return -self._atom()
        return self._atom()

    def _group(self, opening: str) -> complex:
        self._take(opening)
        value = self._sum()
        self._take(_CLOSING[opening])
        return value

    def _atom(self) -> complex:
        token = self._next()
        if token in _CLOSING:
            value = self._group(token)
            return abs(value) if token == "|" else value
        self._take()
        if token[0].isdigit() or token[0] == ".":
            return self._mixed(float(token))
        if token == "\\frac":
            top = self._argument()
            return top / self._argument()
        if token == "\\sqrt":
            root = self._group("[") if self._next() == "[" else None
            inner = self._argument()
            return cmath.sqrt(inner) if root is None else complex(inner) ** (1.0 / root)
        if token in _FUNCTIONS:
            return _FUNCTIONS[token](self._power())
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if len(token) == 1 and token.isalpha() and token.isascii():
            return self._variables[token.lower()]
        raise ValueError(f"found {token!r}")

    def _mixed(self, number: float) -> complex:
        """Read 2\\frac13 as two and a third."""
        rest = "".join(self._tokens[self._at : self._at + 9])
        if number.is_integer() and re.match(r"\\frac(?:\d\d|\{\d+\}\{\d+\})", rest):
            return number + self._atom()
        return number


def _factorial(given: complex) -> float:
    number = complex(given).real
    if given != number or not number.is_integer() or not 0 <= number <= 170:
        raise ValueError("no factorial")
    return float(math.factorial(int(number)))
