"""Stopping a merge in a process of its own. Faults at every single write: tests/engine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

WRITING = (
    "from ram_studio.engine.events import Meter",
    "add",
    "list(Path.cwd().glob('.merged.partial-*/*.partial'))",
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_merge_exits_with_130_and_leaves_nothing(
    stopping, example, tmp_path: Path, number: int
) -> None:
    code, _, err = stopping(number, WRITING, "merge", *example, "--out", tmp_path / "merged")
    assert (code, err) == (130, "ram-studio: Stopped as asked; nothing was left behind.\n")
    assert list(tmp_path.iterdir()) == []
