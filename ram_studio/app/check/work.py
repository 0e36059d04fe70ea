"""The work behind the Check step: ask the models the open questions, and report progress.

Answers are stored as they arrive (see `answers`); stopping loses nothing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ram_studio.algorithm.analysis import BASE
from ram_studio.app.asking.limits import asking_effort, count_answers
from ram_studio.app.check.progress_grid import Cell, Scoring
from ram_studio.app.check.zerogpu import ZeroGpuEngine
from ram_studio.app.public.machine import has_zerogpu
from ram_studio.app.session.answers import open_answers
from ram_studio.app.session.jobs import Report, Work, costing
from ram_studio.app.session.loaded_engines import SMALL_BYTES
from ram_studio.app.session.session import Session
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.read.checkpoint import DownloadProgress
from ram_studio.engine.events import CancelToken
from ram_studio.errors import EvaluationError, SettingsError
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.run import evaluate
from ram_studio.evals.settings import EvalSettings

# Small models use large batches; with a large model the first answers should arrive soon.
_BATCH_OF_LARGE = 8
_SPEED_SECONDS = 3.0
_REPORT_SECONDS = 0.5


class Candidate(NamedTuple):
    """A model that can be evaluated: its folder, and the recipe of a merge."""

    path: str
    recipe: str = ""


def candidates(session: Session) -> dict[str, Candidate]:
    """Return every model of the session by name: the base, the agents, the merges."""
    if session.loaded is None:
        return {}
    found = {}
    if not session.loaded.is_analysis_only:
        found[BASE] = Candidate(session.loaded.base)
        found |= {n: Candidate(p) for n, p in session.loaded.agents.items()}
    found |= {m.name: Candidate(str(m.folder), m.recipe) for m in session.merges.values()}
    return found


def agents_of(session: Session) -> list[str]:
    """Return the loaded agents' names."""
    return list(session.loaded.agents) if session.loaded else []


class _ProgressWatch:
    """Turns an evaluation's callbacks into snapshots with the speed of the last seconds."""

    def __init__(self, models: Sequence[str], report: Report) -> None:
        self._models, self._report = tuple(models), report
        self._cells: dict[tuple[str, str], Cell] = {}
        self._marks: dict[tuple[str, str], str] = {}
        self._now: tuple[str, str] | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._reported_at = -math.inf

    def note_progress(self, model: str, domain: str, done: int, total: int) -> None:
        known = self._cells.get((model, domain))
        self._cells[model, domain] = Cell(done, total, known.reused if known else done)
        self._now = model, domain
        self._report_snapshot(time.monotonic())

    def note_marks(self, model: str, domain: str, marks: str) -> None:
        self._marks[model, domain] = marks

    def note_tokens(self, step: Mapping[int, int]) -> None:
        now = time.monotonic()
        self._steps.append((now, len(step)))
        while now - self._steps[0][0] > _SPEED_SECONDS:
            self._steps.popleft()
        if now - self._reported_at > _REPORT_SECONDS:
            self._report_snapshot(now)

    def _report_snapshot(self, now: float) -> None:
        self._reported_at = now
        speed = None
        if len(self._steps) > 1 and now - self._steps[-1][0] < _SPEED_SECONDS:
            span = max(now - self._steps[0][0], 1e-3)
            speed = sum(count for _, count in self._steps) / span
        marks = dict(self._marks)
        self._report(Scoring(self._models, dict(self._cells), self._now, speed, marks))


def score_work(
    models: Mapping[str, Candidate], settings: EvalSettings, session: Session, workspace: Workspace
) -> Work[EvalReport]:
    """Return the work of asking these models; stored questions are not asked again.

    It reports `Scoring`, and its effort has a part for each model, in answers: those of a shipped
    set's models, and of equal merges of them, are reused for the next user. The work raises
    EvaluationError, CheckpointError; Stopped when cancelled or, on a Space, out of time.
    """
    app = workspace.settings

    def work(report: Report, cancel: CancelToken) -> EvalReport:
        folders, nbytes = {}, 0
        for name, model in models.items():
            checkpoint = open_model(model.path, name, cancel, report)
            folders[name] = str(checkpoint.folder)
            nbytes = max(nbytes, checkpoint.nbytes)
        watch = _ProgressWatch(list(models), report)
        is_over = time_limit(app, cancel)
        batch_size = 128 if nbytes < SMALL_BYTES else _BATCH_OF_LARGE
        engines: dict[str, Any] = dict(folders)
        if has_zerogpu():
            engines = {n: ZeroGpuEngine(path, batch_size=batch_size) for n, path in folders.items()}
        here = {"batch_size": batch_size, "base": BASE if BASE in folders else None}
        try:
            with open_answers(session, workspace) as store:
                return evaluate(
                    engines,
                    settings.model_copy(update=here),
                    store=store,
                    on_progress=watch.note_progress,
                    on_tokens=watch.note_tokens,
                    on_marks=watch.note_marks,
                    should_stop=is_over,
                )
        except EvaluationError as error:
            if app.is_private:
                raise
            raise EvaluationError(without_folders(str(error), folders, session)) from error

    names = [f"{model.recipe or model.path} {settings!r}" for model in models.values()]
    return costing(work, asking_effort(session, names, count_answers(settings)))


def time_limit(settings: Settings, cancel: CancelToken) -> Callable[[], bool]:
    """Return a function that returns whether to stop: cancelled or, on a Space, out of time."""
    seconds = settings.max_check_seconds if settings.is_public else float("inf")
    end = time.monotonic() + seconds
    return lambda: cancel.is_cancelled or time.monotonic() > end


def open_model(
    path: str, name: str, cancel: CancelToken, report: Callable[[DownloadProgress], None]
) -> Any:
    """Return a model's opened checkpoint, which knows its folder, size and fingerprint.

    One on the Hub that is not in the cache is downloaded first; report: called with the progress.

    Raises: EvaluationError for an adapter or a delta; CheckpointError, HubError.
    """
    from ram_studio.checkpoints.opening import open_checkpoint, why_no_model

    opened = open_checkpoint(path, name=name, on_progress=report, cancel=cancel)
    if (why := why_no_model(opened)) is not None:
        raise EvaluationError(f"{name} {why}")
    return opened


def choose_models(names: Sequence[str], session: Session) -> dict[str, Candidate]:
    """Return the ticked models of the session by name.

    Raises: SettingsError when none of them exists.
    """
    chosen = {n: model for n, model in candidates(session).items() if n in set(names)}
    if not chosen:
        raise SettingsError("No model is chosen. Choose at least one.")
    return chosen


def without_folders(text: str, folders: Mapping[str, str], session: Session) -> str:
    """Return a message with models' folders replaced by their names, and no session folder."""
    for name, folder in folders.items():
        text = text.replace(folder, name)
    return text.replace(str(session.folder), "")
