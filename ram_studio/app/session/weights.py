"""Weights of agents on the page: one line of text in a form or a link, or JSON.

coding=0.7, memory=0.2 0.8        (several numbers: a gradient over the layers)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.filters import MOST_NUMBERS
from ram_studio.checkpoints.record.filters import weights_text as weights_text
from ram_studio.checkpoints.record.recipe import check_agent_name
from ram_studio.errors import SettingsError

MOST = 16_384
"""Most characters of a line: eight agents with four digits in each of 126 layers have 7,000."""


def read_weights(text: str) -> dict[str, list[str] | str]:
    """Return the weights in a line.

    Raises: SettingsError for a part without a name or a number, and for a line that is too long.
    """
    if len(text) > MOST:
        raise SettingsError(
            f"The weights have {len(text):,} characters; the limit is {MOST:,}. Give fewer numbers."
        )
    found: dict[str, list[str] | str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, numbers = part.partition("=")
        values = numbers.split()
        if not name.strip() or not values or name.strip() in found:
            raise SettingsError(
                f"Cannot use {printable(part, 60)!r}; write each agent once, as coding=0.7."
            )
        found[name.strip()] = values if len(values) > 1 else values[0]
    return found


def unusable_text(line: str) -> str:
    """Return a sentence on a line's unusable weights, "" for none; see ``usable_weights``."""
    try:
        named = read_weights(line)
    except SettingsError as error:
        return str(error)
    if len(usable_weights(named)) == len(named):
        return ""
    return "Only numbers from -100 to 100 for agents are used."


def usable_weights(weights: Any) -> dict[str, float | list[float]]:
    """Return the usable weights by agent, from a link or the browser.

    weights: a line of text, or numbers or lists of them by name; other values, and invalid agent
    names, are left out, as a link's preview shows the names.
    """
    if isinstance(weights, str):
        try:
            weights = read_weights(weights)
        except SettingsError:
            return {}
    if not isinstance(weights, Mapping):
        return {}
    found: dict[str, float | list[float]] = {}
    for name, given in weights.items():
        values = given if isinstance(given, list) else [given]
        try:
            check_agent_name(str(name))
            numbers = [float(value) for value in values[:MOST_NUMBERS]]
        except (TypeError, ValueError, OverflowError):
            continue
        if numbers and all(math.isfinite(x) and abs(x) <= 100 for x in numbers):
            found[str(name)] = numbers if len(numbers) > 1 else numbers[0]
    return found
