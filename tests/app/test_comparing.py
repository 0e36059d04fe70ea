"""The comparison without a server: rows, view and files."""

from __future__ import annotations

import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from app_parts import built, tuned
from pandas import DataFrame

from ram_studio.app.experiment import panel, table, view, work
from ram_studio.app.history.work import past_models
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError
from ram_studio.evals.experiment.presets import EXPERIMENTS
from ram_studio.evals.settings import EvalSettings

TUNED = {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}


def _row(name: str, kind: str, score: float, outcome: str | None = None) -> dict:
    is_merge = kind == "merge"
    factors = {"<a>": {"rho": None, "lambda": 1.2, "effective_lambda": 1.15}} if is_merge else {}
    ci = [max(0.0, score - 0.1), min(1.0, score + 0.1)]
    domain = {"n": 50, "correct": 1, "score": score, "stderr": 0.1, "ci95": ci}
    versus = {"wins": 1, "losses": 2, "p_value": 0.2, "p_adjusted": 0.4, "outcome": outcome}
    return {
        "row": name,
        "kind": kind,
        "method": "ties" if is_merge else None,
        "settings": {"epsilon": 1e-5, "scale": None, "scope": "global"} if is_merge else None,
        "merged_agents": ["<a>", "b"] if is_merge else None,
        "domains": dict.fromkeys(("code", "tool", "memory", "follow"), domain),
        "average": score,
        "retention": score,
        "merge_seconds": 0.02 if is_merge else None,
        "evaluation_seconds": 1.0,
        "agents": factors,
        "versus": versus if outcome else None,
    }


TABLE = {
    "suite": "demo",
    "seed": 1,
    "n": 50,
    "skills": ["code", "tool", "memory"],
    "floors": {"code": 0.1},
    "trust": {"questions": 4, "prompts": "0f", "seed": 1, "floors": {}, "models": {}}
    | {"software": {"<x>": "1"}},
    "reference": "<i>ram+</i>",
    "ending": "done",
    "rows": [
        _row("base", "base", 0.2, "worse"),
        _row("<a>", "agent", 0.4, "worse"),
        _row("<b>ties</b>", "merge", 0.9, "within noise"),
        _row("<i>ram+</i>", "merge", 0.9),
    ],
    "statements": [],
}


def test_ram_rows_take_the_sliders_and_the_others_their_defaults() -> None:
    for preset in work.PRESETS:
        rows = work.rows_for(load_set("shared-style"), preset, (), TUNED)
        assert len({recipe.base for recipe in rows.values()}) == 1
        assert EXPERIMENTS[preset].title
    tuned = {"epsilon": 1e-4, "r": 0.3, "alpha": 1.0}
    rows = work.rows_for(load_set("shared-style"), "", work.USUAL, tuned)
    assert len(rows) == len(work.USUAL)
    assert {r.method for r in rows.values()} >= {"ram", "ram+", "ram+s", "ties", "dare-ta"}
    plus = next(r for r in rows.values() if r.method == "ram+")
    assert {k: plus.settings[k] for k in tuned} == tuned
    assert rows["ties"].settings == {}
    assert rows["task-arithmetic (scale 1)"].settings == {"scale": 1.0}


@pytest.mark.parametrize(
    ("preset", "chosen", "text"),
    [("", (), "No method"), ("", ["blend"], "blend"), ("warp", (), "warp")],
)
def test_wrong_choices_are_named(preset, chosen, text) -> None:
    with pytest.raises(SettingsError, match=text):
        work.rows_for(load_set("shared-style"), preset, chosen, TUNED)


def test_the_page_says_what_is_within_noise_and_escapes_names() -> None:
    html = view.summary_html(TABLE) + view.details_html(TABLE)
    assert not any(text in html for text in ("<b>ties</b>", "<i>ram+</i>"))
    for said in ("&lt;b&gt;ties&lt;/b&gt;", "within noise", "1.200 → <b>1.150</b>"):
        assert said in html
    assert html.count('<svg class="drawn"') == 2


def test_the_table_is_sorted_by_numbers_and_read_as_text() -> None:
    value = table.method_grid(TABLE).value()
    heads = value["headers"]
    ties = dict(zip(heads, value["metadata"]["display_value"][2], strict=True))
    assert ties["#"] == "1"
    assert ties["code"] == "90.0 % · 80–100"
    assert ties["Against <i>ram+</i>"] == "within noise · +1 −2, p 0.400"
    assert "scale 1/2" in ties["Settings"]
    assert [row[heads.index("Average")] for row in value["data"]] == [0.2, 0.4, 0.9, 0.9, -1]
    # The floor stands in the column it is of, and sorts with it.
    assert [row[heads.index("code")] for row in value["data"]][-1] == 0.1
    styles = [row[heads.index("code")] for row in value["metadata"]["styling"]]
    assert ["underline" in style for style in styles] == [False, False, True, True, False]


