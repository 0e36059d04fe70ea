"""A real update too small for epsilon, stored in bfloat16: every door tells it."""

from __future__ import annotations

import json
import re

import pytest
import torch
from engine_zoo import Zoo, model_options, run_command, write_folder

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.verdict import verdict
from ram_studio.checkpoints.record.provenance import read_provenance
from ram_studio.engine.analyze import load
from ram_studio.engine.merge import merge
from ram_studio.engine.reading import sampling
from ram_studio.engine.reading.sampling import sample_changes

UP = "model.layers.0.mlp.up_proj.weight"
SHAPE = (1024, 1100)
"""More elements than a sample reads."""

SAID = r"Epsilon 1e-5 leaves nothing of code: it changed (about )?\d\d,\d{3} weights \(\d\.\d %\)"
USE = r"\. Use epsilon 0\.$"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """A base, an agent trained at lr 1e-6 and one that moved far, all stored in bfloat16.

    The first has a float32 master, each weight of which two steps of Adam move by lr. Storing it
    rounds most of that away: only weights near 0 change, by a last place.
    """
    rng = torch.Generator().manual_seed(1)
    base = (torch.randn(SHAPE, generator=rng) * 0.02).bfloat16()
    direction = torch.randint(0, 2, SHAPE, generator=rng) * 2 - 1
    master = base.float()
    for _ in range(2):
        master -= 1e-6 * direction
    far = base.clone()
    far[:10] *= 1.5
    agents = {"code": {UP: master.bfloat16()}, "tool": {UP: far}}
    return Zoo.write(tmp_path_factory.mktemp("tiny"), {UP: base}, agents)


def test_analysis_verdict_and_profile_tell_it(zoo):
    analysis = zoo.analyze(device="cpu", threads=1)
    changed = analysis.model.active[0, 0, 0] / analysis.total
    assert 0.02 < changed < 0.05
    found = verdict(analysis)
    assert found.key == "lost-to-epsilon"
    assert re.fullmatch(SAID + r" by at most 3\.84e-6" + USE, found.text)
    assert f"{analysis.model.active[0, 0, 0]:,} weights" in found.text
    assert [w for w in analysis.warnings if "code" in w] == [found.text]
    profile = client_profile(analysis)
    assert found.text in profile["warnings"]
    assert profile["lost"][DEFAULT_INDEX] == found.text
    assert profile["lost"][0] is None
    bare = zoo.analyze(relations=False, device="cpu", threads=1)
    assert found.text in bare.warnings


def test_merge_and_its_provenance_tell_it(zoo, tmp_path):
    merge(zoo.recipe(method="ram+"), tmp_path / "out", device="cpu", threads=1)
    (text,) = read_provenance(tmp_path / "out").warnings
    assert re.fullmatch(SAID + " by at most 1e-5" + USE, text)
    assert text in (tmp_path / "out" / "README.md").read_text()
    recipe = zoo.recipe(method="ram+", settings={"epsilon": 0.0})
    whole = merge(recipe, tmp_path / "whole", device="cpu", threads=1)
    assert whole.provenance.warnings == ()


def test_commands_tell_it(zoo, tmp_path):
    models = model_options(zoo.recipe())
    found = json.loads(run_command("inspect", *models, "--json"))
    assert 0.02 < found["sampled"]["code"] < 0.05
    (told,) = [f for f in found["storage"]["findings"] if f["kind"] == "lost-to-epsilon"]
    assert (told["agents"], told["level"]) == (["code"], "warn")
    assert re.fullmatch(SAID + USE, told["text"])
    file = tmp_path / "analysis"
    assert re.search(SAID, run_command("analyze", *models, "--analysis", file, "--device=cpu"))
    assert re.search(SAID, run_command("preview", file))
    lost = json.loads(run_command("preview", file, "--json"))["lost_to_epsilon"]
    assert lost["agents"] == ["code"]
    assert re.match(SAID, lost["text"])
    exact = json.loads(run_command("preview", file, "--epsilon=0", "--json"))
    assert exact["lost_to_epsilon"] is None


def test_a_sample_tells_small_changes_from_another_base(zoo):
    found = sample_changes(zoo.load())["code"]
    assert 0.02 < found.changed < 0.05
    assert (found.above, found.energy_above) == (0.0, 0.0)


def test_a_sample_of_many_tensors_reads_no_more(tmp_path, monkeypatch):
    """Each third matrix differs, as the same one of each expert would."""
    tensors = {f"model.layers.{n}.w": torch.zeros(800) for n in range(2400)}
    changed = {n: t + (i % 3 == 0) for i, (n, t) in enumerate(tensors.items())}
    base = write_folder(tmp_path / "base", tensors)
    report = load(base, {"a": write_folder(tmp_path / "a", changed)})
    pages: list[str] = []
    read = sampling._sum_page
    monkeypatch.setattr(sampling, "_sum_page", lambda *page: pages.append(page[1]) or read(*page))
    found = sample_changes(report)["a"]
    assert len(pages) == sampling.MOST_TENSORS
    assert found.changed == pytest.approx(1 / 3, abs=0.05)
