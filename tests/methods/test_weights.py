"""Weights, densities and filters: every method against plain Python, in loops, torch and parts."""

from __future__ import annotations

import math
from pathlib import Path

import method_reference
import numpy as np
import pytest
import reference
import torch
from engine_zoo import read_folder, write_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from random_zoo import AGENTS, random_elements, write_zoo

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, find_grid_index
from ram_studio.algorithm.grouping import at_depth, depths_of
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels import torch as kernels
from ram_studio.algorithm.kernels.rules import Drawing, Rule, means
from ram_studio.algorithm.meters.part_factors import measured_factors, part_sums
from ram_studio.checkpoints.record.recipe import load_recipe, make_recipe, recipe_yaml
from ram_studio.engine.job import MergeJob
from ram_studio.engine.merge import merge
from ram_studio.engine.microscope.view import find_tensor, inspect, run_of
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import make_plan
from ram_studio.engine.parts.steps import merge_part
from ram_studio.engine.passes.previewing import preview_recipe
from ram_studio.engine.passes.torch_backend import TorchBackend
from ram_studio.engine.reading.blocks import blocks_of
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import AnalysisError, SettingsError

UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"
Q, BIAS = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.bias"

numbers = st.sampled_from([0.0, 1.0, 0.7, 2.5, -0.5])
some_weights = st.none() | st.tuples(numbers, numbers, numbers)


def expected_element(rule: Rule, x: float, ys: list[float], survives: list[bool]) -> float:
    """Return one element by the module text of ``kernels.rules``, in float64."""
    taus = [y - x for y in ys]
    limits = rule.thresholds or (rule.epsilon,) * 3
    weights = rule.weights or (1.0,) * 3
    kept = [
        t
        for t in range(3)
        if abs(reference.float32(taus[t])) > reference.float32(limits[t]) and survives[t]
    ]
    voters = kept
    if rule.elect_sign:
        mass = sum(weights[t] * taus[t] for t in kept)
        voters = [t for t in kept if weights[t] * taus[t] * mass > 0]
    if not voters:
        return x
    total = sum(weights[t] * taus[t] for t in voters)
    if rule.divisors is not None:
        total /= sum(rule.divisors[t] for t in voters) or 1.0
    return x + total * (rule.factors[kept[0]] if len(kept) == 1 else rule.shares[len(voters)])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    bfloat16=st.booleans(),
    elect=st.booleans(),
    weights=some_weights,
    is_normalized=st.booleans(),
    thresholds=st.none() | st.just((0.0, 1e-4, math.inf)),
    is_drawn=st.booleans(),
)
def test_loops_and_torch_follow_the_rule(
    seed, bfloat16, elect, weights, is_normalized, thresholds, is_drawn
):
    base, agents = random_elements(seed, 90, 3, bfloat16)
    drawing = Drawing((np.uint64(1), np.uint64(2), np.uint64(3)), (1 << 51, 1 << 52, 0))
    rule = Rule(1e-5, (1.1, 1.0, 1.3), means(3), elect, weights=weights)
    if elect and weights and is_normalized:
        rule = rule._replace(divisors=weights, shares=(0.5,) * 4)
    rule = rule._replace(
        thresholds=thresholds if elect else None, drawing=drawing if is_drawn else None
    )
    kind = "float32" if bfloat16 else "float64"
    stored, others = base, tuple(agents)
    if bfloat16:
        stored, *others = ((a.view(np.uint32) >> 16).astype(np.uint16) for a in (base, *agents))
    merged, pattern = np.empty(90, kind), np.empty(90, np.uint8)
    voters = np.empty(90, np.uint8)
    how = {"arithmetic": kind, "voters": voters} if elect or is_drawn else {"arithmetic": kind}
    assert cpu.merge(rule, stored, tuple(others), merged, pattern, **how)
    voters = voters if elect or is_drawn else pattern
    x, ys = torch.from_numpy(base), torch.from_numpy(agents)
    found = kernels.merge(rule, x, ys, arithmetic=kind)
    assert found.values.numpy().tobytes() == merged.tobytes()
    assert found.active.tolist() == pattern.tolist()
    for i in range(90):
        alive = [
            not is_drawn or reference.splitmix64(key, i) >> 11 >= cut
            for key, cut in zip((1, 2, 3), drawing.cuts, strict=True)
        ]
        wanted = expected_element(rule, float(base[i]), agents[:, i].tolist(), alive)
        assert merged[i] == pytest.approx(wanted, rel=2**-20, abs=1e-8)
    near = merged.astype(np.float32)
    sums = cpu.measure(rule, base, tuple(agents), near, (pattern, voters), [0, 90])
    also = kernels.measure(x, ys, torch.from_numpy(near), found, [slice(0, 90)])
    if not is_drawn and rule.thresholds is None:  # else factors and shares[1] are one number
        np.testing.assert_allclose(sums, also.numpy(), rtol=1e-5, atol=1e-12)


