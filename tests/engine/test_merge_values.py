"""Merged folders against the equations, element by element."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import reference
import torch
from engine_zoo import (
    COPIED,
    DTYPES,
    EMBEDDING,
    HEAD,
    NAMES,
    ODD,
    SHAPES,
    Tensors,
    Zoo,
    bits_of,
    make_odd_zoo,
    make_zoo,
    read_folder,
    refused,
    values_of,
    write_folder,
)

from ram_studio.checkpoints.record.provenance import read_provenance
from ram_studio.engine.merge import merge
from ram_studio.engine.passes.plan import Plan
from ram_studio.engine.result import MergeResult
from ram_studio.errors import SettingsError


def merge_zoo(zoo: Zoo, out: Path, **changes: object) -> tuple[MergeResult, Tensors]:
    result = merge(zoo.recipe(**changes), out)
    return result, read_folder(out)


def assert_merged_like_reference(
    zoo: Zoo,
    merged: Tensors,
    factors: list[float] | dict[str, list[float]],
    *,
    epsilon: float = 1e-5,
    shared: str = "mean",
    rounding: str = "nearest",
) -> None:
    """Compare every element with the exact result: one rounding of the output's dtype away."""
    assert list(merged) == list(zoo.base) or set(merged) == set(zoo.base)
    for name in zoo.counted:
        got = merged[name]
        dtype = next(d for d, t in DTYPES.items() if t == got.dtype)
        assert got.shape == zoo.base[name].shape
        base, agents = zoo.values(name)
        lambdas = factors[name] if isinstance(factors, dict) else factors
        for i, stored in enumerate(values_of(got)):
            ys = [agent[i] for agent in agents]
            exact = reference.merged_exactly(base[i], ys, epsilon, lambdas, shared)
            # Float64 arithmetic, and float32 on the way to bfloat16, come to far below 1/64 step.
            step = reference.spacing(exact, dtype)
            allowed = step * Fraction(33, 64) if rounding == "nearest" else step * Fraction(65, 64)
            assert abs(Fraction(stored) - exact) <= allowed, (name, i)


def assert_unchanged_is_the_base(zoo: Zoo, merged: Tensors, epsilon: float = 1e-5) -> None:
    for name in zoo.counted:
        base, agents = zoo.values(name)
        masks = torch.tensor(reference.patterns(base, agents, epsilon))
        still = masks == 0
        got, origin = merged[name].flatten(), zoo.base[name].flatten()
        if got.dtype == origin.dtype:
            assert torch.equal(bits_of(got)[still], bits_of(origin)[still])
        else:
            expected = origin.to(got.dtype)
            assert torch.equal(bits_of(got)[still], bits_of(expected)[still])


ZOOS = {
    **{dtype: {"dtype": dtype, "shards": 2} for dtype in DTYPES},
    "one agent": {"agents": 1},
    "seven agents": {"agents": 7},
    "mixed beside BF16": {"agent_dtypes": ("F32", "F16", "BF16")},
    "mixed beside F16": {"dtype": "F16", "agent_dtypes": ("F32", "F16", "BF16")},
}
# By default the base's dtype is written. Of other numbers of agents nothing else is compiled.
OUTPUTS = [
    (name, None if output == of.get("dtype", "BF16") else output)
    for name, of in ZOOS.items()
    for output in (("BF16",) if "agents" in of else DTYPES)
]


@pytest.fixture(scope="module")
def zoo_named(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Zoo]:
    folder = tmp_path_factory.mktemp("any")
    return cache(lambda name: make_zoo(folder / name, **{"agents": 3, "seed": 1, **ZOOS[name]}))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_ram_plus_is_the_equation_to_one_rounding(zoo_named, tmp_path, name, output, rounding):
    any_zoo = zoo_named(name)
    dtype = next(iter(any_zoo.base.values())).dtype
    result, merged = merge_zoo(
        any_zoo, tmp_path / "out", dtype=output and NAMES[output], rounding=rounding, seed=5
    )
    assert {merged[n].dtype for n in any_zoo.counted} == {DTYPES[output] if output else dtype}
    assert_merged_like_reference(any_zoo, merged, any_zoo.factors(), rounding=rounding)
    assert_unchanged_is_the_base(any_zoo, merged)
    for name, tensor in COPIED.items():
        assert torch.equal(merged[name], tensor)
    assert_results_are_recomputable(any_zoo, result, merged)


