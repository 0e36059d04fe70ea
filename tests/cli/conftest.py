"""The command line as a user meets it, with the example to use it on."""

from __future__ import annotations

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