FILTERS = [
    {"match": "re:q_proj[.]weight$", "keep": "tool"},
    {"match": "embeddings", "keep": "base"},
    {"match": "*.mlp.*", "layers": [1, 1], "weights": {"tool": 0.25}, "settings": {"scale": 0.5}},
]
WEIGHTS = {"coding": 0.7, "memory": [2.0, -0.5]}


def weights_at(name: str) -> tuple[float, float, float]:
    """Return what WEIGHTS and FILTERS give coding, tool and memory in a tensor of two layers."""
    ramp = -0.5 if ".1." in name else 2.0
    return 0.7, 0.25 if name == DOWN else 1.0, ramp


def expected_tensor(method: str, values: dict, name: str, zoo, lambdas) -> list[float]:
    base, agents = zoo.values(name)
    if name in (Q, "model.embed_tokens.weight"):
        return agents[1] if name == Q else base
    weights = weights_at(name)
    factor = values.get("scale", 1.0) * (0.5 if name == DOWN else 1.0)
    limits = None
    if "density" in values:
        sizes = [[abs(reference.tau(x, y)) for x, y in zip(base, a, strict=True)] for a in agents]
        kept = [method_reference.survives_trimming(s, values["density"]) for s in sizes]
        limits = [
            min((v for v, k in zip(s, own, strict=True) if k), default=math.inf)
            for s, own in zip(sizes, kept, strict=True)
        ]
    rows = []
    for i, x in enumerate(base):
        ys = [agent[i] for agent in agents]
        if method.startswith("ram"):
            rule = Rule(1e-5, tuple(lambdas), means(3), weights=weights)
        elif limits is None:
            divisor = sum(weights) if values.get("normalize") else 1.0
            rule = Rule(0.0, (factor / divisor,) * 3, (factor / divisor,) * 4, weights=weights)
        else:
            own = tuple(np.nextafter(np.float32(v), np.float32(0)) for v in limits)
            rule = Rule(0.0, (factor,) * 3, (factor,) * 4, True, own, None, weights, weights)
            if values.get("normalize") is False:
                rule = rule._replace(divisors=None)
        alive = [True] * 3
        if "drop_rate" in values:
            rate = values["drop_rate"]
            alive = [not method_reference.is_dropped(0, a, name, i, rate) for a in AGENTS]
            rule = rule._replace(
                factors=tuple(f / (1 - rate) for f in rule.factors),
                shares=tuple(s / (1 - rate) for s in rule.shares),
            )
        rows.append(expected_element(rule, x, ys, alive))
    return rows


CASES = [
    ("ram+", {}),
    ("task-arithmetic", {"scale": 0.8}),
    ("task-arithmetic", {"scale": 0.8, "normalize": True}),
    ("ties", {"density": 0.5, "scope": "tensor"}),
    ("ties", {"density": 0.5, "scope": "tensor", "normalize": False}),
    ("dare-ta", {"drop_rate": 0.4, "scale": 0.9}),
]