def assert_results_are_recomputable(zoo: Zoo, result: MergeResult, merged: Tensors) -> None:
    """Compare what the merge reports with the stored files."""
    overlap = zoo.overlap(1e-5)
    base = [v for n in zoo.counted for v in values_of(zoo.base[n])]
    stored = [v for n in zoo.counted for v in values_of(merged[n])]
    agents = [[v for n in zoo.counted for v in values_of(a[n])] for a in zoo.agents.values()]
    for t, name in enumerate(zoo.agents):
        agent = result.agents[name]
        assert (agent.changed, agent.unique) == (sum(overlap[t]), overlap[t][0])
        assert agent.rho == pytest.approx(reference.ratio(overlap[t]), rel=1e-12)
        assert agent.scaling_factor == pytest.approx(zoo.factors()[t], rel=1e-12)
        effective = reference.effective_scaling(base, agents, 1e-5, t, stored)
        expected = effective and pytest.approx(effective, rel=1e-6)  # None without unique elements
        assert agent.effective_scaling_factor == expected
        record = read_provenance(result.out).agents[name]
        assert record.effective_scaling_factor == agent.effective_scaling_factor
        assert list(record.overlap) == overlap[t]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_unique_elements_are_bit_equal_to_their_agent_under_ram(tmp_path, dtype, rounding):
    zoo = make_zoo(tmp_path / "zoo", 3, dtype=dtype, seed=2)
    # Numbers that become exactly zero, of either sign, must keep their sign too.
    for name, tensors in zoo.agents.items():
        flat = tensors["model.norm.weight"].flatten()
        flat[5], flat[6] = (
            (0.0, -0.0) if name == "agent0" else tuple(zoo.base["model.norm.weight"][5:7])
        )
    zoo = Zoo.write(tmp_path / "again", zoo.base, zoo.agents, zoo.counted)
    _, merged = merge_zoo(zoo, tmp_path / "out", method="ram", rounding=rounding)
    for name in zoo.counted:
        base, agents = zoo.values(name)
        masks = torch.tensor(reference.patterns(base, agents, 1e-5))
        for t, tensors in enumerate(zoo.agents.values()):
            mine = masks == 1 << t
            got = bits_of(merged[name].flatten())[mine]
            assert torch.equal(got, bits_of(tensors[name].flatten())[mine])
    assert_unchanged_is_the_base(zoo, merged)


@pytest.mark.parametrize(
    ("method", "given", "rule", "r", "alpha"),
    [
        ("ram", {}, "ram", 0.0, 0.0),
        ("ram+", {"r": 0.5, "alpha": 0.3}, "ram+", 0.5, 0.3),
        ("ram+", {"r": 0.0}, "ram", 0.0, 0.0),
        ("ram+s", {"r": 0.7}, "ram+s", 0.7, 0.0),
    ],
)
@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_each_rule_scales_unique_elements_by_its_lambda(
    tmp_path, method, given, rule, r, alpha, shared
):
    zoo = make_zoo(tmp_path / "zoo", 3, seed=3)
    settings = {**given, "shared": shared}
    result, merged = merge_zoo(
        zoo, tmp_path / "out", method=method, settings=settings, dtype="float32"
    )
    factors = zoo.factors(rule, r, alpha)
    assert [a.scaling_factor for a in result.agents.values()] == pytest.approx(factors, rel=1e-12)
    assert_merged_like_reference(zoo, merged, factors, shared=shared)


