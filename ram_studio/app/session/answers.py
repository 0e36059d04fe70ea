"""Storage of answers and merges: permanent, or in one session's folder.

On a private machine, checks use the permanent store of the command line. On a shared server, each
session has its own store, deleted with its folder; only answers of shipped models, and of merges of
them, are shared between users, who then need not wait for them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio.evals.question import Answer, Question
from ram_studio.evals.store import AnswerStore, RunKey
from ram_studio.resources import user_folder

if TYPE_CHECKING:
    from ram_studio.app.session.session import Session
    from ram_studio.app.session.workspace import Workspace
    from ram_studio.app.settings import Settings


def memory_folder(session: Session, settings: Settings) -> Path:
    """Return the folder with this user's answers and list of merges."""
    return user_folder() if settings.is_private else session.folder


def open_answers(session: Session, workspace: Workspace) -> AnswerStore:
    """Return this user's open store, for the calling thread.

    Raises: EvaluationError when the file is damaged or cannot be used.
    """
    path = memory_folder(session, workspace.settings) / "answers.sqlite3"
    loaded = session.loaded
    # Shipped sets are public: their weights, and all merges of them.
    if workspace.settings.is_private or loaded is None or loaded.set_name is None:
        return AnswerStore(path)
    return SharingStore(path, workspace.root / "shared" / "answers.sqlite3")


class SharingStore(AnswerStore):
    """A user's store that reads answers from, and adds its own to, a file for all users.

    Args:
        path: the user's file. shared: the file for all.
    """

    def __init__(self, path: Path, shared: Path) -> None:
        super().__init__(path)
        self._shared = AnswerStore(shared)
        self._twins: dict[int, int] = {}

    def open_run(self, key: RunKey, *, rerun: bool = False, **labels: Any) -> int:
        """Return the run with this key, including all users' answers with this key."""
        run = super().open_run(key, rerun=rerun, **labels)
        if not rerun:
            self.adopt(run, key, self._shared.path)
        # Without this user's name of the merge, which may be any text.
        self._twins[run] = self._shared.open_run(key, model="model")
        return run

    def record(self, run: int, answers: Collection[tuple[Question, Answer]]) -> None:
        """Write a batch of answers, for all users."""
        super().record(run, answers)
        if run in self._twins:
            self._shared.record(self._twins[run], answers)

    def close(self) -> None:
        """Close both files."""
        super().close()
        self._shared.close()
