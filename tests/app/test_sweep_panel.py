"""The sweep panel without a browser: its form, its chart, its table, a run, and Tune's values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from app_parts import built, root_of, tuned

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app.experiment import figure, table
from ram_studio.app.experiment.landscape import landscape_figure
from ram_studio.app.experiment.sweep_panel import SweepPanel
from ram_studio.app.experiment.view import found_html, progress_html
from ram_studio.app.experiment.work import count_text
from ram_studio.app.history.view import side_by_side_html
from ram_studio.app.history.work import past_models, side_by_side
from ram_studio.app.session.answers import open_answers
from ram_studio.app.session.jobs import LOADED, Job, JobDisplay
from ram_studio.app.session.session import Experiment, Session
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.evals.experiment.race import Loss
from ram_studio.evals.experiment.result import ExperimentResult, Recheck, Row
from ram_studio.evals.experiment.search import Surrogate
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.comparison import PairedCounts
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.score import Average, DomainScore
from ram_studio.evals.store import RunKey

OFF = (False, 0.0, 1.0, 3)
OPEN = {"open": True, "__type__": "update"}


@pytest.fixture(scope="module")
def panel(tmp_path_factory) -> SweepPanel:
    settings = Settings(work_dir=tmp_path_factory.mktemp("page"))
    return built(SweepPanel, Workspace(settings))


def values(panel: SweepPanel, **changes) -> dict:
    """Return what the panel's components hold, Tune's sliders too."""
    held = {
        "methods": ["ram+", "ram+s"],
        "r": (True, 0.0, 0.4, 3),
        "alpha": OFF,
        "epsilon": (False, 1e-6, 1e-3, 3),
        "scale": OFF,
        "weight": OFF,
        "ramp": OFF,
        "search": "grid",
        "trials": 4,
        "suites": ["demo"],
        "items": 4,
        "minutes": 5,
        **changes,
    }
    data = tuned(panel.shared, r=0.2, alpha=3.0)
    data[panel.questions.choice.box] = held.pop("suites")
    for name, line in panel.ranges.items():
        data |= dict(zip(line, held.pop(name), strict=True))
    return data | {panel.axis: None} | {getattr(panel, name): v for name, v in held.items()}


def plan(panel: SweepPanel, **changes):
    session = Session("key", Path(), load_set("shared-style"))
    return panel.plan(values(panel, **changes), session)


@pytest.fixture
def state() -> ExperimentResult:
    def made(label: str, r: float, correct: int, status: str = "finished", **more) -> Row:
        score = DomainScore(60 if status != "dropped" else 15, correct)
        return Row(
            label,
            values={"method": "ram+", "r": r},
            method="ram+",
            settings={"epsilon": EPSILON_GRID[3], "r": r, "alpha": 2.0},
            status=status,
            domains={"code": score},
            average=Average.over([score]),
            agents={"coding": {"lambda": 1.0 + r}},
            **more,
        )

    loss = Loss("<b>best</b>", 15, 1, 13, 0.0009, 0.01)
    rows = (
        made("<b>best</b>", 0.1, 50),
        made("start", 0.2, 48, is_start=True),
        made("loser", 0.3, 2, "dropped", loss=loss),
        replace(
            made("bad", 0.4, 0, "failed", note="<i>does not fit</i>"),
            domains={},
            average=Average.over([]),
        ),
    )
    checked = Recheck(
        Average.over([DomainScore(60, 45)]),
        Average.over([DomainScore(60, 44)]),
        {side: {"code": DomainScore(60, 45)} for side in ("winner", "start")},
        PairedCounts(3, 2, 55),
    )
    asked = {"questions": 60, "held_out": 60, "settings": 4, "ending": "done"}
    asked |= {"rows": rows, "winner": "<b>best</b>", "skills": ("code",)}
    return ExperimentResult("sweep", "demo", 1, recheck=checked, **asked)


def test_every_box_of_a_range_has_a_label_of_its_own(panel):
    labels = [box.label for line in panel.ranges.values() for box in line]
    assert len(set(labels)) == len(labels)


def test_the_form_becomes_a_plan_with_tunes_values(panel, session):
    made = plan(panel)
    assert len(made.candidates()) == 6
    first = made.candidates()[0].recipe
    assert first.method == "ram+"
    assert first.settings["alpha"] == 3.0
    assert first.settings["epsilon"] == EPSILON_GRID[DEFAULT_INDEX]
    assert made.recipe.settings["r"] == 0.2
    weighted = values(panel) | tuned(panel.shared, r=0.2, weights={"tool": 0.5})
    loaded = Session("key", Path(), load_set("shared-style"))
    assert panel.plan(weighted, loaded).recipe.weights == {"tool": 0.5}
    soft = plan(panel, methods=["ram", "ram+s", "ties"], scale=(True, 0.5, 1.0, 2))
    own = [f"ram+s (r {r})" for r in ("0", "0.2", "0.4")]
    varied = ["ram", *own, "ties (scale 0.5)", "ties (scale 1)"]
    assert [candidate.label for candidate in soft.candidates()] == varied
    weights = {"methods": ["ram+"], "r": OFF, "weight": (True, 0.0, 1.0, 2), "search": "slim"}
    for many, answers, changes in (
        ("6 settings", 96, {}),
        ("6 settings", 108, {"r": (True, 0.0, 0.3, 3)}),
        ("7 settings to try", 120, {"search": "optuna"}),
        ("7 settings to try", 120, weights),
    ):
        data = values(panel, trials=7, **changes)
        text = panel.count_text(data, session)
        assert text.startswith(f"{many}, up to 12 questions each: up to {answers} answers.")
        timed = count_text(panel.plan(data, session), seconds_each=0.25)
        assert timed.endswith(f"At this speed it takes up to {answers / 4:.0f} s.")


def test_time_is_estimated_by_these_models_answers(panel, session, workspace):
    base, key = session.models.base, RunKey("f" * 64, "demo", 1, {})

    def told(seconds: float, number: int, **labels: Any) -> str:
        asked = Question("q", "demo", "demo", "2 + 2?", "4", None, 8)
        answer = Answer("4", True, "", {}, seconds, "end", {}, prompt="2 + 2?", tokens=1)
        with open_answers(session, workspace) as store:
            run = store.open_run(replace(key, fingerprint=f"{number}" * 64), model="m", **labels)
            store.record(run, [(asked, answer)])
        return panel.count_text(values(panel), session)

    assert told(60.0, 1, path="/another/model").endswith("up to 96 answers.")
    assert told(60.0, 2, merge={"recipe": {"base": "/another"}}).endswith("up to 96 answers.")
    assert told(0.5, 3, path=base).endswith("takes up to 48 s.")
    assert told(0.25, 4, merge={"recipe": {"base": base}}).endswith("takes up to 36 s.")


def test_time_is_estimated_by_hub_models_that_check_asked(panel, workspace):
    agents = {"tool": "someone/tool"}
    loaded = replace(load_set("shared-style"), base="someone/base", agents=agents)
    session = Session("key", workspace.root, loaded)
    asked = Question("q", "demo", "demo", "2 + 2?", "4", None, 8)
    answer = Answer("4", True, "", {}, 0.5, "end", {}, prompt="2 + 2?", tokens=1)
    folder = "/cache/models--someone--tool/snapshots/1"
    with open_answers(session, workspace) as store:
        run = store.open_run(RunKey("e" * 64, "demo", 1, {}), model="tool", path=folder)
        store.record(run, [(asked, answer)])
    assert panel.count_text(values(panel), session).endswith("up to 96 answers.")
    row = ModelAnswers.of("tool", folder, [(asked, answer)], ("demo",))
    session.report = EvalReport.of(("demo",), 1, [asked], {"tool": row})
    assert panel.count_text(values(panel), session).endswith("takes up to 48 s.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": []}, "No method is chosen"),
        ({"methods": ["ram+"], "r": OFF}, "Nothing is varied"),
        ({"r": (True, None, 0.4, 3)}, "needs two numbers"),
        ({"r": (True, 0.4, 0.1, 3)}, "the first end must be the lower"),
        # Tune, which shows the winner, and Merge have no such r.
        ({"r": (True, 0, 9, 3)}, "The range of r has 9; choose from 0 to 1."),
        ({"weight": (True, -1, 1, 3)}, "The range of weight has -1; choose from 0 to 10."),
        ({"r": (True, 0, 1, 12), "alpha": (True, 0, 4, 12)}, "is 60. Take fewer values, or"),
        ({"suites": []}, "No suite is chosen"),
        ({"suites": ["demo", "math"]}, "Evaluate it on its own"),
    ],
)
def test_an_invalid_form_says_why_beside_it_and_when_started(changes, message, session, panel):
    data = values(panel, **changes)
    assert message in panel.count_text(data, session)
    (update,) = panel.run(data, session)
    assert message in update[panel.controls.status]
    assert session.job is None


def test_the_chart_marks_losers_best_start_and_held_out(state):
    drawn = figure.experiment_figure(state, "r")
    traces = {trace.name: trace for trace in drawn.data if trace.name}
    assert list(traces["RAM+"].x) == [0.1, 0.2]
    assert list(traces["RAM+"].y) == [pytest.approx(100 * 50 / 60), 80.0]
    gray = traces["Clearly worse"]
    assert list(gray.x) == [0.3]
    assert gray.opacity < 1
    assert traces["Best"].x == (0.1,)
    assert traces["Best, on held-out questions"].y == (75.0,)
    low, high = state.rows[0].average.ci95
    assert traces["RAM+"].error_y.array[0] == pytest.approx(100 * high - 100 * 50 / 60)
    assert traces["RAM+"].error_y.arrayminus[0] == pytest.approx(100 * 50 / 60 - 100 * low)
    assert drawn.layout.shapes[0].y0 == 80.0
    assert "<b>" not in str(traces["RAM+"].customdata)
    assert figure.axes_of(state) == ["r", "setting"]
    assert figure.experiment_figure(state, "unknown").layout.xaxis.title.text == "r"


def test_the_landscape_colors_two_axes_or_three_agents(state):
    rows = tuple(
        replace(row, values={**row.values, "weight.<b>a": 0.1 * i})
        for i, row in enumerate(state.rows)
    )
    two = replace(state, rows=rows)
    assert figure.axes_of(two) == ["r", "weight.<b>a", "landscape", "setting"]
    drawn = figure.experiment_figure(two, "landscape")
    points, best, start = drawn.data
    assert list(points.x) == [0.1, 0.2, 0.3]
    assert list(points.marker.color) == [pytest.approx(100 * 50 / 60), 80.0, 100 * 2 / 15]
    assert (best.x, start.x) == ((0.1,), (0.2,))
    assert "<b>" not in str(drawn.layout.yaxis.title.text) + str(points.customdata)

    agents = ("<b>a", "b", "c")
    surrogate = Surrogate(agents, (0.2, 0.4, 0.6), (0.5, 0.5, 0.5), (0.0,) * 3, (1.0,) * 3)
    found = replace(
        state,
        surrogate=surrogate,
        rows=tuple(
            replace(row, weights=dict(zip(agents, weights, strict=True)))
            for row, weights in zip(
                state.rows, [(1, 0, 0), (1, 1, 1), (0, 1, 1), (1, 1, 0)], strict=True
            )
        ),
    )
    drawn = landscape_figure(found)
    predicted, measured, *_ = drawn.data
    corner = next(i for i, a in enumerate(predicted.a) if a == 1)
    assert predicted.marker.color[corner] == pytest.approx(20)
    assert list(measured.a) == [1, pytest.approx(1 / 3), 0]
    assert predicted.marker.cmin == measured.marker.cmin
    assert "<b>" not in drawn.layout.ternary.aaxis.title.text


def test_the_table_escapes_what_it_shows_and_puts_losers_last(state):
    html = found_html(state)
    assert "<i>" not in html
    assert "<b>best" not in html
    assert "optimistic" in html
    value = table.experiment_grid(state).value()
    outcome = value["headers"].index("Outcome")
    shown = value["metadata"]["display_value"]
    assert [row[0] for row in shown] == ["<b>best</b>", "start", "bad", "loser"]
    assert [row[outcome] for row in shown] == [
        "best",
        "no significant difference · starting point",
        "failed · <i>does not fit</i>",
        "dropped · +1 −13 of 15",
    ]
    assert [row[2] for row in value["data"]] == [50 / 60, 48 / 60, -1, 2 / 15]


def test_the_count_is_told_as_the_panel_opens(panel):
    events = root_of(panel.count).fns.values()
    opened = [event for event in events if (panel.fold._id, "expand") in event.targets]
    assert any(panel.count in event.outputs for event in opened)


def test_progress_has_words_before_the_first_answer(state):
    assert "Preparing the models" in progress_html(replace(state, answers=0))
    assert "ram+ (r 0.1)" in progress_html(replace(state, now="ram+ (r 0.1)"))


def test_a_setting_goes_to_tune_or_says_where_to_go(state, session, panel):
    def use(label: str) -> tuple:
        updates = panel.use_setting(label, session)
        tune = json.loads(updates.get(panel.shared.tuning.value, "{}"))
        return tune, updates[panel.note], updates[panel.target]

    session.experiments["sweep"] = Experiment(state, ())
    tune, note, step = use("start")
    assert tune == {"method": "ram+", "point": 3, "r": 0.2, "alpha": 2.0, "weights": {}}
    assert "start is now set in Tune" in note
    assert step == "tune"
    rival = replace(state.rows[0], label="ties", method="ties", settings={"scale": 1.0})
    other = replace(state.rows[0], label="fisher", method="fisher", settings={"scale": 1.0})
    # Methods that Tune shows, set otherwise than it has them.
    adam = replace(state.rows[0], label="wudi", method="wudi", settings={"solver": "adam"})
    shared = replace(state.rows[0], label="ties inside", method="ram", settings={"shared": "ties"})
    pair = replace(state.rows[0], label="coding + tool", merged_agents=("coding", "tool"))
    rows = (*state.rows, rival, other, adam, shared, pair)
    session.experiments["sweep"] = Experiment(replace(state, rows=rows), ())
    assert use("ties")[0] == {"method": "ties", "scale": 1.0, "weights": {}}
    for label, where in (
        ("wudi", "choose this method and its setting in Merge"),
        ("ties inside", "choose this method and its setting in Merge"),
        ("fisher", "Only the command line runs this method"),  # Merge does not offer it
        ("coding + tool", "merges only coding and tool"),
    ):
        tune, note, step = use(label)
        assert where in note
        assert (tune, step) == ({}, "")
    assert use("unknown")[-1] == ""


def test_a_sweep_runs_draws_and_ends_with_a_table_to_take_home(session, workspace, panel):
    data = values(panel, methods=["ram+"], r=(True, 0, 0.4, 2)) | {panel.axis: "r"}
    *_, last = panel.run(data, session)
    assert last[panel.controls.start]["interactive"]
    assert not last[panel.controls.stop]["visible"]
    assert last[panel.controls.status] == ""
    found = session.experiments["sweep"].result
    assert found.ending == "done"
    assert last[panel.axis]["value"] == "r"
    assert last[panel.actions]["visible"]
    assert last[panel.chart]["value"].data
    assert last[panel.pick]["value"] == found.winner
    assert "held-out questions" in last[panel.found]
    table_file, report = (Path(last[box]["value"]) for box in panel.files)
    assert "held-out questions" in report.read_text(encoding="utf-8")
    path = table_file
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(found.rows)
    assert path.is_relative_to(session.folder)

    # Its merges stand in History, to be put side by side on the skills that a sweep asks.
    models = past_models(session, workspace)
    assert {model.name for model in models} == {"ram+ (r 0.4)", "ram+ (r 0.2)", "ram+ (r 0)"}
    assert all(model.merge for model in models)
    found = side_by_side([model.id for model in models], "demo", None, session, workspace)
    assert "follow" not in found.result.report.items
    html = side_by_side_html(found)
    assert html.count("ram+ (r 0.4)") >= 2
    assert "▲" in html or "~" in html


def test_stopping_keeps_what_is_finished(session, panel):
    for update in panel.run(values(panel, r=(True, 0, 0.5, 12)), session):
        if update.get(panel.chart, {}).get("value") is not None:
            session.job.stop()
    found = session.experiments["sweep"].result
    assert found.ending == "stopped"
    assert "Finished answers are stored" in update[panel.controls.status]
    assert found.recheck is None
    session.load(load_set("dense"))
    assert session.experiments == {}


def test_a_sweep_shows_nothing_among_other_models(session, panel):
    told = []
    for update in panel.run(values(panel, r=(True, 0, 0.5, 12)), session):
        told.append(update)
        if session.job.why != LOADED and update.get(panel.chart, {}).get("value") is not None:
            session.job.stop(LOADED)
            session.load(load_set("dense"))
            told.clear()
    assert session.experiments == {}
    assert "other models were loaded" in told[-1][panel.controls.status]
    assert all(panel.chart not in update for update in told)


def test_a_job_found_again_opens_its_folded_panel(panel):
    session = panel.shared.workspace.session("tab")
    session.load(load_set("shared-style"))
    job = Job(session, lambda report, cancel: None)
    job.display = JobDisplay(panel.controls, lambda event: "", lambda result: {}, None)
    page = root_of(panel.count)
    [button] = [box for box in page.blocks.values() if box.elem_id == "resume-sweep-start"]
    [again] = [event for event in page.fns.values() if (button._id, "click") in event.targets]
    request = gr.Request(session_hash="tab")
    opened = [box for updates in again.fn(request) for box in updates if updates[box] == OPEN]
    assert [box.elem_id for box in opened] == ["sweep-panel"]
    assert set(opened) <= set(again.outputs)
