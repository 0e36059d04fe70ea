"""The rounding meter's estimate before a merge against what the merge then stored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import reference
import torch
from engine_zoo import DTYPES, NAMES, Zoo, make_zoo, read_folder, values_of

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters import rounding_meter
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.meters.relation_preview import rounding_preview
from ram_studio.algorithm.meters.rounding_meter import curve_from_dict, estimate, stochastic_error
from ram_studio.algorithm.verdict import verdict
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.engine.analyze import analyze
from ram_studio.engine.in_memory import TensorSink
from ram_studio.engine.job import MergeJob, recipe_of
from ram_studio.engine.merge import merge
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.errors import SettingsError
from ram_studio.resources import asset_path

NAME = "model.layers.0.mlp.up_proj.weight"
FALSE_ALARM = 1e-9
FACTORS = (1.0, 1.05, 1.2, 1.25, 1.5, 2.0, 3.0)
EXACT = (1.0, 1.05, 1.2)
"""Factors at which neither one place nor two halves of one land half-way."""


def ulp_zoo(folder, dtype: str, reach: int, size: int = 3000, seed: int = 5) -> Zoo:
    """Three agents of the base's dtype that moved by 1 to ``reach`` last places, up to edges.

    Every binade's first and last numbers are among the base's, so that updates cross them; the
    agents share some elements.
    """
    rng = torch.Generator().manual_seed(seed)
    base = (torch.randn(size, generator=rng) * 0.05).to(DTYPES[dtype])
    integer = torch.int32 if dtype == "F32" else torch.int16
    powers = torch.tensor([2.0 ** (k % 9 - 13) for k in range(400)]).to(DTYPES[dtype])
    base[:400] = (powers.view(integer) + torch.arange(400).remainder(5).to(integer) - 2).view(
        DTYPES[dtype]
    )
    moved = {}
    for name in ("a", "b", "c"):
        changed = torch.rand(size, generator=rng) < 0.4
        sign = torch.randint(0, 2, (size,), generator=rng) * 2 - 1
        steps = torch.randint(1, reach + 1, (size,), generator=rng) * sign
        steps = torch.where(base.float().abs() < 1e-3, steps.abs(), steps)
        bits = base.view(integer) + (steps * changed).to(integer)
        moved[name] = {NAME: bits.view(DTYPES[dtype])}
    return Zoo.write(folder, {NAME: base}, moved)


def measured(
    report: CompatibilityReport, factor: float, epsilon: float, dtype: str, **changes: object
) -> list[float]:
    """Return the effective factors of a merge that asks for ``factor`` everywhere."""
    recipe = recipe_of(report, "ram+", {"epsilon": epsilon}, dtype=NAMES[dtype], **changes)
    job = MergeJob(report, recipe, RunOptions.of(threads=1))
    plan = job.plan()
    plan.prepared.factors[:] = factor
    return [found.effective_scaling_factor for found in job.run(plan, TensorSink({}, {})).values()]


@pytest.mark.parametrize(
    ("stored", "reach"),
    [("BF16", 1), ("BF16", 3), ("BF16", 200), ("F16", 1), ("F16", 200), ("F32", 1), ("F32", 200)],
)
def test_what_is_stored_lies_within_the_stated_bound(tmp_path, stored, reach):
    zoo = ulp_zoo(tmp_path, stored, reach)
    report, analysis = zoo.load(), zoo.analyze()
    widths = []
    for point in (0, DEFAULT_INDEX):
        for dtype in rounding_meter.DTYPES:
            for factor in FACTORS:
                found = measured(report, factor, EPSILON_GRID[point], dtype)
                for t, value in enumerate(found):
                    curve = analysis.steps.curve(t, point, dtype)
                    assert (curve is None) == (value is None)
                    if curve is None:
                        continue  # float32's last places are smaller than epsilon
                    expected = estimate(curve, factor)
                    assert expected.low - 1e-6 <= value <= expected.high + 1e-6
                    if dtype == stored and reach == 1 and factor in EXACT:
                        # One last place, and no half-way case: nothing is left to a bound.
                        assert value == pytest.approx(expected.value, abs=1e-6)
                    widths.append(expected.high - expected.low)
    assert min(widths) < 0.01


@pytest.mark.parametrize(
    ("base", "agents"),
    [("F32", ("BF16", "F32", "F16")), ("BF16", ("F32", "F16", "BF16")), ("F16", ("BF16",) * 3)],
)
def test_mixed_formats_lie_within_the_stated_bound(tmp_path, base, agents):
    zoo = make_zoo(tmp_path, len(agents), dtype=base, agent_dtypes=agents, seed=4)
    report, analysis = zoo.load(), zoo.analyze()
    for dtype in rounding_meter.DTYPES:
        for factor in (1.0, 1.2, 1.5):
            for t, value in enumerate(measured(report, factor, 0.0, dtype)):
                curve = analysis.steps.curve(t, 0, dtype)
                assert (curve is None) == (value is None)
                if curve is not None:
                    expected = estimate(curve, factor)
                    assert expected.low - 1e-6 <= value <= expected.high + 1e-6


@pytest.fixture(scope="module")
def one_place(tmp_path_factory) -> tuple[CompatibilityReport, Analysis]:
    """Agents that moved by one bfloat16 place, and their analysis."""
    zoo = ulp_zoo(tmp_path_factory.mktemp("one"), "BF16", 1, size=40_000)
    return zoo.load(), zoo.analyze()


def test_stochastic_rounding_keeps_a_fifth_of_one_ulp(one_place):
    report, analysis = one_place
    for t, value in enumerate(measured(report, 1.2, 0.0, "BF16", seed=3)):
        curve = analysis.steps.curve(t, 0, "BF16")
        # All but the few updates towards zero off a power of two, where places are half as large.
        assert estimate(curve, 1.2).value == pytest.approx(1.0, abs=0.02)
        assert value == pytest.approx(estimate(curve, 1.2).value, abs=1e-6)
        assert rounding_meter.lost_rescaling({"it": (1.2, value)})
    for t, value in enumerate(measured(report, 1.2, 0.0, "F32")):
        curve = analysis.steps.curve(t, 0, "F32")
        # A place of bfloat16 is 2**16 of float32's, and half of one of those may be lost.
        assert estimate(curve, 1.2).value == pytest.approx(1.2, abs=2.0**-17)
        assert value == pytest.approx(1.2, abs=2.0**-17)


def test_stochastic_rounding_keeps_lambda_in_its_stated_error(one_place):
    report, analysis = one_place
    # The effective factor is a sum of thousands of independent bounded terms; seeds are fixed, and
    # six of its standard errors are exceeded with probability 2e-9.
    for seed in range(3):
        found = measured(report, 1.2, 0.0, "BF16", rounding="stochastic", seed=seed)
        for t, value in enumerate(found):
            error = stochastic_error(analysis.steps.curve(t, 0, "BF16"), 1.2)
            assert error < 0.02
            assert abs(value - 1.2) < 6 * error + 2.0**-16


def test_stochastic_roundings_error_is_that_of_many_seeds(one_place):
    report, analysis = one_place
    found = np.array(
        [measured(report, 1.3, 0.0, "BF16", rounding="stochastic", seed=s) for s in range(24)]
    )
    stated = stochastic_error(analysis.steps.curve(0, 0, "BF16"), 1.3)
    spread = float(np.sqrt(np.mean((found[:, 0] - 1.3) ** 2)))
    # 24 (spread / stated)**2 is chi-squared with 24 degrees of freedom: outside (4.2, 80) with
    # probability below 1e-6 on either side.
    assert 4.2 < 24 * (spread / stated) ** 2 < 80


def test_the_curve_of_the_profile_is_the_estimate_in_few_digits(one_place):
    _, analysis = one_place
    profile = client_profile(analysis)
    json.dumps(profile, allow_nan=False)
    rounding = profile["rounding"]
    for t in range(2):
        for d, dtype in enumerate(rounding["dtypes"]):
            entry = rounding["agents"][t][d]
            for point in (0, DEFAULT_INDEX, 50):
                data = entry["curves"][entry["points"][point]]
                full = analysis.steps.curve(t, point, dtype)
                assert (data is None) == (full is None)
                if full is None:
                    continue
                short = estimate(curve_from_dict(data, dtype), 1.2)
                exact = estimate(full, 1.2)
                assert short.low <= exact.value <= short.high
                assert short.value == pytest.approx(exact.value, abs=1e-3)
            layer = rounding["layers"][0][t][d]
            whole = analysis.steps.curve(t, DEFAULT_INDEX, dtype)
            found = estimate(curve_from_dict(layer, dtype), 1.2)
            assert found.low <= estimate(whole, 1.2).value <= found.high


@pytest.mark.parametrize("name", ["shared-style", "independent", "dense"])
def test_what_is_stored_of_lambda_is_one_number(name):
    analysis = load_analysis(asset_path(name, "analysis.safetensors"))
    for r in (0.0025, 0.005, 0.01, 0.025):
        agents = analysis.preview(DEFAULT_INDEX, "ram+", r, 2.0)["agents"]
        factors = {agent: numbers["lambda"] for agent, numbers in agents.items()}
        told = rounding_preview(analysis, DEFAULT_INDEX, factors)["bfloat16"]
        said = verdict(analysis, DEFAULT_INDEX, "ram+", r, 2.0)
        for t, (agent, numbers) in enumerate(told.items()):
            nearest = numbers["nearest"]
            if f"{agent} 1." in said.text:
                assert f"{agent} {nearest:.3f} instead of" in said.text
            full = estimate(analysis.steps.curve(t, DEFAULT_INDEX, "BF16"), numbers["stochastic"])
            assert nearest == pytest.approx(full.value, abs=1e-4)


def test_the_meter_sees_what_the_files_hold(tmp_path):
    """The effective factor again, from nothing but the stored numbers."""
    zoo = ulp_zoo(tmp_path, "BF16", 1)
    recipe = zoo.recipe(method="ram+", settings={"epsilon": 0.0, "r": 0.1})
    result = merge(recipe, tmp_path / "out")
    analysis = zoo.analyze()
    base, agents = zoo.values(NAME)
    stored = values_of(read_folder(tmp_path / "out")[NAME])
    for t, agent in enumerate(result.agents.values()):
        again = reference.effective_scaling(base, agents, 0.0, t, stored)
        assert agent.effective_scaling_factor == pytest.approx(again, abs=1e-6)
        expected = estimate(analysis.steps.curve(t, 0, "BF16"), agent.scaling_factor)
        assert again == pytest.approx(expected.value, abs=1e-6)


def test_an_agent_that_changed_nothing_alone_has_no_curve(tmp_path):
    zoo = ulp_zoo(tmp_path, "BF16", 1)
    paths = zoo.agent_paths
    analysis = analyze(zoo.base_path, {"one": paths["a"], "same": paths["a"]})
    assert analysis.steps.curve(0, DEFAULT_INDEX, "BF16") is None
    assert analysis.steps.layer_curve(0, 0, "BF16") is None


@pytest.mark.parametrize("factor", [0.5, math.nan, math.inf])
def test_factors_that_no_rule_gives_are_refused(one_place, factor):
    curve = one_place[1].steps.curve(0, 0, "BF16")
    with pytest.raises(SettingsError, match="at least 1"):
        estimate(curve, factor)


@pytest.mark.parametrize(
    ("asked", "stored", "lost"), [(1.2, 1.17, True), (1.2, 1.19, False), (1.0, 0.99, False)]
)
def test_advice_is_given_when_a_tenth_of_the_rescaling_is_lost(asked, stored, lost):
    factors = {"coding": (asked, stored), "unknown": (asked, None), "none": (None, stored)}
    assert list(rounding_meter.lost_rescaling(factors)) == ["coding"] * lost
    text = rounding_meter.rounding_advice("bfloat16", factors)
    assert ("coding 1.170 instead of 1.200. " in text and "bfloat16" in text) is lost
    assert bool(text) is lost


def test_digits_tell_a_small_loss():
    """It read "1.000 instead of 1.000"."""
    text = rounding_meter.rounding_advice("bfloat16", {"coding": (1.0004, 1.0001)})
    assert "coding 1.0001 instead of 1.0004. " in text
