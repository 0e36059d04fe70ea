"""The conditions that conftest.py promises to all other tests really hold."""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from ram_studio.algorithm.overlap import patterns_from_chain

ROOT = Path(__file__).parents[1]

# The address is of the block kept for documentation: it belongs to nobody.
SWALLOWED = """
import socket

def test_swallows_the_refusal():
    with socket.socket() as client:
        try:
            client.connect(("192.0.2.1", 9))
        except OSError:
            pass
"""


def test_array_annotations_of_the_algorithm_are_checked():
    points = np.zeros(1, dtype=np.int64)
    wrong_rank = np.zeros((2, 3), dtype=np.int64)
    with pytest.raises(Exception, match="chain"):
        patterns_from_chain(wrong_rank, points, 0)


def test_user_paths_lie_in_a_temporary_folder():
    temporary = Path(tempfile.gettempdir()).resolve()
    for name in ("HF_HOME", "RAM_STUDIO_HOME", "XDG_CACHE_HOME", "GRADIO_TEMP_DIR"):
        assert Path(os.environ[name]).resolve().is_relative_to(temporary), name


def test_other_hosts_are_out_of_reach_and_the_attempt_is_told(tmp_path):
    here = Path(__file__).parent
    shutil.copy(here / "conftest.py", tmp_path)
    (tmp_path / "test_swallowed.py").write_text(SWALLOWED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "connections to other hosts: [('192.0.2.1', 9)]" in done.stdout
    assert "1 passed, 1 error" in done.stdout
    assert done.returncode == 1


def test_this_host_is_within_reach():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as client,
    ):
        assert client.getpeername() == server.getsockname()


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("ram_studio/a.j2", "<p>{# floor #}\nFor visitors</p>", "2: 'visitors'"),
        ("ram_studio/a.py", "# Two lines,\n# and gibberish\n", "2: 'gibberish'"),
        ("ram_studio/a.py", 'raise E(\n    f"{x} is no folder")\n', "2: 'is no folder'"),
        ("ram_studio/a.py", 'raise E(f"{x} is no {y}")\n', "1: 'is no '"),
        ("ram_studio/cli/a.py", 'def f():\n    """Ask so many."""\n', "2: 'so many'"),
        ("assets/a.js", 'x;\nsay("It is there no more", `any more`)', "2: 'any more'"),
        ("ram_studio/a.py", 'x = "Where it is."', "1: 'Where it is.'"),
        ("ram_studio/a.py", 'x = "Where is it?"', ""),
        ("docs/a.md", "The behaviour\n", "1: 'behaviour'"),
        ("docs/a.md", "Take a analysis.\n", "1: 'a analysis'"),
        ("ram_studio/a.py", 'def f():\n    """Return so many rows."""\n', ""),
        ("ram_studio/a.py", "def f(told_by): x.told = told_by\n", "1: 'told_by'"),
        ("ram_studio/a.py", "class KeptRows:\n    count = 0\n", "1: 'KeptRows'"),
        ("tests/a.py", "kept = told = 0\n", ""),
        ("ram_studio/a.py", 'nonsense = {"nonsense": "There is no such row."}\n', ""),
    ],
)
def test_lint_finds_banned_words_where_people_read(path, text, found):
    told = runpy.run_path(str(ROOT / "scripts/check_words.py"))["problems_in"](path, text)
    assert [problem.partition(";")[0] for problem in told] == ([f"{path}:{found}"] if found else [])
