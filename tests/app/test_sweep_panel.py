"""The sweep panel without a browser: its form, its chart, its table, a run, and Tune's values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.app.experiment import sweep_panel, sweep_view, sweep_wording, sweeping
from ram_studio.app.load.examples import load_example
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings
from ram_studio.app.workspace import Workspace
from ram_studio.evals.experiment.race import Loss
from ram_studio.evals.experiment.table import Recheck, SweepRow, SweepState
from ram_studio.evals.report.tables import DomainScore, PairedCounts

OFF = (False, 0.0, 1.0, 3)


def values(**changes) -> list:
    """Return what the panel's components hold, Tune's sliders at the end."""
    held = {
        "methods": ["ram+", "ram+s"],
        "r": (True, 0.0, 0.4, 3),
        "alpha": OFF,
        "epsilon": (False, 1e-6, 1e-3, 3),
        "scale": OFF,
        "search": "grid",
        "trials": 4,
        "suites": ["demo"],
        "items": 4,
        "minutes": 5,
        "tune": (DEFAULT_INDEX, 0.2, 3.0),
        **changes,
    }
    lines = [x for name in sweeping.PARAMETERS for x in held[name]]
    rest = [held[name] for name in ("search", "trials", "suites", "items", "minutes")]
    return [held["methods"], *lines, *rest, *held["tune"]]


def plan(**changes):
    return sweeping.plan_of(sweep_panel.read_form(values(**changes)), load_example("1"))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(Settings(work_dir=tmp_path / "work"))


@pytest.fixture
def session(workspace: Workspace) -> Session:
    session = workspace.session("t")
    session.load(load_example("1"))
    return session


@pytest.fixture
def state() -> SweepState:
    def made(label: str, r: float, correct: int, status: str = "kept", **more) -> SweepRow:
        return SweepRow(
            label=label,
            values={"method": "ram+", "r": r},
            method="ram+",
            settings={"epsilon": LADDER[3], "r": r, "alpha": 2.0},
            status=status,
            correct=correct,
            n=60 if status != "dropped" else 15,
            domains={"code": DomainScore(60, correct)},
            factors={"coding": 1.0 + r},
            **more,
        )

    loss = Loss("<b>best</b>", 15, 1, 13, 0.0009, 0.01)
    rows = (
        made("<b>best</b>", 0.1, 50),
        made("start", 0.2, 48, is_start=True),
        made("loser", 0.3, 2, "dropped", loss=loss),
        replace(made("bad", 0.4, 0), n=0, status="failed", note="<i>does not fit</i>"),
    )
    checked = Recheck(
        DomainScore(60, 45),
        DomainScore(60, 44),
        {side: {"code": DomainScore(60, 45)} for side in ("winner", "start")},
        PairedCounts(3, 2, 55),
    )
    return SweepState(
        "demo",
        1,
        chosen_by=60,
        held_out=60,
        settings=4,
        rows=rows,
        winner="<b>best</b>",
        recheck=checked,
        ending="done",
    )


def test_the_form_becomes_a_plan_with_tunes_values_where_nothing_is_varied():
    made = plan()
    assert len(made.candidates()) == 6
    first = made.candidates()[0].recipe
    assert first.method == "ram+"
    assert first.settings["alpha"] == 3.0
    assert first.settings["epsilon"] == LADDER[DEFAULT_INDEX]
    assert made.recipe.settings["r"] == 0.2
    soft = plan(methods=["ram", "ram+s", "ties"], scale=(True, 0.5, 1.0, 2))
    assert [c.label for c in soft.candidates()] == [
        "ram",
        "ram+s (r 0)",
        "ram+s (r 0.2)",
        "ram+s (r 0.4)",
        "ties (scale 0.5)",
        "ties (scale 1)",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": []}, "No method is chosen"),
        ({"methods": ["ram+"], "r": OFF}, "Nothing is varied"),
        ({"r": (True, None, 0.4, 3)}, "needs two numbers"),
        ({"r": (True, 0.4, 0.1, 3)}, "the first end must be the lower"),
        ({"r": (True, 0, 1, 12), "alpha": (True, 0, 4, 12)}, "the budget is 60"),
        ({"suites": []}, "No suite was named"),
        ({"suites": ["demo", "math"]}, "Evaluate it on its own"),
    ],
)
def test_a_form_that_cannot_be_says_why_beside_it_and_when_started(
    changes, message, session, workspace
):
    form = sweep_panel.read_form(values(**changes))
    assert message in sweeping.count_text(form, session.loaded)
    updates = list(sweep_panel.run(values(**changes), None, session, workspace))
    assert len(updates) == 1
    assert message in updates[0][2]
    assert session.job is None


def test_the_count_says_how_much_is_asked_for():
    def text(**changes):
        form = sweep_panel.read_form(values(**changes))
        return sweeping.count_text(form, load_example("1"))

    assert text() == "6 settings, 12 questions each at most."
    assert text(search="optuna", trials=7) == "7 settings to try, 12 questions each at most."


def test_the_chart_greys_out_losers_and_marks_best_start_and_held_out(state):
    figure = sweep_view.figure(state, "r")
    traces = {trace.name: trace for trace in figure.data if trace.name}
    assert list(traces["RAM+"].x) == [0.1, 0.2]
    assert list(traces["RAM+"].y) == [pytest.approx(100 * 50 / 60), 80.0]
    grey = traces[sweep_wording.OUT_SERIES]
    assert list(grey.x) == [0.3]
    assert grey.opacity < 1
    assert traces[sweep_wording.CHOSEN_SERIES].x == (0.1,)
    assert traces[sweep_wording.HELD_SERIES].y == (75.0,)
    low, high = state.rows[0].score.ci95
    assert traces["RAM+"].error_y.array[0] == pytest.approx(100 * high - 100 * 50 / 60)
    assert traces["RAM+"].error_y.arrayminus[0] == pytest.approx(100 * 50 / 60 - 100 * low)
    assert figure.layout.shapes[0].y0 == 80.0
    assert "<b>" not in str(traces["RAM+"].customdata)
    assert sweep_view.axes_of(state) == ["r", "setting"]
    assert sweep_view.figure(state, "nonsense").layout.xaxis.title.text == "r"


def test_the_table_escapes_what_it_shows_and_puts_losers_last(state):
    html = sweep_view.found_html(state)
    assert "<i>" not in html
    assert "<b>best" not in html
    assert "&lt;i&gt;does not fit" in html
    assert "optimistic" in html
    assert [r.label for r in sweep_view.ordered(state)] == ["<b>best</b>", "start", "bad", "loser"]


def test_a_setting_goes_to_tune_and_other_methods_say_where_to_go(state, session):
    session.sweep = state
    *tuned, note, step = sweep_panel.use("start", session)
    assert tuned == [3, 0.2, 2.0, "ram+"]
    assert "start is now set in Tune" in note
    assert step == "tune"
    other = replace(state.rows[0], label="ties", method="ties", settings={"scale": 1.0})
    session.sweep = replace(state, rows=(*state.rows, other))
    *_, note, step = sweep_panel.use("ties", session)
    assert "choose this method and its setting in Merge" in note
    assert step == ""
    assert sweep_panel.use("unknown", session)[-1] == ""


def test_a_sweep_runs_draws_and_ends_with_a_table_to_take_home(session, workspace):
    updates = list(
        sweep_panel.run(values(methods=["ram+"], r=(True, 0, 0.4, 2)), "r", session, workspace)
    )
    start, stop, status, axis, chart, found, actions, pick, table, _ = updates[-1]
    assert (start["interactive"], stop["visible"], status) == (True, False, "")
    assert session.sweep.ending == "done"
    assert axis["value"] == "r"
    assert actions["visible"]
    assert chart["value"].data
    assert pick["value"] == session.sweep.winner
    assert "held-out items" in found
    lines = Path(table["value"]).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(session.sweep.rows)
    assert Path(table["value"]).is_relative_to(session.folder)


def test_stopping_keeps_what_is_finished(session, workspace):
    updates = sweep_panel.run(values(r=(True, 0, 0.5, 12)), None, session, workspace)
    for update in updates:
        if update[4].get("value") is not None:
            session.job.stop()
    assert session.sweep.ending == "stopped"
    assert sweep_wording.STOPPED in update[2]
    assert session.sweep.recheck is None
    session.load(load_example("dense"))
    assert session.sweep is None
