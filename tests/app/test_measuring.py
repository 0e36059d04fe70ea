"""Measure here: a merge made in memory becomes a row of the shipped table, asked the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app.asking.limits import read_settings
from ram_studio.app.check import work as check
from ram_studio.app.experiment.work import plan_over, sweep_work
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.deep_link import SHOWN
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.shared import Tuned
from ram_studio.app.tune import measured
from ram_studio.app.tune.measured import measure_work, measured_rows, shipped_table, tuned_recipe
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.settings import EvalSettings

DEFAULT = Tuned()


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
    # Of other models nothing of it counts.
    session.load(load_set("dense"))
    assert measured_rows(session, workspace) is None


def test_every_method_of_the_canvas_has_a_recipe_and_plain_merges_are_rows(session) -> None:
    for method in SHOWN:
        recipe = tuned_recipe(session.models, DEFAULT._replace(method=method, own={"scale": 0.8}))
        assert recipe.method == method
        assert recipe.settings.get("scale", 0.8) == 0.8
        assert measured._is_of(recipe.model_dump(), session.models)
    others = {"dtype": "float32", "rounding": "stochastic", "base": "other", "agents": {"a": "b"}}
    for name, value in others.items():
        assert not measured._is_of({**recipe.model_dump(), name: value}, session.models), name


def test_own_models_without_questions_are_not_asked(session, workspace) -> None:
    session.load(replace(session.models, set_name=None, title="mine"))
    # Nor are one's own models asked a shipped set's questions.
    with pytest.raises(SettingsError, match="a merge the same ones in Check"):
        measure_work(tuned_recipe(session.models, DEFAULT), session, workspace)
    assert measured_rows(session, workspace) is None


@pytest.mark.slow
def test_checks_and_sweeps_of_own_models_make_the_table_that_is_measured_further(
    session, workspace
) -> None:
    session.load(replace(session.models, set_name=None, title="mine"))

    def asked(suites, limits, *names):
        every = check.candidates(session)
        chosen = {name: every[name] for name in names or every}
        plan = read_settings({"suites": suites, "limit": limits}, workspace.settings)
        check.score_models(chosen, plan, session, workspace, lambda event: None, CancelToken())

    asked(["demo"], {"demo": 12})
    # Without a merge there is nothing to show.
    assert measured_rows(session, workspace) is None
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
    told: list[tuple[str, int, int]] = []
    recipe = tuned_recipe(session.models, DEFAULT._replace(r=0.3))
    measure_work(recipe, session, workspace)(told.append, CancelToken())
    assert told[-1][1:] == (36, 36)
    further = measured_rows(session, workspace)
    assert len(further["rows"]) == len(swept["rows"]) + 1
    # Other questions of one model make no table with these.
    asked(["demo"], {"demo": 14}, "base")
    assert measured_rows(session, workspace) == further
