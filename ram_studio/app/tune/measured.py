"""Measured merges of the loaded models besides a shipped table, from the user's store.

Test now, checks, comparisons and sweeps all store their answers there. A merge of a shipped set
that answered every question of its table is a further row of it; the user's own models have a table
of the common answers of base, agents and merges, see `common`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import BASE
from ram_studio.app.asking.limits import SUITE, asking_effort
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.session.answers import memory_folder, open_answers
from ram_studio.app.session.jobs import Report, Work, check_weights, costing
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.sets import shipped_table
from ram_studio.app.session.shared import TuneSettings
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.tune import own_test
from ram_studio.checkpoints.record.recipe import Recipe, recipe_yaml
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge_log import PastMerge, past_merges
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.publish import common
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.history import merge_of
from ram_studio.evals.report.skill_table import MeasuredRow, merge_row, skill_table
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES

MOST_ROWS = 100
"""Most of the newest asked settings in a table."""


def tuned_recipe(loaded: LoadedModels, tuned: TuneSettings) -> Recipe:
    """Return the recipe of the stage's setting.

    Raises: SettingsError that names the field.
    """
    return recipe_from(loaded, tuned.method, tuned.settings, weights=tuned.weights)


def measure_work(
    recipe: Recipe, session: Session, workspace: Workspace
) -> Work[ExperimentResult | None]:
    """Return the work of asking one merge, made in memory, the table's questions.

    For the user's own models it asks all merges of `own_test`. It reports the current result, or
    (label, answers, total); the answers go to the user's store.

    Raises: SettingsError where nothing can be asked.
    """
    loaded = check_weights(session.models)
    table = shipped_table(loaded.set_name) if loaded.set_name else None
    if table is not None:
        return _shipped_work(recipe, table, session, workspace)
    found = _find_own(session, workspace, needs_merge=False)
    rows = own_test.rows_to_test(recipe, loaded)
    return own_test.own_work(rows, found and found[0], session, workspace)


def _shipped_work(
    recipe: Recipe, table: Mapping[str, Any], session: Session, workspace: Workspace
) -> Work[None]:
    from ram_studio.evals.experiment.plan import ComparePlan
    from ram_studio.evals.experiment.run import run_experiment

    eval_settings = EvalSettings(suites=SUITE, limit=table["n"])
    plan = ComparePlan.of({recipe.method: recipe}, eval_settings, sources=False, draws=1)
    analysis = session.models.analysis

    def measure(report: Report, cancel: CancelToken) -> None:
        with open_answers(session, workspace) as store:
            run_experiment(
                plan,
                analysis=analysis,
                store=store,
                on_progress=lambda *event: report(event),
                should_stop=lambda: cancel.is_cancelled,
            )
        cancel.raise_if_cancelled()

    parts = [f"{recipe_yaml(recipe)} measure"]
    return costing(measure, asking_effort(session, parts, table["n"] * len(table["domains"])))


def measured_rows(session: Session, workspace: Workspace) -> dict[str, Any] | None:
    """Return the store's answers of the loaded models as a skill table; None without any.

    For a shipped set it has the shipped table's questions, in its order, and only merges; for other
    models also base and agents.

    Raises: EvaluationError, OutputError when stored data cannot be read.
    """
    loaded = session.loaded
    if loaded is None or loaded.is_analysis_only:
        return None
    if loaded.set_name is None:
        own_table = _find_own(session, workspace)
        return None if own_table is None else _own_rows(*own_table)
    table = shipped_table(loaded.set_name)
    if table is None:
        return None
    prompts, written = table["prompts"], _written_at(loaded.sources)
    logged = {m.fingerprint: m for m in past_merges(memory_folder(session, workspace.settings))}
    rows: dict[str, MeasuredRow] = {}
    questions: list[Question] = []
    with open_answers(session, workspace) as store:
        for run in store.runs():
            merge = merge_of(run) or logged.get(run.fingerprint)
            is_asked = run.suite == SUITE and run.suite_version == ALL_SUITES[SUITE].version
            if merge is None or not is_asked or run.answered < len(prompts):
                continue
            key = _key(merge)
            # Only answers since the files were written: earlier ones are of other files.
            if key in rows or run.created < written or not _is_of(merge.recipe, loaded):
                continue
            known = {a.question.prompt: a for a in store.answers(run.id) if a.answer.is_reported}
            if all(prompt in known for prompt in prompts):
                answers = [known[prompt] for prompt in prompts]
                questions = [a.question for a in answers]
                rows[key] = _row(merge, common.replies(answers))
            if len(rows) == MOST_ROWS:
                break
    return skill_table(questions, list(rows.values())) if rows else None


def _find_own(
    session: Session, workspace: Workspace, *, needs_merge: bool = True
) -> tuple[common.Common, dict[str, PastMerge]] | None:
    """Return the common answers of the user's base, agents and merges; None without any.

    Also the merges' recipes, as {"method", "settings"}, by fingerprint.
    """
    loaded = session.models
    rows = session.report.models if session.report is not None else {}
    sources = {BASE: loaded.base, **loaded.agents}
    folders = common.folders_of(sources, {name: row.path for name, row in rows.items()})
    prints = None if folders is None else common.fingerprints_of(folders)
    if folders is None or prints is None:
        return None
    # Only merges since the files were written: earlier ones are of other files.
    written, merges = _written_at(folders.values()), dict[str, PastMerge]()
    with open_answers(session, workspace) as store:
        made = (merge_of(run) for run in store.runs())
        logged = past_merges(memory_folder(session, workspace.settings))
        for merge in (*logged, *(one for one in made if one is not None)):
            if merge.when >= written and _is_of(merge.recipe, loaded):
                merges.setdefault(merge.fingerprint, merge)
        # Only the newest settings, so that a long history does not slow down each update.
        merges = dict(list(merges.items())[:MOST_ROWS])
        found = common.find_common(store, prints, merges, needs_merge=needs_merge)
    return None if found is None else (found, merges)


def _own_rows(found: common.Common, merges: Mapping[str, PastMerge]) -> dict[str, Any]:
    rows: dict[str, MeasuredRow] = {}
    for fingerprint, known in found.merges.items():
        merge = merges[fingerprint]
        answers = common.replies(known[question] for question in found.questions)
        rows.setdefault(_key(merge), _row(merge, answers))
    return common.common_table(found, list(rows.values()))


def _key(merge: PastMerge) -> str:
    own = [merge.method, dict(merge.settings), merge.recipe.get("weights") or {}]
    return json.dumps(own, sort_keys=True)


def _row(merge: PastMerge, answers: Mapping[str, Answer]) -> MeasuredRow:
    recipe = {"method": merge.method, "settings": merge.settings}
    return merge_row({**recipe, "weights": merge.recipe.get("weights")}, answers)


def _is_of(recipe: Mapping[str, Any], loaded: LoadedModels) -> bool:
    """Whether a recipe merges all loaded models, with the base's dtype.

    Tune cannot show densities and filters.
    """
    plain = {"dtype": None, "rounding": "nearest"}
    return not (recipe.get("densities") or recipe.get("filters")) and (
        recipe.get("base") == loaded.base
        and recipe.get("agents") == dict(loaded.agents)
        and all(recipe.get(name, usual) == usual for name, usual in plain.items())
    )


def _written_at(folders: Iterable[str | Path]) -> str:
    """Return the time of the newest file in these folders, in the store's format.

    Files deleted meanwhile are ignored.
    """
    newest = 0.0
    for file in (file for folder in folders for file in Path(folder).glob("*")):
        with contextlib.suppress(OSError):
            newest = max(newest, file.stat().st_mtime)
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
