"""Starts load no more than they use: no compiler where nothing is merged, no servers, no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_zoo import make_zoo

COMPILER = {"numba", "llvmlite", "scipy"}
HEAVY = {"torch", "transformers", "gradio", "plotly", "pandas"}
RUN = """
import sys
from ram_studio.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
left_out = {left_out}
print([name for name in left_out if name in sys.modules])
"""


def loaded_by(*command: str) -> set[str]:
    """Return which of the heavy libraries a command has imported by its end."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(left_out=COMPILER | HEAVY), *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(eval(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Return a zoo, its sketch and a merge of it."""
    folder = tmp_path_factory.mktemp("start")
    zoo = make_zoo(folder / "zoo", 2)
    agents = [f"--agent={name}={path}" for name, path in zoo.agent_paths.items()]
    sources = [f"--base={zoo.base_path}", *agents]
    assert not HEAVY & loaded_by("analyze", *sources, f"--sketch={folder / 'zoo.sketch'}")
    assert not HEAVY & loaded_by("merge", *sources, f"--out={folder / 'merged'}")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("inspect", "--base={zoo}/zoo/base", "--agent=one={zoo}/zoo/agent0"),
        ("preview", "{zoo}/zoo.sketch"),
        ("verify", "{zoo}/merged"),
    ],
    ids=lambda command: command[0],
)
def test_what_merges_nothing_imports_no_compiler(zoo, command):
    assert not loaded_by(*(part.format(zoo=zoo) for part in command)) - {"pandas", "plotly"}
