"""What a notebook shows of results: one line, or a small table."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import ram_studio as rs

BASE = rs.asset_path("independent", "base")
AGENTS = {name: rs.asset_path("independent", name) for name in ("coding", "tool")}


def test_results_show_themselves_in_one_line_and_as_a_table(tmp_path):
    analysis = rs.analyze(BASE, AGENTS)
    assert repr(analysis) == "Analysis(coding, tool: 854,144 elements in 50 tensors)"
    agents = {name: str(path) for name, path in AGENTS.items()}
    recipe = rs.make_recipe({"base": str(BASE), "agents": agents, "method": "ram+"})
    result = rs.merge(recipe, tmp_path / "<merged>", analysis=analysis)
    assert repr(result) == f"MergeResult(ram+ of coding, tool in {tmp_path}/<merged>)"
    for shown in (analysis._repr_html_(), result._repr_html_()):
        assert shown.count("<tr") == 3  # a header, and a row for each agent
        assert "coding" in shown
        assert "<merged>" not in shown
        assert len(shown) < 4000


def test_previews_show_themselves_and_groups_have_no_lambda():
    analysis = rs.load_analysis(rs.asset_path("independent", "analysis.safetensors"))
    preview = analysis.preview(rule="ram+s", by="layer")
    shown = "Preview(coding, tool, memory: ram+s, epsilon 1e-05, r 0.1, alpha 2 by layer)"
    assert repr(preview) == shown
    assert json.loads(json.dumps(preview)) == dict(preview)
    layers = len(preview["groups"])
    assert preview._repr_html_().count("<tr") == 1 + 3 * layers
    frame = analysis.to_frame(by="layer")
    assert "lambda" not in frame
    assert "lambda" in analysis.to_frame()
    assert len(frame) == 3 * layers


def test_an_analysis_plots_what_the_app_draws():
    analysis = rs.load_analysis(rs.asset_path("independent", "analysis.safetensors"))
    bars = analysis.plot().data[0]
    found = analysis.preview()["patterns"]
    assert sorted(bars.y) == sorted(n for n in found.values() if n)
    heat = analysis.plot("layers", agent="memory").data[0]
    frame = analysis.to_frame(by="tensor")
    own = frame[frame["agent"] == "memory"].groupby(["module", "layer"])[["active", "total"]].sum()
    shares = (100 * own["active"] / own["total"]).tolist()
    drawn = [share for row in heat.customdata for share in row if share == share]
    assert sorted(drawn) == pytest.approx(sorted(shares))
    for kind, told in (("towers", "no towers"), ("layer", "did you mean 'layers'")):
        with pytest.raises(rs.RamStudioError, match=told):
            analysis.plot(kind)


def test_the_notebook_of_the_examples_runs(tmp_path, monkeypatch):
    """Cell by cell, as a kernel does: the last expression of each is what it shows."""
    notebook = Path(__file__).parents[2] / "examples" / "merge_agents.ipynb"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    space: dict[str, object] = {}
    shown = []
    for cell in (one for one in cells if one["cell_type"] == "code"):
        assert cell["outputs"] == []
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(notebook), "exec"), space)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), str(notebook), "eval"), space))
    kinds = [type(one).__name__ for one in shown]
    assert kinds == [
        *("CompatibilityReport", "Analysis", "Figure", "Figure", "Preview", "DataFrame"),
        *("MergeResult", "Verification", "DataFrame"),
    ]
    assert shown[-1]["label"].tolist() == ["ties", "ram+ (r 0.3)"]


def test_inspect_tells_how_models_fit_from_headers():
    report = rs.inspect(BASE, AGENTS)
    assert repr(report).startswith("CompatibilityReport(coding, tool: 854,144 elements in 50")
    assert report.to_dict()["tensors"] == 50
