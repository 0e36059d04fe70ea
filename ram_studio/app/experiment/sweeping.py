"""The work behind "Find a good setting": from the form to a plan, and a sweep that is watched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ram_studio.algorithm.ladder import LADDER, snap
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import RULES
from ram_studio.app import markup, wording
from ram_studio.app.check.answers import open_answers
from ram_studio.app.experiment import sweep_wording
from ram_studio.app.jobs import Job, Report
from ram_studio.app.merge.controls import OFFERED
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.session import Loaded, Session
from ram_studio.app.workspace import Workspace
from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.experiment.plan import SweepPlan
from ram_studio.evals.experiment.space import parse_axes
from ram_studio.evals.experiment.table import SweepRow, SweepState

PARAMETERS = tuple(sweep_wording.PARAMETERS)
MAX_SETTINGS = 60
MAX_MINUTES = 30.0
MAX_ITEMS = 100
USUAL_SWEEP: Mapping[str, Any] = {"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}
_OFFERED_TEXT = ", ".join(OFFERED)


class Range(NamedTuple):
    """One parameter's line of the form."""

    is_varied: bool
    low: float | None
    high: float | None
    count: float


class Form(NamedTuple):
    """What the panel holds. ranges: by PARAMETERS; tuned: epsilon, r and alpha as set in Tune."""

    methods: Sequence[str]
    ranges: Mapping[str, Range]
    search: str
    trials: float
    suites: Sequence[str]
    items: float
    minutes: float | None
    tuned: Mapping[str, Any]


def plan_of(form: Form, loaded: Loaded) -> SweepPlan:
    """Return the checked plan of a form.

    A parameter is left out where none of the methods has it.

    Raises: SettingsError, EvaluationError for what cannot be swept.
    """
    methods = [name for name in sweep_wording.CHOICES if name in form.methods]
    if not methods:
        raise SettingsError(wording.NO_METHOD_CHOSEN)
    over: dict[str, Any] = {"method": methods}
    for name, line in form.ranges.items():
        has_it = any(name in METHODS[method].settings.model_fields for method in methods)
        if line.is_varied and has_it:
            over[name] = _range_text(name, line)
    if len(over) == 1 and len(methods) == 1:
        raise SettingsError("Nothing is varied. Tick a parameter, or more than one method.")
    # The one that carries most of Tune's values on to the others.
    start = next((name for name in ("ram+", "ram+s") if name in methods), methods[0])
    fields = METHODS[start].settings.model_fields
    tuned = {name: value for name, value in form.tuned.items() if name in fields}
    minutes = form.minutes if form.minutes is not None else MAX_MINUTES
    plan = SweepPlan(
        recipe_from(loaded, start, tuned),
        parse_axes(over),
        suites=list(form.suites),
        items=int(form.items),
        minutes=min(float(minutes), MAX_MINUTES),
        search="optuna" if form.search == "optuna" else "grid",
        trials=max(1, min(int(form.trials), MAX_SETTINGS)),
        max_settings=MAX_SETTINGS,
    )
    plan.candidates()
    return plan


def _range_text(name: str, line: Range) -> str:
    for value in (line.low, line.high):
        if value is None or not math.isfinite(value):
            raise SettingsError(f"The range of {name} needs two numbers, from and to.")
    log = ":log" if name == "epsilon" else ""
    return f"{float(line.low)!r}:{float(line.high)!r}:{int(line.count)}{log}"  # type: ignore[arg-type]


def count_text(form: Form, loaded: Loaded | None) -> str:
    """Return in a sentence how much the form asks for, or what is wrong with it."""
    if loaded is None:
        return ""
    try:
        plan = plan_of(form, loaded)
        skills = 3 if "demo" in plan.suite_names else len(plan.suite_names)
        if plan.search == "optuna":
            text, settings = sweep_wording.COUNT_SEARCH, plan.trials
        else:
            text, settings = sweep_wording.COUNT_GRID, len(plan.candidates())
    except RamStudioError as error:
        return str(error)
    return text.format(settings=settings, items=skills * plan.items)


def progress_html(state: SweepState | None) -> str:
    """Return the progress bar of a sweep."""
    if state is None or not state.rows:
        return markup.progress(None, sweep_wording.STARTING)
    finished = sum(row.status not in ("waiting", "running", "open") for row in state.rows)
    left = sum(row.is_out for row in state.rows) * state.chosen_by
    spent = sum(row.n for row in state.rows if row.is_out)
    total = max(1, state.total_answers - left + spent)
    details = f"{finished} of {state.settings} settings done · {state.answers} answers"
    return markup.progress(min(1.0, state.answers / total), state.now or "", details)


def tune_values(row: SweepRow) -> list[Any] | None:
    """Return a setting as Tune's four values (ladder point, r, alpha, rule), None if it has none.

    A value that the rule does not have is None.
    """
    if row.method not in RULES:
        return None
    settings = row.settings
    return [
        snap(settings["epsilon"]),
        settings.get("r"),
        settings.get("alpha"),
        row.method,
    ]


def tuned_values(point: float, r: float, alpha: float) -> dict[str, Any]:
    """Return Tune's sliders as settings."""
    return {"epsilon": LADDER[int(point)], "r": r, "alpha": alpha}


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
            raise SettingsError(f"There is no method {method!r} here; there are {_OFFERED_TEXT}.")
    start = next((name for name in ("ram+", "ram+s") if name in methods), methods[0])
    plan = SweepPlan(
        recipe_from(loaded, start, settings), axes, max_settings=MAX_SETTINGS, **budget
    )
    plan.candidates()
    return plan


def sweep(
    plan: SweepPlan,
    loaded: Loaded,
    session: Session,
    workspace: Workspace,
    report: Report,
    should_stop: Callable[[], bool],
) -> SweepState:
    """Return the finished sweep; its answers go to the visitor's store."""
    from ram_studio.evals.experiment.runner import Runner

    with open_answers(session, workspace) as store:
        running = Runner(plan, sketch=loaded.sketch, store=store, should_stop=should_stop)
        for state in running.run():
            report(state)
    return running.state


def run_sweep(
    form: Form, session: Session, workspace: Workspace
) -> Iterator[tuple[str, SweepState | None]]:
    """Sweep; yield (status HTML, the state when there is a new one) as it goes."""
    loaded = session.loaded
    if loaded is None:
        yield markup.callout(wording.NEED_LOAD, "warn"), None
        return
    if session.is_busy:
        yield markup.callout(wording.BUSY, "warn"), None
        return
    try:
        plan = plan_of(form, loaded)
    except RamStudioError as error:
        yield markup.callout(str(error), "warn"), None
        return

    def work(report: Report, cancel: CancelToken) -> SweepState:
        return sweep(plan, loaded, session, workspace, report, lambda: cancel.is_cancelled)

    job = Job(work)
    session.job = job
    yield progress_html(None), None
    for state in job.updates():
        yield progress_html(state), state
    result, error = job.outcome()
    if result is None:
        yield markup.failure(error, sweep_wording.STOPPED), None
        return
    session.sweep = result
    is_stopped = result.ending == "stopped"
    yield markup.callout(sweep_wording.STOPPED) if is_stopped else "", result