def test_the_report_needs_nothing_else() -> None:
    html = view.report_html(TABLE, "<My> title")
    assert html.startswith("<!doctype html>")
    assert "&lt;My&gt; title" in html
    assert not re.search(r"(src|href)=|url\(|https?:|<script|@import", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    variables = set(re.findall(r"var\((--ram-[a-z0-9-]+)\)", html))
    assert all(f"{name}:" in html for name in variables)


def test_labels_of_equal_scores_do_not_cover_each_other() -> None:
    points = [view.Point(str(i), f"m{i}", 0.02, 0.97, i == 1) for i in range(1, 20)]
    svg = view.time_score_svg(points, 900)
    heights = [float(y) for y in re.findall(r'class="name" x="[^"]+" y="([^"]+)"', svg)]
    assert len(heights) == 19
    gaps = [b - a for a, b in zip(sorted(heights), sorted(heights)[1:], strict=False)]
    assert min(gaps) >= 15.9
    height = float(re.search(r'viewBox="0 0 900 (\d+)"', svg).group(1))
    assert 0 < min(heights) < max(heights) < height
    assert "<circle" in view.time_score_svg(points[:1], 340)
    assert "<circle" not in view.time_score_svg([], 340)


def test_the_files_lie_in_the_session_s_folder_and_go_with_another_load(session: Session) -> None:
    made = SimpleNamespace(to_dict=lambda: TABLE, to_frame=lambda: DataFrame({"row": ["ram+"]}))
    kept = panel.keep(made, "How strong / ../ <x>", session)
    table_file, report, figure = kept.files
    assert table_file.read_text() == "row\nram+\n"
    assert report == session.folder / "downloads" / "comparison-how-strong-x.html"
    drawing = ElementTree.fromstring(figure.read_text())
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(drawing.findall(".//*[@cx]")) == len(table.merge_rows(kept.table)) == 2
    session.comparison = kept
    session.load(load_set("dense"))
    assert session.comparison is None


def test_fisher_rows_name_no_folder(session: Session, workspace: Workspace) -> None:
    rows = work.rows_for(load_set("shared-style"), "", ["fisher"], TUNED)
    few = {n: r.model_copy(update={"settings": {"examples": 1}}) for n, r in rows.items()}
    found = work.compare_work(few, EvalSettings(limit=1), session, workspace)(
        lambda _: None, CancelToken()
    )
    assert "files" not in found.merges["fisher"]["recipe"]["settings"]
    assert str(session.folder) not in found.to_frame().to_csv()
    assert (session.folder / "fisher").is_dir()


def test_a_stopped_comparison_keeps_what_was_answered_and_goes_on(session, workspace, monkeypatch):
    rows, cancel = (
        work.rows_for(load_set("shared-style"), "", ["ram", "ram+"], TUNED),
        CancelToken(),
    )

    def stop_at_the_last(event: tuple[str, int, int]) -> None:
        if event[1] == 5:
            cancel.cancel()

    stopped = work.compare_work(rows, EvalSettings(limit=10), session, workspace)(
        stop_at_the_last, cancel
    ).to_dict()
    assert stopped["ending"] == "stopped"
    sources = ["base", "coding", "tool", "memory"]
    assert [row["row"] for row in stopped["rows"]] == [*sources, "ram"]
    assert list(stopped["unfinished"]) == ["ram+"]
    assert "no score" in view.summary_html(stopped)
    assert "run the same again" in view.report_html(stopped, "x")

    compare = built(panel.ComparePanel, workspace)
    form = {compare.preset: "", compare.methods: ["ram", "ram+"], compare.limit: 10}
    form[compare.asked.choice.box] = ["demo"]
    *_, last = compare.run({**form, **tuned(compare.shared)}, session)
    assert last[compare.controls.status] == ""
    drawn = table.method_grid(session.comparison.table).value()
    assert last[compare.table]["value"] == drawn
    # A reloaded page shows it again.
    assert compare.shared.loaded.updates(session)[compare.table]["value"] == drawn
    for before, after in zip(stopped["rows"], session.comparison.table["rows"], strict=False):
        assert before["domains"] == after["domains"]

    # The merges stand in History with what made them, beside base and agents.
    models = {model.name: model for model in past_models(session, workspace)}
    assert set(models) == {*sources, "ram", "ram+"}
    assert models["ram+"].merge.settings["r"] == 0.1
    assert models["ram+"].merge.agents["coding"]["effective_lambda"] > 1
    assert models["base"].merge is None
    # Of merges that were only tried some are listed: they must not hide all others.
    monkeypatch.setattr("ram_studio.app.history.work.MOST_TRIED", 1)
    names = {model.name for model in past_models(session, workspace)}
    assert names > set(sources)
    assert len(names) == 5
