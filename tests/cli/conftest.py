"""The command line as a user meets it: a new process, or `main` in this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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
    named = [("--agent", f"{a}={asset_path('independent', a)}") for a in AGENTS]
    return ["--base", str(asset_path("independent", "base")), *(x for pair in named for x in pair)]


@pytest.fixture
def recipe(tmp_path: Path):
    """Write a recipe of the example with further fields; returns its path."""

    def write(**fields: object) -> Path:
        agents = {name: str(asset_path("independent", name)) for name in AGENTS}
        values = {"base": str(asset_path("independent", "base")), "agents": agents, **fields}
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        return path

    return write


# The command line with a method of a class replaced: each call counts, and once `due` says so the
# process gets the signal, and goes on when the handler of the command line has begun.
STOPS_ITSELF = """
import os, sys, threading
from pathlib import Path
import ram_studio.cli
{imports}
calls, asked = [], threading.Event()
main = sys.modules["ram_studio.cli.main"]
handler, method = main._stop, {owner}.{method}

def stop(number, frame):
    asked.set()
    handler(number, frame)

def counted(self, *arguments):
    result = method(self, *arguments)
    calls.append(arguments)
    if {due} and not asked.is_set():
        os.kill(os.getpid(), {signal})
        asked.wait()
    return result

main._stop, {owner}.{method} = stop, counted
main.main()
"""


@pytest.fixture
def stopping(tmp_path: Path):
    """Run the command line in a process of its own that a signal stops at a moment of its work.

    Takes the signal, where (``from module import Class``, the class's method, and a condition on
    ``calls``, the arguments of each), and the arguments; returns (exit code, stdout, stderr).
    """

    def run(number: int, at: tuple[str, str, str], *arguments: object) -> tuple[int, str, str]:
        imports, method, due = at
        owner = imports.split()[-1]
        program = STOPS_ITSELF.format(
            imports=imports, owner=owner, method=method, due=due, signal=int(number)
        )
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        return done.returncode, done.stdout, done.stderr

    return run
