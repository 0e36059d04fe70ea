"""What is measured of a shipped set besides its table: whatever the visitor's store knows.

Measuring here, checks, comparisons and sweeps all leave their answers in the store. A merge of the
loaded models that answered every question of the shipped table there is one more row of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from ram_studio.algorithm.ladder import ladder_index
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.check.answers import memory_folder, open_answers
from ram_studio.app.experiment.work import CHOICES
from ram_studio.app.jobs import Report, Work, costing
from ram_studio.app.load.examples import FOLDERS, skill_table
from ram_studio.app.merge.controls import TUNED, tuned_by
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.public.lanes import Effort
from ram_studio.app.session import Loaded, Session
from ram_studio.app.shared import Tuned
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.record.merge_log import past_merges
from ram_studio.checkpoints.record.recipe import Recipe, recipe_yaml
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError
from ram_studio.evals.question import Question
from ram_studio.evals.report.skill_table import Measured, load_table
from ram_studio.evals.report.skill_table import skill_table as table_of
from ram_studio.evals.report.tables import Answer
from ram_studio.evals.store.answers import StoredAnswer
from ram_studio.evals.store.history import merge_of
from ram_studio.evals.suites import ALL_SUITES

SUITE = "demo"
MOST_ROWS = 100
"""Of the newest settings that were asked."""

NOTHING_TO_ASK = (
    "These models have no questions of their own here: only the shipped sets' skills can be asked "
    "in Tune. Ask yours in Check."
)


@lru_cache(maxsize=len(FOLDERS))
def shipped_table(example: str) -> dict[str, Any] | None:
    """Return the measured skills of a shipped set; None where it has none."""
    path = skill_table(example)
    return None if path is None else load_table(path)


def tuned_recipe(loaded: Loaded, tuned: Tuned) -> Recipe:
    """Return the recipe of what the canvas shows.

    Raises: SettingsError for a method that it does not show.
    """
    choice = CHOICES.get(tuned.rule)
    if choice is None:
        raise SettingsError(f"There is no method {tuned.rule!r}; there are {', '.join(CHOICES)}.")
    own = {name: tuned.values[name] for name in tuned_by(choice.method)}
    return recipe_from(loaded, choice.method, {**own, **choice.settings})


def measure_work(recipe: Recipe, session: Session, workspace: Workspace) -> Work[None]:
    """Return the work of asking one merge, made in memory, the table's questions.

    It tells (label, answers, of how many); the answers go to the visitor's store.

    Raises: SettingsError for models without a table.
    """
    from ram_studio.evals.experiment.plan import ComparePlan
    from ram_studio.evals.experiment.runner import Runner
    from ram_studio.evals.run import DEFAULT_SEED

    loaded = session.models
    table = shipped_table(loaded.example) if loaded.example else None
    if table is None:
        raise SettingsError(NOTHING_TO_ASK)
    plan = ComparePlan.of(
        {recipe.method: recipe}, sources=False, suite=SUITE, limit=table["n"], seed=DEFAULT_SEED
    )

    def measure(report: Report, cancel: CancelToken) -> None:
        with open_answers(session, workspace) as store:
            runner = Runner(
                plan,
                sketch=loaded.sketch,
                store=store,
                on_progress=lambda *event: report(event),
                should_stop=lambda: cancel.is_cancelled,
            )
            for _ in runner.run():
                pass
        cancel.raise_if_cancelled()
        (entry,) = runner.entries
        if entry.status == "failed":
            raise SettingsError(entry.note)

    answers = table["n"] * len(table["domains"])
    return costing(measure, Effort("answers", {f" {recipe_yaml(recipe)} measure": answers}))


def measured_rows(session: Session, workspace: Workspace) -> dict[str, Any] | None:
    """Return what the store knows of merges of the loaded set, as a skill table; None for nothing.

    It has the shipped table's questions, in its order, and merges only.

    Raises: EvaluationError, OutputError when what is stored cannot be read.
    """
    loaded = session.loaded
    table = None if loaded is None or loaded.example is None else shipped_table(loaded.example)
    if loaded is None or table is None:
        return None
    prompts, written = table["prompts"], _written(loaded)
    logged = {m.fingerprint: m for m in past_merges(memory_folder(session, workspace.settings))}
    rows: dict[str, Measured] = {}
    questions: list[Question] = []
    with open_answers(session, workspace) as store:
        for run in store.runs():
            merge = merge_of(run) or logged.get(run.fingerprint)
            is_asked = run.suite == SUITE and run.suite_version == ALL_SUITES[SUITE].version
            if merge is None or not is_asked or run.answered < len(prompts):
                continue
            key = json.dumps([merge.method, dict(merge.settings)], sort_keys=True)
            # Of the files as they are now: what was asked before is of others.
            if key in rows or run.created < written or not _is_of(merge.recipe, loaded):
                continue
            known = {a.question.prompt: a for a in store.answers(run.id) if a.reply.is_final}
            if all(prompt in known for prompt in prompts):
                own = [known[prompt] for prompt in prompts]
                questions = [a.question for a in own]
                rows[key] = _row(merge.method, merge.settings, own)
            if len(rows) == MOST_ROWS:
                break
    return table_of(questions, list(rows.values())) if rows else None


def _row(method: str, settings: Mapping[str, Any], own: Sequence[StoredAnswer]) -> Measured:
    epsilon = settings.get("epsilon")
    point = None if epsilon is None else ladder_index(float(epsilon))
    answers = {a.question.id: Answer.of(a.reply, a.verdict) for a in own}
    usual = METHODS[method].settings.model_fields
    # As the shipped rows: what was chosen, and Tune's three.
    own_settings = {n: v for n, v in settings.items() if n in TUNED or v != usual[n].default}
    return Measured("merge", method, own_settings, point, answers)


def _is_of(recipe: Mapping[str, Any], loaded: Loaded) -> bool:
    """Whether a recipe merges the loaded models, all of them and stored as the base is."""
    plain = {"dtype": None, "rounding": "nearest"}
    return (
        recipe.get("base") == loaded.base
        and recipe.get("agents") == dict(loaded.agents)
        and all(recipe.get(name, usual) == usual for name, usual in plain.items())
    )


def _written(loaded: Loaded) -> str:
    """Return when the newest of the loaded files was written, as the store writes times."""
    newest = max(
        file.stat().st_mtime for source in loaded.sources for file in Path(source).glob("*")
    )
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
