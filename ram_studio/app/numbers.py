"""Formats of numbers and settings in the app, the same as in assets/numbers.js."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ram_studio.algorithm.figures.palette import percent_text as percent_text
from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SNAP = 0.004
"""Largest relative distance of an epsilon grid point from its displayed number."""


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon: 0, 10⁻⁵, 7·10⁻³, 2.34·10⁻⁵."""
    if epsilon == 0:
        return "0"
    exponent = math.floor(math.log10(epsilon) + 1e-9)
    head = epsilon / 10**exponent
    short = round(head, 1)
    head = short if abs(short / head - 1) < _SNAP else float(f"{head:.3g}")
    if head >= 10:
        exponent, head = exponent + 1, 1
    power = f"10{str(exponent).translate(_RAISED)}"
    return power if head == 1 else f"{head:g}·{power}"


def size_text(nbytes: float) -> str:
    """Return a size in decimal units."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= limit:
            value = nbytes / limit
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{nbytes:.0f} bytes"


def duration_text(seconds: float) -> str:
    """Return a duration in the largest fitting units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def count_text(number: int) -> str:
    """Return a whole number with commas between its thousands."""
    return f"{number:,}"


def ratio_text(ratio: float | None) -> str:
    """Return a rho; None (in JSON) or infinity means unbounded."""
    if ratio is None or math.isinf(ratio):
        return "∞"
    return f"{ratio:.{3 if ratio < 10 else 2 if ratio < 100 else 1}f}"


def factor_text(factor: float | None) -> str:
    """Return a lambda; None for a method that has none."""
    return "–" if factor is None else f"{factor:.3f}"


def retained_text(retained: Mapping[str, float] | None) -> str:
    """Return the retained share of an agent's update; None where unknown."""
    return "–" if retained is None else percent_text(retained["total"])


def by_rounding_text(numbers: Mapping[str, Any]) -> str:
    """Return rounding's part of "retained", "" where it rounds to zero."""
    retained = numbers.get("retained")
    share = 0.0 if retained is None else round(100 * retained["rounding"], 1)
    return f"{share:+.1f}\u00a0%".replace("-", "−") if share else ""


def dtypes_text(dtypes: Mapping[str, int]) -> str:
    """Return dtypes with their elements by name, the most frequent first."""
    most = sorted(dtypes, key=lambda code: -dtypes[code])
    return " + ".join(DTYPE_WORDS.get(code, code) for code in most) or "–"


def setting_text(name: str) -> str:
    """Return a setting's display name: epsilon, drop rate; for a weight with its agent."""
    kind, _, agent = name.partition(".")
    if kind == "ramp" and agent:
        agent, _, end = agent.rpartition(".")
        return f"{agent} in the {end} layer"
    if kind == "weight" and agent:
        return f"{agent}'s weight"
    return name.replace("_", " ")


def value_text(name: str, value: object) -> str:
    """Return a setting's value: 10⁻⁵ (epsilon), 2, 0.1, median."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return epsilon_text(value) if name == "epsilon" else f"{value:g}"
