"""``ram-studio compare`` and ``ram-studio sweep``: one run, one table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import is_drawn, status_line
from ram_studio.cli.settings import SettingsOptions, Storing
from ram_studio.cli.tables import (
    number_text,
    print_reproducibility,
    print_table,
    score_text,
    write_csv,
)

if TYPE_CHECKING:
    from ram_studio.evals.experiment.plan import Plan
    from ram_studio.evals.experiment.result import ExperimentResult, Row

_SHOWN_LIVE = 20
_LIMIT = (
    "Maximum questions per suite (demo: per domain) [default: 300; with --ci-width as many as "
    "needed]."
)
_HELPS = {
    "limit": "Maximum questions per suite (demo: per domain) to choose by [default: 50; with "
    "--ci-width as many as needed].",
    "seed": "Seed of the questions and of the search.",
}

# Options with long help texts.
Positional = Annotated[
    str | None, typer.Argument(metavar="[BASE]", help="The base; or give it as --base.")
]
ShortAgents = Annotated[
    list[str] | None,
    typer.Option("--agent", "-a", metavar="NAME=PATH", help="An agent; repeat for each."),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METHOD[:KEY=VALUE,...]",
        help="A method, or FILE.py:NAME, with settings of its own; repeat for each.",
    ),
]
Presets = Annotated[
    list[str] | None,
    typer.Option(help="A predefined set of rows; repeat for more [default: standard]."),
]
Reference = Annotated[
    str | None,
    typer.Option(help="The row that others are compared with [default: the first ram+ row]."),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="What to vary: r=0:0.5:6 (add :log for even ratios), rule=ram+,ram+s, "
        "ties.density=0.1,0.2, weight=0:2:3 (of every agent), weight.AGENT=..., ramp.AGENT=... (of "
        "its first and last layer); repeat for each.",
    ),
]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting that is not varied; repeat."),
]
HeldOut = Annotated[
    int | None, typer.Option(help="Held-out questions that check the winner [default: as --limit].")
]
Search = Annotated[
    Literal["grid", "optuna", "slim"],
    typer.Option(help="Every combination, what Optuna proposes, or SLIM's surrogate of weights."),
]
EarlyStop = Annotated[
    bool, typer.Option("--early-stop/--no-early-stop", help="Drop clearly losing settings early.")
]


@dataclass
class Running:
    """Options of both commands. The annotations are the command line's."""

    analysis: Annotated[Path | None, typer.Option(help="Analysis of the same files.")] = None
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None
    as_json: options.Json = False

    def report(self, plan: Plan, storing: Storing) -> None:
        """Run a plan, drawing its progress, and print its result.

        Raises: after that Stopped when it was stopped, typer.Exit where nothing could be merged.
        """
        from ram_studio.checkpoints.write.output_folder import check_file
        from ram_studio.evals.experiment.run import run_experiment
        from ram_studio.evals.report.score import as_json

        if self.csv is not None:
            check_file(self.csv)
        setup: dict[str, Any] = {"rerun": storing.rerun}
        setup["analysis"] = options.known_analysis(self.analysis)
        with storing.open_store() as answers, _live(quiet=self.as_json) as hooks:
            result = run_experiment(plan, store=answers, **setup, **hooks)
        if self.csv is not None:
            write_csv(result.to_frame(), self.csv)
        if self.as_json:
            print(json.dumps(as_json(result), allow_nan=False))
        else:
            print_experiment(result)
        if result.ending == "stopped":
            raise storing.stopped_error()
        if result.rows and all(row.status == "failed" for row in result.rows):
            raise typer.Exit(2)  # no setting could be merged


@options.expand_groups
def compare(
    *,
    base: options.Base = None,
    agent: options.Agents = None,
    row: Rows = None,
    experiment: Presets = None,
    reference: Reference = None,
    dtype: options.Dtype = None,
    rounding: Annotated[str, typer.Option(help="nearest or stochastic.")] = "nearest",
    seed: Annotated[int, typer.Option(help="Seed of all randomness in the merges.")] = 0,
    asked: Annotated[dict[str, Any], SettingsOptions({"limit": _LIMIT}, seed="eval_seed")],
    sources: Annotated[
        bool,
        typer.Option(
            "--sources/--no-sources",
            help="Score base and agents too, and report what agents lost in other skills.",
        ),
    ] = True,
    draws: Annotated[
        int,
        typer.Option(
            help="Random draws averaged per row, if the merge (DARE) or its answers are random."
        ),
    ] = 3,
    storing: Storing,
    running: Running,
) -> None:
    """Score methods side by side on the same agents, without writing a checkpoint."""
    from ram_studio.evals.experiment.plan import ComparePlan
    from ram_studio.evals.experiment.presets import experiment_recipes, rows_of
    from ram_studio.evals.settings import EvalSettings

    output = {"dtype": dtype, "rounding": rounding, "seed": seed}
    recipe = options.parse_recipe(base, agent, "compare", **output)
    recipes = rows_of(recipe, [options.parse_method(text, "row") for text in row or []])
    for name in experiment or ([] if recipes else ["standard"]):
        recipes |= experiment_recipes(name, recipe)
    settings = EvalSettings(**asked)
    plan = ComparePlan.of(recipes, settings, reference=reference, sources=sources, draws=draws)
    running.report(plan, storing)


