"""Where answers and merges are remembered: a user's own store, or one visitor's folder.

On one's own machine, checks go to the store that the command line uses too, and stay. Where
strangers can come, each session has its own, which goes with its folder; only what the shipped
models, and merges of them, answered is shared between visitors: nobody waits for it twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def open_answers(session: Session, workspace: Workspace) -> AnswerStore:
    """Return this visitor's store, open, for the thread that asks.

    Raises: EvaluationError when the file is damaged or cannot be used.
    """
    path = memory_folder(session, workspace.settings) / "answers.sqlite3"
    loaded = session.loaded
    # Of a shipped set everything is known to everybody: the weights, and what can be made of them.
    if workspace.settings.is_private or loaded is None or loaded.example is None:
        return AnswerStore(path)
    return SharingStore(path, workspace.root / "shared" / "answers.sqlite3")


class SharingStore(AnswerStore):
    """A visitor's store that takes answers from, and adds its own to, a file for all visitors.

    Args:
        path: the visitor's file. shared: the file for all.
    """

    def __init__(self, path: Path, shared: Path) -> None:
        super().__init__(path)
        self._shared = AnswerStore(shared)
        self._twins: dict[int, int] = {}

    def open_run(self, key: RunKey, *, fresh: bool = False, **labels: Any) -> int:
        """Return the run with this key, with what any visitor's model of this key answered."""
        run = super().open_run(key, fresh=fresh, **labels)
        if not fresh:
            self.adopt(run, key, self._shared.path)
        # Under no name of this visitor's, who may have called a merge anything.
        self._twins[run] = self._shared.open_run(key, model="model")
        return run

    def record(
        self,
        run: int,
        answers: Sequence[tuple[Question, Reply, Verdict]],
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a batch of answers, for everybody."""
        super().record(run, answers, origin)
        if run in self._twins:
            self._shared.record(self._twins[run], answers, origin)

    def close(self) -> None:
        """Close both files."""
        super().close()
        self._shared.close()
