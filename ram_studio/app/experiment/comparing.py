"""The work behind "Compare methods": from the form to rows, a finished table and its two files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ram_studio.app import markup, wording
from ram_studio.app.check.answers import open_answers
from ram_studio.app.check.scoring import SUITE
from ram_studio.app.experiment import comparison_view
from ram_studio.app.jobs import Job, Report
from ram_studio.app.merge.controls import tuned_by
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.session import Comparison, Loaded, Session
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.events import CancelToken
from ram_studio.errors import OutputError, RamStudioError, SettingsError
from ram_studio.evals.experiment.presets import EXPERIMENTS, experiment_recipes, rows_of

CHOICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "task-arithmetic-mean": ("task-arithmetic", {}),
    "task-arithmetic-sum": ("task-arithmetic", {"scale": 1.0}),
    "ties": ("ties", {}),
    "dare-ta": ("dare-ta", {}),
    "dare-ties": ("dare-ties", {}),
    "fisher": ("fisher", {}),
    "wudi": ("wudi", {}),
    "ram": ("ram", {}),
    "ram+": ("ram+", {}),
    "ram+s": ("ram+s", {}),
    "ram+m": ("ram+m", {}),
}
"""What the form offers: (method, settings) by the value of its box."""

USUAL = (
    "task-arithmetic-mean",
    "task-arithmetic-sum",
    "ties",
    "dare-ta",
    "ram",
    "ram+",
    "ram+s",
)

PRESETS = (
    "r-ablation",
    "epsilon-ablation",
    "standard",
    "unique-region",
    "leave-one-out",
    "pairwise",
)
"""Experiments offered beside one's own choice; the long grids are for the command line."""


class Comparing(NamedTuple):
    """How far a comparison is: the row being worked on, rows done, rows in all."""

    row: str
    done: int
    total: int


def rows_for(
    loaded: Loaded, preset: str, chosen: Sequence[str], tuned: Mapping[str, Any]
) -> dict[str, Recipe]:
    """Return the recipes by label.

    Args:
        preset: one of EXPERIMENTS; empty for ``chosen``, keys of CHOICES.
        tuned: epsilon, r and alpha of the RAM rows, and of the presets' starting recipe.

    Raises: SettingsError for unknown names or none.
    """
    plain = recipe_from(loaded, "ram+", tuned)
    if preset:
        return experiment_recipes(preset, plain)
    unknown = [name for name in chosen if name not in CHOICES]
    if unknown:
        raise SettingsError(f"There is no row {unknown[0][:80]!r}; there are {', '.join(CHOICES)}.")
    if not chosen:
        raise SettingsError(wording.NO_METHOD_CHOSEN)
    rows = []
    for name, (method, settings) in CHOICES.items():
        if name in chosen:
            own = tuned_by(method)
            rows.append((method, {**{k: tuned[k] for k in own if k in tuned}, **settings}))
    return rows_of(plain, rows)


def compare(
    rows: Mapping[str, Recipe],
    loaded: Loaded,
    session: Session,
    workspace: Workspace,
    limit: int,
    report: Report,
    should_stop: Callable[[], bool],
) -> Any:
    """Return the MethodTable, stopped or finished; its answers go to the visitor's store."""
    from ram_studio.evals.experiment.run import compare_methods

    def tell(row: str, done: int, total: int) -> None:
        report(Comparing(row, done, total))

    shipped = [loaded.base, *loaded.agents.values()] if loaded.example else []
    with open_answers(session, workspace, shipped) as store:
        return compare_methods(
            rows,
            suite=SUITE,
            limit=limit,
            sketch=loaded.sketch,
            fisher_folder=session.folder / "fisher",
            store=store,
            on_progress=tell,
            should_stop=should_stop,
        )


def title_of(preset: str) -> str:
    """Return a comparison's title."""
    return EXPERIMENTS[preset].title if preset else wording.OWN_COMPARISON


def keep(table: Any, title: str, session: Session) -> Comparison:
    """Write the table's CSV, report and figure into the session's folder; return it for the page.

    Raises: OutputError when they cannot be written.
    """
    folder = session.folder / "downloads"
    stem = f"comparison-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"
    described = table.to_dict()
    files = {
        folder / f"{stem}.csv": table.to_frame().to_csv(index=False),
        folder / f"{stem}.html": comparison_view.report_html(described, title),
        folder / f"{stem}.svg": comparison_view.figure_file(described),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"The table could not be written: {error.strerror or error}.") from error
    return Comparison(title, described, *files)


def progress_html(event: Comparing | None) -> str:
    """Return the progress bar of a comparison."""
    if event is None or not event.row:
        return markup.progress(None, wording.COMPARE_STARTING)
    return markup.progress(
        event.done / event.total, event.row, f"row {event.done + 1} of {event.total}"
    )


def run_comparison(
    preset: str,
    chosen: Sequence[str],
    limit: int,
    tuned: Mapping[str, Any],
    session: Session,
    workspace: Workspace,
) -> Iterator[tuple[str, Comparison | None]]:
    """Compare; yield (status HTML, the finished comparison or None) as it goes."""
    loaded = session.loaded
    if loaded is None:
        yield markup.callout(wording.NEED_LOAD, "warn"), None
        return
    if session.is_busy:
        yield markup.callout(wording.BUSY, "warn"), None
        return
    try:
        rows = rows_for(loaded, preset, chosen, tuned)
    except RamStudioError as error:
        yield markup.callout(str(error), "warn"), None
        return

    def work(report: Report, cancel: CancelToken) -> Comparison:
        table = compare(
            rows, loaded, session, workspace, limit, report, lambda: cancel.is_cancelled
        )
        return keep(table, title_of(preset), session)

    job = Job(work)
    session.job = job
    yield progress_html(None), None
    for event in job.updates():
        yield progress_html(event), None
    result, error = job.outcome()
    if result is None:
        yield markup.failure(error, wording.STOPPED), None
        return
    session.comparison = result
    is_stopped = result.table["ending"] == "stopped"
    yield markup.callout(wording.STOPPED) if is_stopped else "", result
