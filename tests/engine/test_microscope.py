"""The microscope shows what a merge stores, reads no byte more, and its formulas come out."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
import reference
import torch
from engine_zoo import NAMES, bits_of, make_odd_zoo, make_zoo, read_folder, write_fisher_files

from ram_studio.algorithm import rounding
from ram_studio.algorithm.methods import METHODS
from ram_studio.engine.merge import merge
from ram_studio.engine.microscope import view as scope
from ram_studio.engine.microscope.probe import ProbeResult, spacing
from ram_studio.engine.microscope.search import find_element
from ram_studio.errors import AnalysisError, SettingsError

SETTINGS = {
    "ram+": {"r": 0.4, "alpha": 1.5},
    "ram+s": {"r": 0.7},
    "task-arithmetic": {"scale": 0.8},
    "ties": {"density": 0.4},
    "dare-ta": {"drop_rate": 0.4},
    "dare-ties": {"drop_rate": 0.3, "density": 0.5},
    "region": {"agent": "agent1", "part": "shared", "scale": 1.3},
    "two-regions": {"unique_scale": 0.5, "shared_scale": 1.5},
}
UNSHOWN = ["slerp", "warp", "model-stock", "sce", "fisher", "wudi", "tsv-m", "iso-c"]
UNSHOWN += ["resmerge", "project"]
SHOWN = [name for name in METHODS if name not in UNSHOWN]


@pytest.fixture(scope="module", params=["BF16", "F32"])
def zoo(request, tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo"), 3, dtype=request.param, shards=2, seed=4)


@pytest.fixture(scope="module")
def analysis(zoo):
    return zoo.analyze(device="cpu")


def merged_bits(tensor: torch.Tensor) -> np.ndarray:
    bits = bits_of(tensor).flatten().numpy()
    return bits.view({2: np.uint16, 4: np.uint32}[bits.itemsize])


def seen_bits(seen: ProbeResult) -> np.ndarray:
    bits = rounding.store(seen.stored, seen.dtype)
    return bits.view({2: np.uint16, 4: np.uint32}[bits.itemsize])


@pytest.mark.parametrize("method", SHOWN)
@pytest.mark.parametrize(
    ("mode", "output"), [("nearest", None), ("stochastic", None), ("stochastic", "F16")]
)
def test_every_shown_element_is_the_one_a_merge_writes(
    zoo, analysis, tmp_path, method, mode, output
):
    own = SETTINGS.get(method, {})
    how = {"dtype": output and NAMES[output], "rounding": mode, "seed": 7}
    merge(zoo.recipe(method=method, settings=own, **how), tmp_path / "out", device="cpu")
    stored = read_folder(tmp_path / "out")
    report = zoo.load()
    recipe = scope.recipe_for(report, method, own, **how)
    changed = 0
    for name in zoo.counted:
        tensor = scope.find_tensor(report, name)
        if not tensor.numel:
            continue
        start = min(3, tensor.numel - 1)
        spans = scope.run_of(tensor, start, 70)
        view = scope.inspect(report, tensor, spans, {"it": recipe}, analysis=analysis)
        seen = view.methods["it"]
        assert seen.reason is None
        expected = merged_bits(stored[name])[view.index]
        assert np.array_equal(seen_bits(seen), expected), name
        changed += int(
            (
                seen_bits(seen) != merged_bits(zoo.base[name].to(stored[name].dtype))[view.index]
            ).sum()
        )
        if mode == "nearest":  # the worked formula is what was rounded
            again = rounding.store(seen.exact, seen.dtype)
            assert np.array_equal(again.view(expected.dtype), expected), name
        else:
            near = np.abs(seen.stored.astype(np.float64) - seen.exact)
            assert (near <= spacing(seen.exact, seen.dtype)).all()
    assert changed > 10


def test_elements_and_changes_are_those_of_the_files(zoo):
    name = "model.layers.0.mlp.up_proj.weight"
    view = scope.microscope(zoo.base_path, zoo.agent_paths, name, start=5, count=40, methods=[])
    base, agents = zoo.values(name)
    assert view.index.tolist() == list(range(5, 45))
    assert view.base.tolist() == base[5:45]
    assert view.agents.tolist() == [agent[5:45] for agent in agents]
    assert view.pattern.tolist() == reference.patterns(base, agents, 1e-5)[5:45]
    assert view.overlap.tolist() == [p.bit_count() for p in view.pattern.tolist()]
    assert set(view.overlap.tolist()) == {0, 1, 2, 3}


class Reads:
    """Counts the bytes of every positioned read."""

    def __init__(self, monkeypatch) -> None:
        self.nbytes = 0
        for name in ("preadv", "pread"):
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, original):
        def counted(*arguments):
            got = original(*arguments)
            self.nbytes += got if isinstance(got, int) else len(got)
            return got

        return counted


def test_only_the_bytes_shown_are_read(zoo, analysis, monkeypatch):
    report = zoo.load()
    tensor = scope.find_tensor(report, "model.embed_tokens.weight")
    spans = scope.window_of(tensor, 2, 3, 4, 5)
    recipes = {m: scope.recipe_for(report, m, SETTINGS.get(m, {})) for m in SHOWN}
    reads = Reads(monkeypatch)
    view = scope.inspect(report, tensor, spans, recipes, analysis=analysis)
    width = zoo.base["model.embed_tokens.weight"].element_size()
    assert reads.nbytes == view.bytes_read == 20 * width * 4  # four rows of five, four checkpoints
    assert view.index.tolist() == [8 * r + c for r in range(2, 6) for c in range(3, 8)]


def test_windows_and_runs_are_cut_at_the_tensors_edges(zoo):
    report = zoo.load()
    tensor = scope.find_tensor(report, "model.layers.0.mlp.up_proj.weight")  # 9 x 13
    assert scope.run_of(tensor, 110, 50) == [(110, 7)]
    assert scope.window_of(tensor, 8, 11, 3, 5) == [(8 * 13 + 11, 2)]
    assert scope.grid_of(()) == (1, 1)
    assert scope.grid_of((4, 3, 2)) == (4, 6)
    scalar = scope.find_tensor(report, "model.layers.1.mlp.gate")
    assert scope.run_of(scalar, 0, 16) == [(0, 1)]
    for wrong, told in (
        (lambda: scope.run_of(tensor, 117, 1), "117 elements, 0 to 116"),
        (lambda: scope.run_of(tensor, -1, 1), "the start is -1"),
        (lambda: scope.run_of(tensor, 0, 0), "0 elements were requested"),
        (lambda: scope.run_of(tensor, 0, 1 << 17), "131072"),
        (lambda: scope.window_of(tensor, 9, 0, 1, 1), "9 rows of 13"),
        (lambda: scope.window_of(tensor, 0, 13, 1, 1), "column 13"),
        (lambda: scope.window_of(tensor, 0, 0, 0, 4), "0 by 4"),
        (lambda: scope.find_tensor(report, "mlp.up"), "similar names are `model.layers.0.mlp"),
        (lambda: scope.find_tensor(report, "model.flags"), "copied from the base"),
    ):
        with pytest.raises(SettingsError, match=told):
            wrong()


def test_methods_that_cannot_be_shown_say_why(zoo, analysis):
    name = "model.layers.0.mlp.up_proj.weight"
    sources = zoo.base_path, zoo.agent_paths
    blind = scope.microscope(*sources, name).methods
    for method in ("ram+", "ram+s", "ties", "dare-ties"):
        assert "give the analysis" in blind[method].reason
        assert blind[method].stored is None
    for method in ("ram", "task-arithmetic", "dare-ta"):
        assert blind[method].reason is None
    seeing = scope.microscope(*sources, name, analysis=analysis).methods
    assert [m for m, seen in seeing.items() if seen.reason] == UNSHOWN
    assert "Fisher file" in seeing["fisher"].reason
    assert "as a whole" in seeing["wudi"].reason
    # A bias is no matrix: WUDI averages it, element by element.
    bias = scope.microscope(*sources, "model.layers.0.self_attn.q_proj.bias", methods=["wudi"])
    assert bias.methods["wudi"].reason is None
    off = scope.microscope(*sources, name, analysis=analysis, epsilon=1.234e-5, methods=["ram+"])
    assert "no counts at epsilon 1.234e-05" in off.methods["ram+"].reason
    scoped = {"ties": {"scope": "tensor"}}
    view = scope.microscope(*sources, name, analysis=analysis, methods=scoped)
    assert "scope global" in view.methods["ties"].reason


def test_an_analysis_of_other_files_is_refused(zoo, analysis, tmp_path):
    other = make_zoo(tmp_path / "other", 3, seed=99)
    with pytest.raises(AnalysisError, match="differs from the files given"):
        scope.microscope(other.base_path, other.agent_paths, "model.norm.weight", analysis=analysis)


def test_fisher_files_are_read_where_shown_and_no_further(tmp_path, monkeypatch):
    zoo = make_zoo(tmp_path / "zoo", 2, seed=3)
    report = zoo.load()
    own = {"files": str(write_fisher_files(zoo, tmp_path))}
    recipe = zoo.recipe(method="fisher", settings=own)
    merge(recipe, tmp_path / "out", device="cpu")
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = scope.find_tensor(report, name)
    reads = Reads(monkeypatch)
    view = scope.inspect(report, tensor, scope.run_of(tensor, 20, 30), {"it": recipe})
    assert reads.nbytes == view.bytes_read == 30 * (3 * 2 + 2 * 4)
    expected = merged_bits(read_folder(tmp_path / "out")[name])[20:50]
    assert np.array_equal(seen_bits(view.methods["it"]), expected)
    assert np.array_equal(rounding.store(view.methods["it"].exact, "BF16"), expected)


def test_common_rows_are_filled_up_from_the_base(tmp_path):
    seen = make_odd_zoo(tmp_path, "fewer rows", seed=3)  # 13 of 17
    report = seen.load(rows="common")
    tensor = scope.find_tensor(report, "model.embed_tokens.weight")
    view = scope.inspect(report, tensor, scope.run_of(tensor, 90, 30), {})
    _, agents = seen.values("model.embed_tokens.weight")
    assert [row.tolist() for row in view.agents] == [agent[90:120] for agent in agents]


def test_what_is_looked_for_is_found(zoo):
    report = zoo.load()
    name = "model.layers.1.mlp.up_proj.weight"
    tensor = scope.find_tensor(report, name)
    base, agents = zoo.values(name)
    masks = reference.patterns(base, agents, 1e-5)
    assert find_element(report, tensor, "shared").index == next(
        i for i, m in enumerate(masks) if m.bit_count() > 1
    )
    for t in range(3):
        hits = [i for i, m in enumerate(masks) if m == 1 << t]
        target = f"unique:agent{t}"
        assert find_element(report, tensor, target).index == hits[0]
        assert find_element(report, tensor, target, start=hits[0] + 1).index == hits[1]
        assert find_element(report, tensor, target, start=hits[-1] + 1) is None

    def cancelled(i: int) -> float:
        taus = [agent[i] - base[i] for t, agent in enumerate(agents) if masks[i] >> t & 1]
        taus = [float(np.float32(tau)) for tau in taus]
        return sum(map(abs, taus)) - abs(sum(taus))

    strengths = [cancelled(i) for i in range(len(base))]
    found = find_element(report, tensor, "conflict")
    assert found.cancelled == pytest.approx(max(strengths), rel=1e-9)
    assert strengths[found.index] == pytest.approx(max(strengths), rel=1e-9)
    with pytest.raises(SettingsError, match="unique:agent2"):
        find_element(report, tensor, "unique:nobody")


def test_steps_are_those_of_torch():
    values = [0.0, 1e-40, 1.0, -1.0, 0.3, 3.4e4, 6e-8, 1.999]
    for dtype, kind in (("BF16", torch.bfloat16), ("F16", torch.float16), ("F32", torch.float32)):
        stored = torch.tensor(values, dtype=kind)
        whole = {2: torch.int16, 4: torch.int32}[stored.element_size()]
        away = (stored.view(whole) + 1).view(kind)
        expected = (away.double() - stored.double()).abs()
        got = spacing(stored.double().numpy(), dtype)
        assert got.tolist() == expected.tolist()


def test_the_view_is_json(zoo, analysis):
    view = scope.microscope(
        zoo.base_path, zoo.agent_paths, "model.norm.weight", count=8, analysis=analysis
    )
    data = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert data["index"] == list(range(8))
    assert set(data["methods"]) == set(scope.METHOD_NAMES)
    assert len(data["methods"]["ram+"]["worked"]) == 8
    assert all(math.isfinite(x) for x in data["methods"]["ram+"]["stored"])
