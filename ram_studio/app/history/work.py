"""Past merges and checks as one list of models, and any of them side by side."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import BASE
from ram_studio.app.asking.limits import SUITE
from ram_studio.app.check.work import candidates
from ram_studio.app.session.answers import memory_folder, open_answers
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import TITLES
from ram_studio.app.session.workspace import Workspace
from ram_studio.checkpoints.opening import open_folder
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.engine.merge_log import PastMerge, past_merges
from ram_studio.errors import CheckpointError, EvaluationError
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.export import FORMATS, export_result
from ram_studio.evals.report.history import merge_of, score_of, stored_report
from ram_studio.evals.report.score import Average
from ram_studio.evals.store import AnswerStore, StoredRun
from ram_studio.evals.suites import HEALTH
from ram_studio.resources import asset_path

MOST_ROWS = 200
# Most merges that an experiment made in memory: one sweep makes up to 60.
MOST_TRIED = 100
GENERAL = "general"


@dataclass(frozen=True)
class PastModel:
    """A past model: its merge, if it was made here, and its evaluations.

    runs: the newest first, without runs that got no answer. times: number of merges with this name
    (without its number) and these weights; the newest represents all.
    """

    id: str
    name: str
    when: str
    merge: PastMerge | None
    runs: tuple[StoredRun, ...]
    times: int = 1

    @property
    def title(self) -> str:
        """The models it was merged from, or its shipped set; "" where unknown."""
        if self.merge is not None and self.merge.title:
            return self.merge.title
        # Identified by the agents: all shipped sets have the same base.
        agents = self.merge.recipe.get("agents", {}).values() if self.merge is not None else ()
        own = () if self.merge is not None or self.name == BASE else (self.runs[0].path,)
        folders = {str(Path(path).parent) for path in (*agents, *own) if path}
        return next((TITLES[name] for name in TITLES if str(asset_path(name)) in folders), "")

    def run_of(self, suite: str) -> StoredRun | None:
        """Return the newest run of a suite."""
        return next((run for run in self.runs if run.suite == suite), None)

    def score_of(self, suite: str) -> Average:
        """Return the average over the skills of a suite."""
        run = self.run_of(suite)
        return score_of(run) if run else Average.over(())

    @property
    def suites(self) -> tuple[str, ...]:
        """Its evaluated suites, without health."""
        return tuple(dict.fromkeys(r.suite for r in self.runs if r.suite != HEALTH))


@dataclass(frozen=True)
class SideBySide:
    """Chosen models, and their scores on the questions that all of them answered.

    kinds: "demo" and "general", if any of the models answered it; kind: the one shown. result: None
    without common questions. base: the model that the others are compared with. left_out: suite ->
    why it is not in the result.
    """

    models: tuple[PastModel, ...]
    kinds: Sequence[str]
    kind: str
    result: EvalResult | None
    base: str | None
    left_out: Mapping[str, str]

    def equal_merges(self) -> list[list[str]]:
        """Return the names of merges with equal weights, by group."""
        groups: dict[str, list[str]] = {}
        for model in self.models:
            if model.merge is not None:
                groups.setdefault(model.merge.fingerprint, []).append(model.name)
        return [names for names in groups.values() if len(names) > 1]


def past_models(session: Session, workspace: Workspace) -> list[PastModel]:
    """Return past merges and checks, the newest first, at most MOST_ROWS.

    At most MOST_TRIED of them are merges of experiments, so that those do not hide others.

    Raises: EvaluationError, OutputError when stored data cannot be read.
    """
    merges = past_merges(memory_folder(session, workspace.settings))
    with open_answers(session, workspace) as store:
        models = _join_runs(merges, store)
    tried = [model for model in models if model.merge is not None and not model.merge.folder]
    left_out = {model.id for model in tried[MOST_TRIED:]}
    return [model for model in models if model.id not in left_out][:MOST_ROWS]


def _join_runs(merges: Sequence[PastMerge], store: AnswerStore) -> list[PastModel]:
    by_print: dict[str, tuple[StoredRun, ...]] = {}
    for run in store.runs():
        if run.answered:
            by_print[run.fingerprint] = (*by_print.get(run.fingerprint, ()), run)
    # Repeated merges with the same name and weights: the newest represents all.
    same = Counter(map(_repeat_key, merges))
    newest = {_repeat_key(merge): merge for merge in sorted(merges, key=lambda merge: merge.when)}
    found = [
        PastModel(
            f"m{merge.id}",
            key[0] if same[key] > 1 else merge.name,
            merge.when,
            merge,
            by_print.get(merge.fingerprint, ()),
            times=same[key],
        )
        for key, merge in newest.items()
    ]
    merged = {merge.fingerprint for merge in merges}
    found += [
        PastModel(f"f{key}", runs[0].model, runs[0].created, merge_of(runs[0]), runs)
        for key, runs in by_print.items()
        if key not in merged
    ]
    return sorted(found, key=lambda model: model.when, reverse=True)


def _repeat_key(merge: PastMerge) -> tuple[str, str]:
    # Session.free_name numbers repeated merges of a session: "ram+", "ram+ (2)".
    return re.sub(r" \(\d+\)$", "", merge.name), merge.fingerprint


def side_by_side(
    ids: Sequence[str], kind: str, reference: str | None, session: Session, workspace: Workspace
) -> SideBySide:
    """Return chosen models side by side.

    Args:
        ids: of ``past_models``; unknown ones are left out.
        kind: "demo" or "general", whose domains have the same names; if no model answered it, the
            other is shown.
        reference: the model that the others are compared with; by default one called "base".

    Raises: EvaluationError for no known id, or when stored data cannot be read.
    """
    every = {model.id: model for model in past_models(session, workspace)}
    models = tuple(every[i] for i in dict.fromkeys(ids) if i in every)
    if not models:
        raise EvaluationError("The chosen rows no longer exist. Choose again.")
    asked_suites = dict.fromkeys(suite for model in models for suite in model.suites)
    kinds = sorted({_kind_of(suite) for suite in asked_suites})
    if kinds and kind not in kinds:
        kind = kinds[0]
    left_out: dict[str, str] = {}
    suites = []
    for suite in asked_suites:
        if _kind_of(suite) != kind:
            continue
        if all(model.run_of(suite) for model in models):
            suites.append(suite)
        else:
            missing = [model.name for model in models if not model.run_of(suite)]
            left_out[suite] = f"not run on {', '.join(missing)}"
    report = None
    with open_answers(session, workspace) as store:
        for suite in list(suites):
            try:
                _report(store, models, [suite])
            except EvaluationError as error:
                left_out[suite] = str(error)
                suites.remove(suite)
        if suites:
            report = _report(store, models, suites)
    if report is None:
        return SideBySide(models, kinds, kind, None, None, left_out)
    names = list(report.models)
    wanted = (reference, "base", names[0])
    base = next(name for name in wanted if name in names)
    pairs = report.compare_all(base=base) if len(names) > 1 else ()
    return SideBySide(models, kinds, kind, EvalResult.of(report, pairs), base, left_out)


def _kind_of(suite: str) -> str:
    return SUITE if suite == SUITE else GENERAL


def _report(store: AnswerStore, models: Sequence[PastModel], suites: Sequence[str]) -> EvalReport:
    runs, seen = [], set()
    for model in models:
        own = [run for run in (model.run_of(suite) for suite in suites) if run is not None]
        # Two merges with equal weights are one model in the store.
        if own and own[0].fingerprint not in seen:
            seen.add(own[0].fingerprint)
            runs += [dataclasses.replace(run, model=model.name) for run in own]
    return stored_report(store, runs)


def names_in_check(models: Sequence[PastModel], session: Session) -> list[str]:
    """Return the names of these models in Check, in order.

    Empty unless all are loaded in this tab, with equal weights, not only with the same name.
    """
    offered = {_fingerprint(c.path, name): name for name, c in candidates(session).items()}
    prints = [m.merge.fingerprint if m.merge else m.runs[0].fingerprint for m in models]
    return [offered[p] for p in prints] if all(p in offered for p in prints) else []


def _fingerprint(folder: str, name: str) -> str | None:
    try:
        return model_fingerprint(Path(folder), open_folder(folder, name=name).fingerprint)
    except CheckpointError:  # a Hub id, or deleted files
        return None


def export(found: SideBySide, session: Session) -> list[str]:
    """Write a report in every format (.json, .csv, .html) and return the files, in this order.

    Raises: OutputError when they cannot be written.
    """
    assert found.result is not None, "callers have one"
    # A downloaded file must not contain paths of this machine.
    models = {n: dataclasses.replace(m, path=None) for n, m in found.result.models.items()}
    result = dataclasses.replace(found.result, models=models)
    more = {".json": {"merges": _recipes(found)}}
    files = {f"history{one}": export_result(result, one, **more.get(one, {})) for one in FORMATS}
    return [str(path) for path in session.save(files)]


def _recipes(found: SideBySide) -> dict[str, Any]:
    return {
        model.name: {
            "method": model.merge.method,
            "settings": dict(model.merge.settings),
            "agents": {name: dict(numbers) for name, numbers in model.merge.agents.items()},
            "when": model.merge.when,
        }
        for model in found.models
        if model.merge is not None
    }
