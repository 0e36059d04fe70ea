"""``ram-studio suites``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.tables import print_table


def suites(
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with the rows of published data sets."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the suites for `evaluate --suite`, and which need data first."""
    from ram_studio.evals.suites import ALL_SUITES, HEALTH

    found = [(suite, suite.absent(data)) for suite in ALL_SUITES.values()]
    if as_json:
        rows = [
            {
                "name": suite.name,
                "title": suite.title,
                "version": suite.version,
                "runs_code": suite.runs_code,
                "absent": why or None,
            }
            for suite, why in found
        ]
        print(json.dumps({"suites": rows}))
        return
    shown = [(s.name, s.title, str(s.version), "not here" if why else "here") for s, why in found]
    print_table(("suite", "asks", "version", "questions"), shown)
    for suite, why in found:
        if why:
            print(f"{suite.name}: {why}")
    print(f"{HEALTH}: only evaluate takes it, and it has no questions.")
