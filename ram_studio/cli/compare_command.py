"""``ram-studio compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ram_studio.cli import options
from ram_studio.cli.evaluate_command import Fresh, NoStore, Store, open_store, stopped
from ram_studio.cli.progress import status_line
from ram_studio.cli.tables import print_table, write_csv


def compare(
    base: options.Base = None,
    agent: options.Agents = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD[:KEY=VALUE,...]",
            help="A method, with settings of its own; repeat for each.",
        ),
    ] = None,
    experiment: Annotated[
        list[str] | None,
        typer.Option(help="A ready set of rows; repeat for more [default: standard]."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The row to compare with [default: the first ram+ row].")
    ] = None,
    dtype: options.Dtype = None,
    rounding: Annotated[str, typer.Option(help="nearest or stochastic.")] = "nearest",
    seed: Annotated[int, typer.Option(help="Seed of everything random in the merges.")] = 0,
    suite: Annotated[
        str, typer.Option(help="demo, or any of tool,memory,code,math,instructions.")
    ] = "demo",
    limit: Annotated[int, typer.Option(help="Most questions per suite (demo: per domain).")] = 300,
    sources: Annotated[
        bool, typer.Option("--sources/--no-sources", help="Score base and agents too.")
    ] = True,
    sketch: Annotated[Path | None, typer.Option(help="Sketch of the same files.")] = None,
    device: options.Device = "auto",
    store: Store = None,
    no_store: NoStore = False,
    fresh: Fresh = False,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    as_json: options.Json = False,
) -> None:
    """Score methods side by side on the same agents, without writing a checkpoint."""
    from ram_studio.checkpoints.record.sketch_file import load_sketch
    from ram_studio.evals.experiment.run import compare_methods

    rows = _rows(base, agent, row, experiment, dtype, rounding, seed)
    with open_store(store, no_store) as answers, status_line(quiet=as_json) as tell:
        table = compare_methods(
            rows,
            reference=reference,
            sources=sources,
            suite=suite,
            limit=limit,
            device=device,
            sketch=None if sketch is None else load_sketch(sketch),
            store=answers,
            fresh=fresh,
            on_progress=lambda label, done, total: tell(f"{done}/{total} {label}"),
        )
    if csv is not None:
        write_csv(table.to_frame(), csv)
    described = table.to_dict()
    if as_json:
        print(json.dumps(described, allow_nan=False))
    else:
        _print(described)
    if table.is_stopped:
        raise stopped(no_store)


def _rows(
    base: str | None,
    agent: list[str] | None,
    row: list[str] | None,
    experiment: list[str] | None,
    dtype: str | None,
    rounding: str,
    seed: int,
) -> dict[str, Any]:
    """Return the recipes asked for by label."""
    from ram_studio.checkpoints.record.recipe import make_recipe
    from ram_studio.evals.experiment.presets import experiment_recipes, rows_of

    recipe = make_recipe(
        {
            "base": options.require_base(base),
            "agents": options.parse_agents(agent),
            "dtype": dtype,
            "rounding": rounding,
            "seed": seed,
        },
        where="compare",
    )
    found = rows_of(recipe, [options.parse_method(text, "row") for text in row or []])
    for name in experiment or ([] if found else ["standard"]):
        found |= experiment_recipes(name, recipe)
    return found


def _print(described: dict[str, Any]) -> None:
    domains = list(described["rows"][0]["domains"])
    lines, factors = [], []
    for row in described["rows"]:
        scores = [row["domains"][domain] for domain in domains]
        is_reference = row["row"] == described["reference"]
        lines.append(
            (
                row["row"],
                *(f"{s['score']:.3f} [{s['ci95'][0]:.2f}, {s['ci95'][1]:.2f}]" for s in scores),
                _number(row["average"]),
                "-" if row["merge_seconds"] is None else f"{row['merge_seconds']:.2f}",
                "reference" if is_reference else (row["versus"] or {}).get("outcome", "-"),
            )
        )
        factors += [
            (row["row"], name, _number(a["lambda"]), _number(a["effective_lambda"]))
            for name, a in row["agents"].items()
        ]
    columns = ("row", *domains, "average", "merge s", "vs reference")
    title = f"{described['suite']}, n = {described['n']} per domain"
    print_table(columns, lines, title=title)
    print_table(("row", "agent", "lambda asked", "lambda stored"), factors)
    for sentence in described["statements"]:
        print(sentence)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
