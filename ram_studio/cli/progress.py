"""Progress bars on a terminal; silence when piped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def progress_bars(quiet: bool = False) -> Iterator[tuple[Callable | None, Callable | None]]:
    """Yield (on_progress, on_download), which draw bars; both None without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None, None
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
    """Yield a function that shows a text in place of the one before; silent without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        yield lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
