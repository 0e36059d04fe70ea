"""Committed checkpoints and what must come out of them; make_golden.py wrote both."""

from __future__ import annotations

import json
from pathlib import Path

import make_golden
import pytest
import reference
import torch
from engine_zoo import read_folder

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze
from ram_studio.engine.merge import merge

HERE = Path(__file__).resolve().parent
GOLDEN = json.loads((HERE / "expected.json").read_text())
CASES = [
    pytest.param(sources, case, id=f"{name} at {case['epsilon']}")
    for name, sources in (
        ("three", {"coding": "coding", "tool": "tool", "memory": "memory"}),
        ("twins", {"coding": "coding", "again": "coding"}),
    )
    for case in GOLDEN["cases"][name]
]


def test_the_committed_files_are_what_the_script_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(make_golden, "HERE", tmp_path)
    make_golden.main()
    written = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert len(written) == 17
    assert [str(p) for p, data in written.items() if (HERE / p).read_bytes() != data] == []


def test_every_overlap_count_occurs_at_some_epsilon():
    first, second, third = (case["overlap"] for case in GOLDEN["cases"]["three"])
    assert all(count > 0 for row in second for count in row)
    assert first != second != third


@pytest.mark.parametrize(
    ("sources", "case"), [c for c in CASES if c.values[1]["epsilon"] in EPSILON_GRID]
)
def test_counts_and_ratios_are_the_golden_ones(sources, case):
    folders = {name: HERE / folder for name, folder in sources.items()}
    analysis = analyze(HERE / "base", folders)
    point = EPSILON_GRID.index(case["epsilon"])
    patterns = {t.name: analysis.counts.patterns[i, point] for i, t in enumerate(analysis.tensors)}
    assert {name: row.tolist() for name, row in patterns.items()} == case["patterns"]
    described = analysis.preview(point)["agents"]
    assert [described[a]["overlap"] for a in sources] == case["overlap"]
    assert [described[a]["rho"] for a in sources] == case["rho"]


@pytest.mark.parametrize("title", list(GOLDEN["settings"]))
@pytest.mark.parametrize(
    ("sources", "case", "dtype"),
    [  # of two agents loops are compiled for bfloat16 anyway
        pytest.param(*case.values, dtype, id=f"{case.id} {dtype}")
        for case in CASES
        for dtype in ("bfloat16", "float32")[: len(case.values[0]) - 1]
    ],
)
def test_merged_values_are_the_golden_ones(tmp_path, sources, case, title, dtype):
    asked = GOLDEN["settings"][title]
    allowed = {"ram": (), "ram+": ("r", "alpha"), "ram+s": ("r",)}[asked["rule"]]
    recipe = make_recipe(
        {
            "base": str(HERE / "base"),
            "agents": {name: str(HERE / folder) for name, folder in sources.items()},
            "method": asked["rule"],
            "settings": {
                "epsilon": case["epsilon"],
                "shared": asked["shared"],
                **{key: asked[key] for key in allowed},
            },
            "dtype": dtype,
        }
    )
    result = merge(recipe, tmp_path / "out")
    expected = case["methods"][title]
    factors = [agent.scaling_factor for agent in result.agents.values()]
    assert factors == pytest.approx(expected["lambda"], rel=1e-12)
    merged = read_folder(tmp_path / "out")
    assert merged.keys() == expected["merged"].keys()
    for name, values in expected["merged"].items():
        exact = [float.fromhex(value) for value in values]
        # To nearest, ties to even; bfloat16 by way of float32.
        stored = torch.tensor([reference.float32(value) for value in exact])
        wanted = stored.to(getattr(torch, dtype)).reshape(merged[name].shape)
        as_bits = torch.int16 if dtype == "bfloat16" else torch.int32
        assert torch.equal(merged[name].view(as_bits), wanted.view(as_bits)), name
