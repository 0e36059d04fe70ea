"""A process that answers each line of JSON with another; see `worker`.

A module of this folder has the `answer`, and in READABLE the folders from which its libraries load
more after the process is sealed. A timer of computing time ends an answer that takes too long, also
when the parent process is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from typing import Any


def main(module: str, order: dict[str, Any]) -> None:
    """Write "{}" when ready, then answer.

    Args:
        module: of this folder.
        order: limits: see `seal`; "seconds" of computing for one answer; "is_sealed".
    """
    job = importlib.import_module(f".{module}", __package__)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # libraries' prints are not replies
    _limit(order, getattr(job, "READABLE", ()))
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        _set_timer(order["seconds"])
        reply = json.dumps(job.answer(json.loads(line)))
        _set_timer(0)
        print(reply, file=replies, flush=True)


def _limit(order: dict[str, Any], readable: tuple[str, ...]) -> None:
    # Not every system has limits; the caller's timeout works everywhere.
    with contextlib.suppress(ImportError, ValueError, OSError):
        if order["is_sealed"]:
            from .seal import seal

            seal(order, is_reused=True, readable=readable)
        else:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (order["memory_bytes"],) * 2)


def _set_timer(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
