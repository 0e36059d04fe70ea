"""Fisher merging: its mean, its files, and the estimate from real gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_zoo import EMBEDDING, HEAD, read_folder, write_fisher_files
from hypothesis import given, settings
from hypothesis import strategies as st
from random_zoo import AGENTS, random_elements, write_zoo
from safetensors.torch import load_file, save_file

from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, make_settings
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.header import read_header
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.fisher_files import fisher_path
from ram_studio.errors import CheckpointError, SettingsError
from ram_studio.resources import asset_path


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_agents=st.integers(1, 3),
    scale=st.sampled_from([1.0, 0.3]),
    bfloat16=st.booleans(),
)
def test_every_element_is_the_weighted_mean(seed, n_agents, scale, bfloat16) -> None:
    base, agents = random_elements(seed, 60, n_agents, bfloat16)
    rng = np.random.default_rng(seed)
    fisher = (rng.random(agents.shape) ** 8 * (rng.random(agents.shape) < 0.6)).astype(np.float32)
    rule = METHODS["fisher"].prepare(
        make_settings("fisher", {"scale": scale}), Facts(AGENTS[:n_agents], 0, ("w",))
    )
    x, y, f = (torch.from_numpy(a) for a in (base, agents, fisher))
    merged = METHODS["fisher"].merge(BlockInput(x, y, 0, "w", 0, (60,), f), rule)
    got, own = merged.values, sum(merged.own(t) for t in range(n_agents))
    torch.testing.assert_close(own, got - x.double(), rtol=1e-9, atol=1e-13)
    for i in range(60):
        taus = [float(agent[i]) - float(base[i]) for agent in agents]
        weights = [float(row[i]) for row in fisher]
        if not sum(weights):
            weights = [1.0] * n_agents
        mean = sum(w * t for w, t in zip(weights, taus, strict=True)) / sum(weights)
        assert got[i].item() == pytest.approx(float(base[i]) + scale * mean, rel=1e-12, abs=1e-15)


def test_files_weigh_the_merge_whatever_the_blocks_and_threads(tmp_path) -> None:
    shapes = {"model.embed_tokens.weight": (500, 300), "model.norm.weight": (300,)}
    zoo = write_zoo(tmp_path / "zoo", 1, shapes=shapes, tied_twice=True)
    folder = write_fisher_files(zoo, tmp_path / "fisher", aliases={HEAD: EMBEDDING})
    files = [load_file(fisher_path(folder, name)) for name in zoo.agents]
    recipe = zoo.recipe(method="fisher", settings={"files": str(folder)}, dtype="float32")
    merge(recipe, tmp_path / "a", threads=1)
    merge(recipe, tmp_path / "b", threads=3, block_elements=1 << 16)
    stored, again = read_folder(tmp_path / "a"), read_folder(tmp_path / "b")
    for name in shapes:
        x = zoo.base[name].double()
        taus = torch.stack([y[name].double() - x for y in zoo.agents.values()])
        weights = torch.stack([f[name].double() for f in files])
        want = x + (weights * taus).sum(0) / weights.sum(0)
        torch.testing.assert_close(stored[name].double(), want, rtol=2**-23, atol=1e-12)
        assert torch.equal(stored[name], again[name])
    assert torch.equal(stored[HEAD], stored[EMBEDDING])


def damage(folder: Path, agent: str, change) -> None:
    path = fisher_path(folder, agent)
    tensors, metadata = load_file(path), read_header(path).metadata
    change(tensors, metadata)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda t, m: m.update(fingerprint="0" * 64), SettingsError, "another model"),
        (lambda t, m: m.update(format="x"), CheckpointError, "not a Fisher file"),
        (lambda t, m: m.update(aliases="{"), CheckpointError, "not valid JSON"),
        (lambda t, m: m.update(aliases="[1]"), CheckpointError, "expected a JSON object"),
        (lambda t, m: t.pop("model.norm.weight"), CheckpointError, "is missing"),
        (
            lambda t, m: t.update({"model.norm.weight": torch.ones(7)}),
            CheckpointError,
            r"is F32 \(7,\)",
        ),
        (lambda t, m: t["model.norm.weight"].neg_(), CheckpointError, "negative"),
    ],
)
def test_wrong_files_are_refused(change, error, said, tmp_path) -> None:
    zoo = write_zoo(tmp_path / "zoo", 2)
    folder = write_fisher_files(zoo, tmp_path / "fisher")
    damage(folder, "tool", change)
    with pytest.raises(error, match=said):
        merge(zoo.recipe(method="fisher", settings={"files": str(folder)}), tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"zoo", "fisher"}


def test_missing_files_are_named(tmp_path) -> None:
    zoo, none = write_zoo(tmp_path / "zoo", 2), {"files": str(tmp_path / "none")}
    with pytest.raises(SettingsError, match="no folder of them was given"):
        merge(zoo.recipe(method="fisher"), tmp_path / "out")
    with pytest.raises(SettingsError, match=r"expected .*coding\.safetensors"):
        merge(zoo.recipe(method="fisher", settings=none), tmp_path / "out")


def test_the_estimate_is_the_mean_squared_gradient(tmp_path) -> None:
    from ram_studio.evals import fisher
    from ram_studio.evals.answering.load import load_model

    source = asset_path("independent") / "coding"
    prompts = fisher.training_prompts(2, seed=5)
    assert len(set(prompts)) == 2
    agent = open_checkpoint(source, name="coding")
    out = fisher.estimate_fisher(agent, tmp_path / "f.safetensors", prompts, seed=5)
    again = fisher.estimate_fisher(agent, tmp_path / "g.safetensors", prompts, seed=5)
    found = load_file(out)
    model, tokenizer = load_model(source, "cpu")
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    for prompt, answer in fisher._sample(model, tokenizer, encoded, 5, None):
        assert answer
        ids = torch.tensor([prompt + answer])
        labels = ids.clone()
        labels[0, : len(prompt)] = -100
        model.zero_grad()
        # The library's own loss is the mean over the answer's tokens.
        (model(input_ids=ids, labels=labels).loss * len(answer)).backward()
        for name, parameter in model.named_parameters():
            totals[name] += parameter.grad**2 / len(prompts)
    for name, want in totals.items():
        torch.testing.assert_close(found[name], want, rtol=1e-3, atol=1e-9)
        assert torch.equal(found[name], load_file(again)[name])


def test_files_are_estimated_once_and_reproduce_the_merge(tmp_path) -> None:
    from ram_studio.evals.fisher import with_fisher_files

    example = asset_path("independent")
    agents = {name: str(example / name) for name in ("coding", "tool")}
    how = {"method": "fisher", "settings": {"examples": 2}}
    recipe = make_recipe({"base": str(example / "base"), "agents": agents, **how})
    ready = with_fisher_files(recipe, tmp_path / "fisher")
    assert ready.settings["files"] == str(tmp_path / "fisher")
    times = [p.stat().st_mtime_ns for p in sorted((tmp_path / "fisher").iterdir())]
    assert len(times) == 2
    assert with_fisher_files(recipe, tmp_path / "fisher") == ready
    assert times == [p.stat().st_mtime_ns for p in sorted((tmp_path / "fisher").iterdir())]
    result = merge(ready, tmp_path / "out")
    assert result.agents["coding"].changed > 0
