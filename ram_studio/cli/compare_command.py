"""``ram-studio compare`` and ``ram-studio fisher``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ram_studio.cli import options
from ram_studio.cli.evaluate_command import Store, stopped
from ram_studio.cli.tables import print_table, write_csv
from ram_studio.errors import OutputError


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
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32 [default: the base's].")
    ] = None,
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
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Keep no answers; a stopped comparison is lost.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask again what is stored.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    as_json: options.Json = False,
) -> None:
    """Score methods side by side on the same agents, without writing a checkpoint."""
    from ram_studio.checkpoints.record.sketch_file import load_sketch
    from ram_studio.evals.experiment.run import compare_methods
    from ram_studio.evals.store.answers import AnswerStore

    rows = _rows(base, agent, row, experiment, dtype, rounding, seed)
    is_terminal = sys.stderr.isatty() and not as_json

    def on_progress(label: str, done: int, total: int) -> None:
        if is_terminal:
            text = f"{done}/{total} {label}" if label else ""
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    answers = None if no_store else AnswerStore(store)
    try:
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
            on_progress=on_progress,
        )
    finally:
        if answers is not None:
            answers.close()
    if csv is not None:
        write_csv(table.to_frame(), csv)
    described = table.to_dict()
    if as_json:
        print(json.dumps(described, allow_nan=False))
    else:
        _print(described)
    if table.is_stopped:
        raise stopped(answers)


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
    from ram_studio.algorithm.methods import make_settings
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
    chosen = []
    for text in row or []:
        method, _, rest = text.partition(":")
        given = options.parse_pairs(rest.split(",") if rest else None, "row METHOD:KEY=VALUE")
        settings = make_settings(method, given)
        chosen.append((method, {key: getattr(settings, key) for key in given}))
    found = rows_of(recipe, chosen)
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


def fisher(
    agent: options.Agents = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the Fisher files.")] = None,
    examples: Annotated[int, typer.Option(help="Prompts per agent.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option(help="Text file, one prompt a line [default: built in].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampled answers.")] = 0,
    device: options.Device = "auto",
) -> None:
    """Estimate the Fisher information that `merge --method fisher --set files=DIR` weighs by."""
    from ram_studio.engine.reading.fisher_files import fisher_path
    from ram_studio.evals.fisher import estimate_fisher

    agents = options.parse_agents(agent)
    if out is None:
        raise typer.BadParameter("no folder was given", param_hint="--out")
    chosen = None
    if prompts is not None:
        try:
            lines = prompts.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OutputError(f"{prompts} cannot be read: {error}.") from error
        chosen = [line for line in lines if line.strip()][:examples]
    for name, source in agents.items():
        path = estimate_fisher(
            source,
            fisher_path(out, name),
            name=name,
            prompts=chosen,
            examples=examples,
            seed=seed,
            device=device,
        )
        print(f"{name}: {path}")
    print(f"Next: ram-studio merge ... --method fisher --set files={out}")
