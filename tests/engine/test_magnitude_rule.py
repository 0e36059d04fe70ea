"""Rule ram+m: rho by magnitude, from an analysis, a pass of its own, and in verification."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import reference
from engine_zoo import Zoo, make_zoo, weights_in

from ram_studio.algorithm import naming
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.engine.merge import merge
from ram_studio.errors import AnalysisError


def magnitude_ratio(zoo: Zoo, agent: int, epsilon: float, tensors: list[str]) -> float:
    """Return sum of shared |tau| / sum of unique |tau|, element by element."""
    unique = shared = 0.0
    for name in tensors:
        base, agents = zoo.values(name)
        for i, mask in enumerate(reference.patterns(base, agents, epsilon)):
            if mask >> agent & 1:
                size = abs(reference.tau(base[i], agents[agent][i]))
                unique, shared = (
                    (unique + size, shared) if mask == 1 << agent else (unique, shared + size)
                )
    return shared / unique if unique else math.inf if shared else 0.0


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 3, seed=21)


def merged(zoo: Zoo, out, *, analysis=None, **settings: object):
    values = {"r": 0.3, "alpha": 1e6, **settings}
    return merge(
        zoo.recipe(method="ram+m", settings=values, dtype="float32"), out, analysis=analysis
    )


@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 1.234e-4])
def test_lambda_is_that_of_a_plain_loop(zoo, tmp_path, epsilon):
    result = merged(zoo, tmp_path / "out", epsilon=epsilon)
    for t, agent in enumerate(result.agents.values()):
        rho_m = magnitude_ratio(zoo, t, epsilon, list(zoo.counted))
        assert agent.rho_m == pytest.approx(rho_m, rel=1e-6)
        assert agent.scaling_factor == pytest.approx(1 + 0.3 * rho_m, rel=1e-6)
        # The count is still what is told as rho.
        assert agent.rho == pytest.approx(zoo.ratios(epsilon)[t], rel=1e-12)


@pytest.mark.parametrize("scope", ["layer", "tensor"])
def test_scopes_weigh_inside_each_layer_or_tensor(zoo, scope):
    analysis = zoo.analyze()
    magnitude = analysis.relations.magnitude[:, DEFAULT_INDEX]
    ratios = analysis.ratios(DEFAULT_INDEX, scope, magnitude=magnitude)
    for row, tensor in zip(ratios, analysis.tensors, strict=True):
        same = [
            name
            for name in zoo.counted
            if name == tensor.name or (scope == "layer" and naming.layer_of(name) == tensor.layer)
        ]
        for t in range(3):
            expected = magnitude_ratio(zoo, t, 1e-5, same)
            assert row[t] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("scope", ["global", "layer", "tensor"])
def test_an_analysis_gives_the_same_bytes_as_a_pass_of_its_own(zoo, tmp_path, scope):
    analysis = zoo.analyze()
    path = save_analysis(analysis, tmp_path / "a.analysis")
    with_analysis = merged(zoo, tmp_path / "one", analysis=load_analysis(path), scope=scope)
    without = merged(zoo, tmp_path / "two", scope=scope)
    assert with_analysis.agents == without.agents
    assert weights_in(tmp_path / "one") == weights_in(tmp_path / "two")
    assert with_analysis.bytes_read < without.bytes_read
    # Counts alone do not save the pass, and the result is the same.
    lean = dataclasses.replace(analysis, relations=None, steps=None)
    merged(zoo, tmp_path / "three", analysis=lean, scope=scope)
    assert weights_in(tmp_path / "three") == weights_in(tmp_path / "one")


def test_seven_agents_are_weighed_too(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 7, seed=6)
    result = merge(zoo.recipe(method="ram+m"), tmp_path / "out")
    for t, agent in enumerate(result.agents.values()):
        expected = magnitude_ratio(zoo, t, 1e-5, list(zoo.counted))
        assert agent.rho_m == pytest.approx(expected, rel=1e-6)


def test_an_analysis_of_counts_says_what_is_missing(zoo):
    analysis = zoo.analyze(relations=False)
    assert (analysis.relations, analysis.steps) == (None, None)
    agents = analysis.preview()["agents"].values()
    assert all("rho_m" not in agent for agent in agents)
    with pytest.raises(AnalysisError, match=r"counts only.*ram\+m.*analyze"):
        analysis.preview(rule="ram+m")


def test_previews_show_both_ratios_and_scale_by_the_rules_own(zoo):
    analysis = zoo.analyze()
    for by in ("model", "layer", "tensor"):
        preview = analysis.preview(rule="ram+m", r=0.5, alpha=3.0, by=by)
        json.dumps(preview, allow_nan=False)
        for found in (preview, *preview.get("groups", {}).values()):
            for agent in found["agents"].values():
                rho_m = math.inf if agent["rho_m"] is None else agent["rho_m"]
                assert agent["lambda"] == 1 + 0.5 * min(rho_m, 3.0)
