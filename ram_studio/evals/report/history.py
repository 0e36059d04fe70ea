"""Past evaluations and merges as one table, and stored runs as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio.engine.merge_log import PastMerge, past_merges
from ram_studio.errors import EvalSettingsError, EvaluationError
from ram_studio.evals.prompts import stored_wording
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers, skills_of
from ram_studio.evals.report.score import Average
from ram_studio.evals.store import AnswerStore, StoredAnswer, StoredRun
from ram_studio.evals.suites import HEALTH, apart
from ram_studio.evals.suites.demo.tasks import DOMAINS

if TYPE_CHECKING:
    from pandas import DataFrame

StoredAnswers = dict[tuple[str, str], StoredAnswer]
"""Answers by question id and digest."""

_COLUMNS = (
    *("run", "when", "model", "suite", "suite_version", "n", "correct", "score", "low95", "high95"),
    *("seconds", "method", "settings", "agents", "fingerprint", "path"),
)


def history(store: str | Path | None = None) -> DataFrame:
    """Return past evaluations and merges, the newest first, one row per run.

    score is the mean over the suite's skills, as everywhere. A merge without any evaluation has a
    row without a run. method, settings and agents (by name rho, lambda and effective_lambda)
    are those of the merge, empty for other models.

    Args: store: the file of answers, whose folder has the list of merges; default: the
        one in the user's data folder.

    Raises: EvaluationError, OutputError when they cannot be read.

    Example:
        >>> history().query("suite == 'demo'")[["model", "method", "score"]]  # doctest: +SKIP
    """
    from pandas import DataFrame

    with AnswerStore(store) as answers:
        runs, merges = answers.runs(), past_merges(answers.path.parent)
    logged = {merge.fingerprint: merge for merge in merges}
    shared = ("model", "suite", "suite_version", "seconds", "fingerprint", "path")
    rows = [
        {
            **_merge_fields(merge_of(run) or logged.get(run.fingerprint)),
            **{name: getattr(run, name) for name in shared},
            "run": run.id,
            "when": run.created,
            "n": score.n,
            "correct": score.correct,
            **score.columns(),
        }
        for run in runs
        for score in [score_of(run)]
    ]
    asked = {run.fingerprint for run in runs}
    rows += [_merge_fields(merge) for merge in merges if merge.fingerprint not in asked]
    whole = dict.fromkeys(("run", "suite_version", "n", "correct"), "Int64")
    frame = DataFrame(rows, columns=list(_COLUMNS)).astype(whole)
    return frame.sort_values("when", ascending=False, kind="stable", ignore_index=True)


def _merge_fields(merge: PastMerge | None) -> dict[str, Any]:
    if merge is None:
        return {}
    return {
        "when": merge.when,
        "model": merge.name,
        "method": merge.method,
        "settings": merge.settings,
        "agents": dict(merge.agents) or None,
        "fingerprint": merge.fingerprint,
        "path": merge.folder,
    }


def merge_of(run: StoredRun) -> PastMerge | None:
    """Return the merge record of a model that an experiment merged in memory, else None."""
    if run.merge is None:
        return None
    recipe = run.merge["recipe"]
    return PastMerge(
        id=f"r{run.id}",
        when=run.created,
        name=run.model,
        title="",
        set_name=None,
        folder="",
        fingerprint=run.fingerprint,
        method=recipe["method"],
        recipe=recipe,
        agents=run.merge.get("agents", {}),
        seconds=run.merge.get("seconds", 0.0),
    )


def score_of(run: StoredRun) -> Average:
    """Return a run's average over its suite's skills, as in a check."""
    return Average.over_skills(run.domains, skills_of([run.suite], run.domains))


def find_runs(store: AnswerStore, ids: Sequence[int]) -> list[StoredRun]:
    """Return the runs with these ids, in this order.

    Raises: EvaluationError: an id that the store does not have.
    """
    known = {run.id: run for run in store.runs()}
    for number in ids:
        if number not in known:
            raise EvalSettingsError(
                f"The store {store.path} has no run {number}. It has: "
                f"{', '.join(map(str, sorted(known))) or 'none'}."
            )
    return [known[number] for number in dict.fromkeys(ids)]


def stored_report(store: AnswerStore, runs: Sequence[StoredRun]) -> EvalReport:
    """Return a report of stored runs, on the questions that all models of a suite answered.

    Runs of one model on several suites become one row. Two models of the same name are
    distinguished by the beginning of their fingerprints. Health has no questions and is left out.

    Raises: EvaluationError: no runs, or models without a common question of a suite.
    """
    runs = [run for run in runs if run.suite != HEALTH]
    if not runs:
        raise EvalSettingsError("No stored run with questions was chosen. Choose one or more runs.")
    names = _names(runs)
    suites = list(dict.fromkeys(run.suite for run in runs))
    rows: dict[str, dict[str, StoredAnswers]] = {name: {} for name in names.values()}
    last: dict[str, StoredRun] = {}
    for run in runs:
        name = names[run.fingerprint]
        # Of two runs of a model on a suite (with other settings), the first one counts.
        if run.suite not in rows[name]:
            own = [row for row in store.answers(run.id) if row.answer.is_reported]
            rows[name][run.suite] = {(row.question.id, row.digest): row for row in own}
            last[name] = run
    asked: list[Question] = []
    answers: dict[str, list[tuple[Question, Answer]]] = {name: [] for name in rows}
    for suite in suites:
        missing = [name for name, held in rows.items() if suite not in held]
        if missing:
            raise EvaluationError(
                f"{missing[0]!r} has no chosen run of suite {suite!r}, others have. Choose runs of "
                "the same suites for every model."
            )
        for key in _common([held[suite] for held in rows.values()], suite):
            for name, held in rows.items():
                row = held[suite][key]
                answers[name].append((row.question, row.answer))
            asked.append(row.question)
    models = {
        name: ModelAnswers.of(name, last[name].path, own, suites, settings=_settings_of(last[name]))
        for name, own in answers.items()
    }
    return EvalReport.of(suites, None, asked, models)


def _settings_of(run: StoredRun) -> dict[str, Any]:
    return {**run.settings, **stored_wording(run.settings), "begun": run.created}


def _names(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Return fingerprint -> name, with the fingerprint's beginning where names clash.

    The fingerprint of a model behind an endpoint is its URL, which is shown in full.
    """
    labels = {run.fingerprint: run.model for run in runs}
    times = Counter(labels.values())
    return {
        print_: label
        if times[label] == 1
        else f"{label} ({print_[:6] if print_.isalnum() else print_})"
        for print_, label in labels.items()
    }


def _common(stored: Sequence[StoredAnswers], suite: str) -> list[tuple[str, str]]:
    """Return the common questions, domains in the suite's order (the store sorts by name).

    Raises: EvaluationError without a common question.
    """
    keys = [key for key in stored[0] if all(key in other for other in stored[1:])]
    if not keys:
        raise EvaluationError(
            f"The chosen runs of suite {suite!r} have no question in common. Choose runs with the "
            "same seed, lengths and suite version."
        )
    places, beside = {domain: n for n, domain in enumerate(DOMAINS)}, apart([suite])

    def place(key: tuple[str, str]) -> tuple[bool, int]:
        domain = stored[0][key].question.domain
        return domain in beside, places.get(domain, 0)

    return sorted(keys, key=place)
