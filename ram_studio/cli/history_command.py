"""``ram-studio history``: past evaluations, out of the store."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.report import Export, Judging, check_exports
from ram_studio.cli.settings import Store
from ram_studio.cli.tables import print_table


@options.expand_groups
def history(
    runs: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[RUN...]", help="Runs to show side by side; all runs are listed when left out."
        ),
    ] = None,
    *,
    store: Store = None,
    judging: Judging,
    export: Export = None,
    as_json: options.Json = False,
) -> None:
    """List past evaluations, or show and export some of them side by side."""
    from ram_studio.evals.report.history import find_runs, stored_report
    from ram_studio.evals.report.history import history as past
    from ram_studio.evals.report.score import as_json as record_of
    from ram_studio.evals.store import AnswerStore

    check_exports(export)
    with AnswerStore(store) as answers:
        if runs:
            report = stored_report(answers, find_runs(answers, runs))
            judging.show(report, export, as_json)
            return
        listed = answers.runs()
    if export:
        raise typer.BadParameter("name the runs to export", param_hint="RUN")
    if as_json:
        print(json.dumps([record_of(run) for run in listed]))
        return
    from pandas import notna

    rows = []
    for row in past(store).to_dict("records"):
        is_run = bool(notna(row["run"]))
        rows.append(
            (
                str(row["run"]) if is_run else "-",
                str(row["when"])[:16].replace("T", " "),
                str(row["model"]),
                f"{row['suite']} v{row['suite_version']}" if is_run else "(merged)",
                f"{row['correct']}/{row['n']}" if is_run else "-",
                str(row["method"]) if notna(row["method"]) else "-",
                str(row["fingerprint"])[:8],
            )
        )
    columns = ("run", "begun (UTC)", "model", "suite", "right", "merged by", "fingerprint")
    print_table(columns, rows)
    if rows:
        print("To compare runs: ram-studio history RUN...")
