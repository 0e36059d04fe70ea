"""Functions run in a page, with large values."""

from __future__ import annotations

from typing import Any

import orjson


def run(page: Any, function: str, *arguments: Any) -> Any:
    """Return what a function of JavaScript returns; NaN and infinity arrive as null."""
    # As text: Playwright describes a nested value number by number, for seconds.
    text = orjson.dumps(arguments).decode()
    return page.evaluate(f"(text) => ({function})(...JSON.parse(text))", text)