def check_by_torch(recipe, report, merged: dict[str, torch.Tensor]) -> None:
    """Fail unless torch's backend stores every merged tensor as it is."""
    job = MergeJob(report, recipe)
    plan, backend = job.plan(), TorchBackend()
    with Sources(*report.checkpoints) as sources:
        reader = BlockReader(sources, 1 << 16)
        for block in blocks_of(job.merged, 1 << 16, lambda tensor: True):
            found = backend.merge(plan, block, *backend.to_tensors(*reader.read(block)))
            stored = merged[block.tensor.name].contiguous().view(torch.uint8).numpy()
            assert backend.stored_elements(found).tobytes() == stored.tobytes(), block.tensor.name


@pytest.mark.parametrize(("method", "values"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_and_filters_give_the_formula(method, values, dtype, tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 3, dtype=dtype)
    has_scale = method != "ram+"
    filters = [*FILTERS[:2], {**FILTERS[2], "settings": {"scale": 0.5} if has_scale else {}}]
    if has_scale:
        filters[2]["settings"] = {"scale": 0.5 * values.get("scale", 1.0)}
    recipe = zoo.recipe(method=method, settings=values, weights=WEIGHTS, filters=filters)
    result = merge(recipe, tmp_path / "out", threads=1, device="cpu")
    merged, lambdas = read_folder(tmp_path / "out"), zoo.factors()
    for name in zoo.counted:
        wanted = torch.tensor(
            expected_tensor(method, values, name, zoo, lambdas), dtype=torch.float64
        )
        got = merged[name].double().flatten()
        # One rounding: half a last place, and float32's digits before it.
        digits = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}[dtype]
        half = 2.0**-digits * (1 + 1e-3)
        least = 2.0**-25 if dtype == torch.float16 else 1e-9  # half of its smallest number
        assert ((got - wanted).abs() <= half * wanted.abs() + least).all(), name
    check_by_torch(recipe, zoo.load(), merged)
    assert result.provenance.recipe == recipe
    assert verify(tmp_path / "out", with_sources=True, full=True, threads=1).compared_bytes


# Of the others a weight is a share of a mean direction (warp, model-stock) or of models (linear).
OF_WHOLE_CHANGES = [
    ("magmax", {}),
    ("sce", {"select": 1.0}),
    ("iso-c", {}),
    ("tsv-m", {}),
    ("wudi", {"solver": "closed"}),
]


@pytest.mark.parametrize(("method", "values"), OF_WHOLE_CHANGES)
def test_a_weight_is_a_longer_task_vector(method, values, tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 8, dtype=torch.float32)
    own = [{"match": "*.mlp.*", "layers": [1, 1], "weights": {"tool": 0.25}}]
    made = merge(
        zoo.recipe(method=method, settings=values, weights=WEIGHTS, filters=own),
        tmp_path / "out",
        threads=1,
        device="cpu",
    )
    for t, agent in enumerate(AGENTS):
        scaled = {}
        for name, base in zoo.base.items():
            tau = zoo.agents[agent][name].double() - base.double()
            scaled[name] = (base.double() + weights_at(name)[t] * tau).float()
        write_folder(tmp_path / "scaled" / agent, scaled, tied=True)
    agents = {agent: str(tmp_path / "scaled" / agent) for agent in AGENTS}
    recipe = made.provenance.recipe.model_copy(
        update={"agents": agents, "weights": {}, "filters": ()}
    )
    merge(recipe, tmp_path / "again", threads=1, device="cpu")
    one, two = read_folder(tmp_path / "out"), read_folder(tmp_path / "again")
    for name, base in zoo.base.items():
        change = one[name] - base
        # The scaled agents were rounded to float32.
        most = float(change.abs().max())
        assert most > 0
        assert float((one[name] - two[name]).abs().max()) < 2e-3 * most + 2e-8, name


def test_parts_and_the_microscope_resolve_a_recipe_alike(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 3)
    recipe = zoo.recipe(
        method="dare-ties",
        settings={"density": 0.5},
        weights=WEIGHTS,
        densities={"tool": 0.4, "memory": [1.0, 0.2]},
        filters=[*FILTERS[:2], {"match": "norms", "densities": {"coding": 0}}],
    )
    merge(recipe, tmp_path / "whole", threads=1, device="cpu")
    plan, analysis = make_plan(recipe, 2, max_shard_bytes=700), zoo.analyze(threads=1)
    for part in (1, 2):
        merge_part(plan, part, tmp_path / "parts", analysis=analysis, threads=1, device="cpu")
    finish(plan, tmp_path / "parts")
    one, two = read_folder(tmp_path / "whole"), read_folder(tmp_path / "parts")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    report = zoo.load()
    for name in (Q, UP, DOWN, "model.norm.weight", "model.embed_tokens.weight"):
        tensor = find_tensor(report, name)
        view = inspect(report, tensor, run_of(tensor, 0, 60), {"it": recipe}, 1e-5, analysis)
        shown = view.methods["it"]
        np.testing.assert_array_equal(shown.stored, one[name].float().flatten()[:60].numpy())
        rounded = torch.tensor(shown.exact).bfloat16().float().numpy()
        np.testing.assert_array_equal(shown.stored, rounded)


def test_a_kept_agent_is_stored_bit_by_bit(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 4)
    for method in ("ram", "iso-c"):
        recipe = zoo.recipe(method=method, filters=[{"match": "*", "keep": "memory"}])
        result = merge(recipe, tmp_path / method, threads=1, device="cpu")
        merged = read_folder(tmp_path / method)
        assert all(torch.equal(merged[n], zoo.agents["memory"][n]) for n in zoo.counted)
        kept = result.agents["memory"].retained
        assert kept.retained == pytest.approx(1.0 - kept.lost_to_epsilon, abs=1e-6)
        assert result.agents["coding"].retained.retained == pytest.approx(0.0, abs=1e-3)


def test_weights_of_one_change_no_byte(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 5)
    for method in ("ram+", "ties"):
        merge(zoo.recipe(method=method), tmp_path / method, threads=1, device="cpu")
        weights = {"coding": 1, "tool": [1, 1], "memory": 1.0}
        also = tmp_path / f"{method}-weighted"
        merge(zoo.recipe(method=method, weights=weights), also, threads=1, device="cpu")
        name = "model.safetensors"
        assert (also / name).read_bytes() == (tmp_path / method / name).read_bytes()


def test_lists_run_over_the_layers_as_in_mergekit():
    names = ["model.embed_tokens.weight", *(f"model.layers.{i}.mlp.w" for i in range(5))]
    names += ["model.norm.weight", "lm_head.weight", "visual.blocks.3.w"]
    depths = depths_of(names)
    assert depths == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 0.0, 0.0, 0.0]
    assert [at_depth([0, 0.3, 1], d) for d in depths[1:6]] == pytest.approx([0, 0.15, 0.3, 0.65, 1])
    assert at_depth(0.4, 0.9) == 0.4
    assert depths_of(["model.layers.0.w"]) == [1.0]


