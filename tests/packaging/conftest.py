"""A wheel built from this clone, and a virtual environment that has the package from that wheel.

Installing the dependencies again would take minutes and prove nothing about the wheel. So the
environment borrows them: its only package of its own is ram_studio, and one path file adds the
site-packages folder that runs the tests. Path files inside that folder (an editable install puts
one there) are not followed from there, so the clone cannot stand in for the wheel; the fixture
checks where the package came from all the same. `test_full_install.py` is the slow, honest way.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest
from installation import ROOT, Installation, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a wheel built from this clone with the build backend installed here."""
    out = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out)
    run(*build, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel, installed where nothing else of this project can be imported."""
    place = tmp_path_factory.mktemp("installed")
    environment, work = place / "venv", place / "work"
    work.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=work)
    found = Installation(environment / "bin", work)
    pip = (sys.executable, "-m", "pip", "--python", found.python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=work)

    (site,) = environment.glob("lib/python*/site-packages")
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")

    where = "import ram_studio, sys; print(ram_studio.__file__)"
    origin = run(found.python, "-c", where, cwd=work).stdout.strip()
    assert Path(origin).is_relative_to(site), f"the package comes from {origin}, not the wheel"
    return found
