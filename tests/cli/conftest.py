"""The command line as a user meets it: a new process, or `main` in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ram_studio.cli import main
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch) -> Path:
    """A user's folder of its own for each test: merges and answers are kept there."""
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def example() -> list[str]:
    """The options that name the example's base and agents."""
    named = [("--agent", f"{a}={asset_path('example', a)}") for a in AGENTS]
    return ["--base", str(asset_path("example", "base")), *(x for pair in named for x in pair)]


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run the command line in this process: returns (exit code, stdout, stderr)."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ram-studio", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start(tmp_path: Path):
    """Start the command line as a process of its own; whatever still runs is killed at the end."""
    running: list[subprocess.Popen] = []

    def run(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "ram_studio", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()
