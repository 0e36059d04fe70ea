"""A comparison as HTML: in the page and, with its own styles, as one file to keep."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from ram_studio._version import __version__
from ram_studio.app.experiment.table import Table, merge_rows, method_grid
from ram_studio.app.experiment.time_score import points_of, time_score_svg
from ram_studio.app.templates import render
from ram_studio.evals.report import colors
from ram_studio.evals.report.trust import trust_lines


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
