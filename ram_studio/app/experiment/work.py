"""The work of both experiments: from a form to a checked plan, and its run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ram_studio.algorithm.epsilon_grid import snap
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.methods.base import Method
from ram_studio.app.asking.limits import asking_effort, count_answers
from ram_studio.app.merge.controls import OFFERED, tuned_settings
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.numbers import duration_text
from ram_studio.app.public.job_queue import Effort
from ram_studio.app.session.answers import open_answers
from ram_studio.app.session.deep_link import AVERAGE, PLACES, SUM, TUNE_DIALS, method_title
from ram_studio.app.session.jobs import Report, Work, costing
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.workspace import Workspace
from ram_studio.checkpoints.record.recipe import Recipe, recipe_yaml
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError
from ram_studio.evals.experiment.plan import ComparePlan, Plan, SweepPlan
from ram_studio.evals.experiment.presets import experiment_recipes, rows_of
from ram_studio.evals.experiment.result import ExperimentResult, Row
from ram_studio.evals.experiment.space import RAMP, WEIGHT, parse_axes
from ram_studio.evals.report.canvas_page import can_show
from ram_studio.evals.settings import EvalSettings


class Choice(NamedTuple):
    """A possible row of a comparison: its display name, a method and its settings."""

    title: str
    method: str
    own: Mapping[str, Any] = {}

    def settings(self, tuned: Mapping[str, Any]) -> dict[str, Any]:
        """Return its settings; tuned: Tune's, by name, of which a method takes its own."""
        return {**tuned_settings(self.method, tuned), **self.own}


_SLOW = ("fisher", "wudi", "tsv-m", "iso-c")

CHOICES = {
    name: Choice(
        f"{method_title(name)}{' (slow)' if name in _SLOW else ''}",
        PLACES[name]["method"] if name in PLACES else name,
        {key: value for key, value in PLACES.get(name, {}).items() if key != "method"},
    )
    for name in (
        *(AVERAGE, SUM, "ties", "dare-ta", "dare-ties", *_SLOW),
        *("ram", "ram+", "ram+s", "ram+m"),
    )
}
"""The rows of Compare, by the value of the check box."""

USUAL = (AVERAGE, SUM, "ties", "dare-ta", "ram", "ram+", "ram+s")

PRESETS = (
    "r-ablation",
    "epsilon-ablation",
    "standard",
    "unique-region",
    "mechanism",
    "leave-one-out",
    "pairwise",
)
"""Experiments offered besides the user's choice; the long grids are for the command line."""

SWEPT = ("ram", "ram+", "ram+s", "task-arithmetic", "ties", "dare-ta")
"""Methods that the sweep's form offers."""

