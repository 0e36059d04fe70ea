"""What a notebook shows of results: one line, or a small table."""

from __future__ import annotations

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


def test_inspect_tells_how_models_fit_from_headers():
    report = rs.inspect(BASE, AGENTS)
    assert repr(report).startswith("CompatibilityReport(coding, tool: 854,144 elements in 50")
    assert report.to_dict()["tensors"] == 50
