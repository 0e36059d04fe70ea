"""The result of an experiment as HTML: for the page and, with its own styles, as a file."""

from __future__ import annotations

from markupsafe import Markup

from ram_studio._version import __version__
from ram_studio.app.experiment.table import experiment_grid
from ram_studio.app.templates import progress, render
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.report import colors


def found_html(result: ExperimentResult, *, is_file: bool = False) -> Markup:
    """Return the findings as sentences, and each merge's lambdas; is_file: without a live table."""
    merges = [row for row in result.ranked if row.has_lambda]
    agents = list(dict.fromkeys(name for row in merges for name in row.agents))
    shown = {"result": result, "agents": agents, "merges": merges, "is_file": is_file}
    return render("experiment/found.html.j2", **shown)


def report_html(result: ExperimentResult, title: str) -> str:
    """Return the experiment as one self-contained HTML file."""
    palette = [{name: pair[side] for name, pair in colors.PAGE.items()} for side in (0, 1)]
    page = render(
        "experiment/report.html.j2",
        title=title,
        version=__version__,
        grid=experiment_grid(result),
        palette=palette,
        result=result,
        found=found_html(result, is_file=True),
    )
    return f"{page}\n"


def progress_html(result: ExperimentResult | None) -> Markup:
    """Return the progress bar of an experiment."""
    # The first setting may take minutes.
    if result is None or not (result.now or result.answers):
        return progress(None, "Preparing the models")
    out = [row for row in result.rows if row.is_out]
    # Dropped settings are not asked again.
    total = result.total_answers - len(out) * result.questions + sum(row.n for row in out)
    over = sum(row.is_over and row.status != "duplicate" for row in result.rows)
    details = f"{over} of {result.settings} settings done · {result.answers:,} answers"
    return progress(min(1.0, result.answers / max(1, total)), result.now, details)
