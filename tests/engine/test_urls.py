"""Sources at fsspec URLs: the same sketch and the same bytes as from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
from engine_zoo import Zoo, contents, make_zoo

from ram_studio.checkpoints.hub.open import open_checkpoint
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyse import analyze
from ram_studio.engine.merge import merge
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import make_plan
from ram_studio.engine.parts.steps import merge_part
from ram_studio.errors import CheckpointError, RamStudioError

CPU = {"device": "cpu", "threads": 1}


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch) -> Zoo:
    """A zoo in a folder, and the same under memory://zoo."""
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    made = make_zoo(tmp_path / "zoo", 2, shards=3, seed=8)
    memory = fsspec.filesystem("memory")
    memory.put(str(made.folder), "/zoo", recursive=True)
    yield made
    memory.rm("/zoo", recursive=True)


@pytest.mark.parametrize("scheme", ["memory://zoo", "file://{folder}"])
def test_sources_at_urls_are_those_of_a_folder(zoo, tmp_path, scheme):
    root = scheme.format(folder=zoo.folder)
    agents = {name: f"{root}/{name}" for name in zoo.agents}
    here, there = (
        analyze(zoo.base_path, zoo.agent_paths, **CPU),
        analyze(f"{root}/base", agents, **CPU),
    )
    assert there.fingerprints == here.fingerprints
    assert (there.counts.patterns == here.counts.patterns).all()
    recipe = make_recipe({"base": f"{root}/base", "agents": agents})
    merge(zoo.recipe(), tmp_path / "here", hash_sources=False, **CPU)
    merge(recipe, tmp_path / "there", hash_sources=False, **CPU)
    plan = make_plan(recipe, 2)
    for part in (1, 2):
        merge_part(plan, part, tmp_path / "parts", sketch=there, **CPU)
    finish(plan, tmp_path / "parts", **CPU)
    told = {"README.md", "ram_studio.json"}  # they name the sources
    found = [contents(tmp_path / name) for name in ("here", "there", "parts")]
    first, *others = [{k: v for k, v in files.items() if k not in told} for files in found]
    assert others == [first, first]
    record = json.loads(found[1]["ram_studio.json"])["base"]
    assert record["source"] == f"{root}/base"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("memory://nowhere", "cannot be read"),
        ("nosuchscheme://bucket/model", "cannot be read: .*nosuchscheme"),
        ("memory://zoo", "no safetensors"),
    ],
)
def test_what_is_not_there_is_told(zoo, source, words):
    with pytest.raises(CheckpointError, match=rf'^Agent "tool": .*{words}'):
        open_checkpoint(source, name="tool")


def test_strangers_may_not_name_urls(zoo):
    with pytest.raises(RamStudioError):
        open_checkpoint("memory://zoo/base", name="base", local_ok=False)
