"""A comparison as HTML and as a figure: in the page and, with its own styles, as files to keep.

The figure is merge time against score, as SVG; in the page its colors are the page's variables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from ram_studio._version import __version__
from ram_studio.app.experiment.table import Table, merge_rows, method_grid
from ram_studio.app.templates import render
from ram_studio.evals.report import colors
from ram_studio.evals.report.trust import trust_lines

_LABEL = 16.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 20.0, 14.0, 44.0
_FASTEST = 0.001
_NAMED_WIDTH = 600
_MOST_LETTERS = 36


def summary_html(table: Table) -> Markup:
    """Return, in one sentence each, what the reference is and which rows differ from it."""
    return render("experiment/summary.html.j2", **_parts(table, ()))


def details_html(table: Table) -> Markup:
    """Return the time-against-score figure and each merge's lambdas."""
    return render("experiment/details.html.j2", **_parts(table, (900, 340)))


def report_html(table: Table, title: str) -> str:
    """Return the comparison as one HTML file that needs nothing else."""
    sides = ((0, colors.AGENTS_LIGHT), (1, colors.AGENTS_DARK))
    page = render(
        "experiment/report.html.j2",
        title=title,
        version=__version__,
        grid=method_grid(table),
        palette=[
            {name: pair[side] for name, pair in colors.PAGE.items()}
            | {f"agent-{i}": color for i, color in enumerate(agents)}
            for side, agents in sides
        ],
        **_parts(table, (900,)),
    )
    return f"{page}\n"


def _parts(table: Table, widths: tuple[int, ...]) -> dict[str, Any]:
    groups: dict[str, list[str]] = {"better": [], "within noise": [], "worse": []}
    for row in merge_rows(table):
        if row["versus"] is not None:
            groups[row["versus"]["outcome"]].append(row["row"])
    return {
        "table": table,
        "trusted": trust_lines(table["trust"]),
        "groups": groups,
        "merges": merge_rows(table),
        "agents": list(dict.fromkeys(name for row in table["rows"] for name in row["agents"])),
        "figures": [(width, time_score_svg(points_of(table), width)) for width in widths],
    }


class Point(NamedTuple):
    """A merge: its number and name, seconds to merge it, average score, whether the reference."""

    number: str
    name: str
    seconds: float
    score: float
    is_reference: bool


def points_of(table: Table) -> list[Point]:
    """Return the merges of a comparison that have a score."""
    return [
        Point(str(i), r["row"], r["merge_seconds"], r["average"], r["row"] == table["reference"])
        for i, r in enumerate(merge_rows(table), 1)
        if r["average"] is not None and r["merge_seconds"] is not None
    ]


def time_score_svg(points: Sequence[Point], width: int, style: str = "") -> Markup:
    """Return the figure; wide ones name the points, narrow ones have their numbers only.

    style: CSS of a figure that stands alone; without, the page's colors apply.
    """
    has_names = width >= _NAMED_WIDTH
    height = round(max(260.0, _LABEL * len(points) + _TOP + _BOTTOM))
    inner = width - _LEFT - _RIGHT - (250.0 if has_names else 40.0)
    times = [max(_FASTEST, p.seconds) for p in points] or [1.0]
    low = math.floor(math.log10(min(times)) - 0.05)
    high = max(low + 1, math.ceil(math.log10(max(times)) + 0.05))
    scores = [p.score for p in points] or [0.0, 1.0]
    floor = max(0.0, math.floor((min(scores) - 0.02) * 10) / 10)
    ceiling = min(1.0, max(floor + 0.1, math.ceil((max(scores) + 0.005) * 10) / 10))

    def x(seconds: float) -> float:
        at = (math.log10(max(_FASTEST, seconds)) - low) / (high - low)
        return round(_LEFT + inner * at, 1)

    def y(score: float) -> float:
        at = (ceiling - score) / (ceiling - floor)
        return round(_TOP + (height - _TOP - _BOTTOM) * at, 1)

    span = round(100 * (ceiling - floor))
    steps = range(0, span + 1, 2 if span <= 10 else 10 if span <= 60 else 20)
    spots = _spread([y(p.score) for p in points], _TOP + 4, height - _BOTTOM)
    return render(
        "experiment/figure.svg.j2",
        title="Time to merge against average score",
        style=style,
        width=width,
        height=height,
        left=_LEFT,
        right=_LEFT + inner,
        top=_TOP,
        bottom=height - _BOTTOM,
        ticks_x=[(x(10.0**n), f"{10.0**n:g} s") for n in range(low, high + 1)],
        ticks_y=[(y(floor + i / 100), f"{100 * floor + i:.0f} %") for i in steps],
        dots=[
            {
                "x": x(p.seconds),
                "y": y(p.score),
                "label_y": round(spot, 1),
                "label": _shortened(f"{p.number}  {p.name}") if has_names else p.number,
                "hint": f"{p.name}: {100 * p.score:.1f} %, {p.seconds:.3f} s",
                "is_reference": p.is_reference,
            }
            for p, spot in zip(points, spots, strict=True)
        ],
    )


def time_score_file(table: Table) -> str:
    """Return the figure of a comparison as one SVG file that needs nothing else."""
    color = {name: pair[0] for name, pair in colors.PAGE.items()}
    style = (
        f"text {{ fill: {color['muted']}; font: 12px system-ui, sans-serif; }} "
        f".grid {{ stroke: {color['line']}; }} .lead {{ stroke: {color['muted']}; }} "
        f".dot {{ fill: {color['accent']}; }} "
        f".dot.reference {{ fill: {colors.AGENTS_LIGHT[1]}; }} "
        f"text.name {{ fill: {color['ink']}; font-weight: 600; }} svg {{ background: #fff; }}"
    )
    return f"{time_score_svg(points_of(table), 900, style)}\n"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


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
