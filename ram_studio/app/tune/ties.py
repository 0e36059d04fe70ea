"""What TIES at its defaults keeps of each agent: no arithmetic on counts tells, so it is merged.

Small sets are merged, into nothing, when TIES is looked at; of larger ones it is a job.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ram_studio.app.load.work import open_loaded
from ram_studio.app.public.job_queue import Effort
from ram_studio.app.session.jobs import Report, Work, costing
from ram_studio.app.session.session import Loaded, Session
from ram_studio.app.session.sets import TITLES, load_set
from ram_studio.engine.events import CancelToken
from ram_studio.engine.in_memory import preview_retained

QUICK_BYTES = 100_000_000
"""Of all sources; read twice and merged well within a second."""

_PASSES = 3

TiesRetained = list[dict[str, float] | None]
"""By agent, the parts of its Retained."""


def is_quick(loaded: Loaded) -> bool:
    """Whether TIES can be merged while somebody waits for the canvas."""
    return sum(c.nbytes for c in open_loaded(loaded).checkpoints) <= QUICK_BYTES


def find_ties(session: Session) -> TiesRetained:
    """Return what TIES keeps of a session's models, merged now unless it is known.

    Raises: CheckpointError, HubError, AnalysisError, SourceChangedError.
    """
    loaded = session.models
    if loaded.set_name is not None:
        return _of_set(loaded.set_name)
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


@lru_cache(maxsize=len(TITLES))
def _of_set(set_name: str) -> TiesRetained:
    return _merged(load_set(set_name))


def _merged(loaded: Loaded, **run: Any) -> TiesRetained:
    retained = preview_retained(open_loaded(loaded), "ties", {}, analysis=loaded.analysis, **run)
    return [None if retained[n] is None else vars(retained[n]) for n in loaded.analysis.agents]