def test_what_a_recipe_cannot_say_is_refused(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 6)
    for changes, text in (
        ({"weights": {"math": 1}}, "no agent is named 'math'; the agents are coding, tool, memory"),
        ({"filters": [{"match": "router"}]}, "needs weights, densities, settings or keep"),
        ({"filters": [{"keep": "base"}]}, "needs match, layers or both"),
        ({"filters": [{"match": "*", "keep": "math"}]}, "filter 1, keep: no agent is named"),
        ({"filters": [{"match": "*", "settings": {"epsilon": -1}}]}, "epsilon"),
        ({"filters": [{"match": "*", "settings": {"rr": 0}}]}, "no setting 'rr'"),
        ({"filters": [{"match": "re:(", "keep": "base"}]}, "is not a regex"),
        ({"densities": {"tool": 0.5}}, "ram+ has no density"),
        ({"method": "region", "weights": {"tool": 0.5}}, "region takes no weights"),
    ):
        with pytest.raises(SettingsError) as caught:
            zoo.recipe(**changes)
        assert text in str(caught.value)
    wrong = zoo.recipe(filters=[{"match": "*.up_prj.*", "keep": "base"}])
    with pytest.raises(SettingsError, match=r"matches no tensor.*up_proj"):
        MergeJob(zoo.load(), wrong)
    late = zoo.recipe(filters=[{"match": m, "keep": "base"} for m in ("*mlp*", "*.up_proj.*")])
    with pytest.raises(SettingsError, match=r"Filter 2.*earlier filters match"):
        MergeJob(zoo.load(), late)


