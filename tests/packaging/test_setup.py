"""The set-up that a newcomer and the check on a fresh clone go through."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what the set-up reads, and no virtual environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/chromium.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run make without what a make around this test run passes on: flags, and its variables."""
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def fake_command(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def stamp(clone: Path, *names: str) -> None:
    """Pretend that these steps of the set-up are done."""
    (clone / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    fake_command(clone / ".venv" / "bin" / "python", "exit 0")
    for name in names:
        content = str(clone) if name == "venv" else ""
        (clone / ".venv" / f".{name}-stamp").write_text(content + "\n", encoding="utf-8")


def test_help_lists_the_tasks(clone):
    answer = make(clone)
    assert answer.returncode == 0
    for task in ("make app", "make test", "make lint", "make wheel"):
        assert task in answer.stdout


def test_an_old_or_missing_python_is_refused_in_one_line(clone):
    # Answers the two questions the Makefile asks: the version test fails, --version says why.
    script = 'test "$1" = --version && echo Python 3.10.1 || exit 1'
    old = fake_command(clone / "python3.10", script)
    for python, words in (
        (old, "is Python 3.10.1; RAM Studio needs Python 3.11 or newer"),
        ("python-of-nowhere", "error: python-of-nowhere was not found"),
    ):
        for task in ("app", "test"):
            answer = make(clone, task, f"PYTHON={python}")
            assert answer.returncode == 2
            assert words in answer.stderr
            assert not (clone / ".venv").exists()


def test_the_second_run_starts_at_once(clone):
    stamp(clone, "venv", "app", "test", "browser", "loops")
    for task, command in (("app", "ram-studio app"), ("test", "-m pytest")):
        planned = make(clone, "--dry-run", task).stdout
        assert command in planned
        assert "pip" not in planned


def test_changed_versions_are_installed_and_moved_clones_renewed(clone):
    stamp(clone, "venv", "app", "test", "browser", "loops")
    later = (clone / ".venv" / ".browser-stamp").stat().st_mtime + 10
    os.utime(clone / "constraints.txt", (later, later))
    planned = make(clone, "--dry-run", "app").stdout
    assert "--constraint constraints.txt" in planned
    assert "-m venv" not in planned
    (clone / ".venv" / ".venv-stamp").write_text("/somewhere/else\n", encoding="utf-8")
    assert "-m venv" in make(clone, "--dry-run", "app").stdout


GRADIO = {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": "8001"}


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        ((), {}, '--host "127.0.0.1" --port "7860"'),
        (("HOST=0.0.0.0", "PORT=8000"), {}, '--host "0.0.0.0" --port "8000"'),
        ((), GRADIO, '--host "0.0.0.0" --port "8001"'),
        (("PORT=8002",), {"GRADIO_SERVER_PORT": "8001"}, '--host "127.0.0.1" --port "8002"'),
        ((), {"HOST": "x86_64-linux-gnu", "PORT": "8003"}, '--host "127.0.0.1" --port "8003"'),
    ],
)
def test_the_app_listens_where_it_is_told(clone, arguments, variables, expected):
    stamp(clone, "venv", "app")
    assert expected in make(clone, "--dry-run", "app", *arguments, **variables).stdout


@pytest.mark.parametrize("failing", ["lint", "test"])
def test_the_ci_check_is_lint_and_the_readmes_test_command(clone, failing):
    place = clone / ".ci"
    place.mkdir()
    shutil.copy(ROOT / ".ci" / "run", place)
    commands = clone / "commands"
    commands.mkdir()
    fake_command(
        commands / "make", f'echo "make $*"; pwd; case " $* " in *" {failing} "*) exit 2;; esac'
    )
    done = subprocess.run(
        [str(place / "run")],
        cwd="/",
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.splitlines()
    assert said[1::2] == [str(clone.resolve())] * (2 if failing == "test" else 1)
    assert " lint " in said[0]
    assert said[2:3] == (["make test"] if failing == "test" else [])
    assert done.returncode == 2, "a failing run must fail the check"


def test_make_test_leaves_out_slow_tests_alone(clone, monkeypatch):
    stamp(clone, "venv", "app", "test", "browser", "loops", "mergekit")
    # As under `make test PYTEST_ARGS=-q JOBS=1`, which must not show here.
    for name, value in {"PYTEST_ARGS": "-q", "JOBS": "1", "MAKEFLAGS": " -- JOBS=1"}.items():
        monkeypatch.setenv(name, value)
    daily, whole = (make(clone, "--dry-run", t).stdout.strip() for t in ("test", "test-all"))
    # The slow tests alone are beside mergekit.
    whole = re.sub(r'^RAM_STUDIO_MERGEKIT="[^"]*/mergekit" ', "", whole)
    assert daily == whole + ' -m "not slow"'
    assert " -m pytest -n 3 " in whole
    assert make(clone, "--dry-run", "test", "PYTEST_ARGS=-k x").stdout.strip() == daily + " -k x"


def provide_browser(clone: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/chromium.py; a download by Playwright would find nobody listening."""
    closed = {"PLAYWRIGHT_DOWNLOAD_HOST": "http://127.0.0.1:9"}
    browsers = {"PLAYWRIGHT_BROWSERS_PATH": str(clone / "browsers")}
    inherited = {name: value for name, value in os.environ.items() if name != "RAM_STUDIO_BROWSER"}
    return subprocess.run(
        [sys.executable, str(clone / "scripts" / "chromium.py")],
        env={**inherited, **closed, **browsers, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_named_browser_that_does_not_start_is_refused(clone):
    stub = fake_command(clone / "chromium", "echo get it from the store >&2; exit 1")
    done = provide_browser(clone, RAM_STUDIO_BROWSER=str(stub))
    assert (done.returncode, done.stdout) == (1, "")
    assert str(stub) in done.stderr


def test_a_browser_on_the_path_is_printed(clone):
    browser = fake_command(clone / "chromium", "echo Chromium 150")
    done = provide_browser(clone, PATH=str(clone))
    assert (done.returncode, done.stdout) == (0, f"{browser}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="apt installs for root only")
def test_a_missing_browser_comes_from_debian_after_an_update(clone):
    chromium = clone / "chromium"
    fake_command(
        clone / "apt-get",
        f'echo "apt-get $*" >&2; test "$1" = update || '
        f"{{ echo '#!/bin/sh' > {chromium}; /bin/chmod +x {chromium}; }}",
    )
    done = provide_browser(clone, PATH=str(clone))
    assert (done.returncode, done.stdout) == (0, f"{chromium}\n")
    update, install = [line for line in done.stderr.splitlines() if line.startswith("apt-get")]
    assert update == "apt-get update"
    assert install.startswith("apt-get install --yes")
    assert " chromium" in install


@pytest.mark.slow
def test_no_browser_at_all_is_an_error_that_says_what_to_do(clone):
    fake_command(clone / "apt-get", "exit 100")
    done = provide_browser(clone, PATH=str(clone))
    assert (done.returncode, done.stdout) == (1, "")
    assert "make test RAM_STUDIO_BROWSER=/path/to/chrome" in done.stderr.splitlines()[-1]
