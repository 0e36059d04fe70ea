"""A wheel built from this clone: what it carries, and that it works where nothing else is.

It is installed and started as the Dockerfile says (conftest.py). The last test is the slow, honest
way: an empty environment, everything from the package index. It runs only where it is asked for:

    RAM_STUDIO_FULL_INSTALL=1 make test-all PYTEST_ARGS='tests/packaging/test_wheel.py'
"""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import pytest
from app_process import running_app
from gradio_client import Client
from installation import OUTSIDE, Installation, run
from test_space import ROOT

from ram_studio import __version__
from ram_studio.resources import asset_path

pytestmark = pytest.mark.slow

MAX_ASSET_BYTES = 20_000_000


@pytest.fixture(scope="module")
def contents(wheel: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel) as archive:
        yield archive


def test_every_module_and_asset_is_inside_and_nothing_else(contents):
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "ram_studio").rglob("*"))
        if path.suffix
        in {".py", ".typed", ".json", ".jsonl", ".txt", ".j2"}  # records and items too
    }
    files = [path for path in (ROOT / "assets").rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    assert total <= MAX_ASSET_BYTES, f"assets/ holds {total} bytes, more than {MAX_ASSET_BYTES}"
    assets = {f"ram_studio/{path.relative_to(ROOT).as_posix()}": path for path in files}
    inside = {name for name in contents.namelist() if not name.startswith(_info(contents))}
    assert inside == modules | set(assets)
    for name, path in assets.items():
        assert contents.read(name) == path.read_bytes(), name


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_a_clone_builds_a_whole_source_archive_and_wheel(tmp_path):
    """The archive holds every file of the clone; a wheel built from it names the commit."""
    run("git", "clone", "--quiet", ROOT, tmp_path / "clone", cwd=tmp_path)
    head = run("git", "rev-parse", "HEAD", cwd=tmp_path / "clone").strip()
    tracked = set(run("git", "ls-files", cwd=tmp_path / "clone").splitlines())
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist")
    run(*build, cwd=tmp_path / "clone")  # a source archive, and a wheel of what is in it
    wheel, source = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix != ".whl")
    with tarfile.open(source) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames()}
    assert inside - tracked == {"PKG-INFO", "ram_studio/_commit.txt"}
    assert tracked - inside == set()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("ram_studio/_commit.txt").decode() == f"{head[:12]}\n"


def test_metadata_names_version_license_and_command(contents):
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


def test_the_command_and_the_module_say_their_version(image):
    for command in ((image.command,), (image.python, "-m", "ram_studio")):
        answer = run(*command, "--version", cwd=image.work)
        assert answer.strip() == f"ram-studio {__version__}"


def test_the_page_carries_its_script_and_style(address):
    with urllib.request.urlopen(address, timeout=30) as answer:
        page = answer.read().decode()
    assert "window.RAM" in page
    style = asset_path("app.css").read_text(encoding="utf-8")
    selectors = set(re.findall(r"^(#[\w-]+|\.[\w-]+) \{", style, flags=re.MULTILINE))
    assert len(selectors) > 5
    assert not [selector for selector in selectors if selector not in page]


def test_the_example_can_be_tuned_and_merged(address, image):
    client = Client(address, verbose=False)
    try:
        preview = client.predict("shared-style", api_name="/preview")
        assert list(preview["agents"]) == ["coding", "tool", "memory"]
        for numbers in preview["agents"].values():
            assert numbers["unique"] + numbers["shared"] == numbers["active"] > 0
            assert numbers["lambda"] >= 1.0

        merged = client.predict("shared-style", "ram+", api_name="/merge")
    finally:
        client.close()
    # Merges are kept out of the package.
    (provenance,) = image.work.parent.glob("ram-studio*/app-*/*/merges/*/ram_studio.json")
    assert __version__ in json.dumps(json.loads(provenance.read_text(encoding="utf-8")))
    for name, numbers in merged["agents"].items():
        assert numbers["lambda"] == pytest.approx(preview["agents"][name]["lambda"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    os.environ.get("RAM_STUDIO_FULL_INSTALL") != "1",
    reason="downloads all dependencies; set RAM_STUDIO_FULL_INSTALL=1",
)
def test_the_wheel_alone_brings_everything_the_app_needs(wheel, tmp_path):
    found = Installation(tmp_path)
    found.make()
    constraints = ROOT / "constraints.txt"
    pip = (found.python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
    run(*pip, wheel, cwd=found.work, timeout=1500)
    run(found.python, "-m", "pip", "check", cwd=found.work)
    with running_app([found.command, "app"], found.work, OUTSIDE) as address:
        assert address.startswith("http://127.0.0.1:")
