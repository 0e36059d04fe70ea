"""What TIES at its defaults keeps of each agent: no arithmetic on counts tells, so it is merged.

Small sets are merged, into nothing, when TIES is looked at; of larger ones it is a job.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ram_studio.app.jobs import Report, Work, costing
from ram_studio.app.load.examples import FOLDERS, load_example
from ram_studio.app.load.work import open_loaded
from ram_studio.app.public.lanes import Effort
from ram_studio.app.session import Loaded, Session
from ram_studio.engine.events import CancelToken
from ram_studio.engine.in_memory import preview_kept

QUICK_BYTES = 100_000_000
"""Of all sources; read twice and merged well within a second."""

_PASSES = 3

TiesKept = list[dict[str, float] | None]
"""By agent, the parts of its Kept."""


def is_quick(loaded: Loaded) -> bool:
    """Whether TIES can be merged while somebody waits for the canvas."""
    return sum(c.nbytes for c in open_loaded(loaded).checkpoints) <= QUICK_BYTES


def find_ties(session: Session) -> TiesKept:
    """Return what TIES keeps of a session's models, merged now unless it is known.

    Raises: CheckpointError, HubError, SketchError, SourceChangedError.
    """
    loaded = session.models
    if loaded.example is not None:
        return _of_example(loaded.example)
    if session.ties is None:
        session.ties = _merged(loaded)
    return session.ties


def ties_work(session: Session) -> Work[None]:
    """Return the same as a job's work; what it found is in the session then."""
    loaded = session.models
    nbytes = sum(c.nbytes for c in open_loaded(loaded).checkpoints)
    seconds = _PASSES * nbytes / (loaded.read_rate or 5e8)

    def merge(report: Report, cancel: CancelToken) -> None:
        session.ties = _merged(loaded, on_progress=report, cancel=cancel)

    return costing(merge, Effort("seconds", {"": seconds}))


@lru_cache(maxsize=len(FOLDERS))
def _of_example(example: str) -> TiesKept:
    return _merged(load_example(example))


def _merged(loaded: Loaded, **run: Any) -> TiesKept:
    kept = preview_kept(open_loaded(loaded), "ties", {}, sketch=loaded.sketch, **run)
    return [None if kept[n] is None else vars(kept[n]) for n in loaded.sketch.agents]
