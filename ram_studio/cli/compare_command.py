"""``ram-studio compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import status_line
from ram_studio.cli.settings import SettingsOptions, Storing
from ram_studio.cli.tables import number_text, print_table, score_text, write_csv

if TYPE_CHECKING:
    from ram_studio.checkpoints.record.recipe import Recipe


_LIMIT = (
    "Most questions per suite (demo: per domain) [default: 300; with --ci-width as many as it "
    "takes]."
)


@options.grouped
def compare(
    *,
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
    asked: Annotated[dict[str, Any], SettingsOptions({"limit": _LIMIT}, seed="eval_seed")],
    sources: Annotated[
        bool, typer.Option("--sources/--no-sources", help="Score base and agents too.")
    ] = True,
    analysis: Annotated[Path | None, typer.Option(help="Analysis of the same files.")] = None,
    storing: Storing,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    as_json: options.Json = False,
) -> None:
    """Score methods side by side on the same agents, without writing a checkpoint."""
    from ram_studio.evals.experiment.run import compare_methods

    output = {"dtype": dtype, "rounding": rounding, "seed": seed}
    rows = _rows(options.parse_recipe(base, agent, "compare", **output), row, experiment)
    with storing.open() as answers, status_line(quiet=as_json) as tell:
        table = compare_methods(
            rows,
            reference=reference,
            sources=sources,
            **asked,
            analysis=options.known_analysis(analysis),
            store=answers,
            rerun=storing.rerun,
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
        raise storing.stopped()


def _rows(recipe: Recipe, row: list[str] | None, experiment: list[str] | None) -> dict[str, Recipe]:
    """Return the recipes asked for by label."""
    from ram_studio.evals.experiment.presets import experiment_recipes, rows_of

    found = rows_of(recipe, [options.parse_method(text, "row") for text in row or []])
    for name in experiment or ([] if found else ["standard"]):
        found |= experiment_recipes(name, recipe)
    return found


def _print(described: dict[str, Any]) -> None:
    from ram_studio.evals.report.trust import trust_lines

    domains = list(described["rows"][0]["domains"])
    lines, factors = [], []
    for row in described["rows"]:
        scores = [row["domains"][domain] for domain in domains]
        is_reference = row["row"] == described["reference"]
        lines.append(
            (
                row["row"],
                *map(score_text, scores),
                number_text(row["average"]),
                number_text(row["merge_seconds"], ".2f"),
                "reference" if is_reference else (row["versus"] or {}).get("outcome", "-"),
            )
        )
        factors += [
            (row["row"], name, number_text(a["lambda"]), number_text(a["effective_lambda"]))
            for name, a in row["agents"].items()
        ]
    if floors := described["floors"]:
        shown = (number_text(floors.get(domain)) for domain in domains)
        lines.append(("(chance level)", *shown, "-", "-", "-"))
    columns = ("row", *domains, "average", "merge s", "vs reference")
    title = f"{described['suite']}, n = {described['n']} per domain"
    print_table(columns, lines, title=title)
    print_table(("row", "agent", "requested lambda", "effective lambda"), factors)
    if described["drawn"]:
        labels = [row["row"] for row in described["rows"]]
        print_table(("over all draws", *labels), described["drawn"])
    for sentence in described["statements"]:
        print(sentence)
    print(f"Reproducibility: {' | '.join(trust_lines(described['trust']))}")
