"""A wheel built from this clone: what it carries, and that it works where nothing else is.

Installing the dependencies again would take minutes and prove nothing about the wheel. So its
environment borrows them: its only package of its own is ram_studio, and one path file adds the
site-packages folder that runs the tests. Path files inside that folder (an editable install puts
one there) are not followed from there, so the clone cannot stand in for the wheel; the fixture
checks where the package came from all the same. The last test is the slow, honest way: an empty
environment, everything from the package index. It runs only where it is asked for:

    RAM_STUDIO_FULL_INSTALL=1 make test PYTEST_ARGS='tests/packaging/test_wheel.py'
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from app_process import running_app
from gradio_client import Client

from ram_studio import __version__
from ram_studio.resources import asset_path

ROOT = Path(__file__).resolve().parents[2]
MAX_ASSET_BYTES = 20_000_000
# Without what would let a child import the clone.
HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
OUTSIDE = {name: value for name, value in os.environ.items() if name not in HIDDEN}


def run(*command: str | Path, cwd: Path, timeout: float = 120) -> str:
    """Run a command away from the clone, so that only an installed package is met."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=OUTSIDE,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Installation:
    """A virtual environment with ram_studio from the wheel, and a folder to work in."""

    place: Path

    @property
    def work(self) -> Path:
        return self.place / "work"

    @property
    def environment(self) -> Path:
        return self.place / "venv"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def command(self) -> Path:
        return self.environment / "bin" / "ram-studio"

    def make(self, *options: str) -> None:
        self.work.mkdir()
        run(sys.executable, "-m", "venv", *options, self.environment, cwd=self.work)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a wheel built from this clone with the build backend installed here."""
    out = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out)
    run(*build, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def contents(wheel: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel) as archive:
        yield archive


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel, installed where nothing else of this project can be imported."""
    found = Installation(tmp_path_factory.mktemp("installed"))
    found.make("--without-pip")
    pip = (sys.executable, "-m", "pip", "--python", found.python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=found.work)
    (site,) = found.environment.glob("lib/python*/site-packages")
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    where = "import ram_studio, sys; print(ram_studio.__file__)"
    origin = run(found.python, "-c", where, cwd=found.work).strip()
    assert Path(origin).is_relative_to(site), f"the package comes from {origin}, not the wheel"
    return found


@pytest.fixture(scope="module")
def address(installation: Installation) -> Iterator[str]:
    """Where the installed app answers; it must be gone once it was asked to stop."""
    command = [installation.command, "app"]
    with running_app(command, installation.work, OUTSIDE, signal.SIGINT) as found:
        yield found
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", urlsplit(found).port), timeout=5)


def test_every_module_and_asset_is_inside_and_nothing_else(contents: zipfile.ZipFile) -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "ram_studio").rglob("*"))
        if path.suffix in {".py", ".typed", ".jsonl", ".txt", ".j2"}  # code, items, templates
    }
    files = [path for path in (ROOT / "assets").rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    assert total <= MAX_ASSET_BYTES, f"assets/ holds {total} bytes, more than {MAX_ASSET_BYTES}"
    assets = {
        f"ram_studio/{path.relative_to(ROOT).as_posix()}": path
        for path in files
        if path.relative_to(ROOT / "assets").parts[0] != "screenshots"
    }
    inside = {name for name in contents.namelist() if not name.startswith(_info(contents))}
    assert inside == modules | set(assets)
    for name, path in assets.items():
        assert contents.read(name) == path.read_bytes(), name


def test_metadata_names_version_licence_and_command(contents: zipfile.ZipFile) -> None:
    info = _info(contents)
    metadata = HeaderParser().parsestr(contents.read(f"{info}METADATA").decode())
    assert metadata["Name"] == "ram-studio"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert contents.read(f"{info}licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "ram-studio = ram_studio.cli:main" in contents.read(f"{info}entry_points.txt").decode()


def _info(contents: zipfile.ZipFile) -> str:
    return next(n for n in contents.namelist() if n.endswith("/METADATA")).removesuffix("METADATA")


def test_the_command_and_the_module_say_their_version(installation: Installation) -> None:
    for command in ((installation.command,), (installation.python, "-m", "ram_studio")):
        answer = run(*command, "--version", cwd=installation.work)
        assert answer.strip() == f"ram-studio {__version__}"


def test_the_page_carries_its_script_and_style(address: str) -> None:
    with urllib.request.urlopen(address, timeout=30) as answer:
        page = answer.read().decode()
    assert "window.RAM" in page
    style = asset_path("app.css").read_text(encoding="utf-8")
    selectors = set(re.findall(r"^(#[\w-]+|\.[\w-]+) \{", style, flags=re.MULTILINE))
    assert len(selectors) > 5
    assert not [selector for selector in selectors if selector not in page]


def test_the_example_can_be_tuned_and_merged(address: str, installation: Installation) -> None:
    client = Client(address, verbose=False)
    try:
        preview = client.predict("example", api_name="/preview")
        assert list(preview["agents"]) == ["coding", "tool", "memory"]
        for numbers in preview["agents"].values():
            assert numbers["unique"] + numbers["shared"] == numbers["active"] > 0
            assert numbers["lambda"] >= 1.0

        merged = client.predict("example", "ram+", api_name="/merge")
    finally:
        client.close()
    out = Path(merged["out"])
    assert not out.is_relative_to(installation.environment), "merges are kept out of the package"
    passport = json.loads((out / "ram_studio.json").read_text(encoding="utf-8"))
    assert __version__ in json.dumps(passport)
    for name, numbers in merged["agents"].items():
        assert numbers["lambda"] == pytest.approx(preview["agents"][name]["lambda"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    os.environ.get("RAM_STUDIO_FULL_INSTALL") != "1",
    reason="downloads all dependencies; set RAM_STUDIO_FULL_INSTALL=1",
)
def test_the_wheel_alone_brings_everything_the_app_needs(wheel: Path, tmp_path: Path) -> None:
    found = Installation(tmp_path)
    found.make()
    constraints = ROOT / "constraints.txt"
    pip = (found.python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
    run(*pip, wheel, cwd=found.work, timeout=1500)
    run(found.python, "-m", "pip", "check", cwd=found.work)
    with running_app([found.command, "app"], found.work, OUTSIDE) as address:
        assert address.startswith("http://127.0.0.1:")
