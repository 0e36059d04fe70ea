"""The picture on the first step: what RAM does, with twelve dozen little squares."""

from __future__ import annotations

from html import escape

_COLUMNS, _ROWS, _CELL, _GAP = 8, 6, 13, 2
_STEP = _CELL + _GAP
_SIZE = _COLUMNS * _STEP - _GAP
_HEIGHT = _ROWS * _STEP - _GAP
_BETWEEN = 20
_LABEL = 24

# Cells each agent changed, as column + 8 * row: a sparse agent, and two denser ones.
_CHANGED = (
    frozenset((2, 13, 22, 27, 41, 46)),
    frozenset((0, 3, 5, 9, 13, 16, 19, 24, 28, 30, 34, 37, 40, 45)),
    frozenset((1, 4, 6, 9, 10, 15, 18, 20, 27, 28, 31, 33, 36, 38, 43, 45, 47)),
)
_NAMES = ("coding", "tool", "memory")


def _grid(x: float, label: str, colors: dict[int, str]) -> str:
    cells = "".join(
        f'<rect x="{x + _STEP * (i % _COLUMNS)}" y="{_LABEL + _STEP * (i // _COLUMNS)}" '
        f'width="{_CELL}" height="{_CELL}" rx="2.5" '
        f'style="fill:{colors.get(i, "var(--ram-line)")}"/>'
        for i in range(_COLUMNS * _ROWS)
    )
    return f'<text x="{x}" y="{_LABEL - 9}">{escape(label)}</text>{cells}'


def hero_figure(description: str) -> str:
    """Return an SVG: three agents' changed weights, and the merge that keeps the unique ones."""
    parts, x = [], 0.0
    for t, (name, cells) in enumerate(zip(_NAMES, _CHANGED, strict=True)):
        parts.append(_grid(x, name, dict.fromkeys(cells, f"var(--ram-agent-{t})")))
        x += _SIZE + _BETWEEN
    middle = _LABEL + _HEIGHT / 2
    parts.append(
        f'<path d="M{x - 4} {middle}h22m-7 -7 7 7-7 7" style="fill:none;stroke:var(--ram-muted);'
        'stroke-width:2.2;stroke-linecap:round;stroke-linejoin:round"/>'
    )
    x += 36
    merged = {}
    for i in range(_COLUMNS * _ROWS):
        owners = [t for t, cells in enumerate(_CHANGED) if i in cells]
        if len(owners) == 1:
            merged[i] = f"var(--ram-agent-{owners[0]})"
        elif owners:
            merged[i] = "var(--ram-overlap-2)"
    parts.append(_grid(x, "merged", merged))
    return (
        f'<svg class="hero-figure" viewBox="0 0 {x + _SIZE} {_LABEL + _HEIGHT}" role="img" '
        f'aria-label="{escape(description)}">{"".join(parts)}</svg>'
    )
