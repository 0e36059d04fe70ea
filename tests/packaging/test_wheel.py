"""What the wheel carries: all of the package, all of assets/, the licence, and nothing else."""

from __future__ import annotations

import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from ram_studio import __version__

ROOT = Path(__file__).resolve().parents[2]
MAX_ASSET_BYTES = 20_000_000


@pytest.fixture(scope="module")
def contents(wheel: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(wheel) as archive:
        yield archive


def shipped_assets() -> list[Path]:
    return [
        path
        for path in sorted((ROOT / "assets").rglob("*"))
        if path.is_file() and path.relative_to(ROOT / "assets").parts[0] != "screenshots"
    ]


def test_every_module_and_asset_is_inside_and_nothing_else(contents: zipfile.ZipFile) -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "ram_studio").rglob("*"))
        if path.suffix in {".py", ".typed", ".jsonl", ".txt", ".j2"}  # code, items, templates
    }
    assets = {f"ram_studio/{path.relative_to(ROOT).as_posix()}" for path in shipped_assets()}
    inside = {name for name in contents.namelist() if not name.startswith(_info(contents))}
    assert inside == modules | assets


def test_assets_are_the_same_bytes(contents: zipfile.ZipFile) -> None:
    for path in shipped_assets():
        name = f"ram_studio/{path.relative_to(ROOT).as_posix()}"
        assert contents.read(name) == path.read_bytes(), name


@pytest.mark.parametrize(
    "name",
    [
        "app.css",
        "live.js",
        "example/sketch.safetensors",
        "example/base/model.safetensors",
        "example/base/tokenizer.json",
        "example/coding/model.safetensors",
        "example/tool/model.safetensors",
        "example/memory/model.safetensors",
        "dense/sketch.safetensors",
    ],
)
def test_what_the_app_opens_with_is_inside(contents: zipfile.ZipFile, name: str) -> None:
    assert f"ram_studio/assets/{name}" in contents.namelist()


def test_assets_stay_small() -> None:
    total = sum(path.stat().st_size for path in (ROOT / "assets").rglob("*") if path.is_file())
    assert total <= MAX_ASSET_BYTES, f"assets/ holds {total} bytes, more than {MAX_ASSET_BYTES}"


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
