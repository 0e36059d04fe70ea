"""The two experiments as calls: a sweep over settings, and methods side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.experiment.answers import Entry, Progress, Setup
from ram_studio.evals.experiment.method_table import MethodTable
from ram_studio.evals.experiment.plan import ComparePlan, SweepPlan
from ram_studio.evals.experiment.runner import Runner
from ram_studio.evals.experiment.space import parse_axes
from ram_studio.evals.experiment.table import SweepState
from ram_studio.evals.settings import EvalSettings


def sweep(
    recipe: Recipe,
    over: Mapping[str, Any] | Iterable[str],
    *,
    on_update: Callable[[SweepState], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **options: Any,
) -> SweepState:
    """Try settings of a recipe in memory and return what was found.

    Args:
        recipe: base, agents and the setting to start from.
        over: what to vary, `{"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}` or the same as texts
            `["r=0:0.5:6"]`, see `space`.
        on_update: called with the state after every stage of every setting.
        options: fields of `SweepPlan` (minutes, search, trials, ...), of `EvalSettings` (suites,
            limit, device, ...; or all of them as settings) and of `Setup` (analysis, store, ...).

    Returns: The last state. Stopping and time being up are no errors: its `ending` tells.

    Raises: SettingsError, EvaluationError and what merging raises.

    Example:
        >>> result = sweep(recipe, {"r": "0:0.4:5"}, limit=20)  # doctest: +SKIP
        >>> result.best.label, result.recheck.winner.score      # doctest: +SKIP
        >>> result.to_frame()                                   # doctest: +SKIP
    """
    setup, settings = _taken(options)
    plan = SweepPlan(recipe, settings, axes=parse_axes(over), **options)
    running = Runner(plan, should_stop=should_stop, **setup)
    for state in running.run():
        if on_update:
            on_update(state)
    return running.state


def compare_methods(
    rows: Mapping[str, Recipe],
    *,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    **options: Any,
) -> MethodTable:
    """Apply every recipe in memory, score it beside base and agents, and return the table.

    Every row is compared with one reference row on the same prompts by McNemar's test, corrected
    for the number of rows (Holm). When stopped, the table holds the rows that were finished; with a
    store, calling this again goes on where it ended.

    Args:
        rows: recipes by label, e.g. of `presets.experiment_recipes`; all of one base, an agent of
            the same name being the same source in all of them.
        on_progress: called with (row, rows done, rows in all) as answers come.
        options: arguments of `ComparePlan.of` (reference, sources), fields of `EvalSettings`
            (suites, limit, ...; or all of them as settings) and of `Setup` (analysis, store).

    Raises: SettingsError for rows that do not go together, before any work, or when no row could be
        merged; what merging and asking raise; Stopped when no merge was scored yet.
    """
    setup, settings = _taken(options)
    plan = ComparePlan.of(rows, settings, **options)

    def tell(label: str, answered: int, total: int) -> None:
        if on_progress:
            done = sum((e.twin or e).status in ("kept", "failed") for e in running.entries)
            on_progress(label, done, len(running.entries))

    running = Runner(plan, should_stop=should_stop, on_progress=tell, **setup)
    for _ in running.run():
        pass
    table = _method_table(plan, running)
    if on_progress:
        on_progress("", len(table.report.models), len(running.entries))
    return table


def _taken(options: dict[str, Any]) -> tuple[dict[str, Any], EvalSettings]:
    """Take fields of `Setup` and the settings, whole or by field, out of options; return both."""

    def take(names: Iterable[str]) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    setup, fields = take(Setup.__annotations__), take(EvalSettings.model_fields)
    return setup, options.pop("settings", None) or EvalSettings(**fields)


def _method_table(plan: ComparePlan, running: Runner) -> MethodTable:
    """Return the finished rows of a comparison, each with all its answers."""

    def is_finished(known: Entry) -> bool:
        return known.status == "kept" or 0 < running.looks <= known.stages

    finished = [entry for entry in running.entries if is_finished(entry.twin or entry)]
    is_stopped = running.state.ending == "stopped"
    if not any(entry.candidate.recipe for entry in finished):
        reasons = [entry.note for entry in running.entries if entry.note]
        if reasons and not is_stopped:
            raise SettingsError(reasons[0])
        raise Stopped(
            "The comparison was stopped before a merge was scored; its answers were kept."
        )
    rows = {entry.label: (entry.twin or entry).answers for entry in finished}
    merges = {
        entry.label: {**(entry.twin or entry).merge, "recipe": entry.merge["recipe"]}
        for entry in finished
        if entry.merge
    }
    unfinished = {
        entry.label: entry.note or "the comparison was stopped; run the same again to go on."
        for entry in running.entries
        if entry not in finished
    }
    report = replace(running.report(rows, running.questions), until=running.state.until)
    return MethodTable(report, merges, plan.agents, plan.reference, unfinished, is_stopped)
