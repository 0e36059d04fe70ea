"""Stopping a merge in a process of its own. Faults at every single write: tests/engine."""

from __future__ import annotations

import signal
import subprocess
import sys

# The command line, which is told to end once a part of the output is written, and goes on when its
# handler has begun.
STOPS_ITSELF = """
import os, signal, sys, threading
from pathlib import Path
import ram_studio.cli
from ram_studio.engine.events import Meter
main, asked = sys.modules["ram_studio.cli.main"], threading.Event()
handler, add = main._stop, Meter.add

def stop(number, frame):
    asked.set()
    handler(number, frame)

def counted(self, *arguments):
    result = add(self, *arguments)
    if not asked.is_set() and list(Path.cwd().glob(".merged.partial-*/*.partial")):
        os.kill(os.getpid(), signal.SIGTERM)
        asked.wait()
    return result

main._stop, Meter.add = stop, counted
main.main()
"""


def test_a_stopped_merge_exits_with_130_and_leaves_nothing(cli, example, tmp_path):
    """One handler takes both signals; one is sent."""
    cli("--version")
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM)
    merge = ("merge", *example, "--out", str(tmp_path / "merged"))
    done = subprocess.run(
        [sys.executable, "-c", STOPS_ITSELF, *merge],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr == "ram-studio: Stopped; nothing was left behind.\n"
    assert done.returncode == 130
    assert list(tmp_path.iterdir()) == []
