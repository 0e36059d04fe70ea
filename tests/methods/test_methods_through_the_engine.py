"""Methods besides RAM's through the streaming engine: analyses, magnitudes, factors, settings."""

from __future__ import annotations

import numpy as np
import pytest
from random_zoo import write_zoo

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.methods import METHODS, Need, make_settings
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.engine.facts import find_facts
from ram_studio.engine.merge import merge
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.errors import AnalysisError

LARGE = {
    "model.embed_tokens.weight": (410, 500),
    "model.layers.0.mlp.up_proj.weight": (300, 300),
    "model.norm.weight": (500,),
}


@pytest.fixture(scope="module")
def large_zoo(tmp_path_factory):
    return write_zoo(tmp_path_factory.mktemp("large"), 5, shapes=LARGE, tied_twice=True)


@pytest.mark.parametrize("method", ["ties", "dare-ties"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_an_analysis_gives_the_same_bytes(method, scope, large_zoo, tmp_path) -> None:
    analysis = large_zoo.analyze(threads=2)
    save_analysis(analysis, tmp_path / "zoo.safetensors")
    analysis = load_analysis(tmp_path / "zoo.safetensors")
    recipe = large_zoo.recipe(method=method, settings={"scope": scope})
    with_pass = merge(recipe, tmp_path / "a")
    with_analysis = merge(recipe, tmp_path / "b", analysis=analysis)
    one, two = ((tmp_path / x / "model.safetensors").read_bytes() for x in "ab")
    assert one == two
    # The global threshold is in the analysis: one pass instead of two.
    ratio = with_analysis.bytes_read / with_pass.bytes_read
    assert ratio < 0.7 if scope == "global" else ratio == 1


def test_trimming_and_dropping_show_in_the_effective_factor(large_zoo, tmp_path) -> None:
    trimmed = merge(large_zoo.recipe(method="ties", dtype="float32"), tmp_path / "ties")
    assert trimmed.agents["memory"].scaling_factor == 1.0
    assert 0.05 < trimmed.agents["memory"].effective_scaling_factor < 0.99
    plain = merge(large_zoo.recipe(method="task-arithmetic"), tmp_path / "sum")
    for name, agent in trimmed.agents.items():
        assert agent.changed == plain.agents[name].changed
    settings = {"scale": 1.0, "drop_rate": 0.5}
    dropped = merge(large_zoo.recipe(method="dare-ta", settings=settings), tmp_path / "dare")
    assert dropped.agents["memory"].scaling_factor == 1.0
    assert dropped.agents["memory"].effective_scaling_factor == pytest.approx(1.0, abs=0.05)


def test_an_analysis_of_other_magnitudes_is_refused(tmp_path) -> None:
    zoo = write_zoo(tmp_path / "zoo", 6)
    analysis = zoo.analyze()
    analysis.magnitudes[:, 1900:] //= 2
    with pytest.raises(AnalysisError, match="counts differ"):
        merge(zoo.recipe(method="ties"), tmp_path / "out", analysis=analysis)
    assert not (tmp_path / "out").exists()


def test_every_setting_has_a_description_and_a_valid_default() -> None:
    for method in METHODS.values():
        settings = method.settings()
        assert method.settings.model_validate(settings.model_dump()) == settings
        for name, field in method.settings.model_fields.items():
            assert field.description, f"{method.name}: {name}"


@pytest.mark.parametrize("n_agents", [1, 3, 7])
def test_magnitudes_are_counted_for_any_number_of_agents(n_agents, tmp_path) -> None:
    names = tuple(f"agent{i}" for i in range(n_agents))
    zoo = write_zoo(tmp_path / "zoo", 3, agents=names)
    report = zoo.load()
    counted = report.counted
    x, ys = zoo.base, list(zoo.agents.values())

    def bins_of(device: str, scope: str) -> np.ndarray:
        needs, settings = frozenset({Need.MAGNITUDES}), make_settings("ties", {"scope": scope})
        run = RunOptions.of(device, threads=2)
        of_each = [settings] * len(report.merged)
        return find_facts(report, needs, of_each, 0, None, run).facts.magnitudes.bins

    per_tensor = bins_of("cpu", "tensor")
    for row, tensor in zip(per_tensor, counted, strict=True):
        for counts, y in zip(row, ys, strict=True):
            tau = (y[tensor.name].float() - x[tensor.name].float()).flatten().numpy()
            keys = epsilon_grid.key_of(tau)
            want = np.bincount(keys[keys >= 0], minlength=epsilon_grid.BIN_COUNT)
            np.testing.assert_array_equal(counts, want)
    np.testing.assert_array_equal(bins_of("cpu", "global")[0], per_tensor.sum(0))
    np.testing.assert_array_equal(bins_of("torch:2", "tensor"), per_tensor)
