"""Test now for the user's own models: the merges to try, and their questions.

The stage's setting and twelve more answer the same questions, merged in memory one after another by
the runner of comparisons, the fastest to merge first. Questions that Check has already asked base
and agents are reused; otherwise a few questions of suites for any model are asked.
"""

from __future__ import annotations

from typing import Any

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import MethodSettings, make_settings
from ram_studio.app.asking.limits import (
    absent_here,
    asking_effort,
    most_items,
    offered_lengths,
    read_settings,
    unavailable_suites,
)
from ram_studio.app.asking.suites import USUAL
from ram_studio.app.experiment.work import run_plan
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.session.jobs import Work, costing
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.weights import weights_text
from ram_studio.app.session.workspace import Workspace
from ram_studio.checkpoints.record.recipe import Recipe, recipe_yaml
from ram_studio.errors import SettingsError
from ram_studio.evals.experiment.plan import ComparePlan
from ram_studio.evals.experiment.presets import label_of
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.experiment.space import with_method
from ram_studio.evals.publish.common import Common
from ram_studio.evals.settings import EvalSettings

QUESTIONS = 20
"""Questions of each suite, where nothing was asked yet."""

NOTHING_FITS = "No suite fits these models. Ask base and agents your own questions in Check first."


def settings_to_test(agents: int) -> list[tuple[str, dict[str, Any]]]:
    """Return twelve settings as (method, settings that differ from its defaults).

    RAM+ as in the paper comes first, then methods to compare with; epsilon, r, scale and density
    have enough points for a curve. The slowest to merge (trimming) come last.
    """
    small, large = (EPSILON_GRID[snap(epsilon)] for epsilon in (1e-4, 1e-3))
    between = round((1 + 1 / agents) / 2, 2)
    return [
        ("ram+", {}),
        ("task-arithmetic", {}),
        ("task-arithmetic", {"scale": 1.0}),
        ("ram", {}),
        ("ram+", {"epsilon": small}),
        ("ram+", {"epsilon": large}),
        ("ram+", {"r": 0.3}),
        ("task-arithmetic", {"scale": between}),
        ("ties", {}),
        ("ties", {"density": 0.5}),
        ("ties", {"density": 0.8}),
        ("dare-ties", {}),
    ]


def rows_to_test(shown: Recipe, loaded: LoadedModels) -> dict[str, Recipe]:
    """Return recipes by label: the stage's setting, then the twelve, without duplicates."""
    plain = recipe_from(loaded, "ram+", {})
    others = settings_to_test(len(loaded.agents))
    twelve = {label_of(m, values): with_method(plain, m, values) for m, values in others}
    label = label_of(shown.method, shown.settings)
    if shown.weights:
        label += f", {weights_text(shown.weights)}"
    elif label in twelve and _values(twelve[label]) != _values(shown):
        # Equal in the four digits of a label.
        label = label_of(shown.method, shown.settings, digits=12)
    return {label: shown} | twelve


def _values(recipe: Recipe) -> MethodSettings:
    return make_settings(recipe.method, recipe.settings)


def questions_to_ask(session: Session, workspace: Workspace) -> EvalSettings:
    """Return the evaluation settings for models without answers, within the server's limits.

    Raises: SettingsError where no suite suits them.
    """
    app = workspace.settings
    refused = {**unavailable_suites(session, app), **absent_here(session.data)}
    suites = [name for name in USUAL if name not in refused]
    if not suites:
        raise SettingsError(NOTHING_FITS)
    limit = min(QUESTIONS, app.max_suite_items)
    return read_settings({"suites": suites, "limit": limit}, app)


def questions_again(common: Common, workspace: Workspace) -> tuple[EvalSettings, frozenset[str]]:
    """Return the settings that make a table's questions again, and the digests of its own."""
    suites = list(dict.fromkeys(suite for suite, *_ in common.questions))
    # As many of each suite as Check could have asked; the table's questions are selected from them.
    most = max(most_items(suite, workspace.settings) for suite in suites)
    lengths = offered_lengths(workspace.settings)
    eval_settings = EvalSettings(suites=suites, limit=most, lengths=lengths)
    return eval_settings, frozenset(digest for *_, digest in common.questions)


def own_work(
    rows: dict[str, Recipe],
    common: Common | None,
    session: Session,
    workspace: Workspace,
) -> Work[ExperimentResult]:
    """Return the work of asking all rows; it reports the current result.

    common: questions that base and agents have all answered, or None. Answers are stored as they
    arrive, so that a stopped test can continue.

    Raises: SettingsError where no suite suits the models.
    """
    only = None
    if common is None:
        eval_settings = questions_to_ask(session, workspace)
        questions = QUESTIONS * len(eval_settings.suites)
    else:
        eval_settings, only = questions_again(common, workspace)
        questions = len(only)
    plan = ComparePlan.of(
        rows, eval_settings, sources=common is None, has_control=False, only=only, draws=1
    )
    models = [*(session.models.sources if common is None else ()), *map(recipe_yaml, rows.values())]
    work = run_plan(plan, session, workspace)
    return costing(work, asking_effort(session, [f"{one} measure" for one in models], questions))