MAX_SETTINGS = 60
MAX_ITEMS = 100
USUAL_SWEEP: Mapping[str, Any] = {"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}
NO_METHOD = "No method is chosen. Choose at least one."
STOPPED = "Stopped. Finished answers are stored; start again to continue."


# ---------------------------------------------------------------------------- compare


def rows_for(
    loaded: LoadedModels, preset: str, chosen: Sequence[str], tuned: Mapping[str, Any]
) -> dict[str, Recipe]:
    """Return the recipes by label.

    Args:
        preset: one of EXPERIMENTS; empty for ``chosen``, keys of CHOICES.
        tuned: epsilon, r and alpha of the RAM rows, and of the presets' starting recipe.

    Raises: SettingsError for unknown names or none.
    """
    plain = recipe_from(loaded, "ram+", tuned)
    if preset:
        return experiment_recipes(preset, plain)
    unknown = [name for name in chosen if name not in CHOICES]
    if unknown:
        raise SettingsError(f"There is no row {unknown[0][:80]!r}; use {', '.join(CHOICES)}.")
    if not chosen:
        raise SettingsError(NO_METHOD)
    picked = {name: choice for name, choice in CHOICES.items() if name in chosen}
    made = rows_of(plain, [(choice.method, choice.settings(tuned)) for choice in picked.values()])
    # Average and sum are one method; their rows are named like their check boxes.
    return {
        name if name in PLACES else label: recipe
        for name, (label, recipe) in zip(picked, made.items(), strict=True)
    }


def compare_work(
    rows: Mapping[str, Recipe], settings: EvalSettings, session: Session, workspace: Workspace
) -> Work[ExperimentResult]:
    """Return the work of a comparison; its effort has a part for each row, in answers."""
    plan = ComparePlan.of(rows, settings)
    models = [one.label if one.recipe is None else recipe_yaml(one.recipe)
              for one in plan.candidates()]  # fmt: skip
    parts = [f"{one} compare {plan.settings!r}" for one in models]
    effort = asking_effort(session, parts, count_answers(plan.settings))
    return costing(run_plan(plan, session, workspace), effort)


def run_plan(plan: Plan, session: Session, workspace: Workspace) -> Work[ExperimentResult]:
    """Return the work of a plan, which stores its answers in the user's store.

    It reports the current result.
    """
    from ram_studio.evals.experiment.run import run_experiment

    analysis = session.models.analysis

    def run(report: Report, cancel: CancelToken) -> ExperimentResult:
        with open_answers(session, workspace) as store:
            return run_experiment(
                plan,
                on_update=report,
                should_stop=lambda: cancel.is_cancelled,
                analysis=analysis,
                fisher_folder=session.folder / "fisher",
                store=store,
            )

    return run


# ---------------------------------------------------------------------------- sweep


def range_text(name: str, low: float | None, high: float | None, count: float, most: float) -> str:
    """Return a parameter's range as `evals.experiment.space` reads it.

    Raises: SettingsError without two numbers from 0 to ``most``.
    """
    ends = [float(end) for end in (low, high) if end is not None]
    if len(ends) < 2 or not all(map(math.isfinite, ends)):
        raise SettingsError(f"The range of {name} needs two numbers, from and to.")
    for end in ends:
        if not 0 <= end <= most:
            raise SettingsError(f"The range of {name} has {end:g}; choose from 0 to {most:g}.")
    log = ":log" if name == "epsilon" else ""
    return f"{ends[0]!r}:{ends[1]!r}:{int(count)}{log}"


def plan_of(
    loaded: LoadedModels,
    chosen: Sequence[str],
    ranges: Mapping[str, Sequence[Any]],
    tuned: Mapping[str, Any],
    eval_settings: EvalSettings,
    **budget: Any,
) -> SweepPlan:
    """Return the checked plan of the panel's form.

    Args:
        ranges: by setting, whether it is varied, from, to, number of values, and the largest;
            ignored where none of the chosen methods has it. tuned: epsilon, r and alpha of Tune.
        budget: see `plan_over`.

    Raises: SettingsError, EvaluationError for settings that cannot be swept.
    """
    methods = [name for name in SWEPT if name in chosen]
    if not methods:
        raise SettingsError(NO_METHOD)
    over: dict[str, Any] = {"method": methods}
    for name, (is_varied, *line) in ranges.items():
        if is_varied and any(_has(METHODS[m], name) for m in methods):
            over[name] = range_text(name, *line)
    if len(over) == 1 and len(methods) == 1:
        raise SettingsError("Nothing is varied. Tick a parameter, or more than one method.")
    start = tuned_settings(_start_of(methods), tuned)
    return plan_over(loaded, over, start, eval_settings, **budget)


def _has(method: Method, axis: str) -> bool:
    is_weight = axis in (WEIGHT, RAMP)
    return method.takes_weights if is_weight else axis in method.settings.model_fields


def plan_over(
    loaded: LoadedModels,
    over: Mapping[str, Any],
    settings: Mapping[str, Any],
    eval_settings: EvalSettings,
    weights: Mapping[str, Any] = MappingProxyType({}),
    **budget: Any,
) -> SweepPlan:
    """Return the checked plan of a sweep over any settings of the methods offered here.

    Args:
        over: axis -> values or a range as text, see `evals.experiment.space`.
        settings: epsilon, r and alpha where they are not varied; weights: of agents, likewise.
        budget: further fields of `SweepPlan`.

    Raises: SettingsError, EvaluationError for settings that cannot be swept.
    """
    axes = parse_axes(over)
    chosen = [axis.values for axis in axes if axis.name == "method"]
    methods = chosen[0] if chosen else ("ram+",)
    for method in (*methods, *(axis.method for axis in axes if axis.method)):
        if method not in OFFERED:
            raise SettingsError(f"There is no method {method!r} here; use {', '.join(OFFERED)}.")
    recipe = recipe_from(loaded, _start_of(methods), settings, weights=weights)
    plan = SweepPlan(recipe, eval_settings, axes=axes, max_settings=MAX_SETTINGS, **budget)
    plan.candidates()
    return plan


def _start_of(methods: Sequence[str]) -> str:
    """Return the method that has most of Tune's values, which the others then take."""
    return next((name for name in ("ram+", "ram+s") if name in methods), methods[0])


def count_text(plan: SweepPlan, seconds_each: float | None = None) -> str:
    """Return a plan's size and estimated duration as a sentence.

    seconds_each: per earlier answer, None where unknown.
    """
    grid = plan.candidates()
    count = plan.proposals if plan.is_search else len(grid)
    many = f"{count} settings{' to try' if plan.is_search else ''}"
    samples = plan.settings.samples
    once = plan.settings.model_copy(update={"samples": 1, "paraphrases": 1})
    questions = count_answers(once)
    draws = f", {samples} answers to each" if samples > 1 else ""
    # The start is asked too, unless it is a point of the grid; winner and start also answer the
    # held-out questions.
    is_further = plan.start().values not in [one.values for one in grid]
    answers = (count + is_further + 2) * count_answers(plan.settings)
    text = f"{many}, up to {questions} questions each{draws}: up to {answers:,} answers."
    if seconds_each is None:
        return text
    return f"{text} At this speed it takes up to {duration_text(answers * seconds_each)}."


def tune_refusal(row: Row, agents: Collection[str]) -> str:
    """Return why Tune cannot show a setting for these agents, and what to do; "" where it can."""
    if row.merged_agents and set(row.merged_agents) != set(agents):
        names = " and ".join(row.merged_agents)
        return f"{row.label} merges only {names}. Load only these to set it in Tune."
    if can_show(row.method, row.settings):
        return ""
    if row.method in OFFERED:
        return f"{row.label} has no sliders in Tune: choose this method and its setting in Merge."
    return f"{row.label} has no sliders in Tune. Only the command line runs this method."


def tune_values(row: Row) -> dict[str, Any]:
    """Return a row's values of Tune's settings."""
    epsilon = row.settings.get("epsilon")
    point = {} if epsilon is None else {"point": snap(epsilon)}
    dials = {name: row.settings.get(name) for name in ("r", "alpha", *TUNE_DIALS)}
    return {"method": row.method, **point, **dials, "weights": row.weights}


def sweep_work(plan: SweepPlan, session: Session, workspace: Workspace) -> Work[ExperimentResult]:
    """Return the work of a sweep, whose effort is its time limit."""
    minutes = plan.minutes or workspace.settings.max_sweep_minutes
    return costing(run_plan(plan, session, workspace), Effort("seconds", {"": 60.0 * minutes}))