@pytest.mark.parametrize(
    ("agents", "epsilon"), [(2, 0.0), (2, 3.3e-5), (2, 1e-3), (2, 0.0123), (7, 3.3e-5)]
)
def test_any_epsilon_is_honoured_exactly(tmp_path, agents, epsilon):
    zoo = make_zoo(tmp_path / "zoo", agents, seed=4)
    result, merged = merge_zoo(zoo, tmp_path / "out", settings={"epsilon": epsilon})
    factors = zoo.factors(epsilon=epsilon)
    assert [a.scaling_factor for a in result.agents.values()] == pytest.approx(factors, rel=1e-12)
    assert_merged_like_reference(zoo, merged, factors, epsilon=epsilon)
    assert_unchanged_is_the_base(zoo, merged, epsilon)
    analysis = zoo.analyze()
    with_analysis = merge(
        zoo.recipe(settings={"epsilon": epsilon}), tmp_path / "analyzed", analysis=analysis
    )
    assert with_analysis.agents == result.agents


@pytest.mark.parametrize("agents", [3, 7])
@pytest.mark.parametrize("scope", ["layer", "tensor"])
def test_rho_may_be_counted_per_layer_or_per_tensor(tmp_path, scope, agents):
    zoo = make_zoo(tmp_path / "zoo", agents, seed=5)
    settings = {"scope": scope, "r": 0.4, "alpha": 9.0}
    dtype = "float32" if agents == 3 else None
    result, merged = merge_zoo(zoo, tmp_path / "out", settings=settings, dtype=dtype)
    layers = {
        "embedding": [EMBEDDING],
        "0": [n for n in zoo.counted if ".layers.0." in n],
        "1": [n for n in zoo.counted if ".layers.1." in n],
        "norm": ["model.norm.weight"],
        "head": [HEAD],
    }
    groups = layers.values() if scope == "layer" else [[n] for n in zoo.counted]
    factors = {
        name: [reference.scaling(rho, "ram+", 0.4, 9.0) for rho in zoo.ratios(1e-5, group)]
        for group in groups
        for name in group
    }
    assert_merged_like_reference(zoo, merged, factors)
    # Reported is the mean over the elements it applies to.
    for t, name in enumerate(zoo.agents):
        unique = {n: zoo.overlap(1e-5, [n])[t][0] for n in zoo.counted}
        mean = sum(unique[n] * factors[n][t] for n in zoo.counted) / sum(unique.values())
        assert result.agents[name].scaling_factor == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("method", ["ram", "ram+"])
def test_two_equal_agents_give_that_agent_and_lambda_its_bound(tmp_path, method):
    zoo = make_zoo(tmp_path / "zoo", 1, seed=8)
    path = str(zoo.agent_paths["agent0"])
    recipe = zoo.recipe(agents={"first": path, "second": path}, method=method)
    result = merge(recipe, tmp_path / "out")
    for agent in result.agents.values():
        assert (agent.rho, agent.unique) == (math.inf, 0)
        assert agent.scaling_factor == pytest.approx(1.2 if method == "ram+" else 1.0)
        assert agent.effective_scaling_factor is None
    assert result.to_dict()["agents"]["first"]["rho"] is None
    json.dumps(result.to_dict(), allow_nan=False)
    frame = result.to_frame().set_index("agent")
    assert frame.index.tolist() == ["first", "second"]
    assert (frame["rho"] == math.inf).all()
    assert frame["effective_lambda"].isna().all()
    assert frame["changed"].tolist() == [a.changed for a in result.agents.values()]
    merged = read_folder(tmp_path / "out")
    for name in zoo.counted:
        base, (agent,) = zoo.values(name)
        for x, y, got in zip(base, agent, values_of(merged[name]), strict=True):
            assert got == (y if abs(reference.tau(x, y)) > 1e-5 else x)


