"""What follows from an analysis without the weights: previews, groups, ratios, profile, verdict."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import reference
from element_blocks import make_block

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.errors import SettingsError

AGENTS = ("coding", "tool", "memory")
NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.10.self_attn.q_proj.weight",
    "model.layers.2.mlp.up_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
)
LAYERS = {"embedding": [0], "0": [1, 2], "2": [4], "10": [3], "other": [5], "head": [6]}
MODULES = {
    "embed_tokens": [0],
    "q_proj": [1, 3],
    "q_proj.bias": [2],
    "up_proj": [4],
    "norm": [5],
    "lm_head": [6],
}


def expected_counts() -> list[list[list[int]]]:
    """Return pattern counts per tensor and grid point, counted in plain Python."""
    blocks = [make_block(i, 3, 31 + i, "BF16", "every overlap") for i in range(len(NAMES))]
    return [
        [reference.pattern_counts(b.base_values, b.agent_values, e) for e in EPSILON_GRID]
        for b in blocks
    ]


COUNTS = expected_counts()
NUMEL = [31 + i for i in range(len(NAMES))]


def an_analysis() -> Analysis:
    return Analysis(
        agents=AGENTS,
        tensors=tuple(TensorEntry(n, size) for n, size in zip(NAMES, NUMEL, strict=True)),
        counts=OverlapCounts.from_patterns(np.array(NUMEL), np.array(COUNTS, dtype=np.int64)),
        magnitudes=np.zeros((3, BIN_COUNT), dtype=np.int64),
        fingerprints={"base": "b", "coding": "c", "tool": "t", "memory": "m"},
    )


def analysis_of(patterns: list[int], agents: tuple[str, ...] = AGENTS) -> Analysis:
    """Return an analysis of one tensor with the same patterns at every epsilon."""
    table = np.tile(np.array(patterns, dtype=np.int64), (1, len(EPSILON_GRID), 1))
    return Analysis(
        agents=agents,
        tensors=(TensorEntry("w", sum(patterns)),),
        counts=OverlapCounts.from_patterns(np.array([sum(patterns)]), table),
        magnitudes=np.zeros((len(agents), BIN_COUNT), dtype=np.int64),
    )


def totals(tensors: list[int], point: int) -> list[int]:
    return reference.add_counts([COUNTS[i][point] for i in tensors])


def assert_describes(
    described: dict, tensors: list[int], point: int, rule: str, r: float, alpha: float
) -> None:
    counts = totals(tensors, point)
    overlap = reference.shared_counts(counts, 3)
    numel = sum(NUMEL[i] for i in tensors)
    for t, name in enumerate(AGENTS):
        agent = described["agents"][name]
        rho = reference.ratio(overlap[t])
        active = sum(overlap[t])
        assert agent["overlap"] == overlap[t]
        assert (agent["unique"], agent["shared"]) == (overlap[t][0], sum(overlap[t][1:]))
        assert (agent["active"], agent["total"]) == (active, numel)
        assert agent["density"] == pytest.approx(active / numel, rel=1e-12)
        assert agent["rho"] == (None if math.isinf(rho) else pytest.approx(rho, rel=1e-12))
        expected = reference.scaling(rho, rule, r, alpha)
        assert agent["lambda"] == pytest.approx(expected, rel=1e-12)
    assert described["patterns"] == {
        "coding": counts[1],
        "tool": counts[2],
        "coding+tool": counts[3],
        "memory": counts[4],
        "coding+memory": counts[5],
        "tool+memory": counts[6],
        "coding+tool+memory": counts[7],
    }


@pytest.mark.parametrize("point", [0, 7, DEFAULT_INDEX, 40, len(EPSILON_GRID) - 1])
@pytest.mark.parametrize(("rule", "r", "alpha"), [("ram+", 0.1, 2.0), ("ram+s", 0.3, 1.0)])
def test_preview_gives_counts_ratios_and_factors_of_the_model(point, rule, r, alpha):
    preview = an_analysis().preview(point, rule, r, alpha)
    assert (preview["epsilon"], preview["rule"]) == (EPSILON_GRID[point], rule)
    assert (preview["r"], preview["alpha"]) == (r, alpha)
    assert_describes(preview, list(range(len(NAMES))), point, rule, r, alpha)
    json.dumps(preview, allow_nan=False)


@pytest.mark.parametrize("by", ["model", "layer", "module", "tensor"])
def test_a_preview_as_a_table_holds_the_same_numbers(by):
    analysis = an_analysis()
    preview = analysis.preview(7, "ram+", 0.3, 1.5, by=by)
    frame = analysis.to_frame(by, 7, "ram+", 0.3, 1.5)
    groups = preview.get("groups", {"model": preview})
    assert len(frame) == len(groups) * len(AGENTS)
    rows = iter(frame.to_dict("records"))
    for label, group in groups.items():
        for name, numbers in group["agents"].items():
            row, wanted = next(rows), {**numbers, "rho": numbers["rho"] or 0.0}
            if numbers["rho"] is None:
                wanted["rho"] = math.inf
            del wanted["overlap"]
            if by != "model":  # a merge has one lambda, of the whole model
                del wanted["lambda"]
                assert "lambda" not in row
            for part, value in wanted.pop("factors", {}).items():
                wanted[f"{part}_factor"] = value
            unknown = {"retained", "interference", "own_factor", "shared_factor"}
            for key in unknown & set(wanted):  # this analysis has no energies
                assert wanted.pop(key) is None
                assert math.isnan(row[key])
            assert {key: row[key] for key in wanted} == wanted
            assert (row["agent"], row.get(by, "model")) == (name, label)
    if by == "tensor":
        assert frame.groupby("layer")["total"].sum()["0"] == 3 * (NUMEL[1] + NUMEL[2])


def test_an_unbounded_ratio_is_infinite_in_a_table():
    frame = analysis_of([5, 0, 0, 4], ("a", "b")).to_frame("tensor")
    assert frame["rho"].tolist() == [math.inf, math.inf]
    dtypes = [str(frame[c].dtype) for c in ("total", "density", "rho")]
    assert dtypes == ["int64", "float64", "float64"]
    with pytest.raises(SettingsError, match="grouping is 'row'"):
        an_analysis().to_frame("row")


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("layer", LAYERS),
        ("module", MODULES),
        ("tensor", {name: [i] for i, name in enumerate(NAMES)}),
    ],
)
def test_preview_describes_each_group_by_itself(by, groups):
    preview = an_analysis().preview(DEFAULT_INDEX, "ram+", 0.1, 2.0, by=by)
    assert list(preview["groups"]) == list(groups)
    for label, tensors in groups.items():
        assert_describes(preview["groups"][label], tensors, DEFAULT_INDEX, "ram+", 0.1, 2.0)
    assert_describes(preview, list(range(len(NAMES))), DEFAULT_INDEX, "ram+", 0.1, 2.0)


def test_rho_without_unique_elements_is_null_lambda_its_bound():
    analysis = analysis_of([10, 0, 4, 6, 0, 0, 0, 0])
    coding = analysis.preview(rule="ram+", r=0.3, alpha=2.0)["agents"]["coding"]
    assert (coding["rho"], coding["lambda"]) == (None, pytest.approx(1.6))
    memory = analysis.preview()["agents"]["memory"]
    assert (memory["rho"], memory["lambda"], memory["density"]) == (0.0, 1.0, 0.0)
    assert analysis.preview(rule="ram+s", r=0.3)["agents"]["coding"]["lambda"] == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("scope", "group_of"),
    [
        ("global", {i: list(range(len(NAMES))) for i in range(len(NAMES))}),
        ("layer", {i: group for group in LAYERS.values() for i in group}),
        ("tensor", {i: [i] for i in range(len(NAMES))}),
    ],
)
def test_ratios_are_counted_in_the_scope_of_each_tensor(scope, group_of):
    ratios = an_analysis().ratios(DEFAULT_INDEX, scope)
    for i in range(len(NAMES)):
        overlap = reference.shared_counts(totals(group_of[i], DEFAULT_INDEX), 3)
        expected = [reference.ratio(overlap[t]) for t in range(3)]
        assert ratios[i].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("names", [[], ["coding", "coding"], ["coding", "poetry"]])
def test_selecting_agents_that_are_not_there_is_refused(names):
    with pytest.raises(SettingsError, match="coding, tool, memory"):
        an_analysis().select(names)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda s: s.preview(by="color"), "color"),
        (lambda s: s.preview(rule="max"), "max"),
        (lambda s: s.preview(r=-1.0), "r is -1.0"),
    ],
)
def test_an_analysis_refuses_what_it_does_not_know_by_name(ask, named):
    with pytest.raises(SettingsError, match=named):
        ask(an_analysis())


def test_the_client_profile_has_the_counts_of_the_previews():
    analysis = an_analysis()
    profile = json.loads(json.dumps(client_profile(analysis), allow_nan=False))
    everything = list(range(len(NAMES)))
    assert profile["agents"] == list(AGENTS)
    assert profile["epsilon_grid"] == list(EPSILON_GRID)
    assert EPSILON_GRID[profile["default_index"]] == 1e-5
    assert profile["total"] == sum(NUMEL)
    assert profile["layers"] == list(LAYERS)
    assert profile["modules"] == list(MODULES)
    assert profile["layer_total"] == [sum(NUMEL[i] for i in g) for g in LAYERS.values()]
    assert profile["module_total"] == [sum(NUMEL[i] for i in g) for g in MODULES.values()]
    for point in range(len(EPSILON_GRID)):
        counts = totals(everything, point)
        assert profile["patterns"][point] == counts
        assert profile["overlap"][point] == reference.shared_counts(counts, 3)
        for key, groups in (("layer_active", LAYERS), ("module_active", MODULES)):
            for g, tensors in enumerate(groups.values()):
                shared = reference.shared_counts(totals(tensors, point), 3)
                assert profile[key][point][g] == [sum(row) for row in shared]
        for g, tensors in enumerate(LAYERS.values()):
            by_mask = totals(tensors, point)
            assert profile["layer_count"][point][g] == [
                sum(n for m, n in enumerate(by_mask) if m.bit_count() == c) for c in range(4)
            ]


def test_dialects_equal_each_implementation_at_its_defaults():
    found = an_analysis().dialects()
    assert list(found) == ["paper", "authors-script", "mergekit"]
    everything = reference.shared_counts(totals(list(range(len(NAMES))), DEFAULT_INDEX), 3)
    for t in range(3):
        rho = reference.ratio(everything[t])
        assert found["paper"][t] == pytest.approx(1 + 0.1 * min(rho, 2.0), rel=1e-12)
        assert found["authors-script"][t] == pytest.approx(1 + 0.2 * min(rho, 1.0), rel=1e-12)
        # Per tensor, weighed by unique elements.
        weighted = [
            (row[0], 1 + 0.1 * min(reference.ratio(row), 0.2))
            for row in (
                reference.shared_counts(totals([i], DEFAULT_INDEX), 3)[t] for i in range(len(NAMES))
            )
        ]
        mean = sum(w * f for w, f in weighted) / sum(w for w, _ in weighted)
        assert found["mergekit"][t] == pytest.approx(mean, rel=1e-12)
    # Nothing unique: rho is infinite (the authors' script divides by zero); nothing changed: 0.
    edges = analysis_of([10, 0, 4, 6, 0, 0, 0, 0]).dialects()
    assert edges["paper"].tolist() == pytest.approx([1.2, 1.15, 1.0])
    assert edges["authors-script"].tolist() == pytest.approx([1.2, 1.2, 1.0])
    assert edges["mergekit"].tolist() == pytest.approx([1.0, 1.02, 1.0])
