"""Stopping a merge in a process of its own. Faults at every single write: tests/engine."""

from __future__ import annotations

import signal

WRITING = (
    "from ram_studio.engine.events import Meter",
    "add",
    "list(Path.cwd().glob('.merged.partial-*/*.partial'))",
)


def test_a_stopped_merge_exits_with_130_and_leaves_nothing(cli, stopping, example, tmp_path):
    """One handler takes both signals; one is sent."""
    cli("--version")
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM)
    merge = ("merge", *example, "--out", tmp_path / "merged")
    code, _, err = stopping(signal.SIGTERM, WRITING, *merge)
    assert (code, err) == (130, "ram-studio: Stopped; nothing was left behind.\n")
    assert list(tmp_path.iterdir()) == []
