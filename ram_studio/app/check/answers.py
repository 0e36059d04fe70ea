"""Where answers and merges are remembered: a user's own store, or one visitor's folder.

On one's own machine, checks go to the store that the command line uses too, and stay. Where
strangers can come, each session has its own, which goes with its folder; only what the shipped
models answered is shared between visitors, so that nobody waits for it twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio.evals.question import Question, Reply, Verdict
from ram_studio.evals.store.answers import AnswerStore, RunKey
from ram_studio.resources import user_folder

if TYPE_CHECKING:
    from ram_studio.app.session import Session
    from ram_studio.app.settings import Settings
    from ram_studio.app.workspace import Workspace


def memory_folder(session: Session, settings: Settings) -> Path:
    """Return the folder that holds this visitor's answers and list of merges."""
    return user_folder() if settings.is_private else session.folder


def open_answers(
    session: Session, workspace: Workspace, shipped: Collection[str] = ()
) -> AnswerStore:
    """Return this visitor's store, open, for the thread that asks.

    shipped: folders of models whose answers are shared where visitors have stores of their own.

    Raises: EvaluationError when the file is damaged or cannot be used.
    """
    path = memory_folder(session, workspace.settings) / "answers.sqlite3"
    if workspace.settings.is_private:
        return AnswerStore(path)
    return SharingStore(path, workspace.root / "shared" / "answers.sqlite3", shipped)


class SharingStore(AnswerStore):
    """A visitor's store that takes shipped models' answers from, and adds them to, a shared file.

    Args:
        path: the visitor's file. shared: the file for all. shipped: folders of shipped models.
    """

    def __init__(self, path: Path, shared: Path, shipped: Collection[str]) -> None:
        super().__init__(path)
        self._shared = AnswerStore(shared)
        self._shipped = frozenset(shipped)
        self._twins: dict[int, int] = {}

    def open_run(
        self,
        key: RunKey,
        *,
        model: str,
        path: str | None = None,
        merge: Mapping[str, Any] | None = None,
    ) -> int:
        """Return the run with this key, with what is known already of a shipped model in it."""
        run = super().open_run(key, model=model, path=path, merge=merge)
        if path in self._shipped:
            self.adopt(run, key, self._shared.path)
            self._twins[run] = self._shared.open_run(key, model=Path(path).name)
        return run

    def record(self, run: int, answers: Sequence[tuple[Question, Reply, Verdict]]) -> None:
        """Write a batch of answers; those of a shipped model for everybody."""
        super().record(run, answers)
        if run in self._twins:
            self._shared.record(self._twins[run], answers)

    def close(self) -> None:
        """Close both files."""
        super().close()
        self._shared.close()
