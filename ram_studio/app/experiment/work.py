"""The work of both experiments: from a form to a checked plan, and the plan run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.algorithm.ladder import snap
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.asking.plan import Asked
from ram_studio.app.check.answers import open_answers
from ram_studio.app.jobs import Report, Work, costing
from ram_studio.app.merge.controls import OFFERED, tuned_by
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.public.lanes import Effort
from ram_studio.app.session import Loaded, Session
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.record.recipe import Recipe, recipe_yaml
from ram_studio.engine.events import CancelToken
from ram_studio.errors import OutputError, RamStudioError, SettingsError
from ram_studio.evals.experiment.method_table import MethodTable
from ram_studio.evals.experiment.plan import SweepPlan
from ram_studio.evals.experiment.presets import experiment_recipes, rows_of
from ram_studio.evals.experiment.space import parse_axes
from ram_studio.evals.experiment.table import SweepRow, SweepState


class Choice(NamedTuple):
    """A row that a comparison can have: its name for people, a method and settings of its own."""

    title: str
    method: str
    settings: Mapping[str, Any] = {}


CHOICES = {
    "task-arithmetic-mean": Choice("Task arithmetic, mean (1/N)", "task-arithmetic"),
    "task-arithmetic-sum": Choice("Task arithmetic, plain sum", "task-arithmetic", {"scale": 1.0}),
    "ties": Choice("TIES", "ties"),
    "dare-ta": Choice("DARE + task arithmetic", "dare-ta"),
    "dare-ties": Choice("DARE + TIES", "dare-ties"),
    "fisher": Choice("Fisher (slow)", "fisher"),
    "wudi": Choice("WUDI (slow)", "wudi"),
    "tsv-m": Choice("TSV-M (slow)", "tsv-m"),
    "iso-c": Choice("Iso-C (slow)", "iso-c"),
    "ram": Choice("RAM", "ram"),
    "ram+": Choice("RAM+", "ram+"),
    "ram+s": Choice("RAM+s", "ram+s"),
    "ram+m": Choice("RAM+m", "ram+m"),
}
"""What Compare offers, by the value of its box."""

USUAL = (
    "task-arithmetic-mean",
    "task-arithmetic-sum",
    "ties",
    "dare-ta",
    "ram",
    "ram+",
    "ram+s",
)

PRESETS = (
    "r-ablation",
    "epsilon-ablation",
    "standard",
    "unique-region",
    "mechanism",
    "leave-one-out",
    "pairwise",
)
"""Experiments offered beside one's own choice; the long grids are for the command line."""

SWEPT = ("ram", "ram+", "ram+s", "task-arithmetic", "ties", "dare-ta")
"""Methods that the sweep's form offers."""

PARAMETERS = ("r", "alpha", "epsilon", "scale")
"""Settings that the sweep's form can vary."""