def test_a_recipe_with_filters_is_written_and_read_back(tmp_path: Path):
    values = {"base": "b", "agents": {"coding": "c", "memory": "m", "tool": "t"}, "method": "ties"}
    recipe = make_recipe(
        {**values, "weights": WEIGHTS, "filters": FILTERS, "densities": {"c": 1}}
        | {"densities": {"coding": [0.1, 0.9]}}
    )
    (tmp_path / "r.yaml").write_text(recipe_yaml(recipe))
    assert load_recipe(tmp_path / "r.yaml") == recipe
    assert "weights" not in recipe_yaml(make_recipe(values))


def preview_cases() -> list[tuple[str, dict, dict, list[dict]]]:
    """Return method, settings, weights and filters: per layer, by module, with own settings."""
    mlp = {"match": "*.mlp.*", "weights": {"tool": 0.25, "memory": [1.5, 0.5]}}
    own = {"match": "*.down_proj.*", "settings": {"epsilon": EPSILON_GRID[30], "r": 1.0}}
    return [
        ("ram+", {}, {"coding": 0.7, "memory": 1.6}, []),
        ("ram+", {"r": 0.4}, {"coding": [0.2, 1.8], "tool": 0.0}, []),
        ("ram", {}, {"memory": [0.5, 2.0]}, [mlp, {"match": "embeddings", "keep": "base"}]),
        ("ram+", {}, {}, [{"match": "re:q_proj[.]weight$", "keep": "tool"}, own]),
        ("ram+s", {"epsilon": EPSILON_GRID[28]}, {}, [{**own, "settings": {"scope": "tensor"}}]),
        ("ram+m", {}, {"tool": -0.5}, [{**own, "settings": {"epsilon": 0.0}}]),
    ]


def plain_factors(zoo, merged: dict[str, torch.Tensor]) -> list[list[float]]:
    """Return own and shared factors of stored tensors, cut at epsilon 1e-5."""
    sums = 0.0
    for name in zoo.counted:
        base, agents = zoo.values(name)
        x = np.array(base, dtype=np.float32)
        change = merged[name].float().flatten().numpy() - x
        sums = sums + part_sums(np.array(agents, dtype=np.float32) - x, change)
    found = measured_factors(sums)
    return [[found["own"][t], found["shared"][t]] for t in range(len(AGENTS))]


@pytest.mark.parametrize(("method", "values", "weights", "filters"), preview_cases())
def test_a_preview_is_what_the_merge_measures(method, values, weights, filters, tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 7, dtype=torch.float32)
    recipe = zoo.recipe(method=method, settings=values, weights=weights, filters=filters)
    agents = merge(recipe, tmp_path / "out", threads=1, device="cpu").agents
    analysis = zoo.analyze(threads=1)
    told = preview_recipe(analysis, recipe)
    factors = plain_factors(zoo, read_folder(tmp_path / "out"))
    for (name, agent), parts in zip(agents.items(), factors, strict=True):
        own = told["agents"][name]
        assert (own["active"], own["unique"]) == (agent.changed, agent.unique)
        if agent.scaling_factor is not None:  # "ram" counts nothing that a mean could weigh
            assert own["lambda"] == pytest.approx(agent.scaling_factor)
        assert own["retained"]["total"] == pytest.approx(agent.retained.retained, abs=1e-3)
        assert own["interference"] == pytest.approx(agent.retained.interference, abs=1e-3)
        assert list(own["factors"].values()) == pytest.approx(parts, abs=1e-3)
    assert [found["filter"] is not None for found in told["filters"]][: len(filters)] == [
        True for _ in filters
    ]
    if not filters:
        point = find_grid_index(recipe.settings["epsilon"])
        r = recipe.settings.get("r", 0.0)
        also = analysis.preview(point, method, r, weights=weights)["agents"]
        assert also["coding"]["retained"] == told["agents"]["coding"]["retained"]
        small = analysis.compact().preview(point, method, r, weights=weights)["agents"]
        for name, agent in also.items():
            for key in ("retained", "factors"):
                assert small[name][key] == pytest.approx(agent[key], abs=5e-4)


