"""Time against score as SVG: coloured by the page's variables, so it fits light and dark alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ram_studio.app import wording

Point = tuple[str, str, float, float, bool]
"""(number, name, merge seconds, average score, whether it is the reference)."""

_LABEL = 16.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 20.0, 14.0, 44.0
_FASTEST = 0.001
_NAMED_WIDTH = 600


def figure_svg(points: Sequence[Point], width: int) -> str:
    """Return the figure; wide ones name the points, narrow ones have their numbers only."""
    has_names = width >= _NAMED_WIDTH
    room = 250.0 if has_names else 40.0
    height = max(260.0, _LABEL * len(points) + _TOP + _BOTTOM)
    inner = width - _LEFT - _RIGHT - room
    times = [max(_FASTEST, p[2]) for p in points] or [1.0]
    low = math.floor(math.log10(min(times)) - 0.05)
    high = max(low + 1, math.ceil(math.log10(max(times)) + 0.05))
    scores = [p[3] for p in points] or [0.0, 1.0]
    bottom = max(0.0, math.floor((min(scores) - 0.02) * 10) / 10)
    ceiling = min(1.0, max(bottom + 0.1, math.ceil((max(scores) + 0.005) * 10) / 10))

    def x(seconds: float) -> float:
        return _LEFT + inner * (math.log10(max(_FASTEST, seconds)) - low) / (high - low)

    def y(score: float) -> float:
        return _TOP + (height - _TOP - _BOTTOM) * (ceiling - score) / (ceiling - bottom)

    parts = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(_line(at, _TOP, at, height - _BOTTOM, "grid"))
        parts.append(_text(at, height - _BOTTOM + 18, f"{10.0**power:g} s", "middle"))
    span = round(100 * (ceiling - bottom))
    for i in range(0, span + 1, 2 if span <= 10 else 10 if span <= 60 else 20):
        score = bottom + i / 100
        parts.append(_line(_LEFT, y(score), _LEFT + inner, y(score), "grid"))
        parts.append(_text(_LEFT - 7, y(score) + 4, f"{100 * score:.0f} %", "end"))
    parts.append(
        _text(_LEFT + inner / 2, height - 6, wording.COMPARE_AXES[0], "middle"),
    )
    edge = _LEFT + inner + 22
    spots = _spread([y(p[3]) for p in points], _TOP + 4, height - _BOTTOM)
    for point, label_y in zip(points, spots, strict=True):
        number, name, seconds, score, is_reference = point
        at_x, at_y = x(seconds), y(score)
        shown = f"{number}  {name}" if has_names else number
        if len(shown) > 36:
            shown = f"{shown[:35]}…"
        hint = f"{name}: {100 * score:.1f} %, {seconds:.3f} s"
        parts.append(
            f"<g><title>{escape(hint)}</title>"
            f"{_line(at_x, at_y, edge - 5, label_y, 'lead')}"
            f'<circle class="dot{" reference" if is_reference else ""}" cx="{at_x:.1f}" '
            f'cy="{at_y:.1f}" r="5.5"/>{_text(edge, label_y + 4, shown, "start", "name")}</g>'
        )
    return (
        f'<svg class="drawn" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="{escape(wording.COMPARE_FIGURE)}">{"".join(parts)}</svg>'
    )


def _spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return heights near the wanted ones, at least a label apart, between top and bottom."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    at = top - _LABEL
    for i in order:
        at = placed[i] = max(wanted[i], at + _LABEL)
    limit = bottom
    for i in reversed(order):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - _LABEL
    return placed


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    dim = ' stroke-opacity="0.45"' if css == "lead" else ""
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{dim}/>'


def _text(x: float, y: float, text: str, anchor: str, css: str = "axis") -> str:
    return (
        f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