def test_an_agent_equal_to_the_base_leaves_the_other_as_it_is(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 1, seed=9)
    write_folder(tmp_path / "still", zoo.base)
    recipe = zoo.recipe(
        agents={"still": str(tmp_path / "still"), "moved": str(zoo.agent_paths["agent0"])}
    )
    result = merge(recipe, tmp_path / "out")
    still, moved = result.agents["still"], result.agents["moved"]
    assert (still.rho, still.scaling_factor, still.changed) == (0.0, 1.0, 0)
    assert still.effective_scaling_factor is None
    assert (moved.rho, moved.scaling_factor) == (0.0, 1.0)
    assert moved.effective_scaling_factor == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_tied_head_stored_twice_stays_equal_to_its_embedding(tmp_path, rounding):
    zoo = make_zoo(tmp_path / "made", 3, copied=False, seed=10)
    for tensors in (zoo.base, *zoo.agents.values()):
        tensors[HEAD] = tensors[EMBEDDING].clone()
    counted = [n for n in zoo.counted if n != HEAD]
    tied = Zoo.write(tmp_path / "tied", zoo.base, zoo.agents, counted, tied=True)
    for settings in ({}, {"scope": "tensor"}, {"scope": "layer"}):
        out = tmp_path / f"out-{settings.get('scope', 'global')}"
        result, merged = merge_zoo(tied, out, rounding=rounding, seed=3, settings=settings)
        assert torch.equal(bits_of(merged[HEAD]), bits_of(merged[EMBEDDING]))
        assert result.agents["agent0"].changed == sum(tied.overlap(1e-5)[0])
        if not settings:
            assert_merged_like_reference(tied, merged, tied.factors(), rounding=rounding)
            assert_results_are_recomputable(tied, result, merged)


@pytest.mark.parametrize("odd", ODD)
def test_what_an_agent_lacks_stays_as_the_others_left_it(tmp_path, odd):
    seen = make_odd_zoo(tmp_path, odd, seed=11)
    result, merged = merge_zoo(seen, tmp_path / "out", **ODD[odd])
    assert set(merged) == set(seen.base)
    assert_merged_like_reference(seen, merged, seen.factors())
    assert_results_are_recomputable(seen, result, merged)


@pytest.mark.parametrize("path", ["fused", "torch"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_merged_number_beyond_the_output_dtype_is_refused(tmp_path, monkeypatch, path, rounding):
    if path == "torch":
        monkeypatch.setattr(Plan, "is_fused", False)
    base = {"w": torch.ones(70), "model.layers.0.big.weight": torch.ones(9)}
    agent = {n: t.clone() for n, t in base.items()}
    agent["model.layers.0.big.weight"][3] = 7e4
    zoo = Zoo.write(tmp_path, base, {"agent0": agent, "agent1": base, "agent2": base})
    with refused(SettingsError, tmp_path / "out", r"`model.layers.0.big.weight`.*F16.*float32"):
        merge(zoo.recipe(dtype="float16", rounding=rounding), tmp_path / "out")
    merge(zoo.recipe(dtype="bfloat16", rounding=rounding), tmp_path / "out")


def test_tensors_are_spread_over_shards_no_larger_than_asked(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 2, seed=14)
    whole = merge(zoo.recipe(), tmp_path / "whole")
    merge(zoo.recipe(), tmp_path / "parts", max_shard_bytes=300)
    shards = sorted((tmp_path / "parts").glob("model-*.safetensors"))
    assert len(shards) > 2
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(zoo.base)
    first, second = read_folder(tmp_path / "whole"), read_folder(tmp_path / "parts")
    assert all(torch.equal(bits_of(first[n]), bits_of(second[n])) for n in zoo.base)
    assert whole.bytes_written == (tmp_path / "whole" / "model.safetensors").stat().st_size
    read = sum(t.numel() * t.element_size() for n, t in zoo.base.items() if n in SHAPES)
    assert whole.bytes_read == 2 * 3 * read  # two passes over a base and two agents
