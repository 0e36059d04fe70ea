"""What analyze and preview say beyond counts, as JSON and as text."""

from __future__ import annotations

import json

from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.resources import asset_path

ANALYSIS = "analysis.safetensors"


def test_preview_tells_pairs_and_what_rounding_keeps(cli):
    path = asset_path("dense", ANALYSIS)
    code, out, _ = cli("preview", path, "--json", "--rule", "ram+m", "--r", "0.2")
    assert code == 0
    found = json.loads(out)
    expected = load_analysis(path).preview(rule="ram+m", r=0.2)
    assert {k: found[k] for k in expected} == expected
    assert list(found["relations"]["pairs"]) == ["coding+tool", "coding+memory", "tool+memory"]
    assert -0.1 < found["relations"]["pairs"]["coding+tool"]["cosine"] < 0.1
    assert 0.6 < found["relations"]["conflict_share"] < 0.8
    for dtype, most in (("bfloat16", 0.02), ("float16", 2e-3), ("float32", 1e-5)):
        for name, agent in found["agents"].items():
            retained = found["rounding"][dtype][name]
            assert retained["low"] <= retained["nearest"] <= retained["high"]
            assert retained["high"] - retained["low"] < most
            assert retained["stochastic"] == agent["lambda"]
    assert found["rounding"]["bfloat16"]["coding"]["nearest"] < found["agents"]["coding"]["lambda"]


def test_preview_prints_ratios_pairs_and_a_sentence_of_advice(cli):
    code, out, _ = cli("preview", asset_path("dense", ANALYSIS))
    assert code == 0
    for text in ("rho by size", "opposite signs", "coding+tool", "Signs differ in"):
        assert text in out
    assert "Rounding to nearest in bfloat16 takes part of the rescaling: coding 1.0" in out
    assert out.count("note:") == 1


def test_preview_of_fewer_agents_says_what_is_not_known(cli):
    path = asset_path("dense", ANALYSIS)
    code, out, _ = cli("preview", path, "--agents", "coding,tool")
    assert code == 0
    assert "known only for all analyzed agents together" in out
    _, out, _ = cli("preview", path, "--agents", "coding,tool", "--json")
    found = json.loads(out)
    assert found["rounding"] is None
    assert found["relations"]["pairs"]["coding+tool"]["both"] == found["relations"]["shared"]


def test_analyze_leaves_it_out_when_asked(cli, tmp_path):
    path = tmp_path / "lean.analysis"
    agents = [f"--agent={n}={asset_path('dense', n)}" for n in ("coding", "tool", "memory")]
    analyze = ("analyze", "--base", asset_path("independent", "base"), *agents, "--no-relations")
    code, out, _ = cli(*analyze, "--analysis", path)
    assert code == 0
    assert load_analysis(path).relations is None
    assert "rho by size" not in out
    found = json.loads(cli(*analyze, "--json")[1])
    assert (found["relations"], found["rounding"]) == (None, None)
    code, _, error = cli("preview", path, "--rule", "ram+m")
    assert code == 65
    assert "ram+m" in error


def test_analyze_says_what_rounding_takes_once(cli):
    code, out, _ = cli("preview", asset_path("real", ANALYSIS), "--by", "layer")
    assert code == 0
    assert out.count("Rounding to nearest in") == 1
    assert "\nlayer 0  " in out
