"""The two experiments as functions: a sweep over settings, and a comparison of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.experiment.answers import Setup
from ram_studio.evals.experiment.plan import ComparePlan, Plan, SweepPlan
from ram_studio.evals.experiment.presets import experiment_recipes, rows_of
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.experiment.runner import Runner
from ram_studio.evals.experiment.space import parse_axes
from ram_studio.evals.settings import EvalSettings

OnUpdate = Callable[[ExperimentResult], None]


def sweep(
    recipe: Recipe,
    over: Mapping[str, Any] | Iterable[str],
    *,
    on_update: OnUpdate | None = None,
    should_stop: Callable[[], bool] | None = None,
    **options: Any,
) -> ExperimentResult:
    """Try settings of a recipe in memory and return the result.

    Args:
        recipe: base, agents and the setting to start from.
        over: settings to vary, `{"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}` or the same as texts
            `["r=0:0.5:6"]`, see `space`.
        on_update: called with the partial result after every stage of every setting.
        options: fields of `SweepPlan` (minutes, search, trials, ...), of `EvalSettings` (suites,
            limit, device, ...; also all of them as settings) and of `Setup` (analysis, store, ...).

    Returns: The last result. A stop or the time limit is not an error: see its `ending`.

    Raises: SettingsError, EvaluationError and what merging raises.

    Example:
        >>> result = sweep(recipe, {"r": "0:0.4:5"}, limit=20)  # doctest: +SKIP
        >>> result.best.label, result.recheck.winner.score      # doctest: +SKIP
        >>> result.to_frame()                                   # doctest: +SKIP
    """
    setup, settings = _split(options)
    plan = SweepPlan(recipe, settings, axes=parse_axes(over), **options)
    return run_experiment(plan, on_update=on_update, should_stop=should_stop, **setup)


def compare_methods(
    rows: Mapping[str, Recipe],
    *,
    on_update: OnUpdate | None = None,
    should_stop: Callable[[], bool] | None = None,
    **options: Any,
) -> ExperimentResult:
    """Apply every recipe in memory, score it beside base and agents, and return the rows.

    Every row is compared with one reference row on the same questions by McNemar's test, corrected
    for the number of rows (Holm). When stopped, the finished rows have scores; with a store, the
    same call continues from there.

    Args:
        rows: recipes by label, e.g. of `presets.experiment_recipes`; all of one base, where an
            agent's name means the same source in all of them.
        on_update: called with the partial result after every row.
        options: arguments of `ComparePlan.of` (reference, sources), fields of `EvalSettings`
            (suites, limit, ...; also all of them as settings) and of `Setup` (analysis, store).

    Raises: SettingsError for rows with different bases or agents, before any work, or when no row
        could be merged; what merging and asking raise; Stopped before any merge was scored.
    """
    setup, settings = _split(options)
    plan = ComparePlan.of(rows, settings, **options)
    return run_experiment(plan, on_update=on_update, should_stop=should_stop, **setup)


def compare(
    recipe: Recipe,
    methods: Sequence[str | tuple[str, Mapping[str, Any]]] = (),
    **options: Any,
) -> ExperimentResult:
    """Score methods side by side on a recipe's agents, in memory.

    Args:
        recipe: base, agents, and common settings (dtype, seed, ...).
        methods: names, or (name, settings); by default those of the experiment `standard`.
        options: reference, sources, fields of `EvalSettings` (suites, limit, ...; also all of them
            as settings), analysis, store.

    Raises: SettingsError for an unknown method, and as `compare_methods`.

    Example:
        >>> result = compare(recipe, ["ties", ("ram+", {"r": 0.2})], limit=20)  # doctest: +SKIP
        >>> result.to_frame()                                                   # doctest: +SKIP
    """
    pairs = [(one, {}) if isinstance(one, str) else (one[0], dict(one[1])) for one in methods]
    rows = rows_of(recipe, pairs) if pairs else experiment_recipes("standard", recipe)
    return compare_methods(rows, **options)


def run_experiment(
    plan: Plan,
    *,
    on_update: OnUpdate | None = None,
    should_stop: Callable[[], bool] | None = None,
    **setup: Any,
) -> ExperimentResult:
    """Run a plan to its end and return the last result; setup: fields of `Setup`.

    Raises: see `sweep` and `compare_methods`.
    """
    running = Runner(plan, should_stop=should_stop, **setup)
    try:
        for result in running.run():
            if on_update:
                on_update(result)
    except Stopped:
        # Stopped between two answers; the result includes all finished ones.
        return _check_result(replace(running.result, ending="stopped"))
    return _check_result(running.result)


def _check_result(result: ExperimentResult) -> ExperimentResult:
    """Return a result; raise where a comparison has no merge with a score."""
    scored = ("finished", "duplicate")
    if result.is_sweep or any(r.kind == "merge" and r.status in scored for r in result.rows):
        return result
    reasons = [row.note for row in result.rows if row.note]
    if reasons and result.ending != "stopped":
        raise SettingsError(reasons[0])
    raise Stopped("The comparison was stopped before a merge was scored; its answers are stored.")


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], EvalSettings]:
    """Return the options of `Setup`, and the evaluation settings, given whole or by field."""

    def take(names: Iterable[str]) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    setup, fields = take(Setup.__annotations__), take(EvalSettings.model_fields)
    return setup, EvalSettings.of(options.pop("settings", None), **fields)
