"""Progress: bars on a terminal, a line every 30 seconds elsewhere, or JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

LINE_SECONDS, JSON_SECONDS = 30.0, 1.0

form: Literal["auto", "json"] = "auto"
"""The form of progress in this process; set by ``--progress`` before any command begins."""


class _Lines:
    """Progress as lines on standard error, at intervals."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._seconds = JSON_SECONDS if form == "json" else LINE_SECONDS

    def on_progress(self, progress: Any) -> None:
        self._report(progress.stage, progress, progress.tensor)

    def on_download(self, progress: Any) -> None:
        self._report(f"fetch {progress.name}", progress, progress.source)

    def on_text(self, text: str) -> None:
        """Print a line about work that is not counted in bytes."""
        self._print({"text": text}, time.monotonic() - self._start, text)

    def _report(self, stage: str, progress: Any, what: str) -> None:
        done, total = progress.done_bytes, progress.total_bytes
        event = {"stage": stage, "done_bytes": done, "total_bytes": total, "what": what}
        share = f"{done / total:.0%}" if total else "0%"
        text = f"{stage} {share} of {total / 1e9:.2f} GB, {what}"
        self._print(event, progress.seconds, text)

    def _print(self, event: dict[str, Any], seconds: float, text: str) -> None:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return
        self._last = now
        line = f"ram-studio: {text}"
        if form == "json":
            line = json.dumps({"progress": event | {"seconds": round(seconds, 1)}})
        print(line, file=sys.stderr, flush=True)


def is_drawn(quiet: bool) -> bool:
    """Whether progress is drawn on a terminal, rather than printed as lines."""
    return form != "json" and not quiet and sys.stderr.isatty()


@contextlib.contextmanager
def progress_bars(quiet: bool = False) -> Iterator[tuple[Callable | None, Callable | None]]:
    """Yield (on_progress, on_download), which draw bars on a terminal; quiet: without bars."""
    if not is_drawn(quiet):
        lines = _Lines()
        yield lines.on_progress, lines.on_download
        return
    from rich import progress as rich
    from rich.console import Console

    bars = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[detail]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int, detail: str) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, detail="")
        bars.update(tasks[name], completed=done, total=total, detail=detail[-48:])

    def on_progress(progress: Any) -> None:
        detail = f"{progress.tensor_index}/{progress.tensor_count} {progress.tensor}"
        show(progress.stage, progress.done_bytes, progress.total_bytes, detail)

    def on_download(progress: Any) -> None:
        show(f"fetch {progress.name}", progress.done_bytes, progress.total_bytes, progress.source)

    with bars:
        yield on_progress, on_download


@contextlib.contextmanager
def status_line(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the text shown; without a terminal it prints lines."""
    if not is_drawn(quiet):
        yield _Lines().on_text
        return
    try:
        yield lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
