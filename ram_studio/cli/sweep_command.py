"""``ram-studio sweep``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.settings import SettingsOptions, Storing
from ram_studio.cli.tables import number_text, print_table, score_text, write_csv
from ram_studio.errors import Stopped

if TYPE_CHECKING:
    from ram_studio.evals.experiment.plan import SweepPlan
    from ram_studio.evals.experiment.table import SweepState

_SHOWN_LIVE = 20


# Options that only a sweep has, and whose words take more than a line.
Positional = Annotated[
    str | None, typer.Argument(metavar="[BASE]", help="The base; or give it as --base.")
]
ShortAgents = Annotated[
    list[str] | None,
    typer.Option("--agent", "-a", metavar="NAME=PATH", help="An agent; repeat for each."),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="What to vary: r=0:0.5:6 (add :log for even ratios), rule=ram+,ram+s, "
        "ties.density=0.1,0.2; repeat for each.",
    ),
]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting that is not varied; repeat."),
]
_HELPS = {
    "items": "Most questions per suite (demo: per domain) to choose by [default: 50; with "
    "--ci-width as many as it takes].",
    "seed": "Chooses the questions and steers the search.",
}
HeldOut = Annotated[
    int | None, typer.Option(help="Further questions that check the winner [default: as --items].")
]
Search = Annotated[
    Literal["grid", "optuna"], typer.Option(help="Every combination, or what Optuna proposes.")
]
EarlyStop = Annotated[
    bool, typer.Option("--early-stop/--no-early-stop", help="Drop clearly losing settings early.")
]


@options.grouped
def sweep(
    model: Positional = None,
    *,
    base: options.Base = None,
    agent: ShortAgents = None,
    over: Over = None,
    method: Annotated[str, typer.Option(help="The method to start from.")] = "ram+",
    set_: Fixed = None,
    held_out: HeldOut = None,
    minutes: Annotated[float | None, typer.Option(help="Time for everything.")] = None,
    search: Search = "grid",
    trials: Annotated[int, typer.Option(help="Settings that a search proposes.")] = 20,
    max_settings: Annotated[int, typer.Option(help="Largest grid to accept.")] = 200,
    early_stop: EarlyStop = True,
    asked: Annotated[dict[str, Any], SettingsOptions(_HELPS, limit="items")],
    analysis: Annotated[Path | None, typer.Option(help="Analysis of the same files.")] = None,
    storing: Storing,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    as_json: options.Json = False,
) -> None:
    """Try settings in memory, drop what clearly loses, check the winner on other questions."""
    from ram_studio.evals.experiment.plan import SweepPlan
    from ram_studio.evals.experiment.space import parse_axes
    from ram_studio.evals.settings import EvalSettings

    if model is not None and base is not None:
        raise typer.BadParameter("the base is given twice", param_hint="--base")
    if not over:
        raise typer.BadParameter("say what to vary, for example r=0:0.5:6", param_hint="--over")
    settings = options.parse_pairs(set_, "set KEY=VALUE")
    plan = SweepPlan(
        options.parse_recipe(base or model, agent, "sweep", method=method, settings=settings),
        EvalSettings(**asked),
        axes=parse_axes(over),
        held_out=held_out,
        minutes=minutes,
        search=search,
        trials=trials,
        max_settings=max_settings,
        early_stop=early_stop,
    )
    setup = {"analysis": options.known_analysis(analysis), "rerun": storing.rerun}
    with storing.open() as answers:
        state = _run(plan, setup | {"store": answers}, quiet=as_json)
    _report(state, csv, as_json)
    if state.ending == "stopped":
        raise storing.stopped()


def _run(plan: SweepPlan, setup: dict[str, Any], *, quiet: bool) -> SweepState:
    """Run a plan, drawing as it goes; return the last state, also of one that was stopped."""
    from ram_studio.evals.experiment.runner import Runner

    with _live(quiet=quiet) as (show, on_progress):
        running = Runner(plan, on_progress=on_progress, **setup)
        try:
            for state in running.run():
                show(state)
        except Stopped:
            # It came between two answers; what was finished is in the state as well.
            return dataclasses.replace(running.state, ending="stopped")
    return running.state


def _report(state: SweepState, csv: Path | None, as_json: bool) -> None:
    from ram_studio.evals.report.breakdown import drawn_rows
    from ram_studio.evals.report.trust import trust_lines

    if csv is not None:
        write_csv(state.to_frame(), csv)
    if as_json:
        print(json.dumps(state.to_dict(), allow_nan=False))
        return
    domains = list(dict.fromkeys(d for row in state.rows for d in row.domains))
    lines = [
        (
            row.label,
            f"{row.correct}/{row.n}" if row.n else "-",
            score_text(row.score.to_dict()),
            *(f"{row.domains[d].score:.3f}" if d in row.domains else "-" for d in domains),
            _lambdas(row),
            _outcome(row, state),
        )
        for row in state.ranked
    ]
    if state.floors:
        floors = (number_text(state.floors.get(domain)) for domain in domains)
        lines.append(("(chance level)", "-", "-", *floors, "-", ""))
    columns = ("setting", "right", "average", *domains, "lambda", "")
    print_table(columns, lines, title=f"{state.suites}, {state.chosen_by} items to choose by")
    parts = {row.label: {"samples": row.samples} for row in state.ranked if row.samples}
    if drawn := drawn_rows(parts):
        print_table(("over all draws", *parts), [(what, *texts) for what, texts in drawn])
    for sentence in state.statements():
        print(sentence)
    if state.trust:
        print(f"Reproducibility: {' | '.join(trust_lines(state.trust))}")
    for row in state.rows:
        if row.note:
            print(f"{row.label}: {row.note}")


def _lambdas(row: Any) -> str:
    found = [value for value in row.factors.values() if value is not None]
    return " ".join(f"{value:.3f}" for value in found) or "-"


def _outcome(row: Any, state: SweepState) -> str:
    words = {
        "open": "in the race",
        "kept": "no significant difference",
        "behind": "clearly worse",
        "same": f"same as {row.same_as}",
    }
    said = words.get(row.status, row.status)
    if row.label == state.winner:
        said = "best"
    if row.loss is not None and row.status == "dropped":
        said = f"dropped after {row.loss.items}"
    return f"{said}, start" if row.is_start else said


@contextlib.contextmanager
def _live(
    *, quiet: bool
) -> Iterator[tuple[Callable[[SweepState], None], Callable[[str, int, int], None] | None]]:
    """Yield functions that draw a state and an answer's progress; silent without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield (lambda state: None), None
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    latest: list[SweepState] = []

    def drawing(now: str) -> Group:
        table = Table(box=None, pad_edge=False)
        for column in ("setting", "right", "score [95 %]", ""):
            table.add_column(column, justify="left" if column == "setting" else "right")
        state = latest[-1]
        for row in state.ranked[:_SHOWN_LIVE]:
            style = "dim" if row.is_out else "bold" if row.label == state.winner else ""
            cells = (
                row.label,
                f"{row.correct}/{row.n}",
                score_text(row.score.to_dict()),
                _outcome(row, state),
            )
            table.add_row(*(Text(cell, style=style) for cell in cells))
        hidden = len(state.rows) - _SHOWN_LIVE
        more = [Text(f"... and {hidden} more", style="dim")] if hidden > 0 else []
        bar = ProgressBar(total=max(1, state.total_answers), completed=state.answers, width=40)
        return Group(table, *more, bar, Text(f"{state.seconds:.0f} s  {now}", style="dim"))

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def show(state: SweepState) -> None:
            latest.append(state)
            del latest[:-1]
            live.update(drawing(state.now))

        def on_progress(label: str, done: int, total: int) -> None:
            if latest:
                live.update(drawing(f"{label}: {done} of {total}"))

        yield show, on_progress