@options.expand_groups
def sweep(
    model: Positional = None,
    *,
    base: options.Base = None,
    agent: ShortAgents = None,
    over: Over = None,
    method: Annotated[str, typer.Option(help="The method to start from.")] = "ram+",
    set_: Fixed = None,
    held_out: HeldOut = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes that the whole sweep may take.")
    ] = None,
    search: Search = "grid",
    trials: Annotated[int, typer.Option(help="Settings that a search tries.")] = 20,
    max_settings: Annotated[int, typer.Option(help="Largest grid to accept.")] = 200,
    early_stop: EarlyStop = True,
    asked: Annotated[dict[str, Any], SettingsOptions(_HELPS)],
    storing: Storing,
    running: Running,
) -> None:
    """Score settings in memory, drop clear losers, check the winner on held-out questions."""
    from ram_studio.checkpoints.own_methods import bring_method
    from ram_studio.evals.experiment.plan import SweepPlan
    from ram_studio.evals.experiment.space import parse_axes
    from ram_studio.evals.settings import EvalSettings

    if model is not None and base is not None:
        raise typer.BadParameter("the base is given twice", param_hint="--base")
    if not over:
        raise typer.BadParameter("name what to vary, for example r=0:0.5:6", param_hint="--over")
    own = {"method": bring_method(method), "settings": options.parse_pairs(set_, "set KEY=VALUE")}
    plan = SweepPlan(
        options.parse_recipe(base or model, agent, "sweep", **own),
        EvalSettings(**asked),
        axes=parse_axes(over),
        held_out=held_out,
        minutes=minutes,
        search=search,
        trials=trials,
        max_settings=max_settings,
        early_stop=early_stop,
    )
    running.report(plan, storing)


# ---------------------------------------------------------------------------- output


def print_experiment(result: ExperimentResult) -> None:
    """Print an experiment's rows, the factors of its merges, and its findings."""
    domains, rows = result.domains, result.ranked
    lines = [
        (
            row.label,
            f"{row.correct}/{row.n}" if row.n else "-",
            score_text(row.average),
            *(score_text(row.domains[d]) if d in row.domains else "-" for d in domains),
            number_text(row.merge_seconds, ".2f"),
            _outcome(row, result),
        )
        for row in rows
    ]
    if levels := result.chance_levels:
        chance = (number_text(levels.get(domain)) for domain in domains)
        lines.append(("(chance level)", "-", "-", *chance, "-", ""))
    outcome = f"vs {result.reference}" if result.reference else ""
    columns = ("row", "right", "average", *domains, "merge s", outcome)
    print_table(columns, lines, title=f"{result.suite}, {result.questions} questions")
    rescaling = [row for row in rows if row.has_lambda]
    numbers = [(row.label, name, own) for row in rescaling for name, own in row.agents.items()]
    factors = [
        (label, name, number_text(own.get("lambda")), number_text(own.get("effective_lambda")))
        for label, name, own in numbers
    ]
    if factors:
        print_table(("row", "agent", "requested lambda", "effective lambda"), factors)
    if sampled := result.sample_rows:
        labels = [row.label for row in rows]
        print_table(("over all samples", *labels), [(what, *texts) for what, texts in sampled])
    for sentence in result.statements:
        print(sentence)
    print_reproducibility(result.lines)
    for row in rows if result.is_sweep else ():
        if row.note:
            print(f"{row.label}: {row.note}")


def _outcome(row: Row, result: ExperimentResult) -> str:
    from ram_studio.evals.experiment.result import STATUS_TEXTS

    text = f"same as {row.same_as}" if row.same_as else STATUS_TEXTS[row.status]
    if row.label in (result.winner, result.reference):
        text = "best" if result.is_sweep else "reference"
    elif row.versus is not None:
        text = row.versus.cell
    elif not result.is_sweep and row.status == "finished":
        text = "-"
    if row.loss is not None and row.status == "dropped":
        text = f"dropped after {row.loss.items}"
    return f"{text}, start" if row.is_start else text


@contextlib.contextmanager
def _live(*, quiet: bool) -> Iterator[dict[str, Any]]:
    """Yield hooks of `run_experiment` that draw its progress, or print lines without a terminal."""
    if not is_drawn(quiet):
        with status_line(quiet=True) as show_text:
            yield {"on_progress": lambda label, done, n: show_text(f"{label}: {done} of {n}")}
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    latest: list[ExperimentResult] = []

    def drawing(now: str) -> Group:
        table = Table(box=None, pad_edge=False)
        for column in ("row", "right", "score [95 %]", ""):
            table.add_column(column, justify="left" if column == "row" else "right")
        result = latest[-1]
        for row in result.ranked[:_SHOWN_LIVE]:
            style = "dim" if row.is_out else "bold" if row.label == result.winner else ""
            score, outcome = score_text(row.average), _outcome(row, result)
            cells = (row.label, f"{row.correct}/{row.n}", score, outcome)
            table.add_row(*(Text(cell, style=style) for cell in cells))
        hidden = len(result.rows) - _SHOWN_LIVE
        more = [Text(f"... and {hidden} more", style="dim")] if hidden > 0 else []
        bar = ProgressBar(total=max(1, result.total_answers), completed=result.answers, width=40)
        return Group(table, *more, bar, Text(f"{result.seconds:.0f} s  {now}", style="dim"))

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def on_update(result: ExperimentResult) -> None:
            latest[:] = [result]
            live.update(drawing(result.now))

        def on_progress(label: str, done: int, total: int) -> None:
            if latest:
                live.update(drawing(f"{label}: {done} of {total}"))

        yield {"on_update": on_update, "on_progress": on_progress}
