"""Measure here: a merge made in memory becomes a row of the shipped table, asked the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app.asking.limits import read_settings
from ram_studio.app.check import work as check
from ram_studio.app.experiment.work import plan_over, sweep_work
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.shared import TuneSettings
from ram_studio.app.tune import measured, own_test
from ram_studio.app.tune.measured import measure_work, measured_rows, shipped_table, tuned_recipe
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.report.canvas_page import SHOWN
from ram_studio.evals.settings import EvalSettings

DEFAULT = TuneSettings()


def test_what_is_measured_here_is_what_the_shipped_table_says(session, workspace) -> None:
    recipe = tuned_recipe(session.models, DEFAULT)
    assert measured_rows(session, workspace) is None
    stopped = CancelToken()
    stopped.cancel()
    with pytest.raises(Stopped):
        measure_work(recipe, session, workspace)(print, stopped)
    assert measured_rows(session, workspace) is None

    told: list[tuple[str, int, int]] = []
    measure_work(recipe, session, workspace)(told.append, CancelToken())
    assert told[-1][1:] == (240, 240)
    found, shipped = measured_rows(session, workspace), shipped_table("shared-style")
    assert (found["prompts"], found["gold"]) == (shipped["prompts"], shipped["gold"])
    (row,) = found["rows"]
    settings = {"epsilon": EPSILON_GRID[DEFAULT_INDEX], "r": 0.1, "alpha": 2.0}
    assert (row["method"], row["settings"], row["k"]) == ("ram+", settings, DEFAULT_INDEX)
    (theirs,) = [
        r for r in shipped["rows"] if r["method"] == "ram+" and r["settings"] == row["settings"]
    ]
    assert row["right"] == theirs["right"]
    # With weights it is another merge, which no plain setting shows.
    weights = {"tool": 0.0, "coding": [0.5, 1.0]}
    weighed = tuned_recipe(session.models, DEFAULT._replace(weights=weights))
    measure_work(weighed, session, workspace)(print, CancelToken())
    rows = {len(r["settings"]): r for r in measured_rows(session, workspace)["rows"]}
    assert rows[3]["right"] == row["right"]
    assert rows[4]["settings"] == {**settings, "weights": weights}
    assert rows[4]["right"] != row["right"]
    # Of other models nothing of it counts.
    session.load(load_set("dense"))
    assert measured_rows(session, workspace) is None


def test_every_canvas_method_has_a_recipe(session) -> None:
    for method in SHOWN:
        recipe = tuned_recipe(session.models, DEFAULT._replace(method=method, own={"scale": 0.8}))
        assert recipe.method == method
        assert recipe.settings.get("scale", 0.8) == 0.8
        assert measured._is_of(recipe.model_dump(), session.models)
    others = {"densities": {"coding": 0.5}, "filters": [{"match": "head", "keep": "base"}]}
    others |= {"dtype": "float32", "rounding": "stochastic", "base": "other", "agents": {"a": "b"}}
    for name, value in others.items():
        assert not measured._is_of({**recipe.model_dump(), name: value}, session.models), name


def test_models_that_no_suite_fits_are_told_what_to_do(session, workspace) -> None:
    session.load(replace(session.models, set_name=None, title="mine"))
    # The example's models read too little for any general suite; nor are one's own models asked
    # a shipped set's questions.
    with pytest.raises(SettingsError, match="your own questions in Check"):
        measure_work(tuned_recipe(session.models, DEFAULT), session, workspace)
    assert measured_rows(session, workspace) is None


def test_models_that_go_away_leave_the_stage_without_a_table(session, workspace, tmp_path) -> None:
    models = session.models
    agents = {name: str(tmp_path / name) for name in models.agents}
    for name, source in models.agents.items():
        shutil.copytree(source, agents[name])
    session.load(replace(models, set_name=None, title="mine", agents=agents))
    # A file that is there no more when it is looked at, then none at all.
    (tmp_path / "tool" / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    assert measured_rows(session, workspace) is None
    for folder in agents.values():
        shutil.rmtree(folder)
        Path(folder).mkdir()
    session.load(replace(session.models, base=agents["tool"]))
    assert measured_rows(session, workspace) is None


@pytest.mark.parametrize("agents", [1, 2, 3, 8])
def test_twelve_settings_are_rows_of_the_canvas_and_stand_once(session, agents: int) -> None:
    settings = own_test.settings_to_test(agents)
    assert len(settings) == 12
    # The canvas has a name and dials for each; the first are the paper's and what it argues with.
    assert {method for method, _ in settings} <= set(SHOWN)
    assert settings[:3] == [
        ("ram+", {}),
        ("task-arithmetic", {}),
        ("task-arithmetic", {"scale": 1.0}),
    ]
    loaded = session.models
    shown = tuned_recipe(loaded, DEFAULT)
    rows = own_test.rows_to_test(shown, loaded)
    assert len(rows) == 12, "what is shown is the first of the twelve"
    other = own_test.rows_to_test(tuned_recipe(loaded, DEFAULT._replace(r=0.5)), loaded)
    assert len(other) == 13
    assert next(iter(other.values())).settings["r"] == 0.5
    near = own_test.rows_to_test(tuned_recipe(loaded, DEFAULT._replace(r=0.30001)), loaded)
    assert next(row.settings["r"] for row in near.values() if "r" in row.settings) == 0.30001
    assert len(near) == 13, "0.3 is another setting"
    weighed = own_test.rows_to_test(
        tuned_recipe(loaded, DEFAULT._replace(weights={"tool": 0})), loaded
    )
    assert len(weighed) == 13


def test_own_models_are_tested_stopped_and_resumed(session, workspace, monkeypatch) -> None:
    session.load(replace(session.models, set_name=None, title="mine"))
    monkeypatch.setattr(own_test, "USUAL", ("demo",))
    monkeypatch.setattr(own_test, "QUESTIONS", 5)
    recipe = tuned_recipe(session.models, DEFAULT)
    cancel, arrived = CancelToken(), []

    def tell(result) -> None:
        done = [r.label for r in result.rows if r.kind == "merge" and r.status == "finished"]
        if len(done) > len(arrived):
            table = measured_rows(session, workspace)
            # A finished merge is on the curve while the next one is asked.
            arrived.append([row["method"] for row in table["rows"] if row["kind"] == "merge"])
        if len(done) == 2:
            cancel.cancel()

    stopped = measure_work(recipe, session, workspace)(tell, cancel)
    assert stopped.ending == "stopped"
    assert [sorted(methods) for methods in arrived] == [["ram+"], ["ram+", "task-arithmetic"]]
    # Again: nothing is asked twice, and the table has all of them, keyed as the canvas names them.
    result = measure_work(recipe, session, workspace)(lambda _: None, CancelToken())
    assert result.ending == "done"
    table = measured_rows(session, workspace)
    rows = [row for row in table["rows"] if row["kind"] == "merge"]
    assert {row["method"] for row in rows} == {method for method, _ in own_test.settings_to_test(3)}
    assert len(rows) == 12
    assert (table["n"], len(table["prompts"])) == (5, 15)
    own, shipped = {}, shipped_table("shared-style")
    for row in shipped["rows"]:
        own.setdefault((row["method"], json.dumps(row["settings"], sort_keys=True)), row["right"])
    places = [shipped["prompts"].index(prompt) for prompt in table["prompts"]]
    found = [
        (r["right"], own.get((r["method"], json.dumps(r["settings"], sort_keys=True))))
        for r in rows
    ]
    known = [(right, "".join(all_[i] for i in places)) for right, all_ in found if all_]
    assert len(known) >= 6
    assert all(right == theirs for right, theirs in known)


@pytest.mark.slow
def test_checks_and_sweeps_fill_the_table_of_own_models(session, workspace) -> None:
    session.load(replace(session.models, set_name=None, title="mine"))

    def asked(suites, limits, *names):
        every = check.candidates(session)
        chosen = {name: every[name] for name in names or every}
        plan = read_settings({"suites": suites, "limit": limits}, workspace.settings)
        check.score_work(chosen, plan, session, workspace)(lambda event: None, CancelToken())

    asked(["demo"], {"demo": 12})
    # Without a merge there is nothing to show; but there is what to ask one.
    assert measured_rows(session, workspace) is None
    common, _ = measured._find_own(session, workspace, needs_merge=False)
    assert (len(common.questions), common.merges) == (36, {})
    merging = merge_work(recipe_from(session.models, "ram+", {}), session, workspace.settings)
    merging(lambda event: None, CancelToken())
    asked(["demo"], {"demo": 12}, "ram+")
    found, shipped = measured_rows(session, workspace), shipped_table("shared-style")
    assert (found["n"], found["domains"]) == (12, ["code", "tool", "memory"])
    assert set(found["prompts"]) < set(shipped["prompts"])
    rows = [(row["kind"], row["method"]) for row in found["rows"]]
    names = ("base", *session.models.agents)
    assert rows == [*(("source", name) for name in names), ("merge", "ram+")]
    by_name = {row["method"]: row for row in shipped["rows"] if row["kind"] == "source"}
    places = [shipped["prompts"].index(prompt) for prompt in found["prompts"]]
    for row in found["rows"][:-1]:
        theirs = by_name[row["method"]]["right"]
        assert row["right"] == "".join(theirs[place] for place in places)

    plan = plan_over(session.models, {"r": "0.2:0.4:2"}, {}, EvalSettings(limit=12), held_out=0)
    sweep_work(plan, session, workspace)(lambda state: None, CancelToken())
    swept = measured_rows(session, workspace)
    assert swept["prompts"] == found["prompts"]
    merges = [row["settings"]["r"] for row in swept["rows"] if row["kind"] == "merge"]
    assert {0.1, 0.2, 0.4} <= set(merges)

    # Measuring here asks the same questions, and no others.
    recipe = tuned_recipe(session.models, DEFAULT._replace(r=0.35))
    asked_of = measure_work(recipe, session, workspace)(lambda _: None, CancelToken())
    assert asked_of.questions == 36
    further = measured_rows(session, workspace)
    assert further["prompts"] == found["prompts"]
    merges = [row["settings"].get("r") for row in further["rows"] if row["kind"] == "merge"]
    assert 0.35 in merges
    assert len(merges) >= 13
    # Other questions of one model make no table with these.
    asked(["demo"], {"demo": 14}, "base")
    assert measured_rows(session, workspace) == further