def test_compact_analyses_preview_modules_at_the_usual_epsilon(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 7, dtype=torch.float32)
    analysis = zoo.analyze(threads=1)
    own = {"match": "*.mlp.*", "weights": {"tool": 0.25}}
    for epsilon in (1e-5, EPSILON_GRID[30]):
        recipe = zoo.recipe(method="ram", settings={"epsilon": epsilon}, filters=[own])
        whole = preview_recipe(analysis, recipe)["agents"]["tool"]["retained"]
        if epsilon == 1e-5:
            small = preview_recipe(analysis.compact(), recipe)["agents"]["tool"]["retained"]
            assert small == pytest.approx(whole, abs=5e-4)
            continue
        with pytest.raises(AnalysisError, match="at epsilon 1e-5 only"):
            preview_recipe(analysis.compact(), recipe)
    alone = analysis.select(["coding", "tool"])
    assert alone.preview(weights={"tool": 0.5})["agents"]["tool"]["retained"]["shared"] > 0
    with pytest.raises(AnalysisError, match="Analyze these on their own"):
        alone.preview(weights={"tool": [0.5, 1.0]})


def test_filters_have_an_epsilon_and_a_scope_of_their_own(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 9, dtype=torch.float32)
    own = {"match": "*.mlp.*", "settings": {"epsilon": 1.234e-4, "scope": "tensor"}}
    recipe = zoo.recipe(method="ram+", settings={"epsilon": 2.5e-5, "r": 0.5}, filters=[own])
    merge(recipe, tmp_path / "out", threads=1, device="cpu")
    merged = read_folder(tmp_path / "out")
    counts = {}
    for name in zoo.counted:
        base, agents = zoo.values(name)
        limit = np.float32(1.234e-4 if ".mlp." in name else 2.5e-5)
        tau = np.array(agents, dtype=np.float32) - np.array(base, dtype=np.float32)
        moved = np.abs(tau) > limit
        alone = moved & (moved.sum(0) == 1)
        counts[name] = alone.sum(1), (moved & ~alone).sum(1), tau.astype(np.float64), moved
    unique, shared = (sum(found[i] for found in counts.values()) for i in (0, 1))
    for name, (mine, ours, tau, moved) in counts.items():
        rho = ours / mine if ".mlp." in name else shared / unique
        lambdas = 1 + 0.5 * np.minimum(rho, 2.0)
        kept, c = tau * moved, moved.sum(0)
        change = np.where(c == 1, (kept * lambdas[:, None]).sum(0), kept.sum(0) / np.maximum(c, 1))
        base, _ = zoo.values(name)
        got = merged[name].double().flatten().numpy()
        np.testing.assert_allclose(got, np.array(base) + change, rtol=2**-23, atol=1e-12)
    check_by_torch(recipe, zoo.load(), merged)
    assert verify(tmp_path / "out", with_sources=True, full=True, threads=1).compared_bytes


def test_a_filter_may_trim_by_tensor_beside_a_whole(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 9)
    both = {}
    for scope in ("global", "tensor"):
        recipe = zoo.recipe(method="ties", settings={"density": 0.3, "scope": scope})
        merge(recipe, tmp_path / scope, threads=1, device="cpu")
        both[scope] = read_folder(tmp_path / scope)
    own = {"match": "*.mlp.*", "settings": {"scope": "tensor"}}
    recipe = zoo.recipe(method="ties", settings={"density": 0.3}, filters=[own])
    merge(recipe, tmp_path / "mixed", threads=1, device="cpu")
    for name, tensor in read_folder(tmp_path / "mixed").items():
        assert torch.equal(tensor, both["tensor" if ".mlp." in name else "global"][name]), name
