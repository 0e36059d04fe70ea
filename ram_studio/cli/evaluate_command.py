"""``ram-studio evaluate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.tables import print_table


def evaluate(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Folders, or NAME=FOLDER.")
    ],
    suite: Annotated[str, typer.Option(help="Which suite of prompts.")] = "demo",
    limit: Annotated[int, typer.Option(help="Prompts per domain.")] = 300,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Score models side by side on the same prompts, with 95 % intervals."""
    from ram_studio.evals.evaluate import evaluate as run

    is_terminal = sys.stderr.isatty() and not as_json

    def on_progress(model: str, domain: str, done: int, total: int) -> None:
        if is_terminal:
            print(f"\r\033[K{model}: {domain} {done}/{total}", end="", file=sys.stderr)

    report = run(
        name_models(models), suite=suite, limit=limit, device=device, on_progress=on_progress
    )
    if is_terminal:
        print("\r\033[K", end="", file=sys.stderr)
    result = report.to_dict()
    if as_json:
        print(json.dumps(result))
        return
    domains = list(next(iter(result["models"].values()))["domains"])
    rows = []
    for name, row in result["models"].items():
        cells = []
        for domain in domains:
            score = row["domains"][domain]
            low, high = score["ci95"]
            cells.append(f"{score['score']:.3f} [{low:.2f}, {high:.2f}]")
        average = row["average"]
        rows.append((name, *cells, "-" if average is None else f"{average:.3f}"))
    print_table(("model", *domains, "average"), rows, title=f"{suite}, n = {limit} per domain")


def name_models(models: list[str]) -> dict[str, str]:
    """Return model folders by name: NAME=FOLDER as given, else the folder's own name.

    Two folders of the same name get their parent's name too.
    """
    named: dict[str, str] = {}
    for text in models:
        name, separator, path = text.partition("=")
        if not separator or "/" in name:
            path = text
            resolved = Path(path).resolve()
            name = resolved.name
            if name in named:
                name = f"{resolved.parent.name}/{name}"
        if name in named:
            raise typer.BadParameter(f"two models are called {name!r}; use NAME=FOLDER")
        named[name] = path
    return named