MAX_SETTINGS = 60
MAX_MINUTES = 30.0
MAX_ITEMS = 100
USUAL_SWEEP: Mapping[str, Any] = {"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}
NO_METHOD = "No method is chosen. Tick at least one."
STOPPED = "Stopped. What is finished is kept; start again to go on from there."


def save(session: Session, files: Mapping[str, str]) -> list[Path]:
    """Write files (text by name) that the visitor takes home; return where they are.

    Raises: OutputError when they cannot be written.
    """
    try:
        paths = [session.download(name) for name in files]
        for path, text in zip(paths, files.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"The table could not be written: {error.strerror or error}.") from error
    return paths


# ---------------------------------------------------------------------------- compare


def rows_for(
    loaded: Loaded, preset: str, chosen: Sequence[str], tuned: Mapping[str, Any]
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
        raise SettingsError(f"There is no row {unknown[0][:80]!r}; there are {', '.join(CHOICES)}.")
    if not chosen:
        raise SettingsError(NO_METHOD)
    rows = []
    for name, choice in CHOICES.items():
        if name in chosen:
            own = {k: tuned[k] for k in tuned_by(choice.method) if k in tuned}
            rows.append((choice.method, {**own, **choice.settings}))
    return rows_of(plain, rows)


def compare_work(
    rows: Mapping[str, Recipe],
    limit: int,
    session: Session,
    workspace: Workspace,
    asked: Asked | None = None,
) -> Work[MethodTable]:
    """Return the work of a comparison, stopped or finished; answers go to the visitor's store.

    It tells (row, rows done, rows in all), and costs a part for each row, in answers.

    Args:
        limit: prompts per skill. asked: which suites, and how.
    """
    from ram_studio.evals.experiment.run import compare_methods

    loaded, asked = session.models, asked or Asked()

    def compare(report: Report, cancel: CancelToken) -> MethodTable:
        with open_answers(session, workspace) as store:
            return compare_methods(
                rows,
                suite=asked.suites,
                limit=limit,
                **asked.settings,
                sketch=loaded.sketch,
                fisher_folder=session.folder / "fisher",
                store=store,
                on_progress=lambda row, done, total: report((row, done, total)),
                should_stop=lambda: cancel.is_cancelled,
            )

    owner = session.key if loaded.example is None else ""
    models = [*loaded.sources, *(recipe_yaml(recipe) for recipe in rows.values())]
    answers = float(asked.answers(limit))
    parts = {f"{owner} {one} compare {limit} {asked!r}": answers for one in models}
    return costing(compare, Effort("slow answers" if owner else "answers", parts))


# ---------------------------------------------------------------------------- sweep


@dataclass(frozen=True)
class Range:
    """One parameter's line of the form."""

    is_varied: bool
    low: float | None
    high: float | None
    count: float

    def as_text(self, name: str) -> str:
        """Return it as `evals.experiment.space` reads ranges.

        Raises: SettingsError without two numbers.
        """
        ends = [float(end) for end in (self.low, self.high) if end is not None]
        if len(ends) < 2 or not all(map(math.isfinite, ends)):
            raise SettingsError(f"The range of {name} needs two numbers, from and to.")
        log = ":log" if name == "epsilon" else ""
        return f"{ends[0]!r}:{ends[1]!r}:{int(self.count)}{log}"


class Form(NamedTuple):
    """What the sweep's panel holds. ranges: by PARAMETERS; asked: which suites, and how;
    tuned: epsilon, r and alpha of Tune.
    """

    methods: Sequence[str]
    ranges: Mapping[str, Range]
    search: str
    trials: float
    asked: Asked
    items: float
    minutes: float | None
    tuned: Mapping[str, Any]


def plan_of(form: Form, loaded: Loaded, most_minutes: float = MAX_MINUTES) -> SweepPlan:
    """Return the checked plan of a form.

    A parameter is left out where none of the methods has it. most_minutes: that it may take.

    Raises: SettingsError, EvaluationError for what cannot be swept.
    """
    methods = [name for name in SWEPT if name in form.methods]
    if not methods:
        raise SettingsError(NO_METHOD)
    over: dict[str, Any] = {"method": methods}
    for name, line in form.ranges.items():
        has_it = any(name in METHODS[method].settings.model_fields for method in methods)
        if line.is_varied and has_it:
            over[name] = line.as_text(name)
    if len(over) == 1 and len(methods) == 1:
        raise SettingsError("Nothing is varied. Tick a parameter, or more than one method.")
    fields = METHODS[_start_of(methods)].settings.model_fields
    minutes = form.minutes if form.minutes is not None else most_minutes
    return plan_over(
        loaded,
        over,
        {name: value for name, value in form.tuned.items() if name in fields},
        suites=list(form.asked.suites),
        **form.asked.settings,
        items=int(form.items),
        minutes=min(float(minutes), most_minutes),
        search="optuna" if form.search == "optuna" else "grid",
        trials=max(1, min(int(form.trials), MAX_SETTINGS)),
    )


def plan_over(
    loaded: Loaded, over: Mapping[str, Any], settings: Mapping[str, Any], **budget: Any
) -> SweepPlan:
    """Return the checked plan of a sweep over any settings of the methods offered here.

    Args:
        over: axis -> values or a range as text, see `evals.experiment.space`.
        settings: epsilon, r and alpha where they are not varied.
        budget: further fields of `SweepPlan`.

    Raises: SettingsError, EvaluationError for what cannot be swept.
    """
    axes = parse_axes(over)
    chosen = [axis.values for axis in axes if axis.name == "method"]
    methods = chosen[0] if chosen else ("ram+",)
    for method in (*methods, *(axis.method for axis in axes if axis.method)):
        if method not in OFFERED:
            raise SettingsError(
                f"There is no method {method!r} here; there are {', '.join(OFFERED)}."
            )
    recipe = recipe_from(loaded, _start_of(methods), settings)
    plan = SweepPlan(recipe, axes, max_settings=MAX_SETTINGS, **budget)
    plan.candidates()
    return plan


def _start_of(methods: Sequence[str]) -> str:
    """Return the method that carries most of Tune's values on to the others."""
    return next((name for name in ("ram+", "ram+s") if name in methods), methods[0])


def count_text(form: Form, loaded: Loaded | None) -> str:
    """Return in a sentence how much the form asks for, or what is wrong with it."""
    if loaded is None:
        return ""
    try:
        plan = plan_of(form, loaded)
        is_search = plan.search == "optuna"
        settings = plan.trials if is_search else len(plan.candidates())
    except RamStudioError as error:
        return str(error)
    to_try = " to try" if is_search else ""
    said = (
        f"{settings} settings{to_try}, {form.asked.answers(plan.items) // plan.samples} questions"
    )
    draws = f", {plan.samples} answers to each" if plan.samples > 1 else ""
    return f"{said} each at most{draws}."


def tune_values(row: SweepRow) -> list[Any] | None:
    """Return a setting as Tune's four values (ladder point, r, alpha, rule), None if it has none.

    A value that the rule does not have is None.
    """
    if row.method not in RULES:
        return None
    settings = row.settings
    return [snap(settings["epsilon"]), settings.get("r"), settings.get("alpha"), row.method]


def sweep_work(plan: SweepPlan, session: Session, workspace: Workspace) -> Work[SweepState]:
    """Return the work of a sweep, stopped or finished; its answers go to the visitor's store.

    It tells states, and costs its time at most.
    """
    from ram_studio.evals.experiment.runner import Runner

    def sweep(report: Report, cancel: CancelToken) -> SweepState:
        with open_answers(session, workspace) as store:
            running = Runner(
                plan,
                sketch=session.models.sketch,
                store=store,
                should_stop=lambda: cancel.is_cancelled,
            )
            for state in running.run():
                report(state)
        return running.state

    return costing(sweep, Effort("seconds", {"": 60.0 * (plan.minutes or MAX_MINUTES)}))
