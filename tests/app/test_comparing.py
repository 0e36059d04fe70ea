"""The comparison without a server: rows, view and files."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from app_parts import built, tuned

from ram_studio.algorithm.methods import METHODS
from ram_studio.app.experiment import panel, table, view, work
from ram_studio.app.experiment.figure import experiment_figure
from ram_studio.app.history.work import past_models
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError
from ram_studio.evals.experiment.presets import EXPERIMENTS
from ram_studio.evals.experiment.result import ExperimentResult, Row
from ram_studio.evals.report.comparison import Comparison, PairedCounts
from ram_studio.evals.report.eval_result import Reproducibility
from ram_studio.evals.report.score import Average, DomainScore
from ram_studio.evals.settings import EvalSettings

TUNED = {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}


def _row(name: str, kind: str, correct: int, outcome: str | None = None) -> Row:
    is_merge = kind == "merge"
    factors = {"<a>": {"rho": None, "lambda": 1.2, "effective_lambda": 1.15}} if is_merge else {}
    score = DomainScore(50, correct)
    counts = {"better": PairedCounts(9, 0, 41), "inconclusive": PairedCounts(1, 2, 47)}
    p = {"better": 0.01, "inconclusive": 0.4}
    versus = outcome and Comparison("skills", name, RAM, "merge", counts[outcome], p[outcome])
    return Row(
        name,
        kind,
        method=("ram+" if name == RAM else "ties") if is_merge else "",
        settings={"epsilon": 1e-5, "scale": None, "scope": "global"} if is_merge else {},
        merged_agents=("<a>", "b") if is_merge else (),
        status="finished",
        domains=dict.fromkeys(("code", "tool", "memory", "follow"), score),
        average=Average.over([score] * 3),
        merge_seconds=0.02 if is_merge else None,
        agents=factors,
        versus=versus,
    )


RAM = "<i>ram+</i>"
RESULT = ExperimentResult(
    "comparison",
    "demo",
    1,
    reference=RAM,
    ending="done",
    questions=150,
    skills=("code", "tool", "memory"),
    chance_levels={"code": 0.1},
    reproducibility=Reproducibility(1, 4, "0f", {"<x>": "1"}, {}),
    rows=(
        _row("base", "base", 10, "better"),
        _row("<a>", "agent", 20, "better"),
        _row("<b>ties</b>", "merge", 45, "inconclusive"),
        _row(RAM, "merge", 45),
    ),
)


def test_ram_rows_take_the_sliders_and_the_others_their_defaults() -> None:
    for preset in work.PRESETS:
        rows = work.rows_for(load_set("shared-style"), preset, (), TUNED)
        assert len({recipe.base for recipe in rows.values()}) == 1
        said = f"{EXPERIMENTS[preset].title}. {EXPERIMENTS[preset].description}"
        has_all = {recipe.method for recipe in rows.values()} >= {*METHODS}
        assert has_all or not re.search(r"(All|Every) method", said), preset
    tuned = {"epsilon": 1e-4, "r": 0.3, "alpha": 1.0}
    rows = work.rows_for(load_set("shared-style"), "", work.USUAL, tuned)
    assert len(rows) == len(work.USUAL)
    assert {r.method for r in rows.values()} >= {"ram", "ram+", "ram+s", "ties", "dare-ta"}
    plus = next(r for r in rows.values() if r.method == "ram+")
    assert {k: plus.settings[k] for k in tuned} == tuned
    assert rows["ties"].settings == {}
    assert rows["sum"].settings == {"scale": 1.0}
    assert [*rows][:3] == ["average", "sum", "ties"]


@pytest.mark.parametrize(
    ("preset", "chosen", "text"),
    [("", (), "No method"), ("", ["blend"], "blend"), ("warp", (), "warp")],
)
def test_wrong_choices_are_named(preset, chosen, text) -> None:
    with pytest.raises(SettingsError, match=text):
        work.rows_for(load_set("shared-style"), preset, chosen, TUNED)


def test_the_page_says_what_is_inconclusive_and_escapes_names() -> None:
    html = view.found_html(RESULT)
    assert not any(text in html for text in ("<b>ties</b>", "<i>ram+</i>"))
    for said in (
        "Not significantly different from &lt;i&gt;ram+&lt;/i&gt; on all skill questions: "
        "&lt;b&gt;ties&lt;/b&gt;.",
        "1.200 → <b>1.150</b>",
        "Reproducibility: 4 questions",
        "Sort columns by",
    ):
        assert said in html
    # TIES rescales nothing by a lambda.
    assert html.count("1.200 → <b>1.150</b>") == 1


def test_the_table_is_sorted_by_numbers_and_read_as_text() -> None:
    value = table.experiment_grid(RESULT).value()
    heads = value["headers"]
    ties = dict(zip(heads, value["metadata"]["display_value"][2], strict=True))
    assert ties["Model"] == "<b>ties</b>"
    assert ties["code"] == "90.0 % · 79–96"
    assert ties[f"Against {RAM}"] == "no significant difference · +1 −2, p 0.400"
    assert "scale 1/2" in ties["Settings"]
    averages = [row[heads.index("Average")] for row in value["data"]]
    assert averages == pytest.approx([0.2, 0.4, 0.9, 0.9, -1])
    # The chance level stands in the column it is of, and sorts with it.
    assert [row[heads.index("code")] for row in value["data"]][-1] == 0.1
    styles = [row[heads.index("code")] for row in value["metadata"]["styling"]]
    assert ["underline" in style for style in styles] == [False, False, True, True, False]


def test_the_report_needs_nothing_else() -> None:
    html = view.report_html(RESULT, "<My> title")
    assert html.startswith("<!doctype html>")
    assert "&lt;My&gt; title" in html
    assert not re.search(r"(src|href)=|url\(|https?:|<script|@import", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "Sort columns" not in html, "its table is plain"
    variables = set(re.findall(r"var\((--ram-[a-z0-9-]+)\)", html))
    assert all(f"{name}:" in html for name in variables)


def test_the_figure_draws_merges_by_time_and_rings_the_reference() -> None:
    figure = experiment_figure(RESULT, "")
    drawn = {trace.name: trace for trace in figure.data}
    assert set(drawn) == {"&lt;b&gt;ties&lt;/b&gt;", "&lt;i&gt;ram+&lt;/i&gt;", "Reference"}
    assert drawn["Reference"].x == (0.02,)
    assert drawn["Reference"].y == (90.0,)
    ticks = figure.layout.xaxis
    assert ticks.type == "log"
    assert dict(zip(ticks.ticktext, ticks.tickvals, strict=True))["0.02"] == pytest.approx(0.02)
    assert experiment_figure(RESULT, "setting").layout.xaxis.type == "category"
    assert not experiment_figure(replace(RESULT, rows=()), "").data


def test_files_lie_in_the_sessions_folder_until_another_load(session: Session) -> None:
    found = panel.save_experiment(RESULT, "How strong / ../ <x>", session)
    table_file, report = found.files
    lines = table_file.read_text().splitlines()
    assert lines[0].startswith("label,kind,method,status")
    assert len(lines) == 5
    assert report == session.folder / "downloads" / "comparison-how-strong-x.html"
    session.experiments["comparison"] = found
    session.load(load_set("dense"))
    assert session.experiments == {}


def test_fisher_rows_name_no_folder(session: Session, workspace: Workspace) -> None:
    rows = work.rows_for(load_set("shared-style"), "", ["fisher"], TUNED)
    few = {n: r.model_copy(update={"settings": {"examples": 1}}) for n, r in rows.items()}
    found = work.compare_work(few, EvalSettings(limit=1), session, workspace)(
        lambda _: None, CancelToken()
    )
    assert "files" not in found.row("fisher").settings
    assert str(session.folder) not in found.to_frame().to_csv()
    assert (session.folder / "fisher").is_dir()


def test_a_stopped_comparison_keeps_its_answers_and_goes_on(session, workspace, monkeypatch):
    rows, cancel = (
        work.rows_for(load_set("shared-style"), "", ["ram", "ram+"], TUNED),
        CancelToken(),
    )

    def stop_at_the_last(found: ExperimentResult) -> None:
        if sum(row.status == "finished" for row in found.rows) == 5:
            cancel.cancel()

    stopped = work.compare_work(rows, EvalSettings(limit=10), session, workspace)(
        stop_at_the_last, cancel
    )
    assert stopped.ending == "stopped"
    sources = ["base", "coding", "tool", "memory"]
    assert [row.label for row in stopped.rows if row.n] == [*sources, "ram"]
    assert list(stopped.unfinished) == ["ram+"]
    assert "No score for ram+" in view.found_html(stopped)
    assert "run the same again" in view.report_html(stopped, "x")

    compare = built(panel.ComparePanel, workspace)
    form = {compare.preset: "", compare.methods: ["ram", "ram+"], compare.limit: 10}
    form[compare.questions.choice.box] = ["demo"]
    *_, last = compare.run({**form, **tuned(compare.shared)}, session)
    assert last[compare.controls.status] == ""
    found = session.experiments["comparison"].result
    drawn = table.experiment_grid(found).value()
    assert last[compare.table]["value"] == drawn
    # A reloaded page shows it again.
    assert compare.shared.loaded.updates(session)[compare.table]["value"] == drawn
    for before, after in zip(stopped.rows[:5], found.rows, strict=False):
        assert before.domains == after.domains

    # The merges stand in History with what made them, beside base and agents.
    models = {model.name: model for model in past_models(session, workspace)}
    control = next(name for name in models if name.startswith("norm-matched "))
    assert set(models) == {*sources, "ram", "ram+", control}
    assert models["ram+"].merge.settings["r"] == 0.1
    assert models["ram+"].merge.agents["coding"]["effective_lambda"] > 1
    assert models["base"].merge is None
    # Of merges that were only tried some are listed: they must not hide all others.
    monkeypatch.setattr("ram_studio.app.history.work.MOST_TRIED", 1)
    names = {model.name for model in past_models(session, workspace)}
    assert names > set(sources)
    assert len(names) == 5
