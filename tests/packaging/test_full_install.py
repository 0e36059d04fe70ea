"""The slow, honest way: an empty environment, everything from the package index.

It downloads all dependencies, so it runs only where it is asked for:

    RAM_STUDIO_FULL_INSTALL=1 make test PYTEST_ARGS='tests/packaging/test_full_install.py'
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from installation import ROOT, Installation, run, running_app


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    os.environ.get("RAM_STUDIO_FULL_INSTALL") != "1",
    reason="downloads all dependencies; set RAM_STUDIO_FULL_INSTALL=1",
)
def test_the_wheel_alone_brings_everything_the_app_needs(wheel: Path, tmp_path: Path) -> None:
    environment, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    run(sys.executable, "-m", "venv", environment, cwd=work)
    found = Installation(environment / "bin", work)
    constraints = ROOT / "constraints.txt"
    pip = (found.python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
    run(*pip, wheel, cwd=work, timeout=1500)
    run(found.python, "-m", "pip", "check", cwd=work)
    run(found.command, "--version", cwd=work)
    with running_app(found) as address:
        assert address.startswith("http://127.0.0.1:")
