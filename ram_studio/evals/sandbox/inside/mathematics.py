r"""Compares answers of mathematics with math-verify; see `suites.published.math500` and `serve`.

Both are read from a box, as math-verify expects. It parses LaTeX with its own grammar, without
Python's `eval`: only its parser of plain expressions uses that, which is not enabled.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

_LIBRARIES = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy", "mpmath")
_FOUND = [find_spec(name) for name in _LIBRARIES]
READABLE = tuple(f for spec in _FOUND if spec for f in spec.submodule_search_locations or ())
_BOXED = [LatexExtractionConfig(boxed_match_priority=0)]


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return {"same"} for {"found", "wanted"}."""
    return {"same": _same(message["found"], message["wanted"])}


def _same(found: str, wanted: str) -> bool:
    sides = _parse_answer(wanted), _parse_answer(found)
    # "x < 2" equals an interval.
    return bool(verify(*sides, allow_set_relation_comp=True, timeout_seconds=None))


@lru_cache(maxsize=64)
def _parse_answer(text: str) -> Any:
    # The caller limits the time: the library's timeouts use signals, which a sealed process does
    # not get.
    text = text.replace("°", "^\\circ")
    return parse(f"\\boxed{{{text}}}", _BOXED, parsing_timeout=None)
